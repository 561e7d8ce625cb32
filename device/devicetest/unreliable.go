package devicetest

import (
	"bytes"
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// The suite takes it that a wire that is not crowded loses nothing: messages are
// small and wait for each other.

func testUC(t *testing.T, p Pair) {
	if !has(p.A, device.CapUC) || !has(p.B, device.CapUC) {
		return
	}
	a, b := newEnd(t, p.A, p.PortA), newEnd(t, p.B, p.PortB)
	qa, qb := connectAs(ib.UC, a, b, everyAccess)
	for _, size := range []uint64{1, 1024, 1025, 10_000, 1 << 16} {
		ma, mb := a.region(a.buffer(size), everyAccess), b.region(b.buffer(size), everyAccess)
		for _, c := range []struct {
			opcode        device.WorkOpcode
			sent, arrived ib.WCOpcode
			imm           bool
		}{
			{device.WorkSend, ib.WCSend, ib.WCRecv, false},
			{device.WorkSendImm, ib.WCSend, ib.WCRecv, true},
			{device.WorkWriteImm, ib.WCRDMAWrite, ib.WCRecvRDMAWithImm, true},
		} {
			want := random(size, byte(c.opcode))
			a.write(ma.Address, want)
			b.post(qb, device.WorkRequest{ID: 1, Opcode: device.WorkRecv, SGL: sge(mb)})
			a.post(qa, device.WorkRequest{ID: 2, Opcode: c.opcode, SGL: sge(ma), RemoteAddr: mb.Address, RKey: mb.RKey, Imm: 7, Signaled: true, Solicited: true})
			if s := a.next(qa, 1)[0]; s.ID != 2 || s.Status != ib.Success || s.Opcode != c.sent {
				t.Fatalf("operation %d of %d bytes: %+v", c.opcode, size, s)
			}
			r := b.next(qb, 1)[0]
			if r.ID != 1 || r.Status != ib.Success || r.Opcode != c.arrived || r.Length != uint32(size) || r.HasImm != c.imm || c.imm && r.Imm != 7 || !r.Solicited || r.Source != (device.Datagram{}) || r.HasGRH {
				t.Fatalf("operation %d of %d bytes arrived as %+v", c.opcode, size, r)
			}
			if !bytes.Equal(b.read(mb.Address, size), want) {
				t.Fatalf("operation %d of %d bytes: they differ", c.opcode, size)
			}
		}
		// A WRITE tells nobody. What is sent after it says that it was there.
		want := random(size, 99)
		a.write(ma.Address, want)
		b.post(qb, device.WorkRequest{Opcode: device.WorkRecv})
		a.post(qa, device.WorkRequest{Opcode: device.WorkWrite, SGL: sge(ma), RemoteAddr: mb.Address, RKey: mb.RKey}, device.WorkRequest{Opcode: device.WorkSend})
		b.next(qb, 1)
		if !bytes.Equal(b.read(mb.Address, size), want) {
			t.Fatalf("WRITE of %d bytes: they differ", size)
		}
	}
	// A key that is wrong costs the message, and nothing else.
	ma, mb := a.region(a.buffer(100), everyAccess), b.region(b.buffer(100), everyAccess)
	b.post(qb, device.WorkRequest{Opcode: device.WorkRecv})
	a.post(qa, device.WorkRequest{Opcode: device.WorkWrite, SGL: sge(ma), RemoteAddr: mb.Address, RKey: mb.RKey ^ 1}, device.WorkRequest{Opcode: device.WorkSend})
	b.next(qb, 1)
	for e, qp := range map[*end]device.QueuePair{a: qa, b: qb} {
		if got := e.get(qp); got.State != ib.RTS {
			t.Errorf("queue pair %+v, want RTS", got)
		}
	}
	err := p.A.Post(t.Context(), qa.UID, []device.WorkRequest{{Opcode: device.WorkRead, SGL: sge(ma), RemoteAddr: mb.Address, RKey: mb.RKey}})
	wantField(t, err, "opcode")
}

const testQKey ib.QKey = 0x11111111

// datagramEnd makes a UD queue pair in RTS.
func (e *end) datagramEnd(key ib.QKey) device.QueuePair {
	e.t.Helper()
	qp := e.queuePairOf(ib.UD, device.ToInit{PKey: ib.DefaultPKey, QKey: key}, device.ToRTR{GIDIndex: -1}, device.ToRTS{PSN: firstPSN})
	if qp.State != ib.RTS || qp.GID.IsZero() || qp.GIDIndex != -1 {
		e.t.Fatalf("UD queue pair %+v", qp)
	}
	return qp
}

// at is where a queue pair of an end is reached.
func (e *end) at(qp device.QueuePair, key ib.QKey) *device.Datagram {
	e.t.Helper()
	return &device.Datagram{GID: e.gid().GID, QPN: qp.QPN, QKey: key}
}

const grhLen = 40

// udPair gives a UD queue pair at each end, and memory there for a datagram and
// its GRH. It reports false where there is no UD.
func udPair(t *testing.T, p Pair) (a, b *end, qa, qb device.QueuePair, ma, mb device.Region, ok bool) {
	if !has(p.A, device.CapUD) || !has(p.B, device.CapUD) {
		return
	}
	a, b = newEnd(t, p.A, p.PortA), newEnd(t, p.B, p.PortB)
	return a, b, a.datagramEnd(testQKey), b.datagramEnd(testQKey),
		a.region(a.buffer(4096+grhLen), everyAccess), b.region(b.buffer(4096+grhLen), everyAccess), true
}

func part(r device.Region, n int) []device.SGE {
	return []device.SGE{{Address: r.Address, Length: uint32(n), LKey: r.LKey}}
}

func testUD(t *testing.T, p Pair) {
	a, b, qa, qb, ma, mb, ok := udPair(t, p)
	if !ok {
		return
	}
	port, err := p.A.Port(t.Context(), p.PortA)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 1, 255, port.ActiveMTU.Bytes()} {
		want := random(uint64(size), byte(size))
		a.write(ma.Address, want)
		b.post(qb, device.WorkRequest{ID: 1, Opcode: device.WorkRecv, SGL: sge(mb)})
		a.post(qa, device.WorkRequest{ID: 2, Opcode: device.WorkSendImm, SGL: part(ma, size), Imm: 8, Dest: b.at(qb, testQKey), Signaled: true, Solicited: true})
		if s := a.next(qa, 1)[0]; s.ID != 2 || s.Status != ib.Success || s.Opcode != ib.WCSend {
			t.Fatalf("%d bytes: %+v", size, s)
		}
		r := b.next(qb, 1)[0]
		if r.ID != 1 || r.Status != ib.Success || r.Opcode != ib.WCRecv || r.Length != uint32(grhLen+size) || !r.HasGRH || !r.HasImm || r.Imm != 8 || !r.Solicited {
			t.Fatalf("%d bytes arrived as %+v", size, r)
		}
		if r.Source.GID != a.gid().GID || r.Source.QPN != qa.QPN {
			t.Fatalf("source %+v, want %v and %#x", r.Source, a.gid().GID, qa.QPN)
		}
		got := b.read(mb.Address, uint64(grhLen+size))
		if !bytes.Equal(got[grhLen:], want) {
			t.Fatalf("datagram of %d bytes: they differ", size)
		}
		checkGRH(t, got[:grhLen], a.gid().GID, b.gid().GID)
	}
	// Its source is where an answer goes, and one queue pair reaches many.
	other := a.datagramEnd(7)
	from := []device.QueuePair{qa, other}
	for i, qp := range from {
		b.post(qb, device.WorkRequest{Opcode: device.WorkRecv, SGL: sge(mb)})
		a.post(qp, device.WorkRequest{ID: uint64(i), Opcode: device.WorkRecv, SGL: sge(ma)}, device.WorkRequest{Opcode: device.WorkSend, Dest: b.at(qb, testQKey)})
		back := b.next(qb, 1)[0].Source
		back.QKey = []ib.QKey{testQKey, 7}[i]
		b.post(qb, device.WorkRequest{Opcode: device.WorkSend, Dest: &back})
		if r := a.next(qp, 1)[0]; r.Status != ib.Success || r.ID != uint64(i) || r.Source.QPN != qb.QPN {
			t.Errorf("the answer to %d arrived as %+v", i, r)
		}
	}
}

