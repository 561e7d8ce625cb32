package fabric

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/accelfab/accelfab/device"
)

// Bounds of transfers.
const (
	maxWork  = 1024
	maxChunk = 1 << 20 // bytes of one read or write
	maxWait  = time.Minute
)

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
