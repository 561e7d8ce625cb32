package transport_test

import (
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/soft/transport"
)

func TestErrFlushesAllWorkInOrder(t *testing.T) {
	w := newWire(t, options{})
	a := w.ends[0]
	for id := range uint64(3) {
		a.send(device.WorkRequest{ID: id, Opcode: device.WorkSend})
		a.recv(10+id, nil)
	}
	a.Modify(w.now, device.ToErr{})
	a.expect("send 0 WR_FLUSH_ERR", "send 1 WR_FLUSH_ERR", "send 2 WR_FLUSH_ERR", "recv 10 WR_FLUSH_ERR", "recv 11 WR_FLUSH_ERR", "recv 12 WR_FLUSH_ERR")
	if status, reason := a.Failure(); status != ib.Success || reason != "" || a.State() != ib.Err {
		t.Errorf("failure %v %q in %v", status, reason, a.State())
	}
	w.seen = func(_ int, p *ib.Packet) { t.Errorf("%v left in ERR", p.Opcode) }
	w.run()
}

func TestResetDropsWorkSilentlyAndTheQueuePairCanBeUsedAgain(t *testing.T) {
	w := newWire(t, options{loss: 1, retry: 7})
	a, b := w.ends[0], w.ends[1]
	local := a.memory.add(100, all)
	a.send(device.WorkRequest{ID: 1, Opcode: device.WorkSend, SGL: local.sge(0, 100)})
	a.recv(1, nil)
	w.step()
	a.Modify(w.now, device.ToReset{})
	a.expect()
	if !a.Deadline().IsZero() || a.State() != ib.Reset {
		t.Errorf("deadline %v in %v", a.Deadline(), a.State())
	}
	w.o.loss = 0
	w.flight = nil
	w.reconnect(a)
	b.recv(2, nil)
	a.send(device.WorkRequest{ID: 2, Opcode: device.WorkSend, Signaled: true})
	w.run()
	a.expect("send 2 SUCCESS")
	b.expect("recv 2 SUCCESS")
}

func TestRTRReceivesAndDoesNotSend(t *testing.T) {
	w := newWire(t, options{})
	a, b := w.ends[0], w.ends[1]
	b.Modify(w.now, device.ToReset{})
	b.Modify(w.now, device.ToInit{PKey: ib.DefaultPKey, Access: all})
	b.recv(1, nil)
	b.Modify(w.now, device.ToRTR{Remote: device.Remote{QPN: qpn(0)}, PathMTU: ib.MTU256, MinRNRTimer: 12})
	if err := b.PostSend(&device.WorkRequest{Opcode: device.WorkSend}); err == nil {
		t.Error("work was taken in RTR")
	}
	a.send(device.WorkRequest{ID: 1, Opcode: device.WorkSend, Signaled: true})
	w.run()
	a.expect("send 1 SUCCESS")
	b.expect("recv 1 SUCCESS")
}

func TestSQDFinishesWhatItBeganAndStartsNothing(t *testing.T) {
	w := newWire(t, options{mtu: ib.MTU256, window: 8, loss: 0.05, retry: 7, seed: 4})
	a, b := w.ends[0], w.ends[1]
	local, target := a.memory.add(100*256, all), b.memory.add(100*256, all)
	for id := range uint64(4) {
		a.send(device.WorkRequest{ID: id, Opcode: device.WorkWrite, SGL: local.sge(0, 100*256), RemoteAddr: target.base, RKey: target.rkey, Signaled: true})
	}
	n := 0
	w.seen = func(from int, p *ib.Packet) {
		if n++; n == 60 {
			a.Modify(w.now, device.ToSQD{})
		}
	}
	w.run()
	a.expect("send 0 SUCCESS")
	if a.State() != ib.SQD {
		t.Fatalf("state %v", a.State())
	}
	a.send(device.WorkRequest{ID: 4, Opcode: device.WorkWrite, Signaled: true})
	w.run()
	a.expect()
	a.Modify(w.now, device.ToRTS{})
	w.run()
	a.expect("send 1 SUCCESS", "send 2 SUCCESS", "send 3 SUCCESS", "send 4 SUCCESS")
}

func TestTransmitKeepsItsBudgetAndSaysWhetherThereIsMore(t *testing.T) {
	w := newWire(t, options{mtu: ib.MTU256, window: 64})
	a, b := w.ends[0], w.ends[1]
	local, target := a.memory.add(64*256, all), b.memory.add(64*256, all)
	for _, e := range []*end{a, b} {
		l, r := local, target
		if e == b {
			l, r = target, local
		}
		e.send(device.WorkRequest{Opcode: device.WorkRead, SGL: l.sge(0, 10*256), RemoteAddr: r.base, RKey: r.rkey})
		e.send(device.WorkRequest{Opcode: device.WorkWrite, SGL: l.sge(0, 10*256), RemoteAddr: r.base, RKey: r.rkey})
	}
	requests, responses := 0, 0
	w.fate = func(_ int, p *ib.Packet) verdict {
		if p.Opcode.IsRequest() {
			requests++
		} else {
			responses++
		}
		return pass
	}
	turn := func(e *end, budget, wantRequests, wantResponses int, wantMore bool) {
		t.Helper()
		requests, responses = 0, 0
		w.sender = e.index
		more := e.Transmit(w.now, w, budget)
		if requests != wantRequests || responses != wantResponses || more != wantMore {
			t.Errorf("%d requests and %d responses, more %v; want %d, %d, %v", requests, responses, more, wantRequests, wantResponses, wantMore)
		}
	}
	turn(b, 0, 0, 0, true)
	turn(b, 1, 1, 0, true) // the READ request
	p := ib.Packet{BTH: ib.BTH{Opcode: ib.RCRDMAReadRequest}, RETH: ib.RETH{VA: target.base, RKey: target.rkey, Length: 10 * 256}}
	b.Receive(w.now, &p, nil)
	turn(b, 8, 4, 4, true)   // half each
	turn(b, 12, 6, 6, false) // and the rest
	turn(b, 12, 0, 0, false)
}