// checkGRH looks for both addresses where verbs programs do: of IPv4 in the last
// 20 of 40 bytes, which hold the IP header.
func checkGRH(t *testing.T, h []byte, src, dst ib.GID) {
	t.Helper()
	ok := h[0]>>4 == 6 && bytes.Equal(h[8:24], src[:]) && bytes.Equal(h[24:], dst[:])
	if src.IsIPv4Mapped() {
		ok = h[20] == 0x45 && bytes.Equal(h[32:36], src[12:]) && bytes.Equal(h[36:], dst[12:])
	}
	if !ok {
		t.Errorf("GRH % x, want one from %v to %v", h, src, dst)
	}
}

func testUDTurnedAway(t *testing.T, p Pair) {
	a, b, qa, qb, ma, mb, ok := udPair(t, p)
	if !ok {
		return
	}
	counters := func() device.PortCounters {
		port, err := p.B.Port(t.Context(), p.PortB)
		if err != nil {
			t.Fatal(err)
		}
		return port.Counters
	}
	before := counters()
	send := device.WorkRequest{Opcode: device.WorkSend, SGL: part(ma, 100)}
	send.Dest = b.at(qb, testQKey)
	a.post(qa, send)                                      // no receive is posted
	b.datagramArrives(a, qa, b.datagramEnd(testQKey), mb) // so what was before it is done with
	send.Dest = b.at(qb, testQKey^1)
	b.post(qb, device.WorkRequest{ID: 3, Opcode: device.WorkRecv, SGL: sge(mb)})
	a.post(qa, send)
	// A key of privileged users stands for the queue pair's own.
	send.Dest = b.at(qb, 1<<31)
	a.post(qa, send)
	if r := b.next(qb, 1)[0]; r.ID != 3 || r.Status != ib.Success || r.Length != 140 {
		t.Errorf("arrived as %+v", r)
	}
	after := counters()
	if after.UnexpectedPackets != before.UnexpectedPackets+1 || after.QKeyViolations != before.QKeyViolations+1 {
		t.Errorf("counters %+v, before %+v", after, before)
	}
	// A receive that is too small is the receiver's error.
	b.post(qb, device.WorkRequest{ID: 4, Opcode: device.WorkRecv, SGL: part(mb, 139)}, device.WorkRequest{ID: 5, Opcode: device.WorkRecv})
	a.post(qa, send)
	if r := b.next(qb, 2); r[0].ID != 4 || r[0].Status != ib.LocLenErr || r[1].Status != ib.WRFlushErr {
		t.Errorf("completions %+v", r)
	}
	if qp := b.get(qb); qp.State != ib.Err || qp.Status != ib.LocLenErr || qp.Reason == "" {
		t.Errorf("queue pair %+v", qp)
	}
	if qp := a.get(qa); qp.State != ib.RTS {
		t.Errorf("sender %+v", qp)
	}
}

