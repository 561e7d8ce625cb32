package softroce

import (
	"strings"
	"testing"
	"time"

	"github.com/accelfab/accelfab/test/daemon"
)

// startRping has a program ask for a connection by RDMA-CM, which nobody answers
// here. It gives up after the time that Linux takes for that, more than a minute,
// in which the device is to serve others; the function that comes back waits for
// it and lets the device serve one more.
func startRping(t *testing.T, p *peer) func(*daemon.Daemon) {
	t.Helper()
	const limit = 4 * time.Minute
	rping := p.command(t, "timeout 200 rping -c -C 1 -v -a "+ourAddress)
	rping.SetDeadline(time.Now().Add(limit))
	return func(d *daemon.Daemon) {
		t.Run("rping", func(t *testing.T) {
			defer record(t, row{"rping", "client", "4096", "", "RDMA-CM", "ok, gives up, the next one is served"})
			out, status := rping.finish(t)
			if status == 0 || !strings.Contains(out, "UNREACHABLE") {
				t.Errorf("rping ended with status %d:\n%s", status, out)
			}
			servesTheNext(t, p, d)
		})
	}
}
