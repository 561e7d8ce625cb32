package soft

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/topology"
)

// stranger sends packets from an address of its own.
type stranger struct {
	t      testing.TB
	socket *socket
	addr   netip.Addr
}

func newStranger(t testing.TB) *stranger {
	t.Helper()
	// Other tests of this machine may have strangers too.
	for addr := netip.MustParseAddr("127.127.9.1"); ; addr = addr.Next() {
		s, err := openSocket(addr)
		if errors.Is(err, errHeld) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.close() })
		return &stranger{t, s, addr}
	}
}

// send sends a packet with the IP identification id under its invariant CRC;
// the real one is 0.
func (s *stranger) send(to netip.Addr, p ib.Packet, id uint16, spoil func([]byte) []byte) {
	s.t.Helper()
	pseudo := ib.PseudoIPv4{Src: s.addr.As4(), Dst: to.As4(), SrcPort: ib.UDPPort, DstPort: ib.UDPPort, DontFragment: true, ID: id}
	b := p.Append(nil)
	b = ib.AppendICRC(b, pseudo.ICRC(b))
	if spoil != nil {
		b = spoil(b)
	}
	if err := s.socket.write(b, nil, netip.AddrPortFrom(to, ib.UDPPort)); err != nil {
		s.t.Fatal(err)
	}
}

// turnedAway counts the packets that did nothing but add to a counter.
func turnedAway(c device.PortCounters) uint64 {
	return c.WiringViolations + c.Truncated + c.ICRCErrors + c.UnsupportedVersions + c.UnknownOpcodes + c.Malformed +
		c.CNPsReceived + c.UnknownQPs + c.PKeyViolations + c.QKeyViolations + c.OutOfSequence + c.DuplicateRequests +
		c.RemoteAccessErrors + c.InvalidRequests + c.UnexpectedPackets
}

// ipv4 is the socket of the port's IPv4 address.
func (p *port) ipv4() *socket { return p.entry(1, ib.GID{}).socket }

// settled waits until the port has received n packets more than at first and
// gives what changed.
func settled(t *testing.T, p *port, first device.PortCounters, n uint64) device.PortCounters {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		now := p.counters.read()
		if sum := turnedAway(now) - turnedAway(first); sum >= n {
			return now
		}
		if time.Now().After(deadline) {
			t.Fatalf("counters stay %+v", now)
		}
	}
}

func TestPacketFromAPortThatIsNotCabledHere(t *testing.T) {
	ch := openChassis(t, t.TempDir(), testSpec)
	ca, pa, cb, pb := cabledPair(t, ch)
	a, b := newEnd(t, ca, pa, 1<<12), newEnd(t, cb, pb, 1<<12)
	connect(t, a, b, ib.MTU1024)
	p := cb.ports[pb]
	first := p.counters.read()
	packet := ib.Packet{BTH: ib.BTH{Opcode: ib.RCSendOnly, PKey: ib.DefaultPKey, DestQP: b.qp.QPN, PSN: 0xfffff0, AckReq: true}, Payload: []byte("forged")}
	s := newStranger(t)
	for range 3 {
		s.send(p.ipv4().addr, packet, 0, nil)
	}
	got := settled(t, p, first, 3)
	if got.WiringViolations-first.WiringViolations != 3 || got.AcksSent != first.AcksSent {
		t.Errorf("counters %+v, before %+v", got, first)
	}
	// A port of the same chassis that is not the cabled one is a stranger too.
	var other *port
	for _, o := range ca.ports {
		if o.plugged() && o.number != pa {
			other = o
			break
		}
	}
	if p.cabled(other.ipv4().addr) || !p.cabled(ca.ports[pa].ipv4().addr) {
		t.Error("the cable is not what the map says")
	}
	out := ca.ports[scaleOut(t, ca)]
	if out.cabled(p.ipv4().addr) || !out.cabled(s.addr) {
		t.Error("a scale-out port takes what comes from its own chassis, or not what comes from outside")
	}
	transfer(t, a, b)
}

