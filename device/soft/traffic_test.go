package soft

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/topology"
)

// openChassis makes a chassis that is closed with the test. Chassis of one test
// share lock files in dir.
func openChassis(t testing.TB, dir, spec string) *Chassis {
	t.Helper()
	cfg, err := ParseSpec(spec)
	if err != nil {
		t.Fatal(err)
	}
	cfg.LockDir = dir
	ch, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ch.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return ch
}

var lastUID atomic.Uint64

func newUID() (uid device.UID) {
	binary.BigEndian.PutUint64(uid[8:], lastUID.Add(1))
	return uid
}

// end is one end of a connection: a queue pair and a region that holds a
// buffer.
type end struct {
	*card
	t      testing.TB
	pd     device.PD
	region device.Region
	qp     device.QueuePair
	gid    int // index in the GID table
}

const fullAccess = ib.LocalWrite | ib.RemoteWrite | ib.RemoteRead | ib.RemoteAtomic

func newEnd(t testing.TB, c *card, port int, size uint64) *end {
	t.Helper()
	ctx := context.Background()
	e := &end{card: c, t: t, gid: 1}
	pd := c.CreateProtectionDomains(ctx, []device.UID{newUID()})[0]
	if pd.Err != nil {
		t.Fatal(pd.Err)
	}
	e.pd = pd.PD
	buf, err := c.Allocate(ctx, device.BufferSpec{UID: newUID(), Size: size})
	if err != nil {
		t.Fatal(err)
	}
	region := c.RegisterRegions(ctx, []device.RegionSpec{{UID: newUID(), PD: e.pd, Address: buf.Address, Length: size, Access: fullAccess}})[0]
	if region.Err != nil {
		t.Fatal(region.Err)
	}
	e.region = region.Region
	qp := c.CreateQueuePairs(ctx, []device.QueuePairSpec{{
		UID: newUID(), PD: e.pd, Port: port, Type: ib.RC,
		Steps: []device.Transition{device.ToInit{PKey: ib.DefaultPKey, Access: fullAccess}},
	}})[0]
	if qp.Err != nil {
		t.Fatal(qp.Err)
	}
	e.qp = qp.QueuePair
	return e
}

func (e *end) rtr(remote *end, mtu ib.MTU) device.ToRTR {
	p, _ := e.card.port(e.qp.Port)
	q, _ := remote.card.port(remote.qp.Port)
	return device.ToRTR{
		Remote:   device.Remote{GID: q.entry(remote.gid, ib.GID{}).GID, QPN: remote.qp.QPN, PSN: 0xfffff0},
		GIDIndex: e.gid, PathMTU: min(mtu, p.mtu), MaxDestRDAtomic: 8, MinRNRTimer: 1,
	}
}

// connect takes both ends to RTS.
func connect(t testing.TB, a, b *end, mtu ib.MTU) {
	t.Helper()
	for _, e := range []struct{ self, other *end }{{a, b}, {b, a}} {
		r := e.self.ModifyQueuePairs(context.Background(), []device.QueuePairChange{{UID: e.self.qp.UID, Steps: []device.Transition{
			e.self.rtr(e.other, mtu),
			device.ToRTS{PSN: 0xfffff0, Timeout: 17, RetryCount: 7, RNRRetry: 7, MaxRDAtomic: 8},
		}}})[0]
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		e.self.qp = r.QueuePair
	}
}

func (e *end) sge(offset uint64, n uint32) []device.SGE {
	return []device.SGE{{Address: e.region.Address + offset, Length: n, LKey: e.region.LKey}}
}

func (e *end) post(requests ...device.WorkRequest) {
	e.t.Helper()
	if err := e.Post(context.Background(), e.qp.UID, requests); err != nil {
		e.t.Fatal(err)
	}
}

// next waits for n completions.
func (e *end) next(n int) []device.Completion {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var list []device.Completion
	for len(list) < n {
		more, err := e.Completions(ctx, e.qp.UID, n-len(list))
		if err != nil {
			qp, _ := e.GetQueuePair(context.Background(), e.qp.UID)
			e.t.Fatalf("after %d of %d completions: %v; queue pair: %+v", len(list), n, err, qp)
		}
		list = append(list, more...)
	}
	return list
}

