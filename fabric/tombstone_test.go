package fabric

import (
	"fmt"
	"slices"
	"testing"
)

// Tombstones go by age and by number, the oldest first, and with the last of a
// request its id is free again.
func TestOldTombstonesAreDugOut(t *testing.T) {
	x := newIndex()
	for i := range 10 {
		x.bury(&record{id: uint64(i + 1), name: fmt.Sprintf("r%d", i+1), stored: &stored{Kind: kindTombstone,
			Request: fmt.Sprintf("batch%d", i/2), Gone: &gone{Identity: "uid:1", At: int64(100 + i)}}})
	}
	if got := x.dig(100, 10); got != nil || len(x.requests) != 5 {
		t.Errorf("of ten that are young and not too many, %v went; %d requests are known", got, len(x.requests))
	}
	if got := x.dig(103, 10); !slices.Equal(got, []uint64{1, 2, 3}) {
		t.Errorf("of those before 103, %v went", got)
	}
	if x.requests[requestKey{"uid:1", "batch0"}] != nil || x.requests[requestKey{"uid:1", "batch1"}] == nil {
		t.Errorf("a request is known as long as a tombstone names it: %v", x.requests)
	}
	if got := x.dig(0, 2); !slices.Equal(got, []uint64{4, 5, 6, 7, 8}) || len(x.tombs) != 2 || len(x.requests) != 1 {
		t.Errorf("above two, %v went; %d tombstones of %d requests are left", got, len(x.tombs), len(x.requests))
	}
	if got := x.dig(1000, 2); len(got) != 2 || len(x.tombs)+len(x.requests) != 0 {
		t.Errorf("at last %v went, %v and %v stay", got, x.tombs, x.requests)
	}
}
