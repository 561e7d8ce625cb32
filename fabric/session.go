package fabric

import (
	"context"
	"fmt"
	"maps"
	"time"
)

// The lives of sessions.
const (
	minTTL     = time.Second
	maxTTL     = 24 * time.Hour
	defaultTTL = time.Minute
)

// ended says that a process has ended.
func (a *processAsk) ended() string {
	if a.Command == "" {
		return fmt.Sprintf("process %d has ended", a.PID)
	}
	return fmt.Sprintf("process %d, %q, has ended", a.PID, a.Command)
}

// startLease gives a session that was made or loaded one full ttl.
func (f *Fabric) startLease(r *record, lost bool) {
	r.life = &lease{identity: r.SessionAsk.Identity, seen: time.Now(), lost: lost, use: map[*card]*Usage{}}
	r.life.deadline = f.cfg.Uptime() + time.Duration(r.SessionAsk.TTL)
	for _, id := range r.SessionAsk.Devices {
		c := f.card[id]
		if c == nil {
			c = f.addCard(id, nil)
		}
		c.holders = append(c.holders, r)
	}
}

func checkTTL(v *violations, ttl time.Duration) {
	if ttl < minTTL || ttl > maxTTL {
		v.invalid("ttl", fmt.Sprintf("%v: want 1 s to 24 h", ttl))
	}
}

// CreateSession opens a session for the caller. DEVICE_BUSY names the holder
// of a device that excludes it.
func (f *Fabric) CreateSession(ctx context.Context, c Caller, r CreateSession) (Session, error) {
	const op = "CreateSession"
	var out Session
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
	var made *record
	err := f.create(ctx, creation{op, c, r.RequestID, r.ValidateOnly, r, func() ([]*record, error) {
		s, err := f.buildSession(op, c, &r)
		if err == nil {
			s.ProcessAsk, made = bound, s
		}
		return []*record{s}, err
	}}, func(recs []*record) { out = f.viewSession(recs[0]) })
	if watched != nil && made != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		if made.committed && !made.gone() && !made.removed { // also where the caller went first
			f.watchProcess(made, watched)
			watched = nil
		}
	}
	return out, err
}

func (f *Fabric) buildSession(op string, c Caller, r *CreateSession) (*record, error) {
	var v violations
	if parent := f.canonical(r.Parent); parent == "" {
		v.required("parent", "want "+f.names.node)
	} else if parent != f.names.node {
		v.invalid("parent", fmt.Sprintf("%q: want %s or nodes/local", r.Parent, f.names.node))
	}
	s := f.newRecord(&v, kindSession, f.names.node, &r.Create)
	if r.TTL == 0 {
		r.TTL = defaultTTL
	}
	checkTTL(&v, r.TTL)
	drain := defaultDrain
	if r.Drain != nil {
		drain = *r.Drain
	}
	if drain < 0 || drain > maxDrain {
		v.invalid("drain_timeout", fmt.Sprintf("%v: want 0 s to %v", drain, maxDrain))
	}
	ask := &sessionAsk{Identity: c.Identity, UID: c.UID, GID: c.GID, PID: c.PID, HasPeer: c.HasPeer, Exclusive: r.Exclusive,
		TTL: int64(r.TTL), Generation: f.nextGeneration(), BootID: f.cfg.BootID, Drain: int64(drain)}
	s.Command = c.Command
	var missing error
	seen := map[string]bool{}
	for i, name := range r.Devices {
		field := fmt.Sprintf("devices[%d]", i)
		id, ok := f.child(name, "devices")
		switch {
		case !ok:
			v.invalid(field, fmt.Sprintf("%q: want %s/devices/{device}", name, f.names.node))
		case seen[id]:
			v.invalid(field, fmt.Sprintf("%q is there twice", name))
		case f.card[id] == nil:
			missing = &Error{Op: op, Name: f.canonical(name), Field: field, Reason: NotFound, Message: "there is no such device"}
		}
		seen[id] = true
		ask.Devices = append(ask.Devices, id)
	}
	if len(r.Devices) == 0 {
		if r.Exclusive {
			v.required("devices", "a session that holds devices alone must name them")
		}
		for _, card := range f.cards {
			if card.dev != nil {
				ask.Devices = append(ask.Devices, card.id)
			}
		}
	}
	if err := v.err(op, ""); err != nil {
		return nil, err
	}
	if missing != nil {
		return nil, missing
	}
	if err := f.taken(op, s); err != nil {
		return nil, err
	}
	s.SessionAsk = ask
	for _, id := range ask.Devices {
		if err := f.card[id].exclude(op, r.Exclusive, len(r.Devices) == 0); err != nil {
			return nil, err
		}
	}
	if r.ValidateOnly {
		s.life = &lease{identity: c.Identity, seen: time.Now(), deadline: f.cfg.Uptime() + r.TTL}
		return s, nil
	}
	f.startLease(s, false)
	return s, nil
}

