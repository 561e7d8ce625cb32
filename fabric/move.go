package fabric

import (
	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// refresh reads queue pairs that the device said have changed.
func (c *card) refresh(recs []*record) {
	f := c.f
	f.mu.Lock()
	var stale []*record
	var uids []device.UID
	for _, r := range recs {
		if r.stale {
			r.stale = false
			if r.there && !r.gone() && !r.removed {
				stale, uids = append(stale, r), append(uids, r.UID)
			}
		}
	}
	f.mu.Unlock()
	for i, r := range stale {
		ctx, cancel := c.call()
		q, err := c.dev.GetQueuePair(ctx, uids[i])
		cancel()
		f.mu.Lock()
		switch {
		case err == nil && r.there:
			c.refreshed(r, &q)
		case isNotFound(err):
			c.look()
		case err != nil:
			r.stale = true
			c.fail(r, err)
		}
		f.mu.Unlock()
	}
}

// refreshed takes in what the device says of a queue pair. A state that no
// request led to is told. Fabric.mu is held.
func (c *card) refreshed(r *record, q *device.QueuePair) {
	before := r.label()
	r.is = presentQP(q)
	after := r.label()
	if after == before || r.op != nil && q.State != ib.Err && q.State != ib.SQE {
		return
	}
	ev := r.event(EventChanged, system, CauseDevice)
	ev.Before, ev.After, ev.Message = before, after, q.Reason
	c.f.enter(entry{events: []Event{ev}})
}

// move takes queue pairs that are there to the state that is asked.
func (c *card) move(recs []*record) {
	c.f.mu.Lock()
	todo, changes := c.moves(recs)
	c.f.mu.Unlock()
	if len(todo) == 0 {
		return
	}
	ctx, cancel := c.call()
	results := c.dev.ModifyQueuePairs(ctx, changes)
	cancel()
	fallen := c.fallBack(todo, results)
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	for i, r := range todo {
		c.moved(r, &results[i], fallen[i])
	}
}

// moves says which queue pairs have steps to go, and which. The others are
// settled. Fabric.mu is held.
func (c *card) moves(recs []*record) (todo []*record, changes []device.QueuePairChange) {
	for _, r := range recs {
		if c.planned(r) != actAdopt {
			continue
		}
		asked := r.op != nil && r.op.kind == changeMove
		if fell := r.is.state == ib.Err || r.is.state == ib.SQE; fell && !asked {
			c.f.settle(r, nil) // the device took it there: its owner must decide
			continue
		}
		steps, err := qpSteps(r.QPAsk, r.is.state, r.QPAsk.Target)
		switch {
		case err != nil:
			c.stay(r, err)
		case len(steps) == 0:
			c.f.settle(r, nil)
		default:
			todo, changes = append(todo, r), append(changes, device.QueuePairChange{UID: r.UID, Steps: steps})
		}
	}
	return todo, changes
}

// moved takes in how a queue pair's steps ended; fallen is where it is if it was
// taken back after that. Fabric.mu is held.
func (c *card) moved(r *record, res *device.QueuePairResult, fallen *device.QueuePair) {
	if res.Err == nil {
		r.is = presentQP(&res.QueuePair)
		r.failure, r.tries = Condition{}, 0
		c.f.settle(r, nil)
		return
	}
	if transient(res.Err) {
		r.stale = true // nobody knows how far it came
		c.fail(r, res.Err)
		return
	}
	if isNotFound(res.Err) {
		c.look()
	}
	if fallen != nil {
		r.is = presentQP(fallen)
	} else if res.QPN != 0 {
		r.is = presentQP(&res.QueuePair)
	}
	c.stay(r, res.Err)
}

// fallBack takes queue pairs whose way to RTR or RTS failed by RESET to INIT,
// with the same QPN. Posted receives are lost. It gives those that the device
// answered for, by their place in recs.
func (c *card) fallBack(recs []*record, results []device.QueuePairResult) map[int]*device.QueuePair {
	var at []int
	var changes []device.QueuePairChange
	c.f.mu.Lock()
	for i, r := range recs {
		err := results[i].Err
		if err == nil || isNotFound(err) || transient(err) || !connects(r.QPAsk.Target) {
			continue
		}
		steps, _ := qpSteps(r.QPAsk, ib.RTR, ib.Init) // there is always a way
		at, changes = append(at, i), append(changes, device.QueuePairChange{UID: r.UID, Steps: steps})
	}
	c.f.mu.Unlock()
	if len(at) == 0 {
		return nil
	}
	ctx, cancel := c.call()
	defer cancel()
	done := map[int]*device.QueuePair{}
	for i, res := range c.dev.ModifyQueuePairs(ctx, changes) {
		if res.QPN != 0 {
			done[at[i]] = &res.QueuePair
		}
	}
	return done
}

// connects says whether the way to a state passes the connection to a peer.
func connects(target ib.QPState) bool { return target == ib.RTR || target == ib.RTS }

// stay records that a queue pair did not reach the state that was asked: from
// now on what it has is what is asked. Fabric.mu is held.
func (c *card) stay(r *record, err error) {
	f := c.f
	e := f.deviceError(r, err)
	if connects(r.QPAsk.Target) {
		e.inConnect(r.is.state)
	}
	r.failure = Condition{Reason: e.Reason, Message: e.Error()}
	before, ask := r.QPAsk.Target.String(), *r.QPAsk
	ask.Target = r.is.state
	if r.is.state < ib.RTR {
		ask.Remote = nil
	}
	r.stored = r.with(func(s *stored) { s.QPAsk = &ask })
	ch := r.op
	if ch == nil {
		ch = newChange(changeMove, "reconcile", system, []*record{r})
		ch.claim()
	}
	ev := r.event(EventChanged, ch.actor, e.Reason)
	ev.Before, ev.After, ev.Message = before, r.label(), e.Error()
	c.recording++
	r.leaving = true // nothing is done about it until this is recorded
	f.enter(entry{puts: []*record{r}, events: []Event{ev}, then: func() {
		c.recording--
		r.leaving = false
		f.settle(r, e)
		c.push(r)
	}})
}

// inConnect adds that a connect failed, and where it left the queue pair.
func (e *Error) inConnect(state ib.QPState) {
	if e.Details == nil {
		e.Details = map[string]string{}
	}
	e.Details["phase"] = "connect"
	where := "; the queue pair is in " + state.String() + " with the same QPN, receives that were posted are lost"
	e.Message += where
	for i := range e.Violations {
		e.Violations[i].Problem += where
	}
}
