package transport_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/soft/transport"
)

// script reads decisions from fuzzed bytes; after their end all are 0.
type script []byte

func (s *script) byte() int {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return int(b)
}

// rig is a live pair whose wire and peers a script plays.
type rig struct {
	t      *testing.T
	typ    ib.QPType
	s      script
	now    time.Time
	ends   [2]*rigEnd
	flight [2][][]byte // to that end
	sender int
}

type rigEnd struct {
	*transport.QueuePair
	memory       fakeMemory
	open, closed *region
	arena        []byte // what open and its guards lie in
	posted       [2]int // send, receive: work posted so far
	completed    [2]int
	signaled     [2][]bool
	arrived      uint64 // packets without a fate
}

const (
	rigMTU    = 256
	rigOpen   = 4096
	rigGuard  = 8192
	rigWindow = 16
)

func newRig(t *testing.T, typ ib.QPType, s script) *rig {
	r := &rig{t: t, typ: typ, s: s, now: time.Unix(1000, 0)}
	for i := range r.ends {
		e := &rigEnd{}
		e.arena = bytes.Repeat([]byte{0xa5}, rigOpen+2*rigGuard)
		e.open = e.memory.add(0, all)
		e.open.data = e.arena[rigGuard:][:rigOpen:rigOpen]
		e.closed = e.memory.add(rigOpen, ib.RemoteRead)
		e.QueuePair = transport.New(transport.Config{Type: typ, Memory: &e.memory, PD: pd, QPN: qpn(i), SendWR: 8, RecvWR: 8, SGE: 2, Window: rigWindow})
		r.ends[i] = e
	}
	for i, e := range r.ends {
		e.Modify(r.now, device.ToInit{PKey: ib.DefaultPKey, Access: all, QKey: qkey(0)})
		e.Modify(r.now, device.ToRTR{Remote: device.Remote{QPN: qpn(1 - i), PSN: 1<<24 - 3}, PathMTU: ib.MTU256, MaxDestRDAtomic: 2, MinRNRTimer: 1})
		e.Modify(r.now, device.ToRTS{PSN: 1<<24 - 3, Timeout: 8, RetryCount: 3, RNRRetry: 3, MaxRDAtomic: 2})
	}
	return r
}

func (e *rigEnd) receive(now time.Time, p *ib.Packet) {
	e.arrived++
	e.Receive(now, p, &transport.Arrival{Src: gid(0), Dst: gid(1)})
}

func (r *rig) Send(p *ib.Packet, _ *device.Datagram) {
	to := 1 - r.sender
	if len(r.flight[to]) < 64 {
		r.flight[to] = append(r.flight[to], p.Append(nil))
	}
}

