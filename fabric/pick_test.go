package fabric_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/fabric"
)

func (w *world) pick(count int, degraded bool) (fabric.Pick, error) {
	return w.f.PickDevices(ctx(), bob, fabric.PickDevices{Count: count, AllowDegraded: degraded})
}

func (w *world) islands() [][]string {
	w.t.Helper()
	t, err := w.f.Topology(ctx(), bob)
	return must(t, err).Islands
}

// isOut wants one device out of a pick, for a reason and with all of the words.
func isOut(t *testing.T, p fabric.Pick, name string, reason fabric.Reason, words ...string) {
	t.Helper()
	if len(p.Excluded) != 1 || p.Excluded[0].Device != name || p.Excluded[0].Reason != reason {
		t.Fatalf("%+v: want %s out, %s", p, name, reason)
	}
	for _, word := range words {
		if !strings.Contains(p.Excluded[0].Message, word) {
			t.Errorf("%q lacks %q", p.Excluded[0].Message, word)
		}
	}
}

func TestPickDevices(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := must(w.pick(2, false))
		if !slices.Equal(p.Devices, []string{d0, d1}) || p.MinLanes != 1 || p.Lanes != 1 || len(p.Excluded) != 0 || p.Reason != "2 cards of island 0, every pair 1 lane, 1 lane in all" {
			t.Errorf("%+v", p)
		}
		if p := must(w.pick(1, false)); !slices.Equal(p.Devices, []string{d0}) {
			t.Errorf("%+v", p)
		}
		_, err := w.pick(0, false)
		refused(t, err, fabric.FieldRequired, "count")
		for _, count := range []int{-1, fabric.MaxPick + 1} {
			_, err := w.pick(count, false)
			refused(t, err, fabric.FieldInvalid, "count")
		}
		_, err = w.pick(3, false)
		if e := refused(t, err, fabric.Exhausted, "count"); e.Shortage.Asked != 3 || e.Shortage.Available != 2 || e.Shortage.Limit != 2 || len(e.Shortage.Holders) != 0 {
			t.Errorf("%v: %+v", e, e.Shortage)
		}
	})
}

// A card that any session holds, alone or not, is not free, and its holder is
// named.
func TestPickLeavesHeldDevicesOut(t *testing.T) {
	for how, exclusive := range map[string]bool{"held alone by ": true, "held shared by ": false} {
		inBubble(t, func(t *testing.T, w *world) {
			a := must(w.f.CreateSession(ctx(), alice, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "a"}, Devices: []string{d0}, Exclusive: exclusive}))
			p := must(w.pick(1, true))
			if !slices.Equal(p.Devices, []string{d1}) {
				t.Errorf("%+v", p)
			}
			isOut(t, p, d0, fabric.DeviceBusy, how+a.Name, "uid:1000", "pid 4711")
			_, err := w.pick(2, true)
			e := refused(t, err, fabric.Exhausted, "count")
			if s := e.Shortage; s.Kind != "devices" || s.Asked != 2 || s.Available != 1 || s.Limit != 2 || len(s.Holders) != 1 || s.Holders[0].Name != a.Name || s.Holders[0].Amount != 1 {
				t.Errorf("%+v", s)
			}
			if !strings.Contains(e.Message, a.Name) {
				t.Errorf("%q does not name the holder", e.Message)
			}
			must(0, w.f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: a.Name}}))
			pass(time.Second)
			must(w.pick(2, false))
		})
	}
}

// Who has most of what is short is named first.
func TestPickNamesTheLargestHolderFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		must(w.f.CreateSession(ctx(), bob, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "one"}, Devices: []string{d0}}))
		w.session("both", alice)
		_, err := w.pick(1, false)
		hs := refused(t, err, fabric.Exhausted, "count").Shortage.Holders
		if len(hs) != 2 || hs[0].Name != "nodes/n1/sessions/both" || hs[0].Amount != 2 || hs[1].Amount != 1 {
			t.Errorf("%+v", hs)
		}
	})
}

