package fabric_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelfab/accelfab/fabric"
)

func TestHealthOfTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		cfg := w.config(w.mem)
		var ahead atomic.Int64 // of the uptime: the wall clock is set back by as much
		var synced atomic.Bool
		synced.Store(true)
		cfg.Uptime = func() time.Duration { return time.Since(w.start) + time.Duration(ahead.Load()) }
		cfg.ClockSynchronized = func() (bool, error) { return synced.Load(), nil }
		w.f = must(fabric.Open(ctx(), cfg))
		defer w.close()
		w.session("s", alice)
		pass(time.Minute)
		w.healthIs("clock", fabric.HealthOK, "", fabric.HealthOK)

		ahead.Add(int64(900 * time.Millisecond)) // a little is no step
		pass(10 * time.Second)
		w.healthIs("clock", fabric.HealthOK, "", fabric.HealthOK)
		ahead.Add(int64(90 * time.Second))
		pass(10 * time.Second)
		c := w.healthIs("clock", fabric.HealthDegraded, fabric.ReasonClockStepped, fabric.HealthDegraded)
		if !strings.Contains(c.Message, "set back by 1m30s") {
			t.Errorf("%+v", c)
		}
		pass(9 * time.Minute)
		w.healthIs("clock", fabric.HealthDegraded, fabric.ReasonClockStepped, fabric.HealthDegraded)
		pass(2 * time.Minute)
		w.healthIs("clock", fabric.HealthOK, "", fabric.HealthOK)
		ahead.Add(-int64(time.Hour / 2))
		pass(10 * time.Second)
		if c := w.component("clock"); !strings.Contains(c.Message, "set forward by 30m0s") {
			t.Errorf("%+v", c)
		}
		ahead.Add(int64(time.Hour / 2))
		pass(20 * time.Minute)

		synced.Store(false)
		pass(10 * time.Second)
		w.healthIs("clock", fabric.HealthUnknown, fabric.ReasonClockUnsynchronized, fabric.HealthOK) // the node is none the worse
		synced.Store(true)
		pass(10 * time.Second)
		w.healthIs("clock", fabric.HealthOK, "", fabric.HealthOK)
		w.toldHealth("clock", "OK DEGRADED CLOCK_STEPPED", "DEGRADED OK CLEARED", "OK DEGRADED CLOCK_STEPPED", "DEGRADED OK CLEARED",
			"OK UNKNOWN CLOCK_UNSYNCHRONIZED", "UNKNOWN OK CLEARED")
	})
}

// The system's own answer is one of the two, whatever this machine does.
func TestHealthOfTheClockOfThisMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		cfg := w.config(w.mem)
		cfg.ClockSynchronized = nil
		w.f = must(fabric.Open(ctx(), cfg))
		defer w.close()
		switch c := w.component("clock"); {
		case c.Status == fabric.HealthOK:
		case c.Status == fabric.HealthUnknown && c.Reason == fabric.ReasonClockUnsynchronized && strings.Contains(c.Message, "STA_UNSYNC"):
			if h := w.f.NodeHealth(); h.Status != fabric.HealthOK || len(h.Problems) > 0 {
				t.Errorf("the node is none the worse: %+v", h)
			}
		default:
			t.Errorf("%+v", c)
		}
		synctest.Wait()
		w.toldHealth("clock")
	})
}
