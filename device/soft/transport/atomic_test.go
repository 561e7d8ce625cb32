package transport_test

import (
	"bytes"
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
			loss: 0.1, copies: 0.1, reorder: 0.2, seed: seed, retry: 7, queue: n, reads: []int{1, 2, 3, 16}[seed%4], psn: 1<<24 - 200,
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

// TestAsManyResultsAreKeptAsWereAgreed repeats each of the last max_dest_rd_atomic
// atomics and READs, in the order in which a requester that lost all answers
// would.
func TestAsManyResultsAreKeptAsWereAgreed(t *testing.T) {
	for _, most := range []int{1, 16} {
		w := newWire(t, options{reads: most})
		b := w.ends[1]
		counter := b.memory.add(8, all)
		request := func(psn int) ib.Packet {
			p := ib.Packet{BTH: ib.BTH{Opcode: ib.RCFetchAdd, PSN: ib.PSN(psn)}}
			if psn%5 == 4 {
				p.Opcode = ib.RCRDMAReadRequest
			}
			p.AtomicETH = ib.AtomicETH{VA: counter.base, RKey: counter.rkey, Swap: 1}
			p.RETH = ib.RETH{VA: counter.base, RKey: counter.rkey, Length: 8}
			return p
		}
		const rounds = 5
		first := make([]uint64, rounds*most)
		added := uint64(0)
		for round := range rounds {
			for again := range 3 {
				for i := range most {
					psn := round*most + i
					answers := w.raw(request(psn))
					if len(answers) != 1 || answers[0].PSN != ib.PSN(psn) {
						t.Fatalf("%d at once, PSN %d: answers %+v", most, psn, answers)
					}
					if answers[0].Opcode != ib.RCAtomicAcknowledge {
						continue
					}
					got := answers[0].AtomicAck.Original
					if again == 0 {
						first[psn] = got
						if got != added {
							t.Errorf("%d at once, PSN %d: found %d, want %d", most, psn, got, added)
						}
						added++
					}
					if got != first[psn] {
						t.Errorf("%d at once, PSN %d again: %d, at first %d", most, psn, got, first[psn])
					}
				}
			}
		}
		if got := binary.NativeEndian.Uint64(counter.data); got != added {
			t.Errorf("%d at once: the counter is %d after %d additions", most, got, added)
		}
		if got := b.total.Packets[transport.Duplicate]; got != uint64(2*rounds*most) {
			t.Errorf("%d at once: %d duplicates, want %d", most, got, 2*rounds*most)
		}
	}
}

// TestMoreAtOnceThanWasAgreed sends one READ more than max_dest_rd_atomic before
// any is answered.
func TestMoreAtOnceThanWasAgreed(t *testing.T) {
	for _, most := range []int{1, 16} {
		w := newWire(t, options{reads: most})
		b := w.ends[1]
		target := b.memory.add(8, all)
		for psn := range most {
			b.Receive(w.now, &ib.Packet{
				BTH:  ib.BTH{Opcode: ib.RCRDMAReadRequest, PSN: ib.PSN(psn)},
				RETH: ib.RETH{VA: target.base, RKey: target.rkey, Length: 8},
			}, nil)
		}
		if b.State() != ib.RTS {
			t.Fatalf("%d READs at once, as agreed: %v", most, b.State())
		}
		answers := w.raw(ib.Packet{
			BTH:       ib.BTH{Opcode: ib.RCFetchAdd, PSN: ib.PSN(most)},
			AtomicETH: ib.AtomicETH{VA: target.base, RKey: target.rkey, Swap: 1},
		})
		if len(answers) != most+1 || answers[most].AETH.Syndrome != ib.Nak(ib.InvalidRequest) || answers[most].PSN != ib.PSN(most) {
			t.Errorf("%d agreed: answers %+v", most, answers)
		}
		if !bytes.Equal(target.data, make([]byte, 8)) {
			t.Errorf("%d agreed: one more was done", most)
		}
	}
}

// A queue pair may do few atomics among many writes, so that PSNs come round while
// an old result is still kept.
func TestTheNewestResultOfAPSNIsGiven(t *testing.T) {
	for _, tt := range []struct {
		most int
		done []ib.PSN
		psn  ib.PSN
		want uint64
		kept bool
	}{
		{4, []ib.PSN{5, 6, 5}, 5, 2, true},
		{4, []ib.PSN{5, 6, 5}, 6, 1, true},
		{2, []ib.PSN{5, 6, 5, 7}, 5, 2, true},
		{2, []ib.PSN{5, 6, 5, 7}, 6, 0, false},
		{2, []ib.PSN{5, 6, 6, 7}, 6, 2, true},
		{1, []ib.PSN{5, 5}, 5, 1, true},
	} {
		if got, kept := transport.SavedAtomic(tt.most, tt.psn, tt.done...); got != tt.want || kept != tt.kept {
			t.Errorf("%d kept, PSNs %v: %d gives %d, %v; want %d, %v", tt.most, tt.done, tt.psn, got, kept, tt.want, tt.kept)
		}
	}
}