// A lane with a port that is down is none, and its card is degraded, which must
// be asked for.
func TestPickOfDegradedDevices(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		if got := w.islands(); len(got) != 1 || !slices.Equal(got[0], []string{d0, d1}) {
			t.Errorf("islands %q", got)
		}
		w.cards[0].pull(0, true)
		p := must(w.pick(1, false))
		if !slices.Equal(p.Devices, []string{d1}) {
			t.Errorf("%+v", p)
		}
		isOut(t, p, d0, fabric.ReasonPortDown, "its health is DEGRADED: ")
		_, err := w.pick(2, false)
		if e := refused(t, err, fabric.Exhausted, "count"); !strings.Contains(e.Message, d0+" is not well (PORT_DOWN)") || e.Shortage.Available != 1 {
			t.Errorf("%v", e)
		}
		if p := must(w.pick(2, true)); len(p.Devices) != 2 || p.Lanes != 0 || p.Reason != "2 cards of 2 islands, no two have a lane between them, 0 lanes in all" {
			t.Errorf("%+v", p)
		}
		if got := w.islands(); len(got) != 2 {
			t.Errorf("islands %q", got)
		}
		w.cards[0].pull(0, false)
		w.cards[1].pull(0, true) // the other end
		if p := must(w.pick(2, true)); p.Lanes != 0 {
			t.Errorf("%+v", p)
		}
	})
}

// What has failed is not taken, also where what is degraded is.
func TestPickOfAFailedDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cards[0].fail("List", errIO)
		w.open()
		defer w.close()
		p := must(w.pick(1, true))
		if !slices.Equal(p.Devices, []string{d1}) {
			t.Errorf("%+v", p)
		}
		isOut(t, p, d0, fabric.DeviceUnavailable, "its health is FAILED: ")
	})
}

// deaf is a device whose ports cannot be read while it is deaf.
type deaf struct {
	device.Device
	now atomic.Bool
}

func (d *deaf) Port(ctx context.Context, n int) (device.Port, error) {
	if d.now.Load() {
		return device.Port{}, errors.New("deaf")
	}
	return d.Device.Port(ctx, n)
}

// One device that does not answer does not keep the others from being picked.
func TestPickBesideADeviceThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var first *deaf
		w.wrap = func(d device.Device) device.Device {
			if first != nil {
				return d
			}
			first = &deaf{Device: d}
			return first
		}
		w.open()
		defer w.close()
		first.now.Store(true)
		p := must(w.pick(1, true))
		if !slices.Equal(p.Devices, []string{d1}) {
			t.Errorf("%+v", p)
		}
		isOut(t, p, d0, fabric.DeviceUnavailable, "port 0 cannot be read: deaf")
	})
}

// A NIC beside the cards is of no map: it is not picked, nor of an island.
func TestPickOfCardsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cards[0].info.Topology = ""
		w.open()
		defer w.close()
		p := must(w.pick(1, false))
		if !slices.Equal(p.Devices, []string{d1}) || p.Reason != "1 card of island 0" { // as it is numbered below
			t.Errorf("%+v", p)
		}
		isOut(t, p, d0, fabric.Unsupported)
		if got := w.islands(); len(got) != 1 || !slices.Equal(got[0], []string{d1}) {
			t.Errorf("islands %q", got)
		}
		_, err := w.pick(2, false)
		if e := refused(t, err, fabric.Exhausted, "count"); e.Shortage.Limit != 1 {
			t.Errorf("%+v", e.Shortage)
		}
	})
}

// A device that is configured no more, and still has records, is told.
func TestPickTellsOfADeviceThatIsNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.open()
		defer w.close()
		s := must(w.f.CreateSession(ctx(), alice, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "s"}, Devices: []string{d0}}))
		w.pd("p", s.Name)
		w.close()
		w.mem = w.mem.Reopen()
		cfg := w.config(w.mem)
		cfg.Devices = cfg.Devices[1:]
		w.f = must(fabric.Open(ctx(), cfg))
		p := must(w.pick(1, true))
		if !slices.Equal(p.Devices, []string{d1}) || p.Reason != "1 card of island 0" {
			t.Errorf("%+v", p)
		}
		isOut(t, p, d0, fabric.DeviceUnavailable)
		if p.Excluded[0].Message == "" {
			t.Errorf("%+v", p.Excluded)
		}
	})
}
