package boltstore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/storetest"
)

func fileSize(t testing.TB, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// TestShrinks (S19) makes many records and deletes most of them; the store
// brings its file down by itself to less than twice what lives.
func TestShrinks(t *testing.T) {
	const records, batch, keep = 200_000, 10_000, 10
	path := filepath.Join(t.TempDir(), "fabric.db")
	s := open(t, path, Options{JournalEvents: 1000})
	for id := uint64(1); id <= records; {
		c := fabric.Change{Events: [][]byte{[]byte("made")}}
		for range batch {
			c.Put = append(c.Put, fabric.Record{ID: id, Name: benchName(id), Value: benchValue})
			id++
		}
		commit(t, s, c)
	}
	full := fileSize(t, path)
	for id := uint64(1); id <= records; {
		c := fabric.Change{Events: [][]byte{[]byte("gone")}}
		for range batch {
			if id > records/keep {
				c.Delete = append(c.Delete, id)
			}
			id++
		}
		commit(t, s, c)
	}
	// The commit that crossed the threshold began a compaction; this joins it.
	if err := s.Compact(context.Background()); err != nil {
		t.Fatal(err)
	}
	live := int64(records / keep * 150) // name, value, key and bbolt's entry
	now := fileSize(t, path)
	t.Logf("%d MiB full, %d MiB after, %d MiB live", full>>20, now>>20, live>>20)
	if now > 2*live+growBytes {
		t.Errorf("the file has %d bytes for %d live ones", now, live)
	}
	got, result := storetest.Records(t, s)
	if len(got) != records/keep || result.NextID != records+1 || result.Revision != 2*records/batch {
		t.Errorf("%d records, %+v", len(got), result)
	}
	if page, err := s.Events(context.Background(), 0, 1000); err != nil || len(page.Events) != 2*records/batch {
		t.Errorf("%d events, %v", len(page.Events), err)
	}
	closeStore(t, s)
	checkFile(t, path)
	if left, _ := filepath.Glob(path + ".new"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestCompactUnderLoad compacts again and again while callers put, replace,
// delete, quarantine and read, and then holds every record against what was
// acknowledged.
func TestCompactUnderLoad(t *testing.T) {
	const callers, ids, bystanders = 8, 300, 20_000
	path := filepath.Join(t.TempDir(), "fabric.db")
	fillStore(t, path, bystanders)
	s := open(t, path, Options{CompactAbove: -1, JournalEvents: 500})
	var (
		wg      sync.WaitGroup
		stop    atomic.Bool
		commits atomic.Uint64
		mu      sync.Mutex
		want    = map[string]string{}
	)
	for caller := range uint64(callers) {
		wg.Go(func() {
			for n := 0; !stop.Load(); n++ {
				id := bystanders + caller*ids + uint64(n)%ids + 1
				r := record(id, fmt.Sprintf("%d %s", n, strings.Repeat("x", n%400)))
				c := fabric.Change{Put: []fabric.Record{r}, Events: [][]byte{[]byte("e")}}
				if n%3 == 2 {
					c = fabric.Change{Delete: []uint64{id}}
				}
				if _, err := s.Commit(context.Background(), c); err != nil {
					t.Errorf("Commit: %v", err)
					return
				}
				if n%200 == 199 && n%3 != 2 {
					if err := s.Quarantine(context.Background(), id, "test"); err != nil {
						t.Errorf("Quarantine: %v", err)
					}
					c = fabric.Change{Delete: []uint64{id}}
				}
				commits.Add(1)
				mu.Lock()
				if len(c.Delete) > 0 {
					delete(want, name(id))
				} else {
					want[name(id)] = string(r.Value)
				}
				mu.Unlock()
			}
		})
	}
	wg.Go(func() { // a reader
		for after := uint64(0); !stop.Load(); {
			page, err := s.Events(context.Background(), after, 100)
			if err != nil {
				t.Errorf("Events: %v", err)
				return
			}
			for i, e := range page.Events {
				if i > 0 && e.Revision != page.Events[i-1].Revision+1 {
					t.Errorf("event %d after %d", e.Revision, page.Events[i-1].Revision)
				}
				after = e.Revision
			}
		}
	})
	first, err := os.Open(path) // so that no later file has its inode
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	before, err := first.Stat()
	if err != nil {
		t.Fatal(err)
	}
	compactions := 0
	for ; compactions < 5 || commits.Load() < 3000; compactions++ {
		if err := s.Compact(context.Background()); err != nil {
			t.Errorf("Compact: %v", err)
			break
		}
	}
	after, err := os.Stat(path)
	if err != nil || os.SameFile(before, after) {
		t.Errorf("the file is still the one it was (%v)", err)
	}
	stop.Store(true)
	wg.Wait()
	closeStore(t, s)
	checkFile(t, path)
	s = open(t, path, Options{})
	got, _ := storetest.Records(t, s)
	for n, value := range want {
		if got[n] != value {
			t.Errorf("%s is %.20q, acknowledged as %.20q", n, got[n], value)
		}
	}
	if len(got) != len(want)+bystanders {
		t.Errorf("%d records, want %d and %d bystanders", len(got), len(want), bystanders)
	}
	t.Logf("%d commits during %d compactions", commits.Load(), compactions)
}

// TestCompactClosed ends compactions by Close, whatever they are at.
func TestCompactClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fabric.db")
	fillStore(t, path, 20_000)
	for range 5 {
		s, err := Open(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		if err := s.queue.submit(context.Background(), &request{compact: done}); err != nil {
			t.Fatal(err)
		}
		closeStore(t, s)
		<-done // answered, one way or the other
		checkFile(t, path)
		if left, _ := filepath.Glob(path + ".new"); len(left) > 0 {
			t.Fatalf("left behind: %v", left)
		}
	}
}
