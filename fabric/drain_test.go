package fabric_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/fabric"
)

// under sets how many sends are under way on all queue pairs of a card.
func (c *card) under(sends int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range c.qps {
		q.Outstanding = sends
	}
}

// closing begins to close the session s.
func (w *world) closing() <-chan error {
	done := make(chan error, 1)
	go func() {
		done <- w.f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: sessionS}})
	}()
	return done
}

// L18: a session that ends lets sends that are under way come to their end, with all
// that they need there; nothing new begins meanwhile.
func TestL18WhatIsUnderWayMayEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for _, many := range []int{1, 20} { // asked one by one, and listed
			w.full()
			for i := range many - 1 {
				w.qp(fmt.Sprint("q", i), d0+"/protectionDomains/p")
				must(w.connect(fmt.Sprint("q", i), peer))
			}
			must(w.connect("q", peer))
			w.cards[0].under(3)
			done := w.closing()
			pass(300 * time.Millisecond)
			w.onDevice(1, 1, 1, many)
			_, err := w.f.PostWork(ctx(), alice, fabric.PostWork{QueuePair: d0 + "/queuePairs/q", Requests: []device.WorkRequest{{Opcode: device.WorkRecv}}})
			refused(t, err, fabric.SessionClosed, "")
			w.cards[0].under(0)
			began := time.Now()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if d := time.Since(began); d > 100*time.Millisecond { // of the bubble's time
				t.Errorf("it took %v more after the last had ended", d)
			}
			w.onDevice(0, 0, 0, 0)
		}
	})
}

// L18: what does not come to its end is cut off after the bound, which the session
// set, and that is told.
func TestL18TheDrainIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for _, c := range []struct {
			drain *time.Duration
			want  time.Duration
		}{{nil, 500 * time.Millisecond}, {new(time.Duration), 0}, {func() *time.Duration { d := 7 * time.Second; return &d }(), 7 * time.Second}} {
			s := must(w.f.CreateSession(ctx(), alice, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "s"}, TTL: time.Hour, Drain: c.drain}))
			if s.Drain != c.want {
				t.Errorf("%v: want %v", s.Drain, c.want)
			}
			w.pd("p", sessionS)
			w.buffer("b", sessionS, 4096)
			w.region("m", d0+"/protectionDomains/p", d0+"/buffers/b")
			w.qp("q", d0+"/protectionDomains/p")
			must(w.connect("q", peer))
			w.cards[0].under(5)
			began := time.Now()
			if err := <-w.closing(); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(began); d < c.want || d > c.want+100*time.Millisecond {
				t.Errorf("it took %v: want %v", d, c.want)
			}
			w.onDevice(0, 0, 0, 0)
			if c.want > 0 {
				w.told(t, sessionS, "system", fabric.Timeout, fmt.Sprintf("after %v: 5 sends", c.want))
			}
		}
		for _, bad := range []time.Duration{-1, time.Minute + 1} {
			_, err := w.f.CreateSession(ctx(), alice, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1"}, Drain: &bad})
			refused(t, err, fabric.FieldInvalid, "drain_timeout")
		}
	})
}

// A device that does not answer, or a daemon that dies meanwhile, does not keep a
// session.
func TestADrainThatGetsNoAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		must(w.connect("q", peer))
		w.cards[0].under(1)
		w.cards[0].fail("GetQueuePair", device.ErrUnavailable)
		if err := <-w.closing(); err != nil {
			t.Fatal(err)
		}
		w.onDevice(0, 0, 0, 0)
		w.told(t, sessionS, "system", fabric.Timeout, "does not say")
		w.cards[0].fail("GetQueuePair", nil)

		w.full()
		must(w.connect("q", peer))
		w.cards[0].under(1)
		done := w.closing()
		synctest.Wait()
		w.restart(false)
		if err := <-done; err == nil {
			t.Error("it closed under a daemon that ended")
		}
		pass(time.Second)
		w.onDevice(0, 0, 0, 0)
	})
}
