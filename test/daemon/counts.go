package daemon

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
)

var goroutinesLine = regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)

// Counts are what a daemon must not have more and more of: its goroutines, and the
// descriptors of it and of its device host.
type Counts struct {
	Goroutines, Descriptors, HostDescriptors int
}

// Counts tells how many there are now.
func (d *Daemon) Counts() Counts {
	d.t.Helper()
	defer http.DefaultClient.CloseIdleConnections()
	reply, err := http.Get("http://" + d.HTTP + "/metrics")
	if err != nil {
		d.t.Fatal(err)
	}
	body, err := io.ReadAll(reply.Body)
	reply.Body.Close()
	m := goroutinesLine.FindSubmatch(body)
	if err != nil || m == nil {
		d.t.Fatalf("metrics without go_goroutines: %v", err)
	}
	n, _ := strconv.Atoi(string(m[1]))
	return Counts{n, d.descriptors(d.PID()), d.descriptors(d.Host("soft").PID)}
}

func (d *Daemon) descriptors(pid int) int {
	d.t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		d.t.Fatal(err)
	}
	return len(list)
}

// Within tells whether nothing is more than in other.
func (c Counts) Within(other Counts) bool {
	return c.Goroutines <= other.Goroutines && c.Descriptors <= other.Descriptors && c.HostDescriptors <= other.HostDescriptors
}
