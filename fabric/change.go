package fabric

import (
	"context"
	"errors"
	"slices"
	"time"
)

// changeKind is what a change does with its records.
type changeKind uint8

const (
	changeCreate changeKind = iota + 1
	changeMove              // of a queue pair's state
	changeDelete
	changeUpdate // of what is only recorded
	changeRevoke // of an export
)

// change is one request's work on records. While it is in a record's op nobody
// else changes that record. Fabric.mu guards it, but done.
type change struct {
	kind    changeKind
	op      string // method, for errors
	actor   string
	records []*record
	left    int    // records that are not settled, or while rolling back not off the device
	err     *Error // the first final failure
	rolling bool   // of a create: it failed, and what was made is taken away
	writing bool   // what it asks or how it ended is being recorded; the devices wait
	callers int    // that wait for its end: who asked, and retries with its request id
	over    bool
	done    chan struct{}
}

func newChange(kind changeKind, op, actor string, records []*record) *change {
	return &change{kind: kind, op: op, actor: actor, records: records, left: len(records), callers: 1, done: make(chan struct{})}
}

// claim makes ch the change that works on its records.
func (ch *change) claim() {
	for _, r := range ch.records {
		r.op, r.settled = ch, false
	}
}

// ended notes that r's part of ch is over, which may be told more than once. It
// reports whether all parts are. Fabric.mu is held.
func (ch *change) ended(r *record) bool {
	if !r.settled {
		r.settled = true
		ch.left--
	}
	return ch.left == 0
}

// release ends ch, once. Fabric.mu is held.
func (ch *change) release() {
	if ch.over {
		return
	}
	ch.over = true
	for _, r := range ch.records {
		if r.op == ch {
			r.op = nil
			if ch.writing && r.card != nil && !r.removed {
				r.card.push(r)
			}
		}
	}
	close(ch.done)
}