func TestWhatDoesNotBelongIsCountedByReason(t *testing.T) {
	c := openChassis(t, t.TempDir(), "soft:hls-2,cards=1,memory=64MiB").cards[0]
	e := newEnd(t, c, scaleOut(t, c), 1<<12)
	p := c.ports[e.qp.Port]
	s := newStranger(t)
	r := e.ModifyQueuePairs(context.Background(), []device.QueuePairChange{{UID: e.qp.UID, Steps: []device.Transition{
		device.ToRTR{Remote: device.Remote{GID: ib.GIDFromAddr(s.addr), QPN: 77}, GIDIndex: 1, PathMTU: ib.MTU1024},
	}}})[0]
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	send := ib.Packet{BTH: ib.BTH{Opcode: ib.RCSendOnly, PKey: ib.DefaultPKey, DestQP: e.qp.QPN}}
	unknown, key, opcode, cnp := send, send, send, ib.Packet{BTH: ib.BTH{Opcode: ib.CNP, PKey: ib.DefaultPKey}, Payload: make([]byte, 16)}
	other := newStranger(t)
	unknown.DestQP ^= 1
	key.PKey = 0x8001
	opcode.Opcode = 0x3f
	for _, c := range []struct {
		name  string
		send  func()
		count func(device.PortCounters) uint64
	}{
		{"unknown queue pair", func() { s.send(p.ipv4().addr, unknown, 0, nil) }, func(c device.PortCounters) uint64 { return c.UnknownQPs }},
		{"not the peer", func() { other.send(p.ipv4().addr, send, 0, nil) }, func(c device.PortCounters) uint64 { return c.UnknownQPs }},
		{"other partition", func() { s.send(p.ipv4().addr, key, 0, nil) }, func(c device.PortCounters) uint64 { return c.PKeyViolations }},
		{"unknown opcode", func() { s.send(p.ipv4().addr, opcode, 0, nil) }, func(c device.PortCounters) uint64 { return c.UnknownOpcodes }},
		{"too short", func() { s.send(p.ipv4().addr, send, 0, func(b []byte) []byte { return b[:15] }) }, func(c device.PortCounters) uint64 { return c.Truncated }},
		{"nothing in it", func() { s.send(p.ipv4().addr, send, 0, func(b []byte) []byte { return nil }) }, func(c device.PortCounters) uint64 { return c.Truncated }},
		{"spoilt", func() {
			s.send(p.ipv4().addr, send, 0, func(b []byte) []byte { b[3] ^= 1; b[9] ^= 0x40; return b })
		}, func(c device.PortCounters) uint64 { return c.ICRCErrors }},
		{"congestion notification", func() { s.send(p.ipv4().addr, cnp, 0, nil) }, func(c device.PortCounters) uint64 { return c.CNPsReceived }},
		{"other identification", func() { s.send(p.ipv4().addr, unknown, 4711, nil) }, func(c device.PortCounters) uint64 { return c.IDsSolved }},
		{"one more", func() { s.send(p.ipv4().addr, unknown, 4712, nil) }, func(c device.PortCounters) uint64 { return c.IDsPredicted }},
	} {
		first := p.counters.read()
		c.send()
		if got := settled(t, p, first, 1); c.count(got) != c.count(first)+1 {
			t.Errorf("%s: counters %+v, before %+v", c.name, got, first)
		}
	}
	if got, _ := e.GetQueuePair(context.Background(), e.qp.UID); got.State != ib.RTR {
		t.Errorf("queue pair %+v", got)
	}
}

func TestPortOfTheMap(t *testing.T) {
	ch := openChassis(t, t.TempDir(), testSpec)
	for _, c := range ch.cards {
		ibPort := uint32(0)
		for _, w := range c.ports {
			p, err := c.Port(context.Background(), w.number)
			if err != nil {
				t.Fatal(err)
			}
			if w.wiring.Class == topology.NotConnected {
				if p.IBPort != 0 || p.State != device.PortDown || len(p.GIDs) != 0 {
					t.Errorf("port that leads nowhere: %+v", p)
				}
				continue
			}
			ibPort++
			if p.IBPort != ibPort || p.State != device.PortActive || p.ActiveMTU != ib.MTU4096 || p.SpeedMbps != 100000 ||
				p.PeerModule != w.wiring.PeerCard || p.PeerPort != w.wiring.PeerPort {
				t.Errorf("port %+v", p)
			}
			if len(p.GIDs) != 2 || !p.GIDs[0].GID.IsLinkLocal() || p.GIDs[1].GID != ib.GIDFromAddr(w.ipv4().addr) {
				t.Errorf("GID table %+v", p.GIDs)
			}
		}
	}
}