func (e *end) succeed(n int) {
	e.t.Helper()
	for _, c := range e.next(n) {
		if c.Status != ib.Success {
			e.t.Fatalf("completion %+v", c)
		}
	}
}

func (e *end) fill(seed uint64) []byte {
	e.t.Helper()
	p := make([]byte, e.region.Length)
	rng := rand.NewChaCha8([32]byte{byte(seed)})
	rng.Read(p)
	e.write(0, p)
	return p
}

func (e *end) write(offset uint64, p []byte) {
	e.t.Helper()
	if err := e.WriteMemory(context.Background(), e.region.Address+offset, p); err != nil {
		e.t.Fatal(err)
	}
}

func (e *end) bytes() []byte {
	e.t.Helper()
	p := make([]byte, e.region.Length)
	if err := e.ReadMemory(context.Background(), e.region.Address, p); err != nil {
		e.t.Fatal(err)
	}
	return p
}

// cabledPair gives two cards of one chassis and a port of each, cabled
// together.
func cabledPair(t testing.TB, ch *Chassis) (a *card, pa int, b *card, pb int) {
	t.Helper()
	for _, p := range ch.cards[0].ports {
		if p.wiring.Class == topology.Internal {
			return ch.cards[0], p.number, ch.cards[p.wiring.PeerCard], p.wiring.PeerPort
		}
	}
	t.Fatal("no internal port")
	return
}

func scaleOut(t testing.TB, c *card) int {
	t.Helper()
	for _, p := range c.ports {
		if p.wiring.Class == topology.ScaleOut {
			return p.number
		}
	}
	t.Fatal("no scale-out port")
	return 0
}

const testSpec = "soft:hls-2,cards=2,memory=64MiB"

func TestTrafficOnACable(t *testing.T) {
	ch := openChassis(t, t.TempDir(), testSpec)
	ca, pa, cb, pb := cabledPair(t, ch)
	exchange(t, newEnd(t, ca, pa, 16<<20), newEnd(t, cb, pb, 16<<20), ib.MTU4096)
}

func TestTrafficBetweenChassis(t *testing.T) {
	dir := t.TempDir()
	a, b := openChassis(t, dir, testSpec), openChassis(t, dir, testSpec)
	if a.Network() == b.Network() {
		t.Fatalf("both chassis have network %v", a.Network())
	}
	ca, cb := a.cards[1], b.cards[0]
	for _, mtu := range []ib.MTU{ib.MTU256, ib.MTU1024, ib.MTU4096} {
		t.Run(mtu.String(), func(t *testing.T) {
			exchange(t, newEnd(t, ca, scaleOut(t, ca), 1<<20), newEnd(t, cb, scaleOut(t, cb), 1<<20), mtu)
		})
	}
}

// exchange connects two ends and does what transfer does.
func exchange(t *testing.T, a, b *end, mtu ib.MTU) {
	t.Helper()
	connect(t, a, b, mtu)
	transfer(t, a, b)
}

// transfer sends, writes and reads the whole of a buffer from a to b and
// compares.
func transfer(t *testing.T, a, b *end) {
	t.Helper()
	size := uint32(a.region.Length)
	clean := func() { b.write(0, make([]byte, size)) }

	want := a.fill(1)
	b.post(device.WorkRequest{ID: 7, Opcode: device.WorkRecv, SGL: b.sge(0, size)})
	a.post(device.WorkRequest{ID: 1, Opcode: device.WorkSend, SGL: a.sge(0, size), Signaled: true})
	if c := b.next(1)[0]; c.Status != ib.Success || c.ID != 7 || c.Length != size || !c.Receive {
		t.Fatalf("receive completed as %+v", c)
	}
	a.succeed(1)
	if !bytes.Equal(b.bytes(), want) {
		t.Fatal("SEND: the bytes differ")
	}

	clean()
	a.post(device.WorkRequest{ID: 2, Opcode: device.WorkWrite, SGL: a.sge(0, size), RemoteAddr: b.region.Address, RKey: b.region.RKey, Signaled: true})
	a.succeed(1)
	if !bytes.Equal(b.bytes(), want) {
		t.Fatal("WRITE: the bytes differ")
	}

	want = b.fill(2)
	a.post(device.WorkRequest{ID: 3, Opcode: device.WorkRead, SGL: a.sge(0, size), RemoteAddr: b.region.Address, RKey: b.region.RKey, Signaled: true})
	a.succeed(1)
	if !bytes.Equal(a.bytes(), want) {
		t.Fatal("READ: the bytes differ")
	}
	for _, e := range []*end{a, b} {
		p, err := e.Port(context.Background(), e.qp.Port)
		if err != nil {
			t.Fatal(err)
		}
		if n := p.Counters; n.ICRCErrors+n.Malformed+n.IDsSolved != 0 || e.qp.GID.IsIPv4Mapped() && n.IDsPredicted == 0 {
			t.Errorf("counters of the port: %+v", n)
		}
	}
}

