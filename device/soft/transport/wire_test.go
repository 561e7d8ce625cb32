package transport_test

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/soft/transport"
)

const pd device.PD = 7

// region is registered memory of a fakeMemory.
type region struct {
	pd     device.PD
	base   uint64
	data   []byte
	access ib.Access
	lkey   ib.LKey
	rkey   ib.RKey
}

// fakeMemory is the memory of one end.
type fakeMemory struct{ regions []*region }

const all = ib.LocalWrite | ib.RemoteRead | ib.RemoteWrite | ib.RemoteAtomic

// add registers n bytes with a gap before them.
func (m *fakeMemory) add(n int, access ib.Access) *region {
	i := len(m.regions) + 1
	r := &region{
		pd: pd, base: uint64(i) << 40, data: make([]byte, n), access: access,
		lkey: ib.LKey(0x100 + i), rkey: ib.RKey(0x200 + i),
	}
	m.regions = append(m.regions, r)
	return r
}

func (m *fakeMemory) remove(r *region) {
	for i := range m.regions {
		if m.regions[i] == r {
			m.regions = append(m.regions[:i], m.regions[i+1:]...)
			return
		}
	}
}

func (r *region) find(p device.PD, address uint64, length uint32, access ib.Access) ([]byte, bool) {
	at := address - r.base
	if p != r.pd || address < r.base || at > uint64(len(r.data)) || uint64(length) > uint64(len(r.data))-at || r.access&access != access {
		return nil, false
	}
	return r.data[at : at+uint64(length) : at+uint64(length)], true
}

func (m *fakeMemory) Local(p device.PD, key ib.LKey, address uint64, length uint32, access ib.Access) ([]byte, bool) {
	for _, r := range m.regions {
		if r.lkey == key {
			return r.find(p, address, length, access)
		}
	}
	return nil, false
}

func (m *fakeMemory) Remote(p device.PD, key ib.RKey, address uint64, length uint32, access ib.Access) ([]byte, bool) {
	for _, r := range m.regions {
		if r.rkey == key {
			return r.find(p, address, length, access)
		}
	}
	return nil, false
}

func (m *fakeMemory) FetchAdd(word []byte, add uint64) uint64 {
	old := binary.NativeEndian.Uint64(word)
	binary.NativeEndian.PutUint64(word, old+add)
	return old
}

func (m *fakeMemory) CompareSwap(word []byte, compare, swap uint64) uint64 {
	old := binary.NativeEndian.Uint64(word)
	if old == compare {
		binary.NativeEndian.PutUint64(word, swap)
	}
	return old
}

func (r *region) sge(offset, n int) []device.SGE {
	return []device.SGE{{Address: r.base + uint64(offset), Length: uint32(n), LKey: r.lkey}}
}

// options are the attributes of a pair, with defaults for what is zero.
type options struct {
	typ        ib.QPType // RC if zero
	mtu        ib.MTU
	window     int
	reads      int // max_rd_atomic and max_dest_rd_atomic
	destReads  int // max_dest_rd_atomic if it is another
	retry, rnr uint8
	timeout    uint8
	access     ib.Access
	psn        ib.PSN // of both ends
	queue      int    // capacity of the queues
	loss       float64
	copies     float64
	reorder    float64
	seed       uint64
	delay      time.Duration
}

// end is one side of a wire.
type end struct {
	*transport.QueuePair
	w      *wire
	index  int
	memory fakeMemory
	done   []device.Completion
	total  transport.Counters
}

// A verdict says what a wire does to a packet.
type verdict uint8

const (
	pass verdict = iota
	lose
	double // deliver twice
)

// wire is an in-memory network between two queue pairs, with a clock of its own.
// Packets cross it encoded.
type wire struct {
	t      testing.TB
	o      options
	now    time.Time
	start  time.Time
	rng    *rand.Rand
	ends   [2]*end
	flight flight
	free   [][]byte
	seq    int
	sender int
	// fate, if not nil, decides about packets instead of chance.
	fate func(from int, p *ib.Packet) verdict
	// seen, if not nil, is told every packet that is sent.
	seen func(from int, p *ib.Packet)
	// after, if not nil, runs after every event.
	after func()
	last  time.Time // when the wire last lost a packet
}

