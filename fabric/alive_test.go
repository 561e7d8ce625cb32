package fabric_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/fabric"
)

// stuck is a store whose calls wait while they are held.
type stuck struct {
	fabric.Store
	commits, reads chan struct{} // each call takes one
}

func (s *stuck) Commit(ctx context.Context, c fabric.Change) (uint64, error) {
	<-s.commits
	return s.Store.Commit(ctx, c)
}

func (s *stuck) Events(ctx context.Context, after uint64, limit int) (fabric.EventPage, error) {
	<-s.reads
	return s.Store.Events(ctx, after, limit)
}

func asksAlive(w *world, d time.Duration) error {
	c, cancel := context.WithTimeout(ctx(), d)
	defer cancel()
	return w.f.Alive(c)
}

func TestAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		free := make(chan struct{})
		close(free)
		s := &stuck{Store: w.mem, commits: free, reads: free}
		w.f = must(fabric.Open(ctx(), w.config(s)))
		defer w.close()
		alive := func() {
			t.Helper()
			if err := asksAlive(w, time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
		dead := func(what string) {
			t.Helper()
			if e := refused(t, asksAlive(w, time.Second), fabric.Timeout, ""); !strings.Contains(e.Message, what) {
				t.Errorf("%v: want %q", e, what)
			}
		}
		alive()
		held := make(chan struct{})
		s.reads = held
		dead("the store")
		dead("earlier question")
		close(held)
		synctest.Wait()
		alive()
		held = make(chan struct{})
		s.commits = held
		w.cards[0].pull(0, true) // the keeper has something to record
		dead("records outcomes")
		close(held)
		synctest.Wait()
		alive()
	})
}

// A store that refuses is no daemon that is dead: it answers.
func TestAliveWhileTheStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		store := &sick{Store: w.mem}
		w.f = must(fabric.Open(ctx(), w.config(store)))
		store.is.Store(true)
		w.cards[0].hint(device.Event{Kind: device.DeviceChanged})
		w.cards[0].pull(0, true)
		pass(time.Minute) // pauses between attempts are long by now
		if err := asksAlive(w, time.Millisecond); err != nil {
			t.Error(err)
		}
		f := w.f
		w.close()
		refused(t, f.Alive(ctx()), fabric.DeviceUnavailable, "")
	})
}