func TestPortDownExhaustsRetries(t *testing.T) {
	ch := openChassis(t, t.TempDir(), testSpec)
	ca, pa, cb, pb := cabledPair(t, ch)
	a, b := newEnd(t, ca, pa, 1<<16), newEnd(t, cb, pb, 1<<16)
	connect(t, a, b, ib.MTU4096)
	r := a.ModifyQueuePairs(context.Background(), []device.QueuePairChange{{UID: a.qp.UID, Steps: []device.Transition{
		device.ToReset{}, device.ToInit{PKey: ib.DefaultPKey}, a.rtr(b, ib.MTU4096),
		device.ToRTS{Timeout: 8, RetryCount: 2},
	}}})[0]
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	if err := b.SetPort(context.Background(), pb, false); err != nil {
		t.Fatal(err)
	}
	if ev := <-b.Events(); ev.Kind != device.PortChanged || ev.Port != pb {
		t.Errorf("event %+v", ev)
	}
	if p, _ := b.Port(context.Background(), pb); p.AdminUp || p.State != device.PortDown {
		t.Errorf("port is %+v", p)
	}
	a.post(device.WorkRequest{ID: 1, Opcode: device.WorkWrite, SGL: a.sge(0, 100), RemoteAddr: b.region.Address, RKey: b.region.RKey},
		device.WorkRequest{ID: 2, Opcode: device.WorkWrite, SGL: a.sge(0, 100), RemoteAddr: b.region.Address, RKey: b.region.RKey})
	list := a.next(2)
	if list[0].Status != ib.RetryExcErr || list[1].Status != ib.WRFlushErr {
		t.Errorf("completions %+v", list)
	}
	if ev := <-a.Events(); ev.Kind != device.QueuePairChanged || ev.QP != a.qp.UID {
		t.Errorf("event %+v", ev)
	}
	qp, err := a.GetQueuePair(context.Background(), a.qp.UID)
	if err != nil || qp.State != ib.Err || qp.Status != ib.RetryExcErr || qp.Reason == "" {
		t.Errorf("queue pair %+v, %v", qp, err)
	}
	t.Log(qp.Reason)

	if err := b.SetPort(context.Background(), pb, true); err != nil {
		t.Fatal(err)
	}
	for _, e := range []*end{a, b} {
		r := e.ModifyQueuePairs(context.Background(), []device.QueuePairChange{{UID: e.qp.UID, Steps: []device.Transition{
			device.ToReset{}, device.ToInit{PKey: ib.DefaultPKey, Access: fullAccess},
		}}})[0]
		if r.Err != nil || r.QPN != e.qp.QPN || r.Status != ib.Success {
			t.Fatalf("reset: %+v", r)
		}
	}
	exchange(t, a, b, ib.MTU4096)
}

