package transport

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestTheWindowSettlesByTheLoss sends windows over a wire that loses packets at
// random and looks for the mean size between a half and twice of what costs
// least.
func TestTheWindowSettlesByTheLoss(t *testing.T) {
	for _, row := range []struct {
		perMille, mtu int
		low, high     float64
	}{
		{1, 1024, 200, 500}, {10, 1024, 50, 200}, {100, 1024, 15, 70},
		{1, 4096, 75, 350}, {10, 4096, 27, 110}, {100, 4096, 8, 35},
	} {
		t.Run(fmt.Sprintf("%d in 1000 of %d bytes", row.perMille, row.mtu), func(t *testing.T) {
			dice := rand.New(rand.NewPCG(1, 2))
			var w window
			w.start(1024, row.mtu)
			sum, n := 0, 0
			for round := range 40_000 {
				sent, lost := w.size, false
				for i := range sent {
					if lost = dice.IntN(1000) < row.perMille; lost {
						w.acknowledged(i)
						w.gap()
						break
					}
				}
				if !lost {
					w.acknowledged(sent)
				}
				if round > 1000 {
					sum, n = sum+w.size, n+1
				}
			}
			if mean := float64(sum) / float64(n); mean < row.low || mean > row.high {
				t.Errorf("a mean window of %.0f packets, want %.0f to %.0f", mean, row.low, row.high)
			}
		})
	}
}

func TestAWindowThatWasFullOpensByPortions(t *testing.T) {
	for _, row := range []struct{ size, mtu, opens int }{
		{256, 4096, 192}, // room for a quarter
		{128, 1024, 68},  // room for a call
		{100, 1024, 50},  // half
		{8, 4096, 4},
		{3, 4096, 2},
		{1, 4096, 0},
	} {
		var w window
		w.start(row.size, row.mtu)
		for out := range row.size {
			if !w.open(out) {
				t.Fatalf("%+v: not open with %d outstanding before it was full", row, out)
			}
			w.sent(out + 1)
		}
		out := row.size
		for ; out > 0 && !w.open(out); out-- {
		}
		if out != row.opens {
			t.Errorf("%+v: open at %d", row, out)
		}
		w.sent(out + 1)
		if row.size > 3 && !w.open(out+1) {
			t.Errorf("%+v: closed again with room for %d", row, row.size-out-1)
		}
	}
}

func TestATimeOutStartsFromTheFloor(t *testing.T) {
	var w window
	w.start(100, 4096)
	w.timedOut()
	if w.size != minWindow {
		t.Errorf("%d packets after a time-out, want %d", w.size, minWindow)
	}
	w.start(2, 4096)
	w.timedOut()
	if w.size != 2 {
		t.Errorf("%d packets after a time-out, want no more than the most, 2", w.size)
	}
}