type inFlight struct {
	at   time.Time
	seq  int
	to   int
	data []byte
}

type flight []inFlight

func (f flight) Len() int { return len(f) }
func (f flight) Less(i, j int) bool {
	return f[i].at.Before(f[j].at) || f[i].at.Equal(f[j].at) && f[i].seq < f[j].seq
}
func (f flight) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f *flight) Push(x any)   { *f = append(*f, x.(inFlight)) }
func (f *flight) Pop() any {
	x := (*f)[len(*f)-1]
	*f = (*f)[:len(*f)-1]
	return x
}

// newWire makes two connected queue pairs in RTS.
func newWire(t testing.TB, o options) *wire {
	if o.typ == 0 {
		o.typ = ib.RC
	}
	if o.mtu == 0 {
		o.mtu = ib.MTU1024
	}
	if o.reads == 0 {
		o.reads = 4
	}
	if o.destReads == 0 {
		o.destReads = o.reads
	}
	if o.access == 0 {
		o.access = all
	}
	if o.queue == 0 {
		o.queue = 64
	}
	if o.timeout == 0 {
		o.timeout = 14
	}
	if o.delay == 0 {
		o.delay = 20 * time.Microsecond
	}
	w := &wire{t: t, o: o, now: time.Unix(1000, 0), rng: rand.New(rand.NewPCG(o.seed, 1))}
	w.start = w.now
	for i := range w.ends {
		e := &end{w: w, index: i}
		e.QueuePair = transport.New(transport.Config{
			Type: o.typ, Memory: &e.memory, PD: pd, QPN: qpn(i), SendWR: o.queue, RecvWR: o.queue, SGE: 4, Window: o.window,
		})
		w.ends[i] = e
	}
	for i, e := range w.ends {
		e.Modify(w.now, device.ToInit{PKey: ib.DefaultPKey, Access: o.access, QKey: qkey(i)})
		e.Modify(w.now, device.ToRTR{
			Remote: device.Remote{QPN: qpn(1 - i), PSN: o.psn}, PathMTU: o.mtu,
			MaxDestRDAtomic: o.destReads, MinRNRTimer: 12,
		})
		e.Modify(w.now, device.ToRTS{PSN: o.psn, Timeout: o.timeout, RetryCount: o.retry, RNRRetry: o.rnr, MaxRDAtomic: o.reads})
	}
	return w
}

func qpn(i int) ib.QPN { return ib.QPN(0x11 + i) }

func qkey(i int) ib.QKey { return ib.QKey(0x11111111 + i) }

func gid(i int) ib.GID { return ib.GID{10: 0xff, 11: 0xff, 12: 10, 13: 77, 15: byte(11 + i)} }

// to is where end i is reached by datagrams.
func to(i int) *device.Datagram { return &device.Datagram{GID: gid(i), QPN: qpn(i), QKey: qkey(i)} }

// Send implements transport.Sink for the end that transmits.
func (w *wire) Send(p *ib.Packet, _ *device.Datagram) {
	from := w.sender
	if p.DestQP != qpn(1-from) || p.PKey != ib.DefaultPKey {
		w.t.Fatalf("%v sent to QPN %#x with P_Key %#x", p.Opcode, p.DestQP, p.PKey)
	}
	if w.seen != nil {
		w.seen(from, p)
	}
	v := pass
	if w.fate != nil {
		v = w.fate(from, p)
	} else {
		switch x := w.rng.Float64(); {
		case x < w.o.loss:
			v = lose
		case x < w.o.loss+w.o.copies:
			v = double
		}
	}
	if v == lose {
		w.last = w.now
		return
	}
	for range int(v)/2 + 1 {
		delay := w.o.delay
		if w.o.reorder > 0 && w.rng.Float64() < w.o.reorder {
			delay += time.Duration(w.rng.Int64N(int64(5 * w.o.delay)))
		}
		var b []byte
		if n := len(w.free); n > 0 {
			b, w.free = w.free[n-1][:0], w.free[:n-1]
		}
		w.seq++
		heap.Push(&w.flight, inFlight{at: w.now.Add(delay), seq: w.seq, to: 1 - from, data: p.Append(b)})
	}
}

