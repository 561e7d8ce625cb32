package transport_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

func TestAReceiveThatIsPostedLateIsWaitedFor(t *testing.T) {
	for _, op := range []device.WorkOpcode{device.WorkSend, device.WorkWriteImm} {
		w := newWire(t, options{mtu: ib.MTU256, rnr: 7, retry: 1})
		a, b := w.ends[0], w.ends[1]
		local, target := a.memory.add(1000, all), b.memory.add(1000, all)
		fill(local.data, 1)
		a.send(device.WorkRequest{ID: 1, Opcode: op, SGL: local.sge(0, 1000), RemoteAddr: target.base, RKey: target.rkey, Signaled: true})
		w.after = func() {
			if w.after != nil && w.now.Sub(w.start) > 50*time.Millisecond {
				w.after = nil
				b.recv(1, target.sge(0, 1000))
			}
		}
		w.run()
		a.expect("send 1 SUCCESS")
		b.expect("recv 1 SUCCESS")
		if string(local.data) != string(target.data) {
			t.Errorf("%d: data differ", op)
		}
		tries := int(50*time.Millisecond/ib.RNRTimer(12)) + 2
		if n := int(b.total.RNRNAKsSent); n < tries/2 || n > tries || a.total.RNRNAKsReceived != b.total.RNRNAKsSent || a.total.AckTimeouts != 0 {
			t.Errorf("%d: requester %+v, responder %+v; want about %d RNR NAKs and no time-out", op, a.total, b.total, tries)
		}
	}
}

func TestRNRRetriesRunOut(t *testing.T) {
	for _, rnr := range []uint8{0, 1, 6} {
		w := newWire(t, options{rnr: rnr, retry: 7})
		a, b := w.ends[0], w.ends[1]
		a.send(device.WorkRequest{ID: 1, Opcode: device.WorkSend})
		a.send(device.WorkRequest{ID: 2, Opcode: device.WorkSend})
		w.run()
		a.expect("send 1 RNR_RETRY_EXC_ERR", "send 2 WR_FLUSH_ERR")
		a.expectFailure(ib.RNRRetryExcErr, fmt.Sprintf("QPN 0x12 had no receive posted for PSN 0x000000 in %d tries (rnr_retry %d)", rnr+1, rnr))
		b.expectFailure(ib.Success, "")
		if b.total.RNRNAKsSent != uint64(rnr)+1 {
			t.Errorf("rnr_retry %d: %d RNR NAKs", rnr, b.total.RNRNAKsSent)
		}
	}
}

func TestWhatWasSentBeforeAnRNRNAKIsAcknowledgedByIt(t *testing.T) {
	w := newWire(t, options{rnr: 0})
	a, b := w.ends[0], w.ends[1]
	b.recv(1, nil)
	for id := range uint64(3) {
		a.send(device.WorkRequest{ID: id, Opcode: device.WorkSend, Signaled: true})
	}
	w.run()
	a.expect("send 0 SUCCESS", "send 1 RNR_RETRY_EXC_ERR", "send 2 WR_FLUSH_ERR")
	b.expect("recv 1 SUCCESS")
}

// Linux Soft-RoCE tells a gap for the packets behind the one it was not ready
// for; the wait goes on.
func TestANAKForAGapDoesNotCutTheRNRWaitShort(t *testing.T) {
	w := newWire(t, options{rnr: 7})
	a := w.ends[0]
	a.send(device.WorkRequest{ID: 1, Opcode: device.WorkSend})
	w.sender = 0
	w.fate = func(int, *ib.Packet) verdict { return lose }
	a.Transmit(w.now, w, 10)
	answer := func(s ib.Syndrome) {
		a.Receive(w.now, &ib.Packet{BTH: ib.BTH{Opcode: ib.RCAcknowledge}, AETH: ib.AETH{Syndrome: s}}, nil)
	}
	answer(ib.RNRNak(14))
	until := w.now.Add(ib.RNRTimer(14))
	answer(ib.Nak(ib.PSNSequenceError))
	answer(ib.RNRNak(14)) // a copy
	if a.Transmit(w.now, w, 10) || !a.Deadline().Equal(until) {
		t.Errorf("deadline in %v, want %v", a.Deadline().Sub(w.now), ib.RNRTimer(14))
	}
	sent := 0
	w.seen = func(int, *ib.Packet) { sent++ }
	a.Expire(until)
	a.Transmit(until, w, 10)
	if sent != 1 {
		t.Errorf("%d packets after the wait, want 1", sent)
	}
}
