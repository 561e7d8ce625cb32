package fabric_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelfab/accelfab/fabric"
)

// slow is a store whose commits take a while.
type slow struct {
	sick
	takes time.Duration
}

func (s *slow) Commit(ctx context.Context, c fabric.Change) (uint64, error) {
	<-time.After(s.takes)
	return s.sick.Commit(ctx, c)
}

func counted(s fabric.Stats) (list []string) {
	for _, o := range s.Objects {
		if o.Count > 0 {
			list = append(list, fmt.Sprintf("%d %s %s", o.Count, o.Kind, o.State))
		}
	}
	return list
}

func TestStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		store := &slow{sick: sick{Store: w.mem}}
		w.f = must(fabric.Open(ctx(), w.config(store)))
		defer w.close()
		w.full()
		w.qp("q2", d0+"/protectionDomains/p")
		must(w.connect("q2", peer))
		w.session("s2", bob)
		synctest.Wait()
		before := w.f.Stats()
		want := []string{"2 sessions ACTIVE", "1 queuePairs INIT", "1 queuePairs RTS", "1 memoryRegions READY", "1 buffers READY", "1 protectionDomains READY"}
		if got := counted(before); !slices.Equal(got, want) {
			t.Errorf("counts %q, want %q", got, want)
		}
		if d := before.Devices; len(d) != 2 || d[0].ID != "d0" || d[0].MemoryBytes != 1<<20 || d[0].Usage.BufferBytes != 8192 || d[0].Usage.QueuePairs != 2 || d[1].Usage.Buffers != 0 {
			t.Errorf("%+v", d)
		}
		if e := w.events(); before.Revision != e[len(e)-1].Cursor || before.Pending != 0 {
			t.Errorf("revision %d, pending %d: the last event is %d", before.Revision, before.Pending, e[len(e)-1].Cursor)
		}
		if before.Refused != 0 || before.Commits.Count == 0 || before.Commits.Sum != 0 || before.Commits.Buckets[0] != before.Commits.Count {
			t.Errorf("%+v", before.Commits)
		}

		store.takes = 30 * time.Millisecond
		w.buffer("b2", "nodes/n1/sessions/s", 4096)
		synctest.Wait()
		after := w.f.Stats()
		n := after.Commits.Count - before.Commits.Count
		if i := slices.Index(after.Commits.Bounds, 50*time.Millisecond); n == 0 || after.Commits.Buckets[i] != n || after.Commits.Sum != time.Duration(n)*store.takes {
			t.Errorf("%d commits of %v: %+v", n, store.takes, after.Commits)
		}
		store.takes = 6 * time.Second // beyond the last bound
		w.buffer("b3", "nodes/n1/sessions/s", 4096)
		synctest.Wait()
		sum := uint64(0)
		c := w.f.Stats().Commits
		for _, b := range c.Buckets {
			sum += b
		}
		if sum != after.Commits.Count || c.Count == sum {
			t.Errorf("%+v", c)
		}
		store.takes = 0

		store.is.Store(true)
		_, err := w.f.CreateSession(ctx(), alice, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/local"}})
		refused(t, err, fabric.StoreUnavailable, "")
		store.is.Store(false)
		if s := w.f.Stats(); s.Refused != 1 || s.Commits.Count != c.Count || !slices.Equal(counted(s)[:2], want[:2]) {
			t.Errorf("%+v", s)
		}
	})
}
