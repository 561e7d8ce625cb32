package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/accelfab/accelfab/fabric"
)

// Opener opens the store at one place, again and again: each call gives a new
// handle on what the handle before it left. The suite closes a handle before
// it asks for the next.
type Opener func(t testing.TB, limits Limits) fabric.Store

// Run holds the stores of place against the rules of fabric.Store. Each call
// of place gives a new, empty place.
func Run(t *testing.T, place func(t testing.TB) Opener) {
	cases := []struct {
		name string
		run  func(*testing.T, Opener)
	}{
		{"an empty store", testEmpty},
		{"records come back in the order of their ids", testOrder},
		{"a put replaces, a delete removes", testReplace},
		{"a change is whole or absent", testWhole},
		{"revisions ascend by one over restarts", testRevisions},
		{"a change without an event keeps the revision", testNoEvent},
		{"the journal gives pages", testPages},
		{"the journal is bounded by count", testTrimCount},
		{"the journal is bounded by age", testTrimAge},
		{"ids of deleted records are not forgotten", testNextID},
		{"a quarantined record is out of the way", testQuarantine},
		{"an error of the reader ends the load", testLoadError},
		{"a context that ended commits nothing", testContext},
		{"id 0 is refused", testZeroID},
		{"values are the store's own", testAliasing},
		{"a closed store says so", testClosed},
		{"many callers: what was acknowledged is there", testConcurrent},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(t, place(t)) })
	}
}

// Records loads a store into a map from name to value, in a test.
func Records(t testing.TB, s fabric.Store) (map[string]string, fabric.LoadResult) {
	t.Helper()
	got := map[string]string{}
	result, err := s.Load(context.Background(), func(r fabric.Record) error {
		got[r.Name] = string(r.Value)
		return nil
	})
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	if result.Records != len(got) {
		t.Errorf("Load counts %d records and gave %d", result.Records, len(got))
	}
	return got, result
}

func record(id uint64, value string) fabric.Record {
	return fabric.Record{ID: id, Name: fmt.Sprintf("records/%d", id), Value: []byte(value)}
}

func commit(t testing.TB, s fabric.Store, c fabric.Change) uint64 {
	t.Helper()
	revision, err := s.Commit(context.Background(), c)
	if err != nil {
		t.Fatalf("Commit: %v", err)
	}
	return revision
}

func events(t testing.TB, s fabric.Store, after uint64, limit int) fabric.EventPage {
	t.Helper()
	page, err := s.Events(context.Background(), after, limit)
	if err != nil {
		t.Fatalf("Events: %v", err)
	}
	return page
}

