package softroce

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dial connects from within the namespace.
func (p *peer) dial(address string) (conn net.Conn, err error) {
	p.inside(func() { conn, err = net.DialTimeout("tcp", address, 10*time.Second) })
	return conn, err
}

// listen listens within the namespace.
func (p *peer) listen(address string) (l net.Listener, err error) {
	p.inside(func() { l, err = net.Listen("tcp", address) })
	return l, err
}

// inside calls f on a thread of the namespace. A socket belongs to the namespace
// in which it was made.
func (p *peer) inside(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		ns, err := os.Open("/var/run/netns/" + p.netns)
		if err != nil {
			panic(err)
		}
		defer ns.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			panic(err)
		}
		f()
	}()
	<-done
}

const netnsPrefix = "afroce"

// removeLeftovers ends what tests that were killed have left: what runs in
// namespaces whose names say that their maker is no more.
func removeLeftovers() {
	entries, _ := os.ReadDir("/var/run/netns")
	for _, e := range entries {
		maker, _, _ := strings.Cut(strings.TrimPrefix(e.Name(), netnsPrefix), "-")
		pid, err := strconv.Atoi(maker)
		if err != nil || !strings.HasPrefix(e.Name(), netnsPrefix) || syscall.Kill(pid, 0) != syscall.ESRCH {
			continue
		}
		out, _ := exec.Command("ip", "netns", "pids", e.Name()).Output()
		for _, field := range strings.Fields(string(out)) {
			if pid, err := strconv.Atoi(field); err == nil {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		run("ip", "netns", "del", e.Name())
	}
}

// run runs a program that says nothing if it succeeds.
func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
