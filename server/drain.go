package server

import (
	"context"
	"sync"
)

// drain counts the calls in progress. Once it has begun no new ones enter.
type drain struct {
	begun context.Context // done when it has begun
	begin context.CancelFunc

	mu    sync.Mutex
	calls int
	idle  chan struct{} // closed when it has begun and no call is left
}

func newDrain() *drain {
	d := &drain{idle: make(chan struct{})}
	d.begun, d.begin = context.WithCancel(context.Background())
	return d
}

// enter lets a call in, which must leave.
func (d *drain) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.begun.Err() != nil {
		return false
	}
	d.calls++
	return true
}

func (d *drain) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls--
	if d.calls == 0 && d.begun.Err() != nil {
		close(d.idle)
	}
}

// count is how many calls are in progress.
func (d *drain) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls
}

// start begins the drain, once.
func (d *drain) start() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.begun.Err() != nil {
		return
	}
	d.begin()
	if d.calls == 0 {
		close(d.idle)
	}
}

// stopping says whether the daemon ends.
func (s *Server) stopping() bool { return s.drain.begun.Err() != nil }

// untilDrain gives a context that also ends when the drain begins.
func (s *Server) untilDrain(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.drain.begun, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}
