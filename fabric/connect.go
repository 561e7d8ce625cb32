package fabric

import (
	"context"
	"fmt"
	"slices"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// aim is what a request wants of one queue pair.
type aim struct {
	update Update
	target ib.QPState
	remote *Endpoint
	attrs  *Attributes
}

// ConnectQueuePairs takes queue pairs to RTS. All are checked before anything
// is done, and what is asked is one commit. Of a single request a failure of
// the device is the error; of several each queue pair's Condition tells.
func (f *Fabric) ConnectQueuePairs(ctx context.Context, c Caller, validateOnly bool, rs []ConnectQueuePair) ([]QueuePair, error) {
	const op = "ConnectQueuePairs"
	if err := checkBatch(op, len(rs)); err != nil {
		return nil, err
	}
	aims := make([]aim, len(rs))
	for i := range rs {
		aims[i] = aim{rs[i].Update, ib.RTS, &rs[i].Remote, &rs[i].Attributes}
	}
	return f.moveTo(ctx, c, op, validateOnly, aims)
}

// ModifyQueuePair takes a queue pair to a state. STATE_INVALID names both
// states where the way is not allowed.
func (f *Fabric) ModifyQueuePair(ctx context.Context, c Caller, r ModifyQueuePair) (QueuePair, error) {
	qs, err := f.moveTo(ctx, c, "ModifyQueuePair", r.ValidateOnly, []aim{{r.Update, r.Target, r.Remote, &r.Attributes}})
	if len(qs) == 0 {
		return QueuePair{}, err
	}
	return qs[0], err
}

// moveTo is the way of every change of a queue pair's state: what is asked is
// checked, recorded, and then done by the cards' workers.
func (f *Fabric) moveTo(ctx context.Context, c Caller, op string, validateOnly bool, aims []aim) ([]QueuePair, error) {
	if err := readEnds(ctx, op, f.endsOfAims(c, op, aims)); err != nil {
		return nil, err
	}
	var recs []*record
	var ch *change // nil if nothing is to change
	var unchanged []QueuePair
	err := f.withIdle(ctx, op, func() ([]*record, error) {
		recs = make([]*record, len(aims))
		for i := range aims {
			r, err := f.findUsable(c, op, kindQueuePair, "name", aims[i].update.Name)
			if err != nil {
				return nil, atIndex(err, i)
			}
			recs[i] = r
		}
		return recs, nil
	}, func([]*record) error {
		moving, asks, err := f.aimAll(op, recs, aims)
		if err != nil {
			return err
		}
		if validateOnly || len(moving) == 0 {
			unchanged = f.viewQPs(c, recs)
			return nil
		}
		ch = newChange(changeMove, op, c.Identity, moving)
		ch.claim()
		if err = f.askMoves(ch, asks); err != nil {
			ch.release()
		}
		return err
	})
	if err != nil || ch == nil {
		return unchanged, err
	}
	err = f.wait(ctx, ch)
	f.mu.RLock()
	defer f.mu.RUnlock()
	select {
	case <-ch.done: // a device's refusal of one of many is in its condition
		if len(aims) > 1 {
			err = nil
		}
	default:
	}
	return f.viewQPs(c, recs), err
}

// aimAll checks what is wanted of all, and gives those that have to change with
// what is asked of them from now on. Fabric.mu is held.
func (f *Fabric) aimAll(op string, recs []*record, aims []aim) (moving []*record, asks []*qpAsk, err error) {
	seen := make(map[*record]bool, len(recs))
	for i, r := range recs {
		ask, err := f.aimAt(op, r, &aims[i])
		if err == nil && seen[r] {
			err = violations{{Field: "name", Reason: FieldInvalid, Problem: "the batch has it twice"}}.err(op, r.name)
		}
		if err != nil {
			return nil, nil, atIndex(err, i)
		}
		seen[r] = true
		if ask != nil {
			moving, asks = append(moving, r), append(asks, ask)
		}
	}
	return moving, asks, nil
}

// askMoves records what is asked of the queue pairs of ch. Fabric.mu is held,
// but not during the commit.
func (f *Fabric) askMoves(ch *change, asks []*qpAsk) error {
	next := make([]*stored, len(ch.records))
	var change Change
	for i, r := range ch.records {
		next[i] = r.with(func(s *stored) { s.QPAsk = asks[i] })
		ev := r.event(EventChanged, ch.actor, CauseRequested)
		ev.Before, ev.After = r.label(), asks[i].Target.String()
		if err := change.put(&record{id: r.id, name: r.name, stored: next[i]}); err != nil {
			return err
		}
		if err := change.event(ev); err != nil {
			return err
		}
	}
	if err := f.record(ch, change); err != nil {
		return err
	}
	for i, r := range ch.records {
		r.stored, r.failure = next[i], Condition{}
	}
	return nil
}

func (f *Fabric) viewQPs(c Caller, recs []*record) []QueuePair {
	out := make([]QueuePair, len(recs))
	for i, r := range recs {
		out[i] = f.viewQP(c, r)
	}
	return out
}

// aimAt checks what is wanted of a queue pair, and gives the ask that says so;
// nil if there is nothing to change. Fabric.mu is held.
func (f *Fabric) aimAt(op string, r *record, a *aim) (*qpAsk, error) {
	if err := checkETag(op, a.update.ETag, r); err != nil {
		return nil, err
	}
	if err := r.card.usable(); err != nil {
		err.Op = op
		return nil, err
	}
	if !r.there {
		return nil, &Error{Op: op, Name: r.name, Reason: StateInvalid, Message: "the queue pair is not on the device yet", Details: map[string]string{"state": string(r.state())}}
	}
	var v violations
	ask := *r.QPAsk
	ask.apply(&v, a.attrs, &r.card.info)
	if a.target == ib.SQE || !a.target.Valid() {
		v.invalid("target_state", fmt.Sprintf("%v: want RESET, INIT, RTR, RTS, SQD or ERR", a.target))
	}
	if err := v.err(op, r.name); err != nil {
		return nil, err
	}
	at := r.is.state
	ask.Target = a.target
	same := a.remote == nil || ask.Remote.is(a.remote)
	if a.target == at && same && ask == *r.QPAsk {
		return nil, nil
	}
	refuse := func(field, message string) error {
		return &Error{Op: op, Name: r.name, Field: field, Reason: StateInvalid, Message: message,
			Details: map[string]string{"state": at.String(), "asked": a.target.String()}}
	}
	steps, err := qpSteps(&ask, at, a.target)
	late := a.attrs.tooLate(at, steps)
	switch {
	case err != nil:
		return nil, refuse("target_state", fmt.Sprintf("a queue pair in %v cannot go to %v; modify it to RESET or INIT first", at, a.target))
	case !same && ask.Remote != nil && at > ib.Init:
		return nil, refuse("remote_endpoint", fmt.Sprintf(
			"the queue pair in %v is connected with GID %v QPN %#x; modify it to RESET or INIT first to connect it in %v with another",
			at, ask.Remote.GID, uint32(ask.Remote.QPN), a.target))
	case len(steps) == 0 && *a.attrs != (Attributes{}):
		return nil, refuse("attributes", "the queue pair is in "+at.String()+" already; attributes change only on the way to a state")
	case late != "":
		return nil, refuse(late, "the queue pair in "+at.String()+" has been given it before; modify it to RESET or INIT first to give it another")
	case a.target <= ib.Init && a.remote != nil:
		return nil, violations{{Field: "remote_endpoint", Reason: FieldInvalid, Problem: "a queue pair in " + a.target.String() + " has no peer"}}.err(op, r.name)
	case a.target <= ib.Init:
		ask.Remote = nil
	}
	passesRTR := slices.ContainsFunc(steps, func(s device.Transition) bool { return s.Target() == ib.RTR })
	if a.remote != nil || passesRTR {
		if err := f.checkPath(op, r, &ask, a.remote, passesRTR); err != nil {
			return nil, err
		}
	}
	return &ask, nil
}

// is says whether it names the same peer as an endpoint.
func (m *remoteAsk) is(e *Endpoint) bool {
	return m != nil && m.GID == e.GID && m.QPN == e.QPN && m.PSN == e.PSN
}
