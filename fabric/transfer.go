package fabric

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// Bounds of transfers.
const (
	maxWork  = 1024
	maxChunk = 1 << 20 // bytes of one read or write
	maxWait  = time.Minute
)

// inbox holds completions that were read from the device and that the caller
// has not given up: a reply that is lost loses nothing. It holds at most
// maxWork; what is more stays in the device's queue.
type inbox struct {
	mu   sync.Mutex
	last uint64 // sequence of the newest
	kept []Completion
	busy chan struct{} // one reads the device at a time; holds one token
}

// target is what work on an object needs of its record, which must not be read
// without the lock.
type target struct {
	*record
	uid        device.UID
	addr, size uint64 // of a buffer, in bytes
}

// using resolves an object of a session of the caller's own, for work on it.
func (f *Fabric) using(c Caller, op string, k kind, name string) (target, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	r, err := f.findUsable(c, op, k, "name", name)
	if err != nil {
		return target{}, err
	}
	if !r.there {
		return target{}, &Error{Op: op, Name: r.name, Field: "name", Reason: StateInvalid, Message: "it is not on the device yet", Details: map[string]string{"state": string(r.state())}}
	}
	t := target{record: r, uid: r.UID}
	if k == kindBuffer {
		t.addr, t.size = r.is.addr, r.BufferAsk.Size
	}
	return t, nil
}

// workFault says in the domain's words why the device did not do it.
func (f *Fabric) workFault(ctx context.Context, op string, r *record, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		reason := Timeout
		if errors.Is(err, context.Canceled) {
			reason = Cancelled
		}
		return &Error{Op: op, Name: r.name, Reason: reason, Message: "the call ended before the device answered", Err: err}
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	e := f.deviceError(r, err)
	e.Op = op
	return e
}

// PostWork queues work in order and tells how much was queued, also where one
// request is refused.
func (f *Fabric) PostWork(ctx context.Context, c Caller, r PostWork) (int, error) {
	const op = "PostWork"
	if n := len(r.Requests); n < 1 || n > maxWork {
		return 0, violations{{Field: "requests", Reason: FieldInvalid, Problem: fmt.Sprintf("%d requests: want 1 to %d", n, maxWork)}}.err(op, r.QueuePair)
	}
	qp, err := f.using(c, op, kindQueuePair, r.QueuePair)
	if err != nil {
		return 0, err
	}
	err = qp.card.dev.Post(ctx, qp.uid, r.Requests)
	if err == nil {
		return len(r.Requests), nil
	}
	posted := 0
	var refused *device.PostError
	if errors.As(err, &refused) {
		posted = refused.Index
	}
	err = f.workFault(ctx, op, qp.record, err)
	if e, ok := err.(*Error); ok {
		e.Index = posted
		for i := range e.Violations {
			e.Violations[i].Index = posted
		}
		if e.Details == nil {
			e.Details = map[string]string{}
		}
		e.Details["posted"] = itoa(posted)
	}
	return posted, err
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
	limit := orDefault(r.Limit, 128)
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
	if err := in.giveUp(r.After); err != nil {
		return nil, &Error{Op: op, Name: qp.name, Field: "after", Reason: FieldInvalid, Message: err.Error()}
	}
	if out := in.some(r.After, limit); len(out) > 0 {
		return out, nil
	}
	// A device may heed the context before it looks, hence a little time even
	// for a caller who does not wait.
	wait, cancel := context.WithTimeout(ctx, max(r.Wait, time.Millisecond))
	defer cancel()
	select { // one caller reads; others wait for what it brings
	case in.busy <- struct{}{}:
		defer func() { <-in.busy }()
	case <-wait.Done():
		return in.some(r.After, limit), nil
	}
	if out := in.some(r.After, limit); len(out) > 0 {
		return out, nil
	}
	got, err := qp.card.dev.Completions(wait, qp.uid, min(limit, maxWork))
	if err != nil && len(got) == 0 {
		if ctx.Err() == nil && errors.Is(err, wait.Err()) {
			return nil, nil
		}
		return nil, f.workFault(ctx, op, qp.record, err)
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
	return in.some(r.After, limit), nil
}

// giveUp drops what the caller has.
func (in *inbox) giveUp(after uint64) error {
	in.mu.Lock()
	defer in.mu.Unlock()
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

func (in *inbox) some(after uint64, limit int) []Completion {
	in.mu.Lock()
	defer in.mu.Unlock()
	var out []Completion
	for _, c := range in.kept {
		if c.Sequence > after && len(out) < limit {
			out = append(out, c)
		}
	}
	return out
}

func (in *inbox) add(cs []device.Completion) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, c := range cs {
		in.last++
		in.kept = append(in.kept, Completion{Sequence: in.last, Completion: c})
	}
}

// ReadBuffer copies len(p) bytes, 1 to 1 MiB, from a buffer of the caller's own.
func (f *Fabric) ReadBuffer(ctx context.Context, c Caller, r BufferRange, p []byte) error {
	return f.copyBuffer(ctx, c, "ReadBuffer", r, p, device.Device.ReadMemory)
}

// WriteBuffer copies len(p) bytes, 1 to 1 MiB, to a buffer of the caller's own.
// On an error any part may have been written.
func (f *Fabric) WriteBuffer(ctx context.Context, c Caller, r BufferRange, p []byte) error {
	return f.copyBuffer(ctx, c, "WriteBuffer", r, p, device.Device.WriteMemory)
}

func (f *Fabric) copyBuffer(ctx context.Context, c Caller, op string, r BufferRange, p []byte,
	do func(d device.Device, ctx context.Context, address uint64, p []byte) error) error {
	b, err := f.using(c, op, kindBuffer, r.Buffer)
	if err != nil {
		return err
	}
	var v violations
	switch n := len(p); {
	case r.Offset >= b.size:
		v.invalid("offset_bytes", fmt.Sprintf("%d: want less than the buffer's %d bytes", r.Offset, b.size))
	case n < 1 || n > maxChunk:
		v.invalid("size_bytes", fmt.Sprintf("%d: want 1 to %d", n, maxChunk))
	case uint64(n) > b.size-r.Offset:
		v.invalid("size_bytes", fmt.Sprintf("%d: from offset %d the buffer has %d bytes", n, r.Offset, b.size-r.Offset))
	}
	if err := v.err(op, b.name); err != nil {
		return err
	}
	if err := do(b.card.dev, ctx, b.addr+r.Offset, p); err != nil {
		return f.workFault(ctx, op, b.record, err)
	}
	return nil
}
