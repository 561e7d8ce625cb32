package fabric

import (
	"context"
	"errors"
	"fmt"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// listing is what a device has, at one time.
type listing struct {
	pds   []device.ProtectionDomain
	bufs  []device.Buffer
	mrs   []device.Region
	exps  []device.Export
	qps   []device.QueuePair
	ports []device.Port
}

// list asks the device for all that it has.
func (c *card) list(ctx context.Context) (*listing, error) {
	l := &listing{ports: make([]device.Port, c.info.Ports)}
	var err error
	if l.pds, err = c.dev.ListProtectionDomains(ctx); err != nil {
		return nil, err
	}
	if l.bufs, err = c.dev.ListBuffers(ctx); err != nil {
		return nil, err
	}
	if l.mrs, err = c.dev.ListRegions(ctx); err != nil {
		return nil, err
	}
	if l.qps, err = c.dev.ListQueuePairs(ctx); err != nil {
		return nil, err
	}
	if l.exps, err = c.listExports(ctx); err != nil {
		return nil, err
	}
	for n := range l.ports {
		if l.ports[n], err = c.dev.Port(ctx, n); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// strays are objects that no record knows, by kind.
type strays [len(collections)][]device.UID

// compare lists the device and takes what it says into the records. It gives
// all records of the card, to be acted on. Objects that no record knows are
// destroyed.
func (c *card) compare() (all []*record, ok bool) {
	ctx, cancel := c.call() // ends after it was noted how it went: else a device that hangs would seem well in between
	l, err := c.list(ctx)
	f := c.f
	f.mu.Lock()
	if err != nil {
		c.unavailable("the device cannot be listed: "+err.Error(), err)
		f.mu.Unlock()
		cancel()
		f.log.Warn("device cannot be listed", "device", c.name, "error", err)
		return nil, false
	}
	all, lost := c.takeIn(l)
	f.mu.Unlock()
	cancel()
	c.reclaim(lost)
	return all, true
}

// takeIn makes a listing the present state of the card and its records.
// Fabric.mu is held.
func (c *card) takeIn(l *listing) (all []*record, lost strays) {
	if len(c.ports) == len(l.ports) { // else this is the first listing
		for n := range l.ports {
			c.portChanged(&l.ports[n], &c.ports[n])
		}
	}
	c.known, c.health, c.ports = true, Condition{}, l.ports
	c.f.ClearFault(c.component(), faultAway)
	for n := range c.ports {
		c.judgePort(&c.ports[n])
	}
	objects := make(map[device.UID]*present, len(l.pds)+len(l.bufs)+len(l.mrs)+len(l.qps))
	see := func(k kind, uid device.UID, p *present) {
		if r := c.f.idx.byUID[uid]; r == nil || r.card != c || r.Kind != k {
			lost[k] = append(lost[k], uid)
			return
		}
		objects[uid] = p
	}
	for _, o := range l.pds {
		see(kindPD, o.UID, &present{pd: o.PD})
	}
	for _, o := range l.bufs {
		see(kindBuffer, o.UID, &present{addr: o.Address})
	}
	for i := range l.mrs {
		see(kindRegion, l.mrs[i].UID, presentRegion(&l.mrs[i]))
	}
	for i := range l.exps {
		see(kindExport, l.exps[i].UID, presentExport(&l.exps[i]))
	}
	for i := range l.qps {
		see(kindQueuePair, l.qps[i].UID, presentQP(&l.qps[i]))
	}
	var missing losses
	for _, k := range objectKinds {
		c.lists[k].after(0, func(r *record) bool {
			if !r.committed {
				return true
			}
			p := objects[r.UID]
			if r.there && p == nil {
				r.made = true
			}
			if p == nil && (r.there || r.made && !c.listed) {
				missing.note(r)
			}
			r.setThere(p)
			if p != nil && p.revoked {
				c.f.cut(r)
				c.f.cutImports(r)
			}
			all = append(all, r)
			return true
		})
	}
	c.listed = true
	if told := missing.event(c); told != nil {
		c.f.enter(entry{events: told})
	}
	return all, lost
}

// reclaim destroys strays. What the device does not let go is tried again after
// the back-off.
func (c *card) reclaim(lost strays) {
	ctx, cancel := c.call()
	defer cancel()
	n, failed := 0, 0
	for _, k := range objectKinds {
		for i, err := range c.destroyOn(ctx, k, lost[k]) {
			if err != nil && !errors.Is(err, device.ErrNotFound) {
				failed++
				c.f.log.Warn("stray object not destroyed", "device", c.name, "kind", k, "uid", uidString(lost[k][i]), "error", err)
				continue
			}
			n++
		}
	}
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	// Of attempts that change nothing the journal tells the first ones only.
	if n > 0 || failed > 0 && c.tries < toldTries {
		c.f.enter(entry{events: []Event{{Type: EventChanged, Resource: c.name, Actor: system, Reason: CauseOrphan,
			Message: fmt.Sprintf("%d objects that no record knows were destroyed, %d could not be", n, failed)}}})
	}
	c.judgeStrays(failed)
	if failed > 0 {
		c.lookLater()
	} else {
		c.tries = 0
	}
}

// setThere notes whether the object is on the device, and what it is.
func (r *record) setThere(p *present) {
	now := p != nil
	if now != r.there {
		d := 1
		if !now {
			d = -1
		}
		for _, up := range []*record{r.pd, r.buf} {
			if up == nil {
				continue
			}
			if up.alive += d; up.alive == 0 && up.gone() {
				r.card.push(up)
			}
		}
	}
	r.there, r.is = now, p
	if now {
		r.lost = false
	}
}

// planned says what is to be done about r. Fabric.mu is held.
func (c *card) planned(r *record) action {
	if r.leaving || r.removed || !r.committed || r.op != nil && r.op.writing {
		return actNone
	}
	if r.sess.life.draining && !r.Deleting {
		return actNone // the end of that pushes it
	}
	if r.Kind == kindExport && r.ExportAsk.Revoked && !r.there && !r.gone() {
		return actNone // revoked for good: it is not made again
	}
	keeps := r.Kind == kindBuffer || r.Kind == kindExport || r.ImportAsk != nil // the descriptors are gone with it
	a := asked{Record: true, Gone: r.gone(), Made: r.made, Ready: true, Keeps: keeps, Lost: r.sess.life.lost}
	for _, up := range []*record{r.pd, r.buf} {
		if up != nil {
			a.Ready = a.Ready && up.there
			a.Lost = a.Lost || up.lost
		}
	}
	return plan(a, had{Known: c.known, There: r.there})
}

// act does what is planned for the records, in order of dependency: first what
// goes, from queue pairs to domains, then what comes, the other way round.
func (c *card) act(work []*record) {
	var by [len(collections)][]*record
	c.f.mu.RLock() // what is recorded of r may be replaced meanwhile
	for _, r := range work {
		by[r.Kind] = append(by[r.Kind], r)
	}
	c.f.mu.RUnlock()
	for _, k := range objectKinds {
		if len(by[k]) > 0 {
			c.destroy(k, by[k])
		}
	}
	for i := len(objectKinds) - 1; i >= 0; i-- {
		if k := objectKinds[i]; len(by[k]) > 0 {
			c.create(k, by[k])
		}
	}
	if len(by[kindQueuePair]) > 0 {
		c.refresh(by[kindQueuePair])
		c.move(by[kindQueuePair])
	}
	if len(by[kindExport]) > 0 {
		c.revoke(by[kindExport])
	}
}

// destroy takes off the device what is to go.
func (c *card) destroy(k kind, recs []*record) {
	f := c.f
	f.mu.Lock()
	var gone []*record
	var uids []device.UID
	for _, r := range recs {
		switch c.planned(r) {
		case actDestroy:
			if r.alive > 0 || r.worked() {
				continue // what is in it, or reads and writes it, goes first and pushes it then
			}
			gone, uids = append(gone, r), append(uids, r.UID)
		case actForget:
			f.vanished(r)
		}
	}
	f.mu.Unlock()
	if len(gone) == 0 {
		return
	}
	ctx, cancel := c.call()
	errs := c.destroyOn(ctx, k, uids)
	cancel()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, r := range gone {
		if errs[i] != nil && !errors.Is(errs[i], device.ErrNotFound) {
			c.fail(r, errs[i])
			continue
		}
		r.setThere(nil)
		f.cutImports(r)
		f.vanished(r)
	}
}

func (c *card) destroyOn(ctx context.Context, k kind, uids []device.UID) []error {
	if len(uids) == 0 {
		return nil
	}
	switch k {
	case kindQueuePair:
		return c.dev.DestroyQueuePairs(ctx, uids)
	case kindRegion:
		return c.dev.DeregisterRegions(ctx, uids)
	case kindPD:
		return c.dev.DestroyProtectionDomains(ctx, uids)
	case kindExport:
		return c.destroyExports(ctx, uids)
	}
	errs := make([]error, len(uids))
	for i, uid := range uids {
		errs[i] = c.dev.Free(ctx, uid)
	}
	return errs
}

// create makes on the device what is missing.
func (c *card) create(k kind, recs []*record) {
	f := c.f
	f.mu.Lock()
	var todo []*record
	for _, r := range recs {
		switch c.planned(r) {
		case actCreate:
			if r.made && k == kindQueuePair && !r.QPAsk.restart() {
				c.remake(r)
				continue
			}
			todo = append(todo, r)
		case actLose:
			c.lose(r)
		case actAdopt:
			if r.failure.Reconciling { // else it tells how a connect ended
				r.failure = Condition{}
			}
			r.tries = 0
			if k != kindQueuePair && k != kindExport { // those may have steps to go
				f.settle(r, nil)
			}
		case actWait:
			r.tries++
			c.later = append(c.later, r)
		}
	}
	call := c.maker(k, todo)
	f.mu.Unlock()
	if len(todo) == 0 {
		return
	}
	ctx, cancel := c.call()
	got, errs := call(ctx)
	cancel()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, r := range todo {
		if errs[i] != nil {
			c.fail(r, errs[i])
			continue
		}
		r.setThere(got[i])
		r.failure, r.tries = Condition{}, 0
		f.imported(r)
		if r.made {
			ev := r.event(EventChanged, system, CauseReconciled)
			ev.Before, ev.After, ev.Message = string(StatePending), r.label(), "made again on the device, with new numbers"
			f.enter(entry{events: []Event{ev}})
		}
		r.made = true
		if r.gone() {
			c.push(r)
			continue
		}
		f.settle(r, nil)
	}
}

// lose marks what the device lost and cannot give back.
func (c *card) lose(r *record) {
	if !r.lost {
		r.lost = true
		ev := r.event(EventChanged, system, CauseReconciled)
		ev.Before, ev.After, ev.Reason, ev.Message = string(StateReady), string(StateLost), Lost, "the device does not have it any more; delete it"
		c.f.enter(entry{events: []Event{ev}})
	}
	r.failure, r.tries = Condition{Reason: Lost, Message: "the device does not have it any more and it cannot be given back; delete it and make another"}, 0
	if r.ImportAsk != nil {
		r.failure.Message = "the device does not have it any more, and the descriptor that it was made of is gone: upload one again, delete this and make another"
	}
	c.f.cutImports(r)
	c.f.settle(r, &Error{Name: r.name, Reason: Lost, Message: r.failure.Message})
}

// remake prepares a queue pair that the device lost to be made again: it has a
// new QPN, so its connection is void. The record says so first.
func (c *card) remake(r *record) {
	if r.op != nil {
		c.f.settle(r, &Error{Name: r.name, Reason: Lost, Message: "the device lost the queue pair; it is being made again and must be connected again"})
		if r.op != nil {
			return // the rest of its batch is still at work; that pushes it again
		}
	}
	before := r.QPAsk.Target.String()
	ask := *r.QPAsk
	ask.Target, ask.Remote = ib.Init, nil
	r.stored = r.with(func(s *stored) { s.QPAsk = &ask })
	ch := newChange(changeMove, "reconcile", system, []*record{r})
	ch.writing = true
	ch.claim()
	ev := r.event(EventChanged, system, CauseReconciled)
	ev.Before, ev.After, ev.Message = before, ib.Init.String(), "the device lost the queue pair; it is made again with a new QPN and must be connected again"
	c.recording++
	c.f.enter(entry{puts: []*record{r}, events: []Event{ev}, then: func() {
		c.recording--
		ch.release()
	}})
}

// restart says whether the queue pair can be made again as it is asked: without
// a peer, and in a state that steps from RESET lead to.
func (q *qpAsk) restart() bool {
	return q.Remote == nil && (q.Target <= ib.Init || q.Type == ib.UD && q.Target <= ib.RTS)
}

// with gives a changed copy of what is durable, with the next revision.
func (r *record) with(fn func(*stored)) *stored {
	s := *r.stored
	fn(&s)
	s.Revision++
	return &s
}

// final says whether trying again cannot help.
func final(err error) bool {
	return errors.Is(err, device.ErrExhausted) || errors.Is(err, device.ErrInvalid) || errors.Is(err, device.ErrExists) ||
		errors.Is(err, errors.ErrUnsupported) || errors.Is(err, ib.ErrTransition) || errors.Is(err, device.ErrAttach) || errors.Is(err, device.ErrRevoked)
}

// toldTries is how many failed attempts of one thing the journal tells: a step
// that never succeeds must not fill it.
const toldTries = 10

// fail notes that a step for r failed. It is tried again, unless r is being
// created and trying again cannot help. Fabric.mu is held.
func (c *card) fail(r *record, err error) {
	e := c.f.deviceError(r, err)
	r.failure = Condition{Reconciling: true, Reason: e.Reason, Message: e.Error()}
	creating := r.op != nil && r.op.kind == changeCreate && !r.op.rolling && !r.gone()
	if creating && (final(err) || r.op.err != nil || r.ImportAsk != nil && isNotFound(err)) {
		r.failure.Reconciling = false
		c.f.settle(r, e)
		return
	}
	r.tries++
	c.f.log.Warn("device step failed", "name", r.name, "attempt", r.tries, "error", err)
	if r.tries <= toldTries {
		ev := r.event(EventChanged, system, e.Reason)
		ev.Before, ev.After, ev.Message = r.label(), r.label(), fmt.Sprintf("attempt %d failed: %v", r.tries, err)
		c.f.enter(entry{events: []Event{ev}})
	}
	c.later = append(c.later, r)
	switch {
	case errors.Is(err, device.ErrClosed):
		c.unavailable("the device is closed", err)
	case errors.Is(err, device.ErrUnavailable):
		c.unavailable(err.Error(), err)
	}
}
