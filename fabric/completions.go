package fabric

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// inbox holds completions that were read from the device and that the caller
// has not given up: a reply that is lost loses nothing. It holds at most
// maxWork; what is more stays in the device's queue. Where a device outlives the
// daemon (device.NumberedWork) the numbers are the device's, which keeps the same
// completions: after a restart the inbox begins as a copy of what is kept there.
type inbox struct {
	busy chan struct{} // one reads the device at a time; holds one token

	mu     sync.Mutex
	synced bool   // with a device that numbers completions itself
	last   uint64 // sequence of the newest
	kept   []Completion
	came   chan struct{} // closed when more is kept; nil while nobody waits for that
}

// PollCompletions gives completions after a sequence number, oldest first, and
// gives up those up to it.
func (f *Fabric) PollCompletions(ctx context.Context, c Caller, r PollCompletions) ([]Completion, error) {
	const op = "PollCompletions"
	var v violations
	within(&v, "limit", r.Limit, 0, maxWork)
	if r.Wait < 0 || r.Wait > maxWait {
		v.invalid("wait", fmt.Sprintf("%v: want 0 s to 60 s", r.Wait))
	}
	if err := v.err(op, r.QueuePair); err != nil {
		return nil, err
	}
	r.Limit = orDefault(r.Limit, 128)
	qp, err := f.using(c, op, kindQueuePair, r.QueuePair)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	if qp.inbox == nil {
		qp.inbox = &inbox{busy: make(chan struct{}, 1)}
	}
	in := qp.inbox
	f.mu.Unlock()
	if err := f.syncInbox(ctx, qp, in); err != nil {
		return nil, f.workFault(ctx, op, qp.record, err)
	}
	if err := in.giveUp(r.After); err != nil {
		return nil, &Error{Op: op, Name: qp.name, Field: "after", Reason: FieldInvalid, Message: err.Error()}
	}
	if out, _ := in.look(&r); len(out) > 0 {
		return out, nil
	}
	// A device may heed the context before it looks, hence a little time even
	// for a caller who does not wait.
	wait, cancel := context.WithTimeout(ctx, max(r.Wait, time.Millisecond))
	defer cancel()
	for {
		out, came := in.look(&r)
		if len(out) > 0 {
			return out, nil
		}
		select {
		case in.busy <- struct{}{}: // one caller reads; others wait for what it brings
		case <-came:
			continue
		case <-wait.Done():
			out, _ = in.look(&r)
			return out, nil
		}
		// What another caller brought before this one had the token.
		if out, _ = in.look(&r); len(out) == 0 {
			err = f.fetch(ctx, wait, qp, in, &r)
		}
		<-in.busy
		switch {
		case len(out) > 0:
			return out, nil
		case err == nil:
		case ctx.Err() == nil && errors.Is(err, wait.Err()):
			return nil, nil
		default:
			return nil, f.workFault(ctx, op, qp.record, err)
		}
	}
}

// fetch waits for completions of the device, as long as wait, and keeps them.
func (f *Fabric) fetch(ctx, wait context.Context, qp target, in *inbox, r *PollCompletions) error {
	limit := r.Limit
	if r.SolicitedOnly { // what is not given now is kept too
		limit = maxWork
	}
	got, err := in.read(ctx, wait, qp, min(limit, in.room()))
	if err != nil && len(got) == 0 {
		return err
	}
	in.add(got)
	for i := range got {
		if got[i].Status != ib.Success {
			f.mu.Lock()
			qp.stale = true // its state may have changed
			qp.card.push(qp.record)
			f.mu.Unlock()
			break
		}
	}
	return nil
}

// read takes completions from the device, that come after what is kept.
func (in *inbox) read(ctx, wait context.Context, qp target, limit int) ([]device.Completion, error) {
	numbered, ok := qp.card.dev.(device.NumberedWork)
	if !ok {
		return qp.card.dev.Completions(wait, qp.uid, limit)
	}
	in.mu.Lock()
	ask := device.AskCompletions{After: in.last, GivenUp: in.last - uint64(len(in.kept)), Limit: limit}
	in.mu.Unlock()
	// The device keeps the time, so that an answer is not cut off on its way.
	end, _ := wait.Deadline()
	ask.Wait = max(0, time.Until(end))
	call, cancel := context.WithDeadline(ctx, end.Add(callTimeout))
	defer cancel()
	got, err := numbered.CompletionsAfter(call, qp.uid, ask)
	if err != nil && call.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: it has not answered %v after the wait was over", device.ErrUnavailable, callTimeout)
	}
	return got.List, err
}

// syncInbox makes the inbox a copy of what a device keeps that outlives the
// daemon, when it is first used.
func (f *Fabric) syncInbox(ctx context.Context, qp target, in *inbox) error {
	numbered, ok := qp.card.dev.(device.NumberedWork)
	if !ok {
		return nil
	}
	if in.isSynced() {
		return nil
	}
	select {
	case in.busy <- struct{}{}:
		defer func() { <-in.busy }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if in.isSynced() {
		return nil
	}
	got, err := numbered.CompletionsAfter(ctx, qp.uid, device.AskCompletions{})
	if err != nil {
		return err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.last, in.synced = got.Newest-uint64(len(got.List)), true
	in.keep(got.List)
	return nil
}

func (in *inbox) isSynced() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.synced
}

// maxSequence is more than there ever are.
const maxSequence = 1 << 62

// giveUp drops what the caller has.
func (in *inbox) giveUp(after uint64) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.last == 0 && after <= maxSequence {
		// Nothing was read yet: the queue pair, or who read it before, was lost. Its
		// reader goes on in its own numbers.
		in.last = after
	}
	if after > in.last {
		return fmt.Errorf("%d: the newest completion has the sequence %d", after, in.last)
	}
	n := 0
	for n < len(in.kept) && in.kept[n].Sequence <= after {
		n++
	}
	in.kept = append(in.kept[:0], in.kept[n:]...)
	if len(in.kept) == 0 {
		in.kept = nil
	}
	return nil
}

// look gives what there is for a caller; if that is nothing, a channel that
// closes when there is more.
func (in *inbox) look(r *PollCompletions) ([]Completion, <-chan struct{}) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !r.SolicitedOnly || len(in.kept) >= maxWork || slices.ContainsFunc(in.kept, func(c Completion) bool {
		return c.Sequence > r.After && (c.Solicited || c.Status != ib.Success)
	}) {
		var out []Completion
		for _, c := range in.kept {
			if c.Sequence > r.After && len(out) < r.Limit {
				out = append(out, c)
			}
		}
		if len(out) > 0 {
			return out, nil
		}
	}
	if in.came == nil {
		in.came = make(chan struct{})
	}
	return nil, in.came
}

// room is how many more it holds.
func (in *inbox) room() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return maxWork - len(in.kept)
}

func (in *inbox) add(cs []device.Completion) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.keep(cs)
}

// keep numbers completions and keeps them. mu is held.
func (in *inbox) keep(cs []device.Completion) {
	for _, c := range cs {
		in.last++
		in.kept = append(in.kept, Completion{Sequence: in.last, Completion: c})
	}
	if in.came != nil {
		close(in.came)
		in.came = nil
	}
}