// step lets everything due now happen and then moves to the next event. It
// reports false if there is none.
func (w *wire) step() bool {
	for i, e := range w.ends {
		w.sender = i
		for n := 0; e.Transmit(w.now, w, 16); n++ {
			if n > 1<<16 {
				w.t.Fatal("Transmit has no end")
			}
		}
		e.collect()
		if w.after != nil {
			w.after()
		}
	}
	var at time.Time
	if len(w.flight) > 0 {
		at = w.flight[0].at
	}
	for _, e := range w.ends {
		if d := e.Deadline(); !d.IsZero() && (at.IsZero() || d.Before(at)) {
			at = d
		}
	}
	if at.IsZero() {
		return false
	}
	if at.After(w.now) {
		w.now = at
	}
	w.deliver()
	for _, e := range w.ends {
		e.Expire(w.now)
		e.collect()
	}
	return true
}

// deliver hands over what has come to the end of the wire by now.
func (w *wire) deliver() {
	for len(w.flight) > 0 && !w.flight[0].at.After(w.now) {
		x := heap.Pop(&w.flight).(inFlight)
		var p ib.Packet
		if err := p.Parse(x.data); err != nil {
			w.t.Fatalf("packet on the wire: %v", err)
		}
		w.ends[x.to].Receive(w.now, &p, &transport.Arrival{Src: gid(1 - x.to), Dst: gid(x.to), HopLimit: 64})
		w.free = append(w.free, x.data)
	}
}

// run lets the wire go on until nothing is left to do. A wire that is busy for
// longer than an hour of its own time has failed.
func (w *wire) run() {
	w.t.Helper()
	for w.step() {
		if w.now.Sub(w.start) > time.Hour {
			w.t.Fatalf("still busy after an hour")
		}
	}
}

func (e *end) collect() {
	e.done = e.Completions(e.done)
	c := e.TakeCounters()
	e.total.AcksSent += c.AcksSent
	e.total.NAKsSent += c.NAKsSent
	e.total.RNRNAKsSent += c.RNRNAKsSent
	e.total.RNRNAKsReceived += c.RNRNAKsReceived
	e.total.Retransmits += c.Retransmits
	e.total.AckTimeouts += c.AckTimeouts
	e.total.SequenceErrors += c.SequenceErrors
	for fate, n := range c.Packets {
		e.total.Packets[fate] += n
	}
}

// send posts to the send queue, recv to the receive queue.
func (e *end) send(wr device.WorkRequest) {
	e.w.t.Helper()
	if err := e.PostSend(&wr); err != nil {
		e.w.t.Fatalf("PostSend: %v", err)
	}
}

func (e *end) recv(id uint64, sgl []device.SGE) {
	e.w.t.Helper()
	if err := e.PostRecv(&device.WorkRequest{ID: id, Opcode: device.WorkRecv, SGL: sgl}); err != nil {
		e.w.t.Fatalf("PostRecv: %v", err)
	}
}

// take gives the completions so far and forgets them.
func (e *end) take() []device.Completion {
	e.collect()
	done := e.done
	e.done = nil
	return done
}

// expect compares completions, by ID and status, with want.
func (e *end) expect(want ...string) {
	e.w.t.Helper()
	var got []string
	for _, wc := range e.take() {
		queue := "send"
		if wc.Receive {
			queue = "recv"
		}
		got = append(got, fmt.Sprintf("%s %d %v", queue, wc.ID, wc.Status))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		e.w.t.Errorf("end %d completed %q, want %q", e.index, got, want)
	}
}

// expectFailure compares the failure.
func (e *end) expectFailure(status ib.WCStatus, reason string) {
	e.w.t.Helper()
	gotStatus, gotReason := e.Failure()
	state := ib.Err
	if status == ib.Success {
		state = ib.RTS
	}
	if gotStatus != status || gotReason != reason || e.State() != state {
		e.w.t.Errorf("end %d is in %v for %v, %q; want %v for %v, %q", e.index, e.State(), gotStatus, gotReason, state, status, reason)
	}
}

// fill writes bytes that depend on seed.
func fill(b []byte, seed uint64) {
	r := rand.NewPCG(seed, 2)
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, r.Uint64())
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(r.Uint64())
	}
}