// datagramArrives sends one empty datagram and waits for it.
func (e *end) datagramArrives(from *end, sender, receiver device.QueuePair, m device.Region) {
	e.t.Helper()
	e.post(receiver, device.WorkRequest{ID: 100, Opcode: device.WorkRecv, SGL: sge(m)})
	from.post(sender, device.WorkRequest{Opcode: device.WorkSend, Dest: e.at(receiver, testQKey)})
	if r := e.next(receiver, 1)[0]; r.ID != 100 || r.Status != ib.Success || r.Length != grhLen {
		e.t.Fatalf("a datagram arrived as %+v", r)
	}
}

func testUDRefused(t *testing.T, p Pair) {
	a, b, qa, qb, ma, _, ok := udPair(t, p)
	if !ok {
		return
	}
	port, err := p.A.Port(t.Context(), p.PortA)
	if err != nil {
		t.Fatal(err)
	}
	good := *b.at(qb, testQKey)
	long := a.region(a.buffer(uint64(port.ActiveMTU.Bytes()+1)), everyAccess)
	reliable, _ := connect(a, b, everyAccess)
	to := func(change func(*device.Datagram)) *device.Datagram {
		d := good
		change(&d)
		return &d
	}
	for _, c := range []struct {
		field string
		qp    device.QueuePair
		wr    device.WorkRequest
	}{
		{"destination", qa, device.WorkRequest{Opcode: device.WorkSend}},
		{"destination", reliable, device.WorkRequest{Opcode: device.WorkSend, Dest: &good}},
		{"destination.gid", qa, device.WorkRequest{Opcode: device.WorkSend, Dest: to(func(d *device.Datagram) { d.GID = ib.GID{} })}},
		{"destination.gid", qa, device.WorkRequest{Opcode: device.WorkSend, Dest: to(func(d *device.Datagram) { d.GID = a.gid().GID })}},
		{"destination.qpn", qa, device.WorkRequest{Opcode: device.WorkSend, Dest: to(func(d *device.Datagram) { d.QPN = 0 })}},
		{"destination.qpn", qa, device.WorkRequest{Opcode: device.WorkSend, Dest: to(func(d *device.Datagram) { d.QPN = ib.MaxQPN })}},
		{"sgl", qa, device.WorkRequest{Opcode: device.WorkSend, SGL: sge(long), Dest: &good}},
		{"opcode", qa, device.WorkRequest{Opcode: device.WorkWrite, SGL: sge(ma), Dest: &good}},
		{"opcode", qa, device.WorkRequest{Opcode: device.WorkFetchAdd, SGL: part(ma, 8), Dest: &good}},
	} {
		wantField(t, p.A.Post(t.Context(), c.qp.UID, []device.WorkRequest{c.wr}), c.field)
	}
	spec := a.spec(device.ToInit{PKey: ib.DefaultPKey}, device.ToRTR{GIDIndex: 200})
	spec.Type = ib.UD
	wantField(t, p.A.CreateQueuePairs(t.Context(), []device.QueuePairSpec{spec})[0].Err, "gid_index")
}

