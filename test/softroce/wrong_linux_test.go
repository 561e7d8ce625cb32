package softroce

import (
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
	"github.com/accelfab/accelfab/test/daemon"
)

// statusTerminated is of a command that timeout has ended.
const statusTerminated = 128 + 15

// TestWrongFlags gives the programs of Linux what does not fit. Both ends fail,
// in time and with words, and the device serves the next one.
func TestWrongFlags(t *testing.T) {
	p := thePeer(t, largeMTU)
	d := startDaemon(t, p)
	for _, c := range []struct{ name, linux, ours string }{
		{"GID of another family", "ibv_rc_pingpong -g 0", "rc -g 1"},
		{"no GID", "ibv_rc_pingpong", "rc -g 1"},
		{"size too large", "ibv_rc_pingpong -g 1 -s 8192", "rc -g 1 -s 4096"},
		{"size too small", "ibv_rc_pingpong -g 1 -s 1024", "rc -g 1 -s 4096"},
		{"datagram too large", "ibv_ud_pingpong -g 1 -s 2048", "ud -g 1 -s 1024"},
		{"other program", "ibv_srq_pingpong -g 1 -q 3", "rc -g 1"},
	} {
		for _, linuxServes := range []bool{true, false} {
			e := exchange{kind: "rc", linuxServes: linuxServes, size: 1024, gid: gidIPv4}
			program := strings.Fields(c.linux)[0]
			t.Run(c.name+" "+e.role(), func(t *testing.T) {
				r := row{program, e.role(), "4096", "", c.name, ""}
				defer func() { record(t, r) }()
				m := meet(t, p, d, linuxServes, "timeout 5 "+c.linux, append([]string{"pingpong"}, strings.Fields(c.ours)...))
				if m.status == 0 || m.err == nil || !strings.Contains(m.we, "accelfab: ") {
					t.Error("want both to fail, with words")
				}
				t.Log(m)
				r.result = "ok, fails with words, the next one is served"
				if m.status == statusTerminated { // what we refused is not for it to see
					r.result = "ok, we fail with words and it waits on, the next one is served"
				}
				servesTheNext(t, p, d)
			})
		}
	}
	t.Run("QPN of nobody", func(t *testing.T) {
		defer record(t, row{"ibv_rc_pingpong", "client", "4096", "", "QPN of nobody", "ok, it tries on, the next one is served"})
		l, err := p.listen(net.JoinHostPort(ourAddress, "18515"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		before := unknownQPs(t, d)
		linux := p.command(t, "timeout 4 ibv_rc_pingpong -g 1 "+ourAddress)
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(commandLimit))
		text := make([]byte, len("0000:000000:000000:")+32+1)
		gid := netip.MustParseAddr("::ffff:" + ourAddress).As16()
		if _, err := io.ReadFull(conn, text); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "0000:%06x:000001:%s\x00", 0x777777, hex.EncodeToString(gid[:]))
		// With 7 retries, as the program asks for, rxe tries for ever (rxe_comp.c).
		if out, status := linux.finish(t); status != statusTerminated {
			t.Errorf("Linux ended with status %d:\n%s", status, out)
		}
		if after := unknownQPs(t, d); after == before {
			t.Error("the port counts no packet for a queue pair that is not there")
		}
		servesTheNext(t, p, d)
	})
}

// servesTheNext looks that nothing is left of the last one and lets the device
// serve another.
func servesTheNext(t *testing.T, p *peer, d *daemon.Daemon) {
	t.Helper()
	r, err := d.Dial().Sessions.ListSessions(t.Context(), &pb.ListSessionsRequest{Parent: "nodes/local"})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range r.GetSessions() {
		t.Errorf("%s is left", s.GetName())
	}
	e := exchange{kind: "rc", linuxServes: true, size: 1025, gid: gidIPv4}
	if _, err := e.once(t, p, d, 4096); err != nil {
		t.Errorf("the next one: %v", err)
	}
}

func unknownQPs(t *testing.T, d *daemon.Daemon) uint64 {
	t.Helper()
	port, err := d.Dial().Devices.GetPort(t.Context(), &pb.GetPortRequest{Name: "nodes/local/devices/soft-0/ports/8"})
	if err != nil {
		t.Fatal(err)
	}
	return port.GetCounters().GetUnknownQps()
}
