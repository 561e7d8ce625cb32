package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/storetest"
)

// TestChangeTooLarge names what is too large.
func TestChangeTooLarge(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "fabric.db"), Options{})
	for _, c := range []struct {
		change fabric.Change
		want   string
	}{
		{fabric.Change{Put: []fabric.Record{{ID: 9, Name: strings.Repeat("n", maxName+1)}}}, "record 9: name has 65536 bytes, at most 65535"},
		{fabric.Change{Put: []fabric.Record{{ID: 9, Name: "big", Value: make([]byte, maxValue+1)}}}, `record "big": value has 16777217`},
		{fabric.Change{Events: [][]byte{make([]byte, maxValue+1)}}, "event: value has 16777217"},
	} {
		if _, err := s.Commit(context.Background(), c.change); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Commit gives %v, want %q", err, c.want)
		}
	}
	// The largest is taken, though it is more than a group.
	value := bytes.Repeat([]byte{7}, maxValue)
	commit(t, s, fabric.Change{Put: []fabric.Record{{ID: 1, Name: strings.Repeat("n", maxName), Value: value}}})
	if got, _ := storetest.Records(t, s); got[strings.Repeat("n", maxName)] != string(value) {
		t.Error("the largest record did not come back")
	}
}

// TestGroup has changes share a transaction: order within it, one id in several
// changes, and a caller who gave up before it began.
func TestGroup(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "fabric.db"), Options{})
	var group []*request
	for _, c := range []fabric.Change{
		{Put: []fabric.Record{record(3, "first"), record(1, "one")}, Events: [][]byte{[]byte("a"), []byte("b")}},
		{Put: []fabric.Record{record(2, "two")}, Delete: []uint64{1}},
		{Put: []fabric.Record{record(3, "second"), record(9, "short-lived")}, Events: [][]byte{[]byte("c")}},
		{Delete: []uint64{9}},
	} {
		r, err := encode(c)
		if err != nil {
			t.Fatal(err)
		}
		r.done = make(chan error, 1)
		group = append(group, r)
	}
	gaveUp, err := encode(fabric.Change{Put: []fabric.Record{record(5, "given up")}})
	if err != nil {
		t.Fatal(err)
	}
	gaveUp.taken.Store(true)
	// All of it becomes visible to the writer at once.
	s.queue.mu.Lock()
	s.queue.waiting = append(append(s.queue.waiting, gaveUp), group...)
	s.queue.mu.Unlock()
	s.queue.wake.Signal()
	var revisions []string
	for _, r := range group {
		if err := <-r.done; err != nil {
			t.Fatal(err)
		}
		revisions = append(revisions, fmt.Sprint(r.revision))
	}
	if got := strings.Join(revisions, " "); got != "2 2 3 3" {
		t.Errorf("revisions %s, want 2 2 3 3", got)
	}
	got, result := storetest.Records(t, s)
	if len(got) != 2 || got[name(2)] != "two" || got[name(3)] != "second" || result.NextID != 10 {
		t.Errorf("%v, next id %d", got, result.NextID)
	}
}

// TestGiveUp ends the wait of a caller whose change nobody took yet.
func TestGiveUp(t *testing.T) {
	var q queue
	q.wake = sync.NewCond(&q.mu)
	ctx, cancel := context.WithCancel(context.Background())
	answer := make(chan error)
	go func() { answer <- q.submit(ctx, &request{}) }()
	for waits := false; !waits; {
		q.mu.Lock()
		waits = len(q.waiting) == 1
		q.mu.Unlock()
	}
	cancel()
	if err := <-answer; !errors.Is(err, context.Canceled) {
		t.Errorf("submit gives %v", err)
	}
	if group, more := q.take(); len(group) != 0 || !more {
		t.Errorf("the writer takes %d requests that were given up, more: %v", len(group), more)
	}
}

// TestTake bounds a transaction in bytes.
func TestTake(t *testing.T) {
	var q queue
	q.wake = sync.NewCond(&q.mu)
	for _, size := range []int{groupBytes + 1, 10, groupBytes - 20, 11, 5} {
		q.waiting = append(q.waiting, &request{size: size})
	}
	q.close()
	for _, want := range []int{1, 2, 2} {
		if group, more := q.take(); len(group) != want || !more {
			t.Errorf("a group of %d, more: %v; want %d", len(group), more, want)
		}
	}
	if group, more := q.take(); len(group) != 0 || more {
		t.Errorf("a closed and empty queue gives %d, more: %v", len(group), more)
	}
}