func TestAnswersToNothingAreDropped(t *testing.T) {
	w := newWire(t, options{})
	a, b := w.ends[0], w.ends[1]
	local, target := a.memory.add(8, all), b.memory.add(8, all)
	check := func(when string) {
		t.Helper()
		before := a.total.Packets[transport.Unexpected]
		n := uint64(0)
		for op := ib.RCRDMAReadResponseFirst; op <= ib.RCAtomicAcknowledge; op++ {
			for _, psn := range []ib.PSN{0, 1, 2, 100, 1 << 23, 1<<24 - 1} {
				for _, s := range []ib.Syndrome{0x1f, 0x20, 0x60, 0x61, 0x62, 0x63, 0x64, 0x7f, 0xff} {
					a.Receive(w.now, &ib.Packet{BTH: ib.BTH{Opcode: op, PSN: psn}, AETH: ib.AETH{Syndrome: s}}, nil)
					n++
				}
			}
		}
		a.expect()
		if got := a.total.Packets[transport.Unexpected] - before; got != n || a.State() != ib.RTS {
			t.Errorf("%s: dropped %d of %d, in %v", when, got, n, a.State())
		}
	}
	check("before any work")
	a.send(device.WorkRequest{ID: 1, Opcode: device.WorkWrite, SGL: local.sge(0, 8), RemoteAddr: target.base, RKey: target.rkey, Signaled: true})
	check("before it was sent")
	w.run()
	a.expect("send 1 SUCCESS")
	check("after it was done")
}

func TestMSNCountsMessagesAndAcksAreCoalesced(t *testing.T) {
	w := newWire(t, options{mtu: ib.MTU256})
	a, b := w.ends[0], w.ends[1]
	local, target := a.memory.add(1000, all), b.memory.add(1000, all)
	var acks []ib.Packet
	w.seen = func(from int, p *ib.Packet) {
		if from == 1 {
			acks = append(acks, *p)
		}
	}
	for range 5 {
		a.send(device.WorkRequest{Opcode: device.WorkWrite, SGL: local.sge(0, 1000), RemoteAddr: target.base, RKey: target.rkey})
	}
	w.run()
	if len(acks) != 1 || acks[0].PSN != 19 || acks[0].AETH != (ib.AETH{Syndrome: 0x1f, MSN: 5}) {
		t.Errorf("acknowledged by %+v, want one for PSN 19 and MSN 5", acks)
	}
}

// counting is a Sink and a driver without a network: what one end sends the
// other has received when Send returns.
type counting struct {
	to      *transport.QueuePair
	w       *wire
	packets int
}

func (s *counting) Send(p *ib.Packet, _ *device.Datagram) {
	s.packets++
	s.to.Receive(s.w.now, p, nil)
}

// stream writes one message and takes its completion.
func stream(w *wire, wr *device.WorkRequest, forth, back *counting, done []device.Completion) bool {
	a, b := w.ends[0].QueuePair, w.ends[1].QueuePair
	if a.PostSend(wr) != nil {
		return false
	}
	for before := -1; before != forth.packets+back.packets; {
		before = forth.packets + back.packets
		a.Transmit(w.now, forth, 64)
		b.Transmit(w.now, back, 64)
	}
	return len(a.Completions(done[:0])) == 1
}

func TestAStreamOfWritesDoesNotAllocate(t *testing.T) {
	for _, op := range []device.WorkOpcode{device.WorkWrite, device.WorkRead, device.WorkFetchAdd} {
		w := newWire(t, options{mtu: ib.MTU1024, window: 64})
		local, target := w.ends[0].memory.add(1<<20, all), w.ends[1].memory.add(1<<20, all)
		wr := device.WorkRequest{Opcode: op, SGL: local.sge(0, 1<<20), RemoteAddr: target.base, RKey: target.rkey, Signaled: true}
		if op == device.WorkFetchAdd {
			wr.SGL = local.sge(0, 8)
		}
		forth, back := &counting{to: w.ends[1].QueuePair, w: w}, &counting{to: w.ends[0].QueuePair, w: w}
		done := make([]device.Completion, 0, 4)
		ok := true
		if n := testing.AllocsPerRun(20, func() { ok = stream(w, &wr, forth, back, done) && ok }); n != 0 || !ok {
			t.Errorf("%d: %v allocations a message, want 0 (ok %v)", op, n, ok)
		}
	}
}

func TestAnIdleQueuePairIsSmall(t *testing.T) {
	limit := int64(2048)
	if raceEnabled {
		limit *= 2 // the race detector makes everything larger
	}
	result := testing.Benchmark(func(b *testing.B) {
		for range b.N {
			newIdle()
		}
	})
	if n := result.AllocedBytesPerOp(); n > limit {
		t.Errorf("a connection takes %d bytes, want at most %d", n, limit)
	}
}

func newIdle() *transport.QueuePair {
	c := transport.New(transport.Config{SendWR: 4096, RecvWR: 4096, SGE: 16})
	c.Modify(time.Time{}, device.ToInit{})
	c.Modify(time.Time{}, device.ToRTR{PathMTU: ib.MTU4096, MaxDestRDAtomic: 16})
	c.Modify(time.Time{}, device.ToRTS{MaxRDAtomic: 16})
	return c
}