// exclude refuses a new holder where one of the two wants the device alone.
func (c *card) exclude(op string, exclusive, all bool) error {
	for _, h := range c.holders {
		if !exclusive && !h.SessionAsk.Exclusive {
			continue
		}
		holder := h.holder(1)
		how := "shared"
		if h.SessionAsk.Exclusive {
			how = "alone"
		}
		e := &Error{Op: op, Name: c.name, Field: "devices", Reason: DeviceBusy,
			Message:  fmt.Sprintf("the device is held %s by %s", how, holder),
			Shortage: &Shortage{Kind: "device", Asked: 1, Limit: 1, Holders: []Holder{holder}},
			Details:  map[string]string{"holder": h.name, "identity": holder.Identity, "pid": itoa(int(holder.PID))}}
		switch {
		case h.Deleting:
			e.Message += ", which is closing: free as soon as all that it had is off the device"
			e.RetryAfter = time.Second
		case all:
			e.Message += "; name the devices that are wanted"
		}
		return e
	}
	return nil
}

// GetSession reads a session.
func (f *Fabric) GetSession(_ context.Context, c Caller, name string) (Session, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	s, err := f.find(c, "GetSession", kindSession, "name", name)
	if err != nil {
		return Session{}, err
	}
	return f.viewSession(s), nil
}

// UpdateSession changes the ttl or the labels.
func (f *Fabric) UpdateSession(ctx context.Context, c Caller, r UpdateSession) (Session, error) {
	const op = "UpdateSession"
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
		var v violations
		if r.TTL != 0 {
			checkTTL(&v, r.TTL)
		}
		if r.SetLabels {
			checkLabels(&v, r.Labels)
		}
		if err == nil {
			err = v.err(op, r.Name)
		}
		return []*record{s}, err
	}, func(recs []*record) error {
		s = recs[0]
		next = s.with(func(n *stored) {
			ask := *n.SessionAsk
			n.SessionAsk = &ask
			if r.TTL != 0 {
				ask.TTL = int64(r.TTL)
			}
			if r.SetLabels {
				n.Labels = r.Labels
			}
		})
		if r.ValidateOnly {
			old := s.stored
			s.stored = next
			out = f.viewSession(s)
			s.stored = old
			return nil
		}
		if next.SessionAsk.TTL == s.SessionAsk.TTL && maps.Equal(next.Labels, s.Labels) { // as it is
			f.keepAlive(s)
			out = f.viewSession(s)
			return nil
		}
		ev = s.event(EventChanged, c.Identity, CauseRequested)
		ev.Before, ev.After, ev.Message = s.label(), s.label(), "ttl or labels changed"
		ch = newChange(changeUpdate, op, c.Identity, recs)
		ch.claim()
		return nil
	})
	if err != nil || ch == nil {
		return out, err
	}
	err = f.commitRecord(op, s, next, ev)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		s.stored = next
		f.keepAlive(s)
	}
	ch.release()
	return f.viewSession(s), err
}

// commitRecord makes one record's next state durable. The record is claimed.
func (f *Fabric) commitRecord(op string, r *record, next *stored, ev Event) error {
	var change Change
	if err := change.put(&record{id: r.id, name: r.name, stored: next}); err != nil {
		return err
	}
	if err := change.event(ev); err != nil {
		return err
	}
	return f.commit(op, change)
}

// KeepAlive gives the session one ttl from now. It is not written to the
// store: a restart gives a full ttl anyway.
func (f *Fabric) KeepAlive(_ context.Context, c Caller, r KeepAlive) (Session, error) {
	const op = "KeepAlive"
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.find(c, op, kindSession, "name", r.Name)
	if err != nil {
		return Session{}, err
	}
	if have := s.SessionAsk.Generation; r.Generation != 0 && r.Generation != have {
		return Session{}, stale(op, s, r.Generation, have)
	}
	if !f.owns(c, s) {
		return Session{}, f.denied(c, op, s)
	}
	if s.Deleting {
		return Session{}, closedError(op, s.name, s.Cause, s.Why)
	}
	if !r.ValidateOnly {
		f.keepAlive(s)
	}
	return f.viewSession(s), nil
}

// keepAlive moves the end of a lease. Fabric.mu is held.
func (f *Fabric) keepAlive(s *record) {
	s.life.seen = time.Now()
	d := f.cfg.Uptime() + time.Duration(s.SessionAsk.TTL)
	sooner := d < s.life.deadline
	s.life.deadline = d
	if sooner {
		f.rearm()
	}
}

func (f *Fabric) rearm() {
	select {
	case f.leaseDue <- struct{}{}:
	default:
	}
}

// CloseSession ends a session: all it owns is destroyed, then it is forgotten.
// It returns when that is done. A step that fails is tried again until it
// succeeds, whether or not somebody waits.
func (f *Fabric) CloseSession(ctx context.Context, c Caller, r CloseSession) error {
	return f.closeSession(ctx, "CloseSession", c, r.Delete, CauseRequested, r.Message)
}