func TestCompletionQueueOverflow(t *testing.T) {
	ch := openChassis(t, t.TempDir(), testSpec)
	ca, pa, cb, pb := cabledPair(t, ch)
	a, b := newEnd(t, ca, pa, 1<<16), newEnd(t, cb, pb, 1<<16)
	connect(t, a, b, ib.MTU1024)
	write := device.WorkRequest{Opcode: device.WorkWrite, SGL: a.sge(0, 8), RemoteAddr: b.region.Address, RKey: b.region.RKey, Signaled: true}
	for {
		err := a.Post(context.Background(), a.qp.UID, []device.WorkRequest{write})
		if errors.Is(err, device.ErrExhausted) {
			continue // the work queue is full: the peer is not done yet
		}
		if err != nil {
			t.Fatal(err)
		}
		if qp, _ := a.GetQueuePair(context.Background(), a.qp.UID); qp.State == ib.Err {
			if qp.Status != ib.GeneralErr || qp.Reason == "" {
				t.Errorf("queue pair %+v", qp)
			}
			break
		}
	}
	if list := a.next(a.qp.SendWR); len(list) != a.qp.SendWR {
		t.Errorf("%d completions can be read, want %d", len(list), a.qp.SendWR)
	}
}

func TestReceiveCompletionQueueOverflow(t *testing.T) {
	ch := openChassis(t, t.TempDir(), testSpec)
	ca, pa, cb, pb := cabledPair(t, ch)
	a, b := newEnd(t, ca, pa, 1<<12), newEnd(t, cb, pb, 1<<12)
	connect(t, a, b, ib.MTU1024)
	send := device.WorkRequest{Opcode: device.WorkSend, Signaled: true}
	for range b.qp.RecvWR { // as many as fit, and nobody reads
		b.post(device.WorkRequest{Opcode: device.WorkRecv})
		a.post(send)
		a.succeed(1)
	}
	b.post(device.WorkRequest{Opcode: device.WorkRecv})
	a.post(send)
	a.next(1) // with whatever status
	qp, err := b.GetQueuePair(context.Background(), b.qp.UID)
	if err != nil || qp.State != ib.Err || qp.Status != ib.GeneralErr || !strings.Contains(qp.Reason, "receive completion queue") {
		t.Errorf("%+v, %v", qp, err)
	}
	if list := b.next(b.qp.RecvWR); len(list) != b.qp.RecvWR {
		t.Errorf("%d completions can be read, want %d", len(list), b.qp.RecvWR)
	}
}

// A send of UD is done when it has left, so nobody else is to blame for sends
// whose completions are not read.
func TestCompletionQueueOverflowOfDatagrams(t *testing.T) {
	ch := openChassis(t, t.TempDir(), testSpec)
	ca, pa, cb, pb := cabledPair(t, ch)
	a, b := newEnd(t, ca, pa, 1<<12), newEnd(t, cb, pb, 1<<12)
	qp := ca.CreateQueuePairs(context.Background(), []device.QueuePairSpec{{
		UID: newUID(), PD: a.pd, Port: pa, Type: ib.UD, SendWR: 4, RecvWR: 4,
		Steps: []device.Transition{device.ToInit{PKey: ib.DefaultPKey}, device.ToRTR{GIDIndex: -1}, device.ToRTS{}},
	}})[0]
	if qp.Err != nil {
		t.Fatal(qp.Err)
	}
	a.qp = qp.QueuePair
	send := device.WorkRequest{Opcode: device.WorkSend, Signaled: true, Dest: &device.Datagram{GID: cb.ports[pb].gids[1].GID, QPN: b.qp.QPN}}
	a.post(device.WorkRequest{Opcode: device.WorkRecv}, send, send, send, send)
	if got, err := a.GetQueuePair(context.Background(), qp.UID); err != nil || got.State != ib.RTS {
		t.Fatalf("full and not over: %+v, %v", got, err)
	}
	a.post(send)
	got, err := a.GetQueuePair(context.Background(), qp.UID)
	if err != nil || got.State != ib.Err || got.Status != ib.GeneralErr || !strings.Contains(got.Reason, "send completion queue") {
		t.Errorf("%+v, %v", got, err)
	}
	list := a.next(5)
	for i, c := range list {
		if want := map[bool]ib.WCStatus{false: ib.Success, true: ib.WRFlushErr}[i == 4]; c.Status != want || c.Receive != (i == 4) {
			t.Errorf("completion %d: %+v", i, c)
		}
	}
}
