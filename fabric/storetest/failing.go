package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/accelfab/accelfab/fabric"
)

// ErrCrashed is what a Failing store answers from its crash on.
var ErrCrashed = errors.New("storetest: the process is dead from here on")

// Strike is what a Failing store does at its nth call.
type Strike int

const (
	// Refuse answers the nth call with fabric.ErrStoreFailed and does not
	// carry it out; the calls after it work, as when a disk is full once.
	Refuse Strike = iota
	// CrashBefore does not carry the nth call out; it and all after it answer
	// ErrCrashed.
	CrashBefore
	// CrashAfter carries the nth call out, and then it and all after it answer
	// ErrCrashed: durable, but nobody was told.
	CrashAfter
)

func (s Strike) String() string {
	switch s {
	case Refuse:
		return "Refuse"
	case CrashBefore:
		return "CrashBefore"
	case CrashAfter:
		return "CrashAfter"
	}
	return fmt.Sprintf("Strike(%d)", int(s))
}

// Failing is a store that strikes at the nth call. Load, Commit, Events and
// Quarantine count as calls, Close does not.
type Failing struct {
	store  fabric.Store
	at     int
	strike Strike

	mu     sync.Mutex
	calls  int
	struck chan struct{} // closed at the strike
}

var _ fabric.Store = (*Failing)(nil)

// NewFailing puts a strike at the nth call (from 1) before store. With n = 0
// it never strikes and only counts.
func NewFailing(store fabric.Store, n int, strike Strike) *Failing {
	return &Failing{store: store, at: n, strike: strike, struck: make(chan struct{})}
}

// Calls tells how many calls came so far.
func (f *Failing) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// Struck tells whether the nth call came.
func (f *Failing) Struck() bool {
	select {
	case <-f.struck:
		return true
	default:
		return false
	}
}

// Done is closed when the nth call has come and its effect, if it has one, is
// in the store.
func (f *Failing) Done() <-chan struct{} { return f.struck }

// enter counts a call. The error, if there is one, is the answer; with after
// set, the call is carried out first.
func (f *Failing) enter(call string) (after bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	switch {
	case f.at == 0 || f.calls < f.at:
		return false, nil
	case f.calls > f.at:
		if f.strike == Refuse {
			return false, nil
		}
		return false, fmt.Errorf("%s, call %d: %w", call, f.calls, ErrCrashed)
	case f.strike == Refuse:
		close(f.struck)
		return false, fmt.Errorf("%s, call %d: %w", call, f.calls, fabric.ErrStoreFailed)
	case f.strike == CrashBefore:
		close(f.struck)
		return false, fmt.Errorf("%s, call %d: %w", call, f.calls, ErrCrashed)
	default:
		return true, fmt.Errorf("%s, call %d: %w", call, f.calls, ErrCrashed)
	}
}

// Load passes on, or strikes.
func (f *Failing) Load(ctx context.Context, fn func(fabric.Record) error) (fabric.LoadResult, error) {
	after, strike := f.enter("Load")
	if strike != nil {
		if after {
			_, _ = f.store.Load(ctx, fn)
			close(f.struck)
		}
		return fabric.LoadResult{}, strike
	}
	return f.store.Load(ctx, fn)
}

// Commit passes on, or strikes.
func (f *Failing) Commit(ctx context.Context, change fabric.Change) (uint64, error) {
	after, strike := f.enter("Commit")
	if strike != nil {
		if after {
			_, _ = f.store.Commit(ctx, change)
			close(f.struck)
		}
		return 0, strike
	}
	return f.store.Commit(ctx, change)
}

// Events passes on, or strikes.
func (f *Failing) Events(ctx context.Context, after uint64, limit int) (fabric.EventPage, error) {
	late, strike := f.enter("Events")
	if strike != nil {
		if late {
			close(f.struck)
		}
		return fabric.EventPage{}, strike
	}
	return f.store.Events(ctx, after, limit)
}

// Quarantine passes on, or strikes.
func (f *Failing) Quarantine(ctx context.Context, id uint64, reason string) error {
	after, strike := f.enter("Quarantine")
	if strike != nil {
		if after {
			_ = f.store.Quarantine(ctx, id, reason)
			close(f.struck)
		}
		return strike
	}
	return f.store.Quarantine(ctx, id, reason)
}

// Close closes the store behind, crashed or not.
func (f *Failing) Close() error { return f.store.Close() }
