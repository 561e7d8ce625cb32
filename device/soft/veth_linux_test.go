package soft

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/devicetest"
	"github.com/accelfab/accelfab/device/ib"
)

// cable is two network namespaces with a veth pair between them. End i has
// the addresses 10.92.0.i and .1i, fd92::i and fe80::i on the interface v0.
type cable [2]string

func newCable(t *testing.T, mtu int) (c cable) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip; tools/deps.sh installs it")
	}
	id := fmt.Sprintf("afv%d-%03d", os.Getpid(), rand.IntN(1000))
	c = cable{id + "a", id + "b"}
	for _, ns := range c {
		ip(t, "netns", "add", ns)
		t.Cleanup(func() { exec.Command("ip", "netns", "del", ns).Run() })
		ip(t, "-n", ns, "link", "set", "lo", "up")
		// Addresses are ready at once, and only those that are given.
		ip(t, "netns", "exec", ns, "sh", "-c", "cd /proc/sys/net/ipv6/conf && for f in all default; do echo 0 > $f/accept_dad && echo 1 > $f/addr_gen_mode; done")
	}
	// One index, as package net keeps that of a name for some time.
	ip(t, "link", "add", "v0", "index", "92", "address", c.hardware(0), "netns", c[0], "type", "veth",
		"peer", "name", "v0", "index", "92", "address", c.hardware(1), "netns", c[1])
	for i, ns := range c {
		ip(t, "-n", ns, "link", "set", "v0", "mtu", fmt.Sprint(mtu), "up")
		for _, a := range []string{"10.92.0.%d/24", "10.92.0.1%d/24", "fd92::%d/64", "fe80::%d/64"} {
			ip(t, "-n", ns, "addr", "add", fmt.Sprintf(a, i+1), "dev", "v0")
		}
		for _, a := range []string{"fd92::%d", "fe80::%d"} {
			ip(t, "-n", ns, "neigh", "add", fmt.Sprintf(a, 2-i), "lladdr", c.hardware(1-i), "dev", "v0")
		}
	}
	deadline := time.Now().Add(30 * time.Second)
	for _, ns := range c {
		for ip(t, "-n", ns, "addr", "show", "dev", "v0", "tentative") != "" {
			if time.Now().After(deadline) {
				t.Fatal("the addresses do not become ready")
			}
		}
	}
	return c
}

func (cable) hardware(end int) string { return fmt.Sprintf("02:00:00:00:92:0%d", end+1) }