// play does one step of the script.
func (r *rig) play() {
	b := r.s.byte()
	e, to := r.ends[b&1], b&1
	switch b >> 1 % 12 {
	case 0, 1:
		size := r.s.byte() * 8
		wr := device.WorkRequest{
			ID: uint64(e.posted[0]), Opcode: device.WorkOpcode(r.s.byte() % 9), Signaled: size%3 == 0, Compare: 1,
			SGL:        []device.SGE{{Address: e.open.base, Length: uint32(size / 2), LKey: e.open.lkey}, {Address: e.open.base + 1000, Length: uint32(size - size/2), LKey: e.open.lkey}},
			RemoteAddr: r.ends[1-to].open.base + uint64(r.s.byte()*16), RKey: r.ends[1-to].open.rkey,
		}
		if wr.Opcode == device.WorkFetchAdd || wr.Opcode == device.WorkCompareSwap {
			wr.SGL = []device.SGE{{Address: e.open.base, Length: 8, LKey: e.open.lkey}}
		}
		if r.typ == ib.UD {
			wr.Dest = &device.Datagram{GID: gid(1 - to), QPN: qpn(1 - to), QKey: qkey(0)}
		}
		if e.PostSend(&wr) == nil {
			e.posted[0]++
			e.signaled[0] = append(e.signaled[0], wr.Signaled)
		}
	case 2:
		wr := device.WorkRequest{ID: uint64(e.posted[1]), Opcode: device.WorkRecv, SGL: []device.SGE{{Address: e.open.base, Length: uint32(r.s.byte() * 16), LKey: e.open.lkey}}}
		if e.PostRecv(&wr) == nil {
			e.posted[1]++
			e.signaled[1] = append(e.signaled[1], true)
		}
	case 3, 4:
		p := r.packet(e)
		e.receive(r.now, &p)
	case 5, 6, 7:
		r.sender = to
		budget, before := r.s.byte()%32, len(r.flight[1-to])
		e.Transmit(r.now, r, budget)
		if n := len(r.flight[1-to]) - before; n > budget {
			r.t.Fatalf("%d packets with a budget of %d", n, budget)
		}
	case 8, 9:
		if f := r.flight[to]; len(f) > 0 {
			i := r.s.byte() % 8 % len(f) // out of order now and then
			var p ib.Packet
			if err := p.Parse(f[i]); err != nil {
				r.t.Fatalf("sent a packet that does not parse: %v", err)
			}
			e.receive(r.now, &p)
			if b>>1%12 == 8 { // else it comes again
				r.flight[to] = append(f[:i], f[i+1:]...)
			}
		}
	case 10:
		if d := e.Deadline(); !d.IsZero() {
			if d.After(r.now) {
				r.now = d
			}
			e.Expire(r.now)
			if d := e.Deadline(); !d.IsZero() && d.Before(r.now) {
				r.t.Fatalf("the deadline is still %v ago", r.now.Sub(d))
			}
		}
	case 11:
		switch r.s.byte() % 16 {
		case 0:
			e.Modify(r.now, device.ToErr{})
		case 1:
			if e.State() == ib.RTS {
				e.Modify(r.now, device.ToSQD{})
			}
		case 2:
			if e.State() == ib.SQD || e.State() == ib.SQE {
				e.Modify(r.now, device.ToRTS{})
			}
		case 3:
			e.memory.remove(e.open)
		}
	}
	r.check(e)
}

// packet makes a packet that is near to what e may expect.
func (r *rig) packet(e *rigEnd) ib.Packet {
	var p ib.Packet
	p.Opcode = ib.Opcode(r.s.byte() % 0x18)
	switch r.typ {
	case ib.UC:
		p.Opcode = ib.UCSendFirst + p.Opcode%12
	case ib.UD:
		p.Opcode = ib.UDSendOnly + p.Opcode%2
		p.DETH.QKey = qkey(0)
	}
	p.PSN = e.Expected()
	if p.Opcode.IsResponse() {
		p.PSN = e.Una()
	}
	p.PSN = p.PSN.Add(int(int8(r.s.byte())) / 8)
	flags := r.s.byte()
	p.AckReq = flags&1 != 0
	p.AETH.Syndrome = ib.Syndrome(r.s.byte())
	target := e.open
	if flags&2 != 0 {
		target = e.closed
	}
	p.RETH = ib.RETH{VA: target.base + uint64(r.s.byte())<<5, RKey: target.rkey, Length: uint32(r.s.byte()) << 4}
	if flags&4 != 0 {
		p.RETH.Length <<= 20
	}
	p.AtomicETH = ib.AtomicETH{VA: p.RETH.VA, RKey: target.rkey, Swap: 3}
	if p.Opcode.HasPayload() {
		sizes := []int{0, 1, rigMTU - 1, rigMTU, rigMTU, rigMTU, rigMTU + 1, 2 * rigMTU}
		p.Payload = make([]byte, sizes[flags>>3&7])
	}
	return p
}