func (f *Fabric) closeSession(ctx context.Context, op string, c Caller, r Delete, cause Reason, message string) error {
	var joined, ch *change
	var taken bool // down already: it has expired
	err := f.withIdle(ctx, op, func() ([]*record, error) {
		s, err := f.find(c, op, kindSession, "name", r.Name)
		if err == nil {
			err = checkETag(op, r.ETag, s)
		}
		if err == nil && s.op != nil && s.op.kind == changeDelete {
			joined = s.op
			return nil, nil
		}
		return []*record{s}, err
	}, func(recs []*record) error {
		if joined == nil && !r.ValidateOnly {
			ch, taken = newChange(changeDelete, op, c.Identity, recs), recs[0].Deleting
			ch.claim()
		}
		return nil
	})
	switch {
	case err != nil || r.ValidateOnly:
		return err
	case joined != nil:
		return f.wait(ctx, joined)
	case taken:
		return f.wait(ctx, ch)
	}
	if err := f.endLease(ch.records[0], c.Identity, cause, message); err != nil {
		f.mu.Lock()
		ch.release()
		f.mu.Unlock()
		return err
	}
	return f.wait(ctx, ch)
}

// endLease records that a session, which is claimed, is to end, and begins to
// take it down.
func (f *Fabric) endLease(s *record, actor string, cause Reason, message string) error {
	f.mu.Lock()
	next, ev := s.closing(actor, cause, message)
	f.mu.Unlock()
	if err := f.commitRecord("CloseSession", s, next, ev); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s.stored = next
	f.takeDown(s)
	return nil
}

// endUnrecorded is endLease for a lease whose end is a fact, while the store takes
// no changes: what it had on devices is taken down now, and the keeper records it
// when it can. If the daemon ends before, the next grants the session a ttl again.
func (f *Fabric) endUnrecorded(s *record, actor string, cause Reason, message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next, ev := s.closing(actor, cause, message)
	s.stored = next
	f.enter(entry{puts: []*record{s}, events: []Event{ev}})
	f.takeDown(s)
}

// closing is what is recorded of a session that ends. Fabric.mu is held.
func (s *record) closing(actor string, cause Reason, message string) (*stored, Event) {
	ev := s.event(EventChanged, actor, cause)
	ev.Before, ev.After, ev.Message = s.label(), string(StateClosing), message
	return s.with(func(n *stored) {
		n.Deleting, n.Cause = true, cause
		if cause == CauseReleased {
			n.Why = message
		}
	}), ev
}

// takeDown hands all that a closing session owns to the workers, after its work is
// drained. What is being made just now follows when it is made. Fabric.mu is held.
func (f *Fabric) takeDown(s *record) {
	if f.drain(s) {
		return // it comes back
	}
	for _, k := range objectKinds {
		s.life.lists[k].after(0, func(r *record) bool {
			if r.committed {
				r.card.push(r)
			}
			return true
		})
	}
	f.endSession(s)
}

// endSession forgets a closing session once it owns nothing. Fabric.mu is held.
func (f *Fabric) endSession(s *record) {
	if s.life.objects > 0 || s.leaving || s.removed {
		return
	}
	s.leaving = true
	f.watchProcess(s, nil)
	f.remember(s)
	actor, cause := system, s.Cause
	if s.op != nil && s.op.kind == changeDelete {
		actor = s.op.actor
	}
	ev := s.event(EventDeleted, actor, cause)
	ev.Before = string(StateClosing)
	f.enter(entry{forgets: []*record{s}, keepReq: true, events: []Event{ev}})
}

// The bounds of what late retries can still be told.
const (
	tombAge = time.Hour
	tombMax = 65536
)

// expire ends leases and drops old tombstones. One goroutine does it for all
// sessions; it wakes at the earliest end, and every 10 s since timers do not
// count while the machine sleeps.
func (f *Fabric) expire() {
	timer := newTimer()
	defer timer.Stop()
	for {
		now, next := f.cfg.Uptime(), 10*time.Second
		var ended []*change
		f.mu.Lock()
		f.idx.sessions.after(0, func(s *record) bool {
			switch left := s.life.deadline - now; {
			case !s.committed, s.Deleting:
			case left > 0 && !s.life.orphan:
				next = min(next, left)
			case s.op != nil:
				next = min(next, time.Second) // it is being changed: look again
			default:
				ch := newChange(changeUpdate, "expire", system, []*record{s})
				ch.claim()
				ended = append(ended, ch)
			}
			return true
		})
		f.dropTombs()
		f.mu.Unlock()
		for _, ch := range ended {
			s := ch.records[0]
			cause, why := CauseExpired, "not kept alive for "+time.Duration(s.SessionAsk.TTL).String()
			if s.life.orphan {
				cause, why = CauseProcess, s.ProcessAsk.ended()
			}
			if err := f.endLease(s, system, cause, why); err != nil {
				f.endUnrecorded(s, system, cause, why)
			}
			f.mu.Lock()
			ch.release()
			f.mu.Unlock()
		}
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-f.leaseDue:
		case <-f.ctx.Done():
			return
		}
	}
}

// dropTombs forgets request ids of objects that went long ago. Fabric.mu is
// held.
func (f *Fabric) dropTombs() {
	if old := f.idx.dig(time.Now().Add(-tombAge).UnixNano(), tombMax); old != nil {
		f.enter(entry{deletes: old})
	}
}