// TestCaseQ02 holds case Q02: ends that chose different address families are
// told so, with both named.
func TestCaseQ02(t *testing.T) {
	ch := openChassis(t, t.TempDir(), testSpec)
	ca, pa, cb, pb := cabledPair(t, ch)
	a, b := newEnd(t, ca, pa, 1<<12), newEnd(t, cb, pb, 1<<12)
	good := a.rtr(b, ib.MTU1024)
	local, mapped := good, good
	local.Remote.GID = cb.ports[pb].gids[0].GID
	mapped.GIDIndex = 0
	for _, bad := range []device.ToRTR{local, mapped} {
		r := a.ModifyQueuePairs(context.Background(), []device.QueuePairChange{{UID: a.qp.UID, Steps: []device.Transition{bad}}})[0]
		var field *device.FieldError
		if !errors.As(r.Err, &field) || field.Field != "gid_index" || !strings.Contains(field.Problem, "IPv4") || !strings.Contains(field.Problem, "IPv6 link-local") {
			t.Errorf("error %v", r.Err)
		}
		if r.State != ib.Init {
			t.Errorf("state %v, want INIT", r.State)
		}
	}
	bad := local
	bad.GIDIndex = 0
	r := a.ModifyQueuePairs(context.Background(), []device.QueuePairChange{{UID: a.qp.UID, Steps: []device.Transition{bad}}})[0]
	var field *device.FieldError
	if !errors.As(r.Err, &field) || field.Field != "gid_index" || !strings.Contains(field.Problem, "has no link-local addresses") {
		t.Errorf("link-local at both ends: %v", r.Err)
	}
}

// TestPathsThatAreNotCabled holds the map against connections: the refusal says
// where the cable leads.
func TestPathsThatAreNotCabled(t *testing.T) {
	ch := openChassis(t, t.TempDir(), testSpec)
	ca, pa, cb, pb := cabledPair(t, ch)
	inside := newEnd(t, ca, pa, 1<<12)
	outside := newEnd(t, ca, scaleOut(t, ca), 1<<12)
	peer := newEnd(t, cb, pb, 1<<12)
	for _, c := range []struct {
		from *end
		gid  ib.GID
		want string
	}{
		{inside, ib.GIDFromAddr(netip.MustParseAddr("127.66.0.1")), cb.ports[pb].ipv4().addr.String()},
		{outside, cb.ports[pb].gids[1].GID, "is a port of this chassis"},
		{outside, ib.GIDFromAddr(netip.MustParseAddr("224.0.0.1")), "not the address of one port"},
		{outside, ib.GIDFromAddr(netip.IPv4Unspecified()), "not the address of one port"},
	} {
		rtr := c.from.rtr(peer, ib.MTU1024)
		rtr.Remote.GID = c.gid
		r := c.from.ModifyQueuePairs(context.Background(), []device.QueuePairChange{{UID: c.from.qp.UID, Steps: []device.Transition{rtr}}})[0]
		var field *device.FieldError
		if !errors.As(r.Err, &field) || field.Field != "remote_endpoint.gid" || !strings.Contains(field.Problem, c.want) {
			t.Errorf("%v: error %v, want one with %q", c.gid, r.Err, c.want)
		}
	}
}

// TestWithoutSegmentation takes UDP_SEGMENT away in the middle: the packets go
// one by one, and their CRC is right again.
func TestWithoutSegmentation(t *testing.T) {
	dir := t.TempDir()
	ca, cb := openChassis(t, dir, testSpec).cards[0], openChassis(t, dir, testSpec).cards[0]
	a, b := newEnd(t, ca, scaleOut(t, ca), 1<<20), newEnd(t, cb, scaleOut(t, cb), 1<<20)
	bt := &batch{port: ca.ports[a.qp.Port], path: new(newPath(ca.ports[a.qp.Port].ipv4(), cb.ports[b.qp.Port].ipv4().addr, 0, 0))}
	for range 4 {
		bt.Send(&ib.Packet{BTH: ib.BTH{Opcode: ib.RCSendMiddle, PKey: ib.DefaultPKey, DestQP: b.qp.QPN}, Payload: make([]byte, 1024)}, nil)
	}
	if len(bt.runs) != 1 || bt.runs[0].count != 4 {
		t.Fatalf("runs %+v", bt.runs)
	}
	p := cb.ports[b.qp.Port]
	first := p.counters.read()
	bt.sendSingly(bt.b, bt.runs[0])
	if got := settled(t, p, first, 4); got.ICRCErrors != 0 || got.IDsSolved != 0 || got.UnknownQPs != 4 {
		t.Errorf("counters %+v", got)
	}
	ca.ports[a.qp.Port].ipv4().segments.Store(false)
	exchange(t, a, b, ib.MTU1024)
}

