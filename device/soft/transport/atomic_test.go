package transport_test

import (
	"encoding/binary"
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/soft/transport"
)

func TestAtomicsAreDoneExactlyOnceOnABadWire(t *testing.T) {
	const n = 500
	for seed := range uint64(20) {
		w := newWire(t, options{
			loss: 0.1, copies: 0.1, reorder: 0.2, seed: seed, retry: 7, queue: n, reads: 1 + int(seed%4), psn: 1<<24 - 200,
		})
		a, b := w.ends[0], w.ends[1]
		result, counter := a.memory.add(8*n, all), b.memory.add(8, all)
		for i := range n {
			a.send(device.WorkRequest{
				ID: uint64(i), Opcode: device.WorkFetchAdd, Compare: 1, SGL: result.sge(8*i, 8),
				RemoteAddr: counter.base, RKey: counter.rkey, Signaled: true,
			})
		}
		w.run()
		if got := len(a.take()); got != n {
			t.Fatalf("seed %d: %d completions, want %d", seed, got, n)
		}
		a.expectFailure(ib.Success, "")
		if got := binary.NativeEndian.Uint64(counter.data); got != n {
			t.Errorf("seed %d: the counter is %d after %d additions", seed, got, n)
		}
		for i := range n {
			if got := binary.NativeEndian.Uint64(result.data[8*i:]); got != uint64(i) {
				t.Fatalf("seed %d: addition %d found %d", seed, i, got)
			}
		}
		if b.total.Packets[transport.Duplicate] == 0 {
			t.Errorf("seed %d: no duplicates: nothing was tried", seed)
		}
	}
}

func TestARepeatedAtomicIsAnsweredWithItsFirstResultUntilItIsTooOld(t *testing.T) {
	w := newWire(t, options{reads: 2})
	b := w.ends[1]
	counter := b.memory.add(8, all)
	add := func(psn ib.PSN) []ib.Packet {
		return w.raw(ib.Packet{
			BTH:       ib.BTH{Opcode: ib.RCFetchAdd, PSN: psn},
			AtomicETH: ib.AtomicETH{VA: counter.base, RKey: counter.rkey, Swap: 10},
		})
	}
	for _, step := range []struct {
		psn      ib.PSN
		answered bool
		original uint64
	}{
		{0, true, 0}, {0, true, 0}, {1, true, 10}, {0, true, 0}, {1, true, 10}, {2, true, 20},
		{0, false, 0}, {1, true, 10}, {2, true, 20}, {5, true, 0}, {0xfffff0, false, 0},
	} {
		answers := add(step.psn)
		switch {
		case step.psn == 5:
			if len(answers) != 1 || answers[0].AETH.Syndrome != ib.Nak(ib.PSNSequenceError) || answers[0].PSN != 3 {
				t.Errorf("a gap is answered by %+v", answers)
			}
		case !step.answered:
			if len(answers) != 0 {
				t.Errorf("PSN %d is answered by %+v, want nothing", step.psn, answers)
			}
		case len(answers) != 1 || answers[0].Opcode != ib.RCAtomicAcknowledge || answers[0].PSN != step.psn || answers[0].AtomicAck.Original != step.original:
			t.Errorf("PSN %d is answered by %+v, want %d", step.psn, answers, step.original)
		}
	}
	if got := binary.NativeEndian.Uint64(counter.data); got != 30 {
		t.Errorf("the counter is %d, want 30", got)
	}
}