// wait waits for ch. Where the caller goes first, a create or move goes on
// without it.
func (f *Fabric) wait(ctx context.Context, ch *change) error {
	var late <-chan time.Time
	if _, ok := ctx.Deadline(); !ok {
		t := time.NewTimer(f.cfg.ActTimeout)
		defer t.Stop()
		late = t.C
	}
	reason, cause := Timeout, error(nil)
	select {
	case <-ch.done:
		if ch.err != nil {
			return ch.err
		}
		return nil
	case <-late:
	case <-f.ctx.Done():
		return f.closing(ch.op)
	case <-ctx.Done():
		if cause = ctx.Err(); errors.Is(cause, context.Canceled) {
			reason = Cancelled
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	e := &Error{Op: ch.op, Reason: reason, Err: cause,
		Message: "the device has not done it yet; what was asked is recorded and goes on, the same call with the same request_id waits for it again"}
	for _, r := range ch.records {
		if r.failure.Reason != "" {
			e.Name, e.Message = r.name, "not done yet, and tried again: "+r.failure.Message
			break
		}
	}
	select {
	case <-ch.done: // meanwhile
		if ch.err != nil {
			return ch.err
		}
		return nil
	default:
	}
	ch.callers--
	if ch.callers == 0 && ch.kind == changeCreate && !ch.rolling && ch.err == nil && ch.records[0].committed {
		// From now on these are records like those of a restart: a retry, a
		// delete or the end of the session can take them up.
		ch.release()
	}
	return e
}

// record makes durable what ch, which has claimed its records, asks of them.
// Until then their devices leave them alone: nothing is done that may never have
// been asked. Fabric.mu is held, but not during the commit.
func (f *Fabric) record(ch *change, c Change) error {
	ch.writing = true
	err := f.commitUnlocked(ch.op, c)
	ch.writing = false
	for _, r := range ch.records {
		r.card.push(r)
	}
	return err
}

// commitUnlocked commits without Fabric.mu, which is held before and after.
func (f *Fabric) commitUnlocked(op string, c Change) error {
	f.mu.Unlock()
	defer f.mu.Lock()
	return f.commit(op, c)
}

func (f *Fabric) closing(op string) *Error {
	return &Error{Op: op, Reason: DeviceUnavailable, Message: "the daemon is ending; try again", RetryAfter: time.Second}
}

// withIdle resolves records and does something with them, waiting before until
// no change works on any of them. Both run with Fabric.mu held, and whatever
// becomes of them it is given back: a fault in one call must not end all others.
func (f *Fabric) withIdle(ctx context.Context, op string, resolve func() ([]*record, error), do func([]*record) error) error {
	for {
		recs, busy, err := f.ifIdle(op, resolve, do)
		if err != nil || busy == nil {
			return err
		}
		if err := f.wait(ctx, &change{op: op, done: busy.done, rolling: true, records: recs}); err != nil {
			return err
		}
	}
}

// ifIdle is one attempt of withIdle. It gives the change that is in the way.
func (f *Fabric) ifIdle(op string, resolve func() ([]*record, error), do func([]*record) error) (recs []*record, busy *change, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, nil, f.closing(op)
	}
	if recs, err = resolve(); err != nil {
		return nil, nil, err
	}
	for _, r := range recs {
		if r.op != nil {
			return recs, r.op, nil
		}
	}
	return recs, nil, do(recs)
}

// entry is what the keeper is to record: the outcome of work that no caller's
// goroutine records.
type entry struct {
	puts    []*record
	forgets []*record
	keepReq bool     // forgets leave a tombstone for their request id
	deletes []uint64 // of tombstones
	events  []Event
	then    func() // with Fabric.mu held, once it is durable
}

// enter gives e to the keeper. Fabric.mu is held. Records in it must be
// claimed, or gone from the device.
func (f *Fabric) enter(e entry) {
	f.pending = append(f.pending, e)
	select {
	case f.pendDue <- struct{}{}:
	default:
	}
}

// keep records outcomes: all that wait go into one commit. A store that fails
// is tried again until the fabric is closed.
func (f *Fabric) keep() {
	for {
		select {
		case <-f.pendDue:
		case <-f.keeperAsked:
			continue
		case <-f.ctx.Done():
			return
		}
		f.mu.Lock()
		entries := f.pending
		f.pending = nil
		change, tombs := f.compose(entries)
		f.mu.Unlock()
		for delay := 10 * time.Millisecond; ; delay = min(2*delay, 10*time.Second) {
			if f.commit("reconcile", change) == nil {
				f.setStoreProblem(nil)
				break
			}
			if !f.keeperPause(delay) {
				return
			}
		}
		f.mu.Lock()
		for _, e := range entries {
			for _, r := range e.forgets {
				f.forgotten(r, tombs[r])
			}
			if e.then != nil {
				e.then()
			}
		}
		f.mu.Unlock()
	}
}

// keeperPause is a pause of the keeper, in which it answers. It reports whether
// the keeper is to go on.
func (f *Fabric) keeperPause(d time.Duration) bool {
	over := time.After(d)
	for {
		select {
		case <-over:
			return true
		case <-f.keeperAsked:
		case <-f.ctx.Done():
			return false
		}
	}
}

// compose makes one change of many entries. Fabric.mu is held.
func (f *Fabric) compose(entries []entry) (Change, map[*record]*record) {
	var change Change
	tombs := map[*record]*record{}
	failed := func(err error) {
		if err != nil {
			f.log.Error("cannot encode", "error", err)
		}
	}
	for _, e := range entries {
		for _, r := range e.puts {
			failed(change.put(r))
		}
		change.Delete = append(change.Delete, e.deletes...)
		for _, r := range e.forgets {
			if r.Request == "" || !e.keepReq {
				change.Delete = append(change.Delete, r.id)
				continue
			}
			t := &record{id: r.id, name: r.name, committed: true, stored: &stored{Kind: kindTombstone, UID: r.UID, Created: r.Created,
				Request: r.Request, Sum: r.Sum, Gone: &gone{Identity: r.owner().life.identity, At: time.Now().UnixNano()}}}
			tombs[r] = t
			failed(change.put(t))
		}
		for _, ev := range e.events {
			failed(change.event(ev))
		}
	}
	return change, tombs
}

// forgotten takes a record out of the index, and goes on with a session that
// waited for its last object. Fabric.mu is held.
func (f *Fabric) forgotten(r, tomb *record) {
	if r.removed {
		return
	}
	f.idx.remove(r, tomb)
	if r.op != nil && r.op.kind == changeDelete {
		f.settle(r, nil)
	} else if r.op != nil && !r.op.rolling {
		f.settle(r, &Error{Name: r.name, Reason: SessionClosed, Message: "its session was closed"})
	}
	if r.Kind == kindSession {
		for _, c := range f.cards {
			c.unhold(r)
		}
		return
	}
	if r.sess.Deleting {
		f.endSession(r.sess)
	}
}

// settle says how a record's part of its change ended: err is nil, or why it
// failed for good. Only the first end of each record and the first failure of
// all count. Fabric.mu is held.
func (f *Fabric) settle(r *record, err *Error) {
	ch := r.op
	if ch == nil {
		return
	}
	if err != nil && ch.err == nil {
		ch.err = err
		ch.err.Op, ch.err.Index = ch.op, max(0, slices.Index(ch.records, r))
	}
	if !ch.ended(r) {
		return
	}
	if ch.kind == changeCreate && ch.err != nil {
		f.rollBack(ch)
		return
	}
	ch.release()
}

// rollBack takes away what a create that failed has made, so that it leaves
// nothing behind. Fabric.mu is held.
func (f *Fabric) rollBack(ch *change) {
	ch.rolling, ch.left = true, len(ch.records)
	for _, r := range ch.records {
		r.settled, r.Deleting = false, true
	}
	for _, r := range ch.records {
		if r.there {
			r.card.push(r)
		} else {
			f.vanished(r)
		}
	}
}

// vanished says that a record which is to go has no object on the device.
// Fabric.mu is held.
func (f *Fabric) vanished(r *record) {
	ch := r.op
	switch {
	case ch == nil || ch.kind != changeCreate:
		f.forget(r)
	case !ch.rolling: // its session ends while it is being made
		f.settle(r, &Error{Name: r.name, Reason: SessionClosed, Message: "the session " + r.sess.name + " is closing"})
	case ch.ended(r):
		f.forgetCreate(ch)
	}
}

// forgetCreate has the keeper drop all records of a create that was rolled back,
// with its request id: the caller may try again. Fabric.mu is held.
func (f *Fabric) forgetCreate(ch *change) {
	ch.writing = true
	e := entry{forgets: ch.records, then: ch.release}
	for _, r := range ch.records {
		ev := r.event(EventDeleted, system, ch.err.Reason)
		ev.Before, ev.Message = string(StatePending), ch.err.Error()
		e.events = append(e.events, ev)
	}
	f.enter(e)
}

// forget has the keeper drop a record whose object is off the device. Fabric.mu
// is held.
func (f *Fabric) forget(r *record) {
	r.leaving = true
	actor, cause := system, CauseReconciled
	switch ch := r.op; {
	case ch != nil && ch.kind == changeDelete:
		actor, cause = ch.actor, CauseRequested
	case r.sess.Deleting:
		cause = CauseClosed
	}
	if r.Cause == CauseOrphan && r.Deleting {
		cause = CauseOrphan
	}
	ev := r.event(EventDeleted, actor, cause)
	ev.Before = string(StateDeleting)
	f.enter(entry{forgets: []*record{r}, keepReq: true, events: []Event{ev}})
}