func TestAddressInUse(t *testing.T) {
	s := newStranger(t)
	if _, err := openSocket(s.addr); !errors.Is(err, errHeld) {
		t.Errorf("error %v, want one that says it is held", err)
	}
	var opError *net.OpError
	if _, err := openSocket(netip.MustParseAddr("192.0.2.1")); !errors.As(err, &opError) || errors.Is(err, errHeld) {
		t.Errorf("error %v", err)
	}
}

// A packet whose sender was right for the connection before is none of the new
// one.
func TestPacketOfTheConnectionBefore(t *testing.T) {
	ch := openChassis(t, t.TempDir(), testSpec)
	ca, pa, cb, pb := cabledPair(t, ch)
	a, b := newEnd(t, ca, pa, 1<<12), newEnd(t, cb, pb, 1<<12)
	connect(t, a, b, ib.MTU1024)
	qp := ca.qps.byNumber(a.qp.QPN)
	before := qp.peer.Load()
	r := a.ModifyQueuePairs(context.Background(), []device.QueuePairChange{{UID: a.qp.UID, Steps: []device.Transition{
		device.ToReset{}, device.ToInit{PKey: ib.DefaultPKey}, a.rtr(b, ib.MTU1024),
	}}})[0]
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	if qp.beginReceive(before) {
		t.Error("taken")
		qp.endReceive(time.Now())
	}
	if !qp.beginReceive(qp.peer.Load()) {
		t.Fatal("the new connection takes nothing")
	}
	qp.endReceive(time.Now())
}

// What the kernel refuses as one call goes as many, and so does all after it.
func TestACallThatTheKernelRefuses(t *testing.T) {
	dir := t.TempDir()
	ca, cb := openChassis(t, dir, testSpec).cards[0], openChassis(t, dir, testSpec).cards[0]
	from, to := ca.ports[scaleOut(t, ca)], cb.ports[scaleOut(t, cb)]
	if !from.ipv4().segments.Load() {
		t.Fatal("no UDP_SEGMENT here")
	}
	const count = 200 // above UDP_MAX_SEGMENTS of every kernel
	cnp := ib.Packet{BTH: ib.BTH{Opcode: ib.CNP, PKey: ib.DefaultPKey}, Payload: make([]byte, 16)}
	one := append(cnp.Append(nil), 0, 0, 0, 0) // the CRC is made when it leaves
	bt := &batch{port: from}
	first := to.counters.read()
	bt.send(bytes.Repeat(one, count), run{path: new(newPath(from.ipv4(), to.ipv4().addr, 0, 0)), segment: len(one), count: count})
	if got := settled(t, to, first, count); got.CNPsReceived != count {
		t.Errorf("counters %+v", got)
	}
	if from.ipv4().segments.Load() {
		t.Error("it goes on with what the kernel refuses")
	}
}

// Packets that are too large for the way, as after its MTU has become smaller, say
// nothing about calls.
func TestPacketsThatTheKernelRefusesOneByOneToo(t *testing.T) {
	dir := t.TempDir()
	from, to := openChassis(t, dir, testSpec).cards[0], openChassis(t, dir, testSpec).cards[0]
	p := from.ports[scaleOut(t, from)]
	const count, size = 2, maxDatagrams + 1
	bt := &batch{port: p}
	way := newPath(p.ipv4(), to.ports[scaleOut(t, to)].ipv4().addr, 0, 0)
	bt.send(make([]byte, count*size), run{path: &way, segment: size, count: count})
	if n := p.xmitPackets.Load(); n != 0 {
		t.Errorf("%d packets of %d bytes were sent", n, size)
	}
	if !p.ipv4().segments.Load() {
		t.Error("all that follows goes one packet a call")
	}
}
