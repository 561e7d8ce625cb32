package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/accelfab/accelfab/fabric"
)

// Limits bound the journal of a store under test. The zero value keeps
// everything.
type Limits struct {
	JournalEvents int           // kept at most; 0 is no bound
	JournalAge    time.Duration // kept at most; 0 is no bound
	Now           func() time.Time
}

// Memory is a fabric.Store that lives in memory. It is one open handle on a
// state that outlives it: see Reopen.
type Memory struct {
	state *state
	open  int // the generation of state at which this handle was opened
}

// state is what would be the disk.
type state struct {
	mu          sync.Mutex
	limits      Limits
	generation  int // of the newest handle; older ones are dead
	closed      bool
	records     map[uint64]fabric.Record
	quarantined map[uint64]string
	journal     []fabric.StoredEvent
	revision    uint64
	lastID      uint64
}

var _ fabric.Store = (*Memory)(nil)

// NewMemory gives an empty store.
func NewMemory(limits Limits) *Memory {
	if limits.Now == nil {
		limits.Now = time.Now
	}
	return &Memory{state: &state{
		limits:      limits,
		records:     map[uint64]fabric.Record{},
		quarantined: map[uint64]string{},
	}}
}

// Reopen gives a new handle on the acknowledged state. Every older handle
// answers fabric.ErrStoreClosed from now on, whether it was closed or, as a
// crash would have it, not.
func (m *Memory) Reopen() *Memory {
	m.state.mu.Lock()
	defer m.state.mu.Unlock()
	m.state.generation++
	m.state.closed = false
	return &Memory{state: m.state, open: m.state.generation}
}

// Quarantined gives the ids that were put out of the way, with the reasons.
func (m *Memory) Quarantined() map[uint64]string {
	m.state.mu.Lock()
	defer m.state.mu.Unlock()
	out := make(map[uint64]string, len(m.state.quarantined))
	for id, reason := range m.state.quarantined {
		out[id] = reason
	}
	return out
}

// lock takes the state if this handle is alive; the caller unlocks.
func (m *Memory) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.state.mu.Lock()
	if m.state.closed || m.open != m.state.generation {
		m.state.mu.Unlock()
		return fabric.ErrStoreClosed
	}
	return nil
}

// Load gives copies of the records in ascending order of id.
func (m *Memory) Load(ctx context.Context, fn func(fabric.Record) error) (fabric.LoadResult, error) {
	if err := m.lock(ctx); err != nil {
		return fabric.LoadResult{}, err
	}
	records := make([]fabric.Record, 0, len(m.state.records))
	for _, r := range m.state.records {
		records = append(records, clone(r))
	}
	result := fabric.LoadResult{
		Records:  len(records),
		Revision: m.state.revision,
		NextID:   m.state.lastID + 1,
	}
	m.state.mu.Unlock()

	slices.SortFunc(records, func(a, b fabric.Record) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	for _, r := range records {
		if err := fn(r); err != nil {
			return result, err
		}
	}
	return result, nil
}

// Commit applies the change at once.
func (m *Memory) Commit(ctx context.Context, change fabric.Change) (uint64, error) {
	for _, r := range change.Put {
		if r.ID == 0 {
			return 0, fmt.Errorf("record %q: id is 0, ids begin at 1", r.Name)
		}
	}
	if err := m.lock(ctx); err != nil {
		return 0, err
	}
	s := m.state
	defer s.mu.Unlock()
	for _, r := range change.Put {
		s.records[r.ID] = clone(r)
		s.lastID = max(s.lastID, r.ID)
	}
	for _, id := range change.Delete {
		delete(s.records, id)
	}
	now := s.limits.Now()
	for _, value := range change.Events {
		s.revision++
		s.journal = append(s.journal, fabric.StoredEvent{Revision: s.revision, Time: now, Value: slices.Clone(value)})
	}
	s.trim(now)
	return s.revision, nil
}

// trim drops what the limits no longer allow.
func (s *state) trim(now time.Time) {
	if n := s.limits.JournalEvents; n > 0 && len(s.journal) > n {
		s.journal = slices.Clone(s.journal[len(s.journal)-n:])
	}
	if age := s.limits.JournalAge; age > 0 {
		for len(s.journal) > 0 && now.Sub(s.journal[0].Time) > age {
			s.journal = s.journal[1:]
		}
	}
}

// Events gives a page of the journal.
func (m *Memory) Events(ctx context.Context, after uint64, limit int) (fabric.EventPage, error) {
	if err := m.lock(ctx); err != nil {
		return fabric.EventPage{}, err
	}
	defer m.state.mu.Unlock()
	page := fabric.EventPage{Newest: m.state.revision}
	if len(m.state.journal) > 0 {
		page.Oldest = m.state.journal[0].Revision
	}
	for _, e := range m.state.journal {
		if len(page.Events) >= limit {
			break
		}
		if e.Revision > after {
			e.Value = slices.Clone(e.Value)
			page.Events = append(page.Events, e)
		}
	}
	return page, nil
}

// Quarantine takes the record out of what Load gives.
func (m *Memory) Quarantine(ctx context.Context, id uint64, reason string) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.state.mu.Unlock()
	if _, ok := m.state.records[id]; !ok {
		return fmt.Errorf("quarantine record %d: it is not in the store", id)
	}
	delete(m.state.records, id)
	m.state.quarantined[id] = reason
	return nil
}

// Close ends this handle.
func (m *Memory) Close() error {
	m.state.mu.Lock()
	defer m.state.mu.Unlock()
	if m.open == m.state.generation {
		m.state.closed = true
	}
	return nil
}

func clone(r fabric.Record) fabric.Record {
	r.Value = slices.Clone(r.Value)
	return r
}