func ip(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// at runs f inside the network namespace of an end. The sockets that f opens
// stay there.
func (c cable) at(end int, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never lets it go: the thread ends with the goroutine
		ns, err := os.Open("/run/netns/" + c[end])
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			ns.Close()
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// open opens a chassis of one card at an end of the cable.
func (c cable) open(t *testing.T, end int, networks string) *Chassis {
	t.Helper()
	cfg, err := ParseSpec("soft:hls-2,cards=1,memory=64MiB,network=" + networks)
	if err != nil {
		t.Fatal(err)
	}
	cfg.LockDir = t.TempDir()
	var ch *Chassis
	if err := c.at(end, func() (err error) { ch, err = Open(cfg); return }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ch.Close() })
	return ch
}

func TestTrafficBetweenInterfaces(t *testing.T) {
	for _, m := range []struct {
		mtu    int
		active ib.MTU
	}{{1500, ib.MTU1024}, {4400, ib.MTU4096}} {
		t.Run(fmt.Sprint(m.mtu), func(t *testing.T) {
			c := newCable(t, m.mtu)
			a, b := c.open(t, 0, "10.92.0.1+fd92::/64").cards[0], c.open(t, 1, "10.92.0.2+fd92::/64").cards[0]
			port := scaleOut(t, a)
			p, err := a.Port(context.Background(), port)
			if err != nil {
				t.Fatal(err)
			}
			var table []string
			for _, e := range p.GIDs {
				table = append(table, fmt.Sprint(e.Index, " ", e.GID, " ", e.Type))
			}
			if got, want := strings.Join(table, ", "), "0 fe80::1 RoCE v2, 1 ::ffff:10.92.0.1 RoCE v2, 2 fd92::1 RoCE v2"; got != want {
				t.Errorf("GID table %s, want %s", got, want)
			}
			if p.ActiveMTU != m.active || p.State != device.PortActive || p.Reason != "" {
				t.Errorf("port %+v", p)
			}
			for index, family := range []string{"link-local", "IPv4", "IPv6"} {
				t.Run(family, func(t *testing.T) {
					ea, eb := newEnd(t, a, port, 1<<20), newEnd(t, b, port, 1<<20)
					ea.gid, eb.gid = index, index
					exchange(t, ea, eb, m.active)
				})
			}
		})
	}
}

func TestSuiteOverIPv6(t *testing.T) {
	c := newCable(t, 1500)
	devicetest.Run(t, func(t *testing.T) devicetest.Pair {
		a, b := c.open(t, 0, "fd92::1").cards[0], c.open(t, 1, "fd92::2").cards[0]
		t.Cleanup(func() {
			for _, c := range []*card{a, b} {
				if n := c.ports[scaleOut(t, c)].counters.read(); n.IDsPredicted+n.IDsSolved != 0 {
					t.Errorf("counters %+v: IPv6 has no identification", n)
				}
			}
		})
		return devicetest.Pair{A: a, B: b, PortA: scaleOut(t, a), PortB: scaleOut(t, b), NotConnected: notConnected(a)}
	})
}

// While Linux looks whether somebody else has a new IPv6 address, nothing but
// this device can use it.
func TestAddressThatIsNotReadyYet(t *testing.T) {
	c := newCable(t, 1500)
	// It looks for as many seconds as it asks, which is more than any test takes.
	ip(t, "netns", "exec", c[0], "sh", "-c", "cd /proc/sys/net/ipv6/conf/v0 && echo 1 > accept_dad && echo 1000 > dad_transmits")
	ip(t, "-n", c[0], "addr", "add", "fd92::99/64", "dev", "v0")
	ch := c.open(t, 0, "fd92::99")
	if !strings.Contains(ip(t, "-n", c[0], "addr", "show", "dev", "v0", "tentative"), "fd92::99") {
		t.Fatal("the address is ready before its time")
	}
	if e := ch.cards[0].ports[scaleOut(t, ch.cards[0])].preferred(); e.GID.String() != "fd92::99" {
		t.Errorf("GID %v", e.GID)
	}
}

// What a queue pair is to put into the IP header is there at the other end, and
// marks of congestion are counted.
func TestTrafficClassAndHopLimit(t *testing.T) {
	c := newCable(t, 1500)
	a, b := c.open(t, 0, "10.92.0.1+fd92::1").cards[0], c.open(t, 1, "10.92.0.2+fd92::2").cards[0]
	port := scaleOut(t, a)
	for _, f := range []struct {
		gid      int
		class    uint8
		hops     uint8
		congestd uint64
	}{{1, 0x20, 0, 0}, {1, 0x23, 7, 1}, {2, 0x20, 0, 0}, {2, 0x23, 7, 1}} {
		t.Run(fmt.Sprintf("GID index %d, class %#x, hops %d", f.gid, f.class, f.hops), func(t *testing.T) {
			ea, eb := newEnd(t, a, port, 4096), newEnd(t, b, port, 4096)
			from, to := ea.datagrams(device.ToRTR{GIDIndex: f.gid, TrafficClass: f.class, HopLimit: f.hops}), eb.datagrams(device.ToRTR{GIDIndex: -1})
			first := b.ports[port].counters.read().CongestionMarks
			if err := b.Post(context.Background(), to.UID, []device.WorkRequest{{Opcode: device.WorkRecv, SGL: eb.sge(0, 4096)}}); err != nil {
				t.Fatal(err)
			}
			dest := &device.Datagram{GID: b.ports[port].gids[f.gid].GID, QPN: to.QPN, QKey: 5}
			if err := a.Post(context.Background(), from.UID, []device.WorkRequest{{Opcode: device.WorkSend, SGL: ea.sge(0, 8), Dest: dest}}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			if list, err := b.Completions(ctx, to.UID, 1); err != nil || list[0].Status != ib.Success {
				t.Fatalf("%+v, %v", list, err)
			}
			grh := eb.bytes()[:40]
			class, hops, want := grh[0]<<4|grh[1]>>4, grh[7], f.hops
			if f.gid == 1 {
				class, hops = grh[21], grh[28]
			}
			if want == 0 {
				want = 64
			}
			if class != f.class || hops != want {
				t.Errorf("class %#x and hop limit %d arrived, want %#x and %d", class, hops, f.class, want)
			}
			if n := b.ports[port].counters.read().CongestionMarks - first; n != f.congestd {
				t.Errorf("%d congestion marks, want %d", n, f.congestd)
			}
		})
	}
}

// datagrams makes a UD queue pair with the Q_Key 5.
func (e *end) datagrams(rtr device.ToRTR) device.QueuePair {
	e.t.Helper()
	qp := e.CreateQueuePairs(context.Background(), []device.QueuePairSpec{{UID: newUID(), PD: e.pd, Port: e.qp.Port, Type: ib.UD,
		Steps: []device.Transition{device.ToInit{PKey: ib.DefaultPKey, QKey: 5}, rtr, device.ToRTS{}}}})[0]
	if qp.Err != nil {
		e.t.Fatal(qp.Err)
	}
	return qp.QueuePair
}

// Soft-RoCE sends from a source port of the queue pair's and without UDP
// checksum, which sockets take from IPv4 alone unless they are told otherwise.
func TestPacketsWithoutUDPChecksum(t *testing.T) {
	c := newCable(t, 1500)
	b := c.open(t, 1, "10.92.0.2+fd92::2").cards[0]
	p := b.ports[scaleOut(t, b)]
	for i, src := range []string{"10.92.0.1", "fd92::1"} {
		var conn net.PacketConn
		listen := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
			raw.Control(func(fd uintptr) {
				if i == 1 {
					err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_TX, 1)
				} else {
					err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1),
						unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO))
				}
			})
			return err
		}}
		if err := c.at(0, func() (err error) {
			conn, err = listen.ListenPacket(context.Background(), "udp", netip.AddrPortFrom(netip.MustParseAddr(src), 0).String())
			return
		}); err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		from, to := conn.LocalAddr().(*net.UDPAddr).AddrPort(), netip.AddrPortFrom(p.gids[i+1].GID.Addr(), ib.UDPPort)
		packet := ib.Packet{BTH: ib.BTH{Opcode: ib.UDSendOnly, PKey: ib.DefaultPKey, DestQP: 77}, Payload: []byte("unasked!")}
		body := packet.Append(nil)
		header := newHeader(from, to)
		first := p.counters.read()
		if _, err := conn.WriteTo(ib.AppendICRC(body, header.icrc(0, body)), net.UDPAddrFromAddrPort(to)); err != nil {
			t.Fatal(err)
		}
		if got := settled(t, p, first, 1); got.UnknownQPs != first.UnknownQPs+1 || got.ICRCErrors != first.ICRCErrors {
			t.Errorf("from %s: counters %+v", src, got)
		}
	}
}
