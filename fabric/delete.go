package fabric

import (
	"context"
	"fmt"
)

// remove deletes objects of one kind as one change: a mark first, then off the
// device, then the record.
func (f *Fabric) remove(ctx context.Context, c Caller, op string, k kind, validateOnly bool, rs []Delete) error {
	var ch *change
	err := f.withIdle(ctx, op, func() ([]*record, error) { return f.findUnused(c, op, k, rs) }, func(recs []*record) error {
		if validateOnly {
			return nil
		}
		ch = newChange(changeDelete, op, c.Identity, recs)
		ch.claim()
		err := f.markDeleting(ch)
		if err != nil {
			ch.release()
		}
		return err
	})
	if err != nil || validateOnly {
		return err
	}
	return f.wait(ctx, ch)
}

// findUnused resolves what is to be deleted. Fabric.mu is held.
func (f *Fabric) findUnused(c Caller, op string, k kind, rs []Delete) ([]*record, error) {
	recs := make([]*record, len(rs))
	seen := make(map[*record]int, len(rs))
	for i := range rs {
		r, err := f.find(c, op, k, "name", rs[i].Name)
		if err == nil {
			err = checkETag(op, rs[i].ETag, r)
		}
		if j, twice := seen[r]; err == nil && twice {
			err = &Error{Op: op, Name: r.name, Field: "name", Reason: FieldInvalid, Message: fmt.Sprintf("the batch has it already, at %d", j)}
		}
		if err == nil && !r.gone() {
			err = f.unused(op, r)
		}
		if err != nil {
			return nil, atIndex(err, i)
		}
		seen[r], recs[i] = i, r
	}
	return recs, nil
}

// markDeleting records that the objects of ch are to go. They carry the mark
// from the beginning, so that nothing is built on them meanwhile, and lose it
// again if it cannot be recorded. Fabric.mu is held, but not during the commit.
func (f *Fabric) markDeleting(ch *change) (err error) {
	before := make([]*stored, len(ch.records))
	defer func() {
		for i, r := range ch.records {
			if err != nil && before[i] != nil {
				r.stored = before[i]
			}
		}
	}()
	var change Change
	for i, r := range ch.records {
		if r.gone() {
			continue // that is recorded already, with its session or before
		}
		ev := r.event(EventChanged, ch.actor, CauseRequested)
		ev.Before, ev.After = r.label(), string(StateDeleting)
		before[i] = r.stored
		r.stored = r.with(func(s *stored) { s.Deleting = true })
		if err := change.put(r); err != nil {
			return err
		}
		if err := change.event(ev); err != nil {
			return err
		}
	}
	if len(change.Put) == 0 {
		return nil
	}
	return f.record(ch, change)
}

// unused refuses to delete what other objects need. Fabric.mu is held.
func (f *Fabric) unused(op string, r *record) error {
	if r.Kind == kindExport {
		return f.unattached(op, r)
	}
	if r.kids() == 0 {
		return nil
	}
	e := &Error{Op: op, Name: r.name, Reason: InUse, Details: map[string]string{"count": itoa(r.kids())},
		Shortage: &Shortage{Kind: "children"}}
	for _, k := range []kind{kindQueuePair, kindRegion, kindExport} {
		r.sess.life.lists[k].after(0, func(x *record) bool {
			if x.pd == r || x.buf == r {
				e.Shortage.Holders = append(e.Shortage.Holders, Holder{Name: x.name})
			}
			return len(e.Shortage.Holders) < 5
		})
	}
	e.Message = fmt.Sprintf("%d objects need it; delete them first", r.kids())
	for i, h := range e.Shortage.Holders {
		e.Message += []string{": ", ", "}[min(i, 1)] + h.Name
	}
	return e
}

// atIndex notes the place in a batch.
func atIndex(err error, i int) error {
	if e, ok := err.(*Error); ok {
		e.Index = i
		for j := range e.Violations {
			e.Violations[j].Index = i
		}
	}
	return err
}

// DeleteProtectionDomain destroys a protection domain. IN_USE while regions or
// queue pairs are in it.
func (f *Fabric) DeleteProtectionDomain(ctx context.Context, c Caller, r Delete) error {
	return f.remove(ctx, c, "DeleteProtectionDomain", kindPD, r.ValidateOnly, []Delete{r})
}

// DeleteBuffer frees a buffer. IN_USE while regions or exports are on it.
func (f *Fabric) DeleteBuffer(ctx context.Context, c Caller, r Delete) error {
	return f.remove(ctx, c, "DeleteBuffer", kindBuffer, r.ValidateOnly, []Delete{r})
}

// DeleteMemoryRegion deregisters a region. When it returns without error, no
// access by its keys succeeds.
func (f *Fabric) DeleteMemoryRegion(ctx context.Context, c Caller, r Delete) error {
	return f.remove(ctx, c, "DeleteMemoryRegion", kindRegion, r.ValidateOnly, []Delete{r})
}

// DeleteQueuePairs destroys queue pairs as one change.
func (f *Fabric) DeleteQueuePairs(ctx context.Context, c Caller, validateOnly bool, rs []Delete) error {
	const op = "DeleteQueuePairs"
	if err := checkBatch(op, len(rs)); err != nil {
		return err
	}
	return f.remove(ctx, c, op, kindQueuePair, validateOnly, rs)
}
