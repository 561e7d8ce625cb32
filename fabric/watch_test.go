package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/storetest"
)

// until pulls events up to the next bookmark.
func until(t *testing.T, next func() (fabric.Event, error, bool)) (events []fabric.Event, cursor uint64) {
	t.Helper()
	for {
		e, err, ok := next()
		if err != nil || !ok {
			t.Fatal("the watch ended:", err)
		}
		if e.Type == fabric.EventBookmark {
			return events, e.Cursor
		}
		events = append(events, e)
	}
}

func TestWatchResumes(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.session("s", alice)
		next, stop := iter.Pull2(w.f.Watch(ctx(), alice, fabric.Watch{}))
		first, cursor := until(t, next)
		if len(first) != 2 || first[1].Resource != "nodes/n1/sessions/s" || first[1].Type != fabric.EventCreated || first[1].Actor != alice.Identity {
			t.Errorf("%+v", first)
		}
		w.buffer("b", "nodes/n1/sessions/s", 1)
		more, cursor2 := until(t, next)
		if len(more) != 1 || more[0].Resource != d0+"/buffers/b" || cursor2 <= cursor {
			t.Errorf("%+v", more)
		}
		stop()
		must(0, w.f.DeleteBuffer(ctx(), alice, fabric.Delete{Name: d0 + "/buffers/b"}))
		w.session("t", bob) // is not for alice
		w.restart(false)
		next, stop = iter.Pull2(w.f.Watch(ctx(), alice, fabric.Watch{After: cursor2}))
		defer stop()
		more, _ = until(t, next)
		if len(more) != 3 || more[0].After != "DELETING" || more[1].Type != fabric.EventDeleted || more[2].Resource != "nodes/n1" {
			t.Errorf("%+v", more)
		}
	})
}

// A watcher that is too slow, or comes late, is told the gap and gets the
// present state of all, and then every event once.
func TestWatchGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.mem = storetest.NewMemory(storetest.Limits{JournalEvents: 10})
		w.open()
		defer w.close()
		w.full()
		next, stop := iter.Pull2(w.f.Watch(ctx(), alice, fabric.Watch{FromNow: true}))
		defer stop()
		_, cursor := until(t, next)
		for i := range 30 { // while nobody reads
			w.buffer(fmt.Sprintf("b%d", i), "nodes/n1/sessions/s", 1)
		}
		got, end := until(t, next)
		if len(got) == 0 || got[0].Type != fabric.EventGap || got[0].Cursor != cursor || got[0].Oldest <= cursor+1 {
			t.Fatalf("%+v: want a gap first", got)
		}
		shown := map[string]bool{}
		for _, e := range got[1:] {
			if e.Type != fabric.EventSnapshot || shown[e.Resource] {
				t.Errorf("%+v: want each object once", e)
			}
			shown[e.Resource] = true
		}
		if len(shown) != 35 || !shown[d0+"/buffers/b29"] || !shown[d0+"/queuePairs/q"] {
			t.Errorf("%d objects shown: want 35", len(shown))
		}
		w.buffer("last", "nodes/n1/sessions/s", 1)
		if got, _ = until(t, next); len(got) != 1 || got[0].Resource != d0+"/buffers/last" || got[0].Cursor <= end {
			t.Errorf("%+v", got)
		}
		_, err := w.f.ListEvents(ctx(), alice, fabric.ListEvents{After: 2}, nil)
		refused(t, err, fabric.CursorExpired, "after")
		p := must(w.f.ListEvents(ctx(), alice, fabric.ListEvents{Limit: 4}, nil))
		if len(p.Items) != 4 || p.Next != p.Items[3].Cursor {
			t.Errorf("%+v", p)
		}
	})
}

// A watcher whose cursor is of a journal that is gone, since the store was begun
// anew, is told so as of a gap, and misses nothing from then on.
func TestWatchFromACursorOfAnotherJournal(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		next, stop := iter.Pull2(w.f.Watch(ctx(), alice, fabric.Watch{After: 1 << 40}))
		defer stop()
		got, _ := until(t, next)
		if len(got) != 6 || got[0].Type != fabric.EventGap || got[0].Cursor != 1<<40 || got[0].Oldest != 1 || got[1].Type != fabric.EventSnapshot {
			t.Fatalf("%+v: want a gap and each object", got)
		}
		w.buffer("last", "nodes/n1/sessions/s", 1)
		if got, _ = until(t, next); len(got) != 1 || got[0].Resource != d0+"/buffers/last" {
			t.Errorf("%+v", got)
		}
		_, err := w.f.ListEvents(ctx(), alice, fabric.ListEvents{After: 1 << 40}, nil)
		refused(t, err, fabric.CursorExpired, "after")
		newest := w.events()[len(w.events())-1].Cursor
		if p := must(w.f.ListEvents(ctx(), alice, fabric.ListEvents{After: newest}, nil)); len(p.Items) != 0 {
			t.Errorf("%+v: want nothing after the newest", p)
		}
	})
}

func TestWatchEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		end := func(c context.Context, f func()) error {
			next, stop := iter.Pull2(w.f.Watch(c, alice, fabric.Watch{FromNow: true}))
			defer stop()
			until(t, next)
			until(t, next) // the heartbeat after 30 s
			f()
			_, err, _ := next()
			return err
		}
		c, cancel := context.WithCancel(ctx())
		if err := end(c, cancel); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		refused(t, end(ctx(), w.close), fabric.DeviceUnavailable, "")
	})
}

func TestHeartbeatNeedsNoEvents(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		next, stop := iter.Pull2(w.f.Watch(ctx(), alice, fabric.Watch{FromNow: true}))
		defer stop()
		until(t, next)
		start := time.Now()
		if got, _ := until(t, next); len(got) != 0 || time.Since(start) != 30*time.Second {
			t.Errorf("%v after %v", got, time.Since(start))
		}
	})
}
