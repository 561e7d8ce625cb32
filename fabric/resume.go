package fabric

import (
	"context"
	"fmt"
)

// ResumeSession takes a session over from another program of the same identity. The
// generation grows; what comes with the old one is refused from then on, and no
// work or change that came before is under way any more when it returns. TIMEOUT if
// that takes longer than the caller waits: the session has changed hands all the same.
// GENERATION_STALE if the caller believes in another generation.
func (f *Fabric) ResumeSession(ctx context.Context, c Caller, r ResumeSession) (Session, error) {
	const op = "ResumeSession"
	c.Command = c.commandNow()
	var bound *processAsk
	var watched proc
	if r.Process != nil {
		var err error
		if bound, watched, err = f.bindProcess(op, c, r.Process.PID); err != nil {
			return Session{}, err
		}
		defer func() {
			if watched != nil {
				watched.close()
			}
		}()
	}
	var s *record
	var next *stored
	var ev Event
	var ch *change
	var out Session
	err := f.withIdle(ctx, op, func() ([]*record, error) {
		s, err := f.find(c, op, kindSession, "name", r.Name)
		if err == nil {
			err = f.usableSession(c, op, s)
		}
		if err == nil {
			err = checkETag(op, r.ETag, s)
		}
		if err == nil && r.Generation != 0 && r.Generation != s.SessionAsk.Generation {
			err = stale(op, s, r.Generation, s.SessionAsk.Generation)
		}
		return []*record{s}, err
	}, func(recs []*record) error {
		s = recs[0]
		next = s.with(func(n *stored) {
			ask := *n.SessionAsk
			ask.Generation = max(ask.Generation+1, f.nextGeneration())
			ask.UID, ask.GID, ask.PID, ask.HasPeer = c.UID, c.GID, c.PID, c.HasPeer
			n.SessionAsk, n.ProcessAsk, n.Command = &ask, bound, c.Command
		})
		if r.ValidateOnly {
			old := s.stored
			s.stored = next
			out = f.viewSession(s)
			s.stored = old
			return nil
		}
		ev = s.event(EventChanged, c.Identity, CauseResumed)
		ev.Before, ev.After = s.label(), s.label()
		ev.Message = fmt.Sprintf("taken over by %s: generation %d", c.process(), next.SessionAsk.Generation)
		ch = newChange(changeUpdate, op, c.Identity, recs)
		ch.claim()
		return nil
	})
	if err != nil || r.ValidateOnly {
		return out, err
	}
	err = f.commitRecord(op, s, next, ev)
	f.mu.Lock()
	if err == nil {
		s.stored = next
		s.life.orphan = false
		f.watchProcess(s, watched)
		watched = nil
		f.keepAlive(s)
	}
	ch.release()
	out = f.viewSession(s)
	f.mu.Unlock()
	if err != nil {
		return Session{}, err
	}
	return out, f.awaitWork(ctx, op, s)
}
