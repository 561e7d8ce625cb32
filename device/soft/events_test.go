package soft

import (
	"testing"

	"github.com/accelfab/accelfab/device"
)

// TestAReaderOfHintsLearnsThatSomeAreLost fills the channel of hints, so that
// some are lost, and reads it empty. Nothing happens any more that could say so
// later.
func TestAReaderOfHintsLearnsThatSomeAreLost(t *testing.T) {
	e := newEvents()
	hint := device.Event{Kind: device.PortChanged, Port: 3}
	for range 2 {
		most := cap(e.c)
		for range most + 5 {
			e.post(hint)
		}
		for i := range most {
			want := hint
			if i == most-1 {
				want = device.Event{Kind: device.DeviceChanged, Port: -1}
			}
			if got := <-e.c; got != want {
				t.Fatalf("hint %d of %d is %+v, want %+v", i, most, got, want)
			}
		}
		if n := len(e.c); n != 0 {
			t.Fatalf("%d hints more than the channel holds", n)
		}
	}
	e.post(hint)
	if got := <-e.c; got != hint {
		t.Errorf("with room again the hint is %+v, want %+v", got, hint)
	}
	e.close()
	e.post(hint)
	if got, open := <-e.c; open {
		t.Errorf("after close there is %+v", got)
	}
}