func closeStore(t testing.TB, s fabric.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

func testEmpty(t *testing.T, open Opener) {
	s := open(t, Limits{})
	defer closeStore(t, s)
	got, result := Records(t, s)
	if len(got) != 0 || result.Revision != 0 || result.NextID != 1 || len(result.Quarantined) != 0 {
		t.Errorf("Load of an empty store gives %v, %+v", got, result)
	}
	if page := events(t, s, 0, 10); len(page.Events) != 0 || page.Oldest != 0 || page.Newest != 0 {
		t.Errorf("Events of an empty store gives %+v", page)
	}
}

func testOrder(t *testing.T, open Opener) {
	s := open(t, Limits{})
	// 256 and 255 differ in the order of bytes if the key were little-endian.
	ids := []uint64{256, 3, 1 << 40, 255, 1, 65536}
	for _, id := range ids {
		commit(t, s, fabric.Change{Put: []fabric.Record{record(id, "v")}})
	}
	closeStore(t, s)
	s = open(t, Limits{})
	defer closeStore(t, s)
	var got []uint64
	if _, err := s.Load(context.Background(), func(r fabric.Record) error {
		got = append(got, r.ID)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(ids)
	if !slices.Equal(got, ids) {
		t.Errorf("order is %v, want %v", got, ids)
	}
}

func testReplace(t *testing.T, open Opener) {
	s := open(t, Limits{})
	commit(t, s, fabric.Change{Put: []fabric.Record{record(1, "a"), record(2, "b"), record(3, "")}})
	commit(t, s, fabric.Change{Put: []fabric.Record{record(2, strings.Repeat("long ", 2000))}, Delete: []uint64{1}})
	commit(t, s, fabric.Change{Delete: []uint64{99}}) // not there: no error
	closeStore(t, s)
	s = open(t, Limits{})
	defer closeStore(t, s)
	got, _ := Records(t, s)
	if len(got) != 2 || got["records/2"] != strings.Repeat("long ", 2000) || got["records/3"] != "" {
		t.Errorf("after a replace and a delete: %d records", len(got))
	}
}

func testWhole(t *testing.T, open Opener) {
	s := open(t, Limits{})
	var change fabric.Change
	for id := uint64(1); id <= 5000; id++ {
		change.Put = append(change.Put, record(id, "first"))
		change.Events = append(change.Events, []byte("made"))
	}
	if revision := commit(t, s, change); revision != 5000 {
		t.Errorf("revision of 5000 events is %d", revision)
	}
	// One bad record refuses the whole change.
	bad := fabric.Change{
		Put:    []fabric.Record{record(1, "second"), {ID: 0, Name: "bad"}, record(2, "second")},
		Delete: []uint64{3},
		Events: [][]byte{[]byte("no")},
	}
	if _, err := s.Commit(context.Background(), bad); err == nil {
		t.Error("a change with a bad record was taken")
	}
	closeStore(t, s)
	s = open(t, Limits{})
	defer closeStore(t, s)
	got, result := Records(t, s)
	if len(got) != 5000 || result.Revision != 5000 {
		t.Fatalf("%d records at revision %d, want 5000 at 5000", len(got), result.Revision)
	}
	for name, value := range got {
		if value != "first" {
			t.Fatalf("%s is %q: part of a refused change", name, value)
		}
	}
}

func testRevisions(t *testing.T, open Opener) {
	want := uint64(0)
	for round := range 4 {
		s := open(t, Limits{})
		if _, result := Records(t, s); result.Revision != want {
			t.Errorf("round %d: Load gives revision %d, want %d", round, result.Revision, want)
		}
		for n := range 3 {
			change := fabric.Change{}
			for range n + 1 {
				change.Events = append(change.Events, []byte("e"))
				want++
			}
			if got := commit(t, s, change); got != want {
				t.Errorf("round %d: revision %d, want %d", round, got, want)
			}
		}
		closeStore(t, s)
	}
	s := open(t, Limits{})
	defer closeStore(t, s)
	page := events(t, s, 0, 1000)
	if len(page.Events) != int(want) {
		t.Fatalf("%d events, want %d", len(page.Events), want)
	}
	for i, e := range page.Events {
		if e.Revision != uint64(i)+1 {
			t.Fatalf("event %d has revision %d: a hole", i, e.Revision)
		}
	}
}

func testNoEvent(t *testing.T, open Opener) {
	s := open(t, Limits{})
	defer closeStore(t, s)
	commit(t, s, fabric.Change{Events: [][]byte{[]byte("a"), []byte("b")}})
	if got := commit(t, s, fabric.Change{Put: []fabric.Record{record(1, "v")}}); got != 2 {
		t.Errorf("revision of a change without an event is %d, want 2", got)
	}
	if got := commit(t, s, fabric.Change{}); got != 2 {
		t.Errorf("revision of an empty change is %d, want 2", got)
	}
}

func testPages(t *testing.T, open Opener) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	s := open(t, Limits{Now: func() time.Time { return now }})
	defer closeStore(t, s)
	for i := range 25 {
		commit(t, s, fabric.Change{Events: [][]byte{fmt.Appendf(nil, "event %d", i+1)}})
	}
	var got []string
	after := uint64(0)
	for {
		page := events(t, s, after, 10)
		if page.Oldest != 1 || page.Newest != 25 {
			t.Errorf("page spans %d to %d, want 1 to 25", page.Oldest, page.Newest)
		}
		if len(page.Events) == 0 {
			break
		}
		if len(page.Events) > 10 {
			t.Fatalf("%d events where 10 were asked", len(page.Events))
		}
		for _, e := range page.Events {
			after++
			if e.Revision != after || !e.Time.Equal(now) {
				t.Errorf("event %d at %v, want %d at %v", e.Revision, e.Time, after, now)
			}
			got = append(got, string(e.Value))
		}
	}
	if len(got) != 25 || got[0] != "event 1" || got[24] != "event 25" {
		t.Errorf("pages hold %q", got)
	}
	if page := events(t, s, 99, 10); len(page.Events) != 0 || page.Newest != 25 {
		t.Errorf("a cursor from the future gives %+v", page)
	}
	if page := events(t, s, 0, 0); len(page.Events) != 0 || page.Oldest != 1 {
		t.Errorf("a page of 0 events gives %+v", page)
	}
}

func testTrimCount(t *testing.T, open Opener) {
	s := open(t, Limits{JournalEvents: 10})
	for range 500 {
		commit(t, s, fabric.Change{Events: [][]byte{[]byte("e")}})
	}
	page := events(t, s, 0, 1000)
	if page.Oldest != 491 || page.Newest != 500 || len(page.Events) != 10 || page.Events[0].Revision != 491 {
		t.Errorf("journal of at most 10 spans %d to %d with %d events", page.Oldest, page.Newest, len(page.Events))
	}
	closeStore(t, s)
	// A lower bound takes hold within some commits, none of which does it all.
	s = open(t, Limits{JournalEvents: 2})
	defer closeStore(t, s)
	for range 100 {
		commit(t, s, fabric.Change{Events: [][]byte{[]byte("e")}})
	}
	if page := events(t, s, 0, 1000); page.Oldest != 599 || page.Newest != 600 {
		t.Errorf("journal of at most 2 spans %d to %d", page.Oldest, page.Newest)
	}
}

func testTrimAge(t *testing.T, open Opener) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	limits := Limits{JournalAge: time.Hour, Now: func() time.Time { return now }}
	s := open(t, limits)
	for range 20 {
		commit(t, s, fabric.Change{Events: [][]byte{[]byte("e")}})
		now = now.Add(10 * time.Minute)
	}
	// The newest is 10 minutes old; the last commit saw what was older than an hour.
	if page := events(t, s, 0, 1000); page.Oldest != 14 || page.Newest != 20 {
		t.Errorf("journal of an hour spans %d to %d, want 14 to 20", page.Oldest, page.Newest)
	}
	now = now.Add(24 * time.Hour)
	commit(t, s, fabric.Change{Put: []fabric.Record{record(1, "v")}})
	if page := events(t, s, 0, 1000); page.Oldest != 0 || page.Newest != 20 || len(page.Events) != 0 {
		t.Errorf("after a day the journal spans %d to %d, want none, newest 20", page.Oldest, page.Newest)
	}
	closeStore(t, s)
	s = open(t, limits)
	defer closeStore(t, s)
	if got := commit(t, s, fabric.Change{Events: [][]byte{[]byte("e")}}); got != 21 {
		t.Errorf("revision after the journal was empty is %d, want 21", got)
	}
}

func testNextID(t *testing.T, open Opener) {
	s := open(t, Limits{})
	commit(t, s, fabric.Change{Put: []fabric.Record{record(7, "v"), record(41, "v")}})
	commit(t, s, fabric.Change{Delete: []uint64{7, 41}})
	closeStore(t, s)
	s = open(t, Limits{})
	defer closeStore(t, s)
	if _, result := Records(t, s); result.NextID != 42 || result.Records != 0 {
		t.Errorf("next id is %d with %d records, want 42 with 0", result.NextID, result.Records)
	}
}

func testQuarantine(t *testing.T, open Opener) {
	s := open(t, Limits{})
	ctx := context.Background()
	commit(t, s, fabric.Change{Put: []fabric.Record{record(1, "a"), record(2, "b"), record(3, "c")}})
	if err := s.Quarantine(ctx, 2, "cannot be decoded"); err != nil {
		t.Fatalf("Quarantine: %v", err)
	}
	if err := s.Quarantine(ctx, 2, "again"); err == nil {
		t.Error("Quarantine of a record that is not there gave no error")
	}
	closeStore(t, s)
	s = open(t, Limits{})
	defer closeStore(t, s)
	got, result := Records(t, s)
	if _, there := got["records/2"]; there || len(got) != 2 || result.NextID != 4 {
		t.Errorf("after Quarantine: %v, next id %d", got, result.NextID)
	}
}

func testLoadError(t *testing.T, open Opener) {
	s := open(t, Limits{})
	defer closeStore(t, s)
	commit(t, s, fabric.Change{Put: []fabric.Record{record(1, "a"), record(2, "b")}})
	stop := errors.New("stop")
	calls := 0
	_, err := s.Load(context.Background(), func(fabric.Record) error {
		calls++
		return stop
	})
	if !errors.Is(err, stop) || calls != 1 {
		t.Errorf("Load called %d times and gave %v", calls, err)
	}
}

func testContext(t *testing.T, open Opener) {
	s := open(t, Limits{})
	defer closeStore(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Commit(ctx, fabric.Change{Put: []fabric.Record{record(1, "v")}}); !errors.Is(err, context.Canceled) {
		t.Errorf("Commit gives %v", err)
	}
	if got, _ := Records(t, s); len(got) != 0 {
		t.Errorf("a cancelled commit left %v", got)
	}
}

func testZeroID(t *testing.T, open Opener) {
	s := open(t, Limits{})
	defer closeStore(t, s)
	_, err := s.Commit(context.Background(), fabric.Change{Put: []fabric.Record{{Name: "records/zero"}}})
	if err == nil || !strings.Contains(err.Error(), "records/zero") {
		t.Errorf("a record with id 0 gives %v", err)
	}
}

func testAliasing(t *testing.T, open Opener) {
	s := open(t, Limits{})
	defer closeStore(t, s)
	value, event := []byte("value"), []byte("event")
	commit(t, s, fabric.Change{Put: []fabric.Record{{ID: 1, Name: "n", Value: value}}, Events: [][]byte{event}})
	value[0], event[0] = 'X', 'X'
	var kept []byte
	if _, err := s.Load(context.Background(), func(r fabric.Record) error {
		kept = r.Value
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	page := events(t, s, 0, 1)
	commit(t, s, fabric.Change{Delete: []uint64{1}})
	for id := uint64(2); id < 500; id++ {
		commit(t, s, fabric.Change{Put: []fabric.Record{record(id, "other")}})
	}
	if string(kept) != "value" || string(page.Events[0].Value) != "event" {
		t.Errorf("values changed under their readers: %q, %q", kept, page.Events[0].Value)
	}
}

func testClosed(t *testing.T, open Opener) {
	s := open(t, Limits{})
	closeStore(t, s)
	closeStore(t, s) // again: no error
	ctx := context.Background()
	_, load := s.Load(ctx, func(fabric.Record) error { return nil })
	_, commit := s.Commit(ctx, fabric.Change{})
	_, events := s.Events(ctx, 0, 1)
	for call, err := range map[string]error{
		"Load": load, "Commit": commit, "Events": events, "Quarantine": s.Quarantine(ctx, 1, "r"),
	} {
		if !errors.Is(err, fabric.ErrStoreClosed) {
			t.Errorf("%s of a closed store gives %v", call, err)
		}
	}
}

// testConcurrent has many callers commit, some of them while the store closes.
func testConcurrent(t *testing.T, open Opener) {
	const callers, each = 32, 40
	s := open(t, Limits{})
	var (
		wg        sync.WaitGroup
		mu        sync.Mutex
		revisions = map[uint64]bool{}
		acked     = map[string]string{}
	)
	half := make(chan struct{}, callers)
	for c := range callers {
		wg.Go(func() {
			for n := range each {
				id := uint64(n*callers + c + 1)
				value := fmt.Sprintf("caller %d, change %d", c, n)
				change := fabric.Change{Put: []fabric.Record{record(id, value)}, Events: [][]byte{[]byte(value)}}
				if n > 0 { // and take the one before away in the same change
					change.Delete = []uint64{id - callers}
				}
				revision, err := s.Commit(context.Background(), change)
				if errors.Is(err, fabric.ErrStoreClosed) {
					return
				}
				if err != nil {
					t.Errorf("Commit: %v", err)
					return
				}
				mu.Lock()
				if revisions[revision] {
					t.Errorf("revision %d was given twice", revision)
				}
				revisions[revision] = true
				if n > 0 {
					delete(acked, fmt.Sprintf("records/%d", id-callers))
				}
				acked[fmt.Sprintf("records/%d", id)] = value
				mu.Unlock()
				if n == each/2 {
					half <- struct{}{}
				}
			}
		})
	}
	for range callers / 2 {
		<-half
	}
	closeStore(t, s)
	wg.Wait()

	s = open(t, Limits{})
	defer closeStore(t, s)
	got, result := Records(t, s)
	for name, value := range acked {
		if got[name] != value {
			t.Errorf("%s was acknowledged as %q and is %q", name, value, got[name])
		}
	}
	if len(got) != len(acked) {
		t.Errorf("%d records are there, %d were acknowledged", len(got), len(acked))
	}
	for r := uint64(1); r <= result.Revision; r++ {
		if !revisions[r] {
			t.Errorf("revision %d is in the journal and nobody has it", r)
		}
	}
}
