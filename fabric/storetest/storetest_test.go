package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/accelfab/accelfab/fabric"
)

func TestMemory(t *testing.T) {
	Run(t, func(t testing.TB) Opener {
		var disk *Memory
		return func(t testing.TB, limits Limits) fabric.Store {
			if disk == nil {
				disk = NewMemory(limits)
			}
			disk = disk.Reopen()
			if limits.Now != nil {
				disk.state.limits.Now = limits.Now
			}
			disk.state.limits.JournalEvents = limits.JournalEvents
			disk.state.limits.JournalAge = limits.JournalAge
			return disk
		}
	})
}

func TestMemoryCrash(t *testing.T) {
	old := NewMemory(Limits{})
	commit(t, old, fabric.Change{Put: []fabric.Record{record(1, "a")}})
	again := old.Reopen()
	if _, err := old.Commit(context.Background(), fabric.Change{Delete: []uint64{1}}); !errors.Is(err, fabric.ErrStoreClosed) {
		t.Errorf("the handle of a dead process commits: %v", err)
	}
	closeStore(t, old) // late, and without effect on the new handle
	if got, _ := Records(t, again); got["records/1"] != "a" {
		t.Errorf("after the crash: %v", got)
	}
}

func TestFailing(t *testing.T) {
	put := func(id uint64) fabric.Change { return fabric.Change{Put: []fabric.Record{record(id, "v")}} }
	for _, c := range []struct {
		strike Strike
		want   int // of three puts, the second of which is struck
		err    error
	}{
		{Refuse, 2, fabric.ErrStoreFailed},
		{CrashBefore, 1, ErrCrashed},
		{CrashAfter, 2, ErrCrashed},
	} {
		t.Run(c.strike.String(), func(t *testing.T) {
			disk := NewMemory(Limits{})
			f := NewFailing(disk, 2, c.strike)
			commit(t, f, put(1))
			if f.Struck() {
				t.Fatal("struck before its call")
			}
			if _, err := f.Commit(context.Background(), put(2)); !errors.Is(err, c.err) {
				t.Errorf("the struck call gives %v", err)
			}
			<-f.Done()
			_, err := f.Commit(context.Background(), put(3))
			if dead := c.strike != Refuse; dead != errors.Is(err, ErrCrashed) {
				t.Errorf("the call after it gives %v", err)
			}
			if f.Calls() != 3 {
				t.Errorf("%d calls counted, want 3", f.Calls())
			}
			if got, _ := Records(t, disk.Reopen()); len(got) != c.want {
				t.Errorf("%d records, want %d", len(got), c.want)
			}
		})
	}
}
