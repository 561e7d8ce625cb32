package fabric

import (
	"slices"
	"sync"
	"time"

	"github.com/accelfab/accelfab/device/ib"
)

// Stats are counts of the node, for a monitoring system.
type Stats struct {
	Objects  []ObjectCount // every kind in every state, also those that count 0
	Devices  []DeviceStats // in ascending order of id
	Commits  Durations     // of the store, that succeeded
	Refused  uint64        // commits that the store refused
	Revision uint64        // of the journal's newest event
	Pending  int           // outcomes that wait to be recorded
}

// ObjectCount is how many objects of a kind are in a state.
type ObjectCount struct {
	Kind  string // as in names: "sessions", "queuePairs"
	State string // of a queue pair that is on its device, the queue pair's own
	Count int
}

// DeviceStats are counts of a device.
type DeviceStats struct {
	ID          string
	MemoryBytes uint64
	Usage       Usage // of what is recorded
}

// Durations counts how long something took. Buckets[i] counts what took at most
// Bounds[i], without what is in the buckets before.
type Durations struct {
	Count   uint64
	Sum     time.Duration
	Bounds  []time.Duration // ascending; not to be changed
	Buckets []uint64
}

// commitBounds reach from a store in memory to a disk that is about to fail.
var commitBounds = []time.Duration{100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond,
	5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
	500 * time.Millisecond, time.Second, 5 * time.Second}

// commits measures the store.
type commits struct {
	mu      sync.Mutex
	ok      Durations
	refused uint64
}

func (c *commits) add(took time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.refused++
		return
	}
	if c.ok.Buckets == nil {
		c.ok.Bounds, c.ok.Buckets = commitBounds, make([]uint64, len(commitBounds))
	}
	c.ok.Count++
	c.ok.Sum += took
	if i, _ := slices.BinarySearch(commitBounds, took); i < len(commitBounds) {
		c.ok.Buckets[i]++
	}
}

func (c *commits) read() (ok Durations, refused uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ok = c.ok
	ok.Bounds, ok.Buckets = commitBounds, slices.Clone(c.ok.Buckets)
	if ok.Buckets == nil {
		ok.Buckets = make([]uint64, len(commitBounds))
	}
	return ok, c.refused
}

// statesOf are the states that an object of a kind may be counted in.
func statesOf(k kind) []string {
	switch k {
	case kindSession:
		return words(StateActive, StateClosing, StateLost)
	case kindExport:
		return words(StatePending, StateActive, StateRevoking, StateRevoked, StateLost, StateDeleting)
	case kindQueuePair:
		return append(words(StatePending, StateLost, StateDeleting), words(ib.Reset, ib.Init, ib.RTR, ib.RTS, ib.SQD, ib.SQE, ib.Err)...)
	}
	return words(StatePending, StateReady, StateLost, StateDeleting)
}

func words[S State | ib.QPState](states ...S) (list []string) {
	for _, s := range states {
		switch s := any(s).(type) {
		case State:
			list = append(list, string(s))
		case ib.QPState:
			list = append(list, s.String())
		}
	}
	return list
}

// Stats counts. It looks at every object: some milliseconds for tens of
// thousands.
func (f *Fabric) Stats() Stats {
	var s Stats
	s.Commits, s.Refused = f.commits.read()
	s.Revision = f.journal.last()
	f.mu.RLock()
	defer f.mu.RUnlock()
	s.Pending = len(f.pending)
	count := func(k kind, lists ...*list) {
		n := map[string]int{}
		for _, l := range lists {
			l.after(0, func(r *record) bool {
				if r.committed {
					n[r.label()]++
				}
				return true
			})
		}
		for _, state := range statesOf(k) {
			s.Objects = append(s.Objects, ObjectCount{collections[k], state, n[state]})
		}
	}
	count(kindSession, &f.idx.sessions)
	for _, k := range objectKinds {
		var lists []*list
		for _, c := range f.cards {
			lists = append(lists, &c.lists[k])
		}
		count(k, lists...)
	}
	for _, c := range f.cards {
		s.Devices = append(s.Devices, DeviceStats{ID: c.id, MemoryBytes: c.info.MemoryBytes, Usage: c.usage})
	}
	return s
}