// check takes completions and looks at what must always hold.
func (r *rig) check(e *rigEnd) {
	for _, wc := range e.Completions(nil) {
		q := 0
		if wc.Receive {
			q = 1
		}
		// Silent successes may be passed over; nothing else may.
		for e.completed[q] < e.posted[q] && uint64(e.completed[q]) != wc.ID && !e.signaled[q][e.completed[q]] {
			e.completed[q]++
		}
		if e.completed[q] >= e.posted[q] || uint64(e.completed[q]) != wc.ID {
			r.t.Fatalf("completion %+v of queue %d, after %d of %d", wc, q, e.completed[q], e.posted[q])
		}
		e.completed[q]++
	}
	for _, n := range e.TakeCounters().Packets {
		e.arrived -= n
	}
	if e.arrived != 0 {
		r.t.Fatalf("%d packets more were handed over than have a fate", int64(e.arrived))
	}
	if e.State() == ib.Err && e.Queued() > 0 {
		r.t.Fatalf("%d work requests are queued in ERR", e.Queued())
	}
	if n := e.Unanswered(); n > rigWindow {
		r.t.Fatalf("%d packets outstanding with a window of %d", n, rigWindow)
	}
}

// FuzzQueuePair plays a live pair: work is posted, packets are exchanged, lost,
// repeated and made up.
func FuzzQueuePair(f *testing.F) {
	// A SEND, a WRITE and a READ that go through, then made-up packets.
	f.Add(byte(0), []byte("\x04\xff\x01\x20\x01\x00\x0a\x10\x11\x00\x0b\x10\x10\x00\x00\x30\x03\x00\x0a\x10\x11\x00\x00\x30\x05\x00\x0a\x10\x11\x00\x0b\x10\x10\x00"))
	f.Add(byte(0), []byte("\x07\x06\x00\x19\x1f\x00\x20\x07\x07\x00\x19\x1f\x00\x20\x07\x08\x00\x08\x1f\x00\x20\x07\x0c\x00\x01\x00\x00\x10\x0b\x1f\x07\x14\x00\x01\x00\x00\x00\x07\x14\xf8\x01\x00\x00\x00\x0b\x1f"))
	f.Add(byte(0), []byte("\x00\x80\x05\x00\x0a\x1f\x06\x11\x00\x00\x62\x06\x0e\x00\x19\x1f\x14\x14\x14\x14\x14\x16\x00"))
	f.Add(byte(1), []byte("\x04\xff\x00\x20\x01\x00\x0a\x10\x11\x00\x0b\x10\x07\x00\x00\x1b\x00\x00"))
	f.Add(byte(2), []byte("\x04\xff\x00\x20\x01\x00\x0a\x10\x11\x00\x0b\x10\x07\x00\x00\x0b\x00\x00"))
	f.Fuzz(func(t *testing.T, typ byte, data []byte) {
		// Long scripts find nothing that short ones do not.
		playAll(t, ib.RC+ib.QPType(typ%3), data[:min(len(data), 4096)])
	})
}

func TestRandomScriptsKeepTheInvariants(t *testing.T) {
	data := make([]byte, 1500)
	scripts := uint64(3000)
	if raceEnabled {
		scripts = 600
	}
	for seed := range scripts {
		fill(data, seed)
		playAll(t, ib.RC+ib.QPType(seed%3), data)
	}
}

// playAll plays a script to its end, puts both ends in ERR and checks that all
// work completed and that no memory was written that should not be.
func playAll(t *testing.T, typ ib.QPType, data []byte) {
	r := newRig(t, typ, data)
	for len(r.s) > 0 {
		r.play()
	}
	for _, e := range r.ends {
		e.Modify(r.now, device.ToErr{})
		r.check(e)
		for q := range e.completed {
			for e.completed[q] < e.posted[q] && !e.signaled[q][e.completed[q]] {
				e.completed[q]++
			}
			if e.completed[q] != e.posted[q] {
				t.Fatalf("%d of %d requests of queue %d completed", e.completed[q], e.posted[q], q)
			}
		}
		for i, b := range e.arena {
			if b != 0xa5 && (i < rigGuard || i >= rigGuard+rigOpen) {
				t.Fatalf("byte %d outside the region was written", i-rigGuard)
			}
		}
		if !bytes.Equal(e.closed.data, make([]byte, rigOpen)) {
			t.Fatal("a region without write access was written")
		}
	}
}