func testSQE(t *testing.T, p Pair) {
	a, b, qa, qb, ma, mb, ok := udPair(t, p)
	if !ok {
		return
	}
	bad := device.WorkRequest{ID: 1, Opcode: device.WorkSend, SGL: part(ma, 8), Dest: b.at(qb, testQKey)}
	bad.SGL[0].LKey ^= 1
	good := device.WorkRequest{ID: 2, Opcode: device.WorkSend, Dest: b.at(qb, testQKey), Signaled: true}
	a.post(qa, bad)
	if c := a.next(qa, 1)[0]; c.ID != 1 || c.Status != ib.LocProtErr {
		t.Fatalf("completion %+v", c)
	}
	if qp := a.get(qa); qp.State != ib.SQE || qp.Status != ib.LocProtErr || qp.Reason == "" {
		t.Fatalf("queue pair %+v, want SQE", qp)
	}
	a.post(qa, good)
	if c := a.next(qa, 1)[0]; c.ID != 2 || c.Status != ib.WRFlushErr {
		t.Errorf("posted in SQE: %+v", c)
	}
	a.datagramArrives(b, qb, qa, ma)
	if r := a.modify(qa, device.ToRTS{}); r.Err != nil || r.State != ib.RTS || r.Status != ib.Success {
		t.Fatalf("back to RTS: %+v", r)
	}
	b.datagramArrives(a, qa, qb, mb)
}
