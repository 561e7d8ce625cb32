package fabric

import (
	"context"
	"fmt"
	"sync/atomic"
)

// Generations are the generations of sessions that a caller believes in, by the
// sessions' names.
type Generations map[string]uint64

// fence refuses a caller whose belief about the generation of r's session is not
// true. Fabric.mu is held.
func (f *Fabric) fence(c Caller, op string, r *record) error {
	s := r.owner()
	if len(c.Generations) == 0 || s == nil {
		return nil
	}
	asked, ok := c.Generations[s.name]
	if have := s.SessionAsk.Generation; ok && asked != have {
		return stale(op, s, asked, have)
	}
	return nil
}

func stale(op string, s *record, asked, have uint64) *Error {
	return &Error{Op: op, Name: s.name, Field: "generation", Reason: GenerationStale,
		Message: fmt.Sprintf("the session has changed hands: its generation is %d, not %d; end what you do with it", have, asked),
		Details: map[string]string{"asked": fmt.Sprint(asked), "present": fmt.Sprint(have), "session": s.name}}
}

// underWay counts the work on a session's objects that is not done under the lock.
type underWay struct {
	count   atomic.Int64
	awaited atomic.Bool   // somebody waits for none
	none    chan struct{} // closed then; Fabric.mu guards it
}

// enterWork counts work on r, so that who takes the session over can wait for its
// end, and that nothing is destroyed under it. Fabric.mu is held.
func (r *record) enterWork() {
	r.sess.life.work.count.Add(1)
	r.work.Add(1)
}

// leaveWork ends what enterWork began.
func (f *Fabric) leaveWork(r *record) {
	if r.work.Add(-1) == 0 && r.awaited.Load() {
		f.mu.Lock()
		r.card.push(r)
		f.mu.Unlock()
	}
	w := &r.sess.life.work
	if w.count.Add(-1) > 0 || !w.awaited.Load() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.none != nil && w.count.Load() == 0 {
		close(w.none)
		w.none = nil
		w.awaited.Store(false)
	}
}

// worked reports whether work is under way on r, and has r pushed at its end.
// Nothing new begins on what is to go. Fabric.mu is held.
func (r *record) worked() bool {
	r.awaited.Store(true)
	return r.work.Load() > 0
}

// nextGeneration gives a generation above every one that any session had: the
// journal's next cursor, since whatever makes a session or takes one over is in the
// journal. So a session that is made again under its name does not begin where its
// forerunner did.
func (f *Fabric) nextGeneration() uint64 { return f.journal.last() + 1 }

// awaitWork waits until no work and no change is under way on what s owns that was
// admitted before.
func (f *Fabric) awaitWork(ctx context.Context, op string, s *record) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.cfg.ActTimeout)
		defer cancel()
	}
	f.mu.Lock()
	w := &s.life.work
	if w.none == nil {
		w.none = make(chan struct{})
	}
	none := w.none
	w.awaited.Store(true)
	if w.count.Load() == 0 {
		close(none)
		w.none = nil
		w.awaited.Store(false)
	}
	ends := append(s.changes(), none)
	f.mu.Unlock()
	for _, end := range ends {
		select {
		case <-end:
		case <-ctx.Done():
			return &Error{Op: op, Name: s.name, Reason: Timeout, Err: ctx.Err(),
				Message: "the session is yours, but work of its old holder is still under way on a device"}
		case <-f.ctx.Done():
			return f.closing(op)
		}
	}
	return nil
}

// changes gives the ends of the changes that are under way on what s owns.
// Fabric.mu is held.
func (s *record) changes() []<-chan struct{} {
	var ends []<-chan struct{}
	seen := map[*change]bool{}
	for _, k := range objectKinds {
		s.life.lists[k].after(0, func(r *record) bool {
			if ch := r.op; ch != nil && !seen[ch] {
				seen[ch] = true
				ends = append(ends, ch.done)
			}
			return true
		})
	}
	return ends
}
