package fabric

import (
	"context"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// maker gathers what the device needs to make objects of one kind, while
// Fabric.mu is held, and gives the call that does it, to be made without.
// Results are in the order of the records.
func (c *card) maker(k kind, recs []*record) func(context.Context) ([]*present, []error) {
	got, errs := make([]*present, len(recs)), make([]error, len(recs))
	switch k {
	case kindPD:
		uids := make([]device.UID, len(recs))
		for i, r := range recs {
			uids[i] = r.UID
		}
		return func(ctx context.Context) ([]*present, []error) {
			for i, res := range c.dev.CreateProtectionDomains(ctx, uids) {
				got[i], errs[i] = &present{pd: res.PD}, res.Err
			}
			return got, errs
		}
	case kindBuffer:
		specs := make([]device.BufferSpec, len(recs))
		for i, r := range recs {
			specs[i] = device.BufferSpec{UID: r.UID, Size: r.BufferAsk.Size, Alignment: r.BufferAsk.Alignment}
		}
		return func(ctx context.Context) ([]*present, []error) {
			for i, s := range specs {
				b, err := c.dev.Allocate(ctx, s)
				got[i], errs[i] = &present{addr: b.Address}, err
			}
			return got, errs
		}
	case kindRegion:
		specs := make([]device.RegionSpec, len(recs))
		for i, r := range recs {
			a := r.RegionAsk
			specs[i] = device.RegionSpec{UID: r.UID, PD: r.pd.is.pd, Address: r.buf.is.addr + a.Offset, Length: a.Length, Access: a.Access}
		}
		return func(ctx context.Context) ([]*present, []error) {
			for i, res := range c.dev.RegisterRegions(ctx, specs) {
				got[i], errs[i] = &present{addr: res.Address, lkey: res.LKey, rkey: res.RKey}, res.Err
			}
			return got, errs
		}
	}
	specs := make([]device.QueuePairSpec, len(recs))
	for i, r := range recs {
		q := r.QPAsk
		specs[i] = device.QueuePairSpec{UID: r.UID, PD: r.pd.is.pd, Port: q.Port, Type: q.Type, SendWR: q.SendWR, RecvWR: q.RecvWR, SGE: q.SGE}
		// A target that cannot be reached from RESET was refused at the door.
		specs[i].Steps, errs[i] = qpSteps(q, ib.Reset, q.Target)
	}
	return func(ctx context.Context) ([]*present, []error) {
		results := c.dev.CreateQueuePairs(ctx, specs)
		for i := range results {
			got[i] = presentQP(&results[i].QueuePair)
			if errs[i] == nil {
				errs[i] = results[i].Err
			}
		}
		return got, errs
	}
}

func presentQP(q *device.QueuePair) *present {
	return &present{qpn: q.QPN, state: q.State, gid: q.GID, gidIx: q.GIDIndex, mtu: q.PathMTU,
		sendWR: q.SendWR, recvWR: q.RecvWR, sge: q.SGE, status: q.Status, reason: q.Reason}
}

// refresh reads queue pairs that the device said have changed.
func (c *card) refresh(recs []*record) {
	f := c.f
	f.mu.Lock()
	var stale []*record
	for _, r := range recs {
		if r.stale {
			r.stale = false
			if r.there && !r.gone() && !r.removed {
				stale = append(stale, r)
			}
		}
	}
	f.mu.Unlock()
	for _, r := range stale {
		ctx, cancel := c.call()
		q, err := c.dev.GetQueuePair(ctx, r.UID)
		cancel()
		f.mu.Lock()
		switch {
		case err != nil && isNotFound(err):
			c.look()
		case err == nil && r.there:
			before := r.label()
			r.is = presentQP(&q)
			if after := r.label(); after != before && (r.op == nil || q.State == ib.Err || q.State == ib.SQE) {
				ev := r.event(EventChanged, system, CauseDevice)
				ev.Before, ev.After, ev.Message = before, after, q.Reason
				f.enter(entry{events: []Event{ev}})
			}
		}
		f.mu.Unlock()
	}
}

// move takes queue pairs that are there to the state that is asked.
func (c *card) move(recs []*record) {
	f := c.f
	f.mu.Lock()
	var todo []*record
	var changes []device.QueuePairChange
	for _, r := range recs {
		if c.planned(r) != actAdopt {
			continue
		}
		asks := r.op != nil && r.op.kind == changeMove
		if fell := r.is.state == ib.Err || r.is.state == ib.SQE; fell && !asks {
			f.settle(r, nil) // the device took it there: its owner must decide
			continue
		}
		steps, err := qpSteps(r.QPAsk, r.is.state, r.QPAsk.Target)
		if err != nil {
			c.stay(r, err)
			continue
		}
		if len(steps) == 0 {
			f.settle(r, nil)
			continue
		}
		todo, changes = append(todo, r), append(changes, device.QueuePairChange{UID: r.UID, Steps: steps})
	}
	f.mu.Unlock()
	if len(todo) == 0 {
		return
	}
	ctx, cancel := c.call()
	results := c.dev.ModifyQueuePairs(ctx, changes)
	cancel()
	again := c.fallBack(todo, results)
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, r := range todo {
		res := &results[i]
		if res.Err == nil {
			r.is = presentQP(&res.QueuePair)
			r.failure, r.tries = Condition{}, 0
			f.settle(r, nil)
			continue
		}
		switch {
		case isNotFound(res.Err):
			c.look()
		case r.op != nil && transient(res.Err):
			r.stale = true
			c.fail(r, res.Err)
			continue
		}
		if q := again[i]; q != nil {
			r.is = presentQP(q)
		} else if res.QPN != 0 {
			r.is = presentQP(&res.QueuePair)
		}
		c.stay(r, res.Err)
	}
}

// fallBack takes queue pairs whose way to RTR or RTS failed by RESET to INIT,
// with the same QPN. Posted receives are lost.
func (c *card) fallBack(recs []*record, results []device.QueuePairResult) map[int]*device.QueuePair {
	var at []int
	var changes []device.QueuePairChange
	c.f.mu.Lock()
	for i, r := range recs {
		if t := r.QPAsk.Target; results[i].Err != nil && !isNotFound(results[i].Err) && !transient(results[i].Err) && (t == ib.RTR || t == ib.RTS) {
			steps, _ := qpSteps(r.QPAsk, ib.RTR, ib.Init)
			at, changes = append(at, i), append(changes, device.QueuePairChange{UID: r.UID, Steps: steps})
		}
	}
	c.f.mu.Unlock()
	if len(at) == 0 {
		return nil
	}
	ctx, cancel := c.call()
	defer cancel()
	done := map[int]*device.QueuePair{}
	for i, res := range c.dev.ModifyQueuePairs(ctx, changes) {
		done[at[i]] = &res.QueuePair
	}
	return done
}

// stay records that a queue pair did not reach the state that was asked: from
// now on what it has is what is asked. Fabric.mu is held.
func (c *card) stay(r *record, err error) {
	f := c.f
	e := f.deviceError(r, err)
	if t := r.QPAsk.Target; t == ib.RTR || t == ib.RTS {
		if e.Details == nil {
			e.Details = map[string]string{}
		}
		e.Details["phase"] = "connect"
		where := "; the queue pair is in " + r.is.state.String() + " with the same QPN, receives that were posted are lost"
		e.Message += where
		for i := range e.Violations {
			e.Violations[i].Problem += where
		}
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
