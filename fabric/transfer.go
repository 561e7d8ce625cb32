package fabric

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// target is what work on an object needs of its record, which must not be read
// without the lock.
type target struct {
	*record
	uid        device.UID
	qpType     ib.QPType // of a queue pair
	addr, size uint64    // of a buffer, in bytes
}

// using resolves an object of a session of the caller's own, for work on it.
func (f *Fabric) using(c Caller, op string, k kind, name string) (target, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.target(c, op, k, name)
}

// working is using for work that who takes the session over is to wait for; done
// ends it.
func (f *Fabric) working(c Caller, op string, k kind, name string) (target, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	t, err := f.target(c, op, k, name)
	if err == nil {
		t.enterWork()
	}
	return t, err
}

// done ends work that working began.
func (f *Fabric) done(t target) { f.leaveWork(t.record) }

// target is using with Fabric.mu held.
func (f *Fabric) target(c Caller, op string, k kind, name string) (target, error) {
	r, err := f.findUsable(c, op, k, "name", name)
	if err != nil {
		return target{}, err
	}
	if !r.there {
		return target{}, &Error{Op: op, Name: r.name, Field: "name", Reason: StateInvalid, Message: "it is not on the device yet", Details: map[string]string{"state": string(r.state())}}
	}
	t := target{record: r, uid: r.UID}
	switch k {
	case kindBuffer:
		t.addr, t.size = r.is.addr, r.BufferAsk.Size
	case kindQueuePair:
		t.qpType = r.QPAsk.Type
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

// unreliableWork are the operations of the types that do not have all.
var unreliableWork = map[ib.QPType][]device.WorkOpcode{
	ib.UC: {device.WorkSend, device.WorkSendImm, device.WorkWrite, device.WorkWriteImm, device.WorkRecv},
	ib.UD: {device.WorkSend, device.WorkSendImm, device.WorkRecv},
}

// checkWork checks what the type of a queue pair asks of work.
func checkWork(t ib.QPType, rs []device.WorkRequest) violations {
	var v violations
	takes := unreliableWork[t]
	for i := range rs {
		n, r := len(v), &rs[i]
		switch send := r.Opcode == device.WorkSend || r.Opcode == device.WorkSendImm; {
		case takes != nil && r.Opcode != 0 && !slices.Contains(takes, r.Opcode):
			v.invalid("opcode", "a "+t.String()+" queue pair does not do it")
		case t != ib.UD && r.Dest != nil:
			v.invalid("destination", "a queue pair of type "+t.String()+" sends to its peer alone")
		case t == ib.UD && send && r.Dest == nil:
			v.required("destination", "a UD queue pair has no peer: each send names its own")
		case t == ib.UD && send && r.Dest.GID.IsZero():
			v.required("destination.gid", "want the GID of the receiver")
		}
		if len(v) > n {
			v[n].Index = i
		}
	}
	return v
}

// PostWork queues work in order and tells how much was queued, also where one
// request is refused.
func (f *Fabric) PostWork(ctx context.Context, c Caller, r PostWork) (int, error) {
	const op = "PostWork"
	if n := len(r.Requests); n < 1 || n > maxWork {
		return 0, violations{{Field: "requests", Reason: FieldInvalid, Problem: fmt.Sprintf("%d requests: want 1 to %d", n, maxWork)}}.err(op, r.QueuePair)
	}
	qp, err := f.working(c, op, kindQueuePair, r.QueuePair)
	if err != nil {
		return 0, err
	}
	defer f.done(qp)
	if v := checkWork(qp.qpType, r.Requests); len(v) > 0 {
		e := v.err(op, qp.name).(*Error)
		e.Index, e.Details = v[0].Index, map[string]string{"posted": "0"}
		return 0, e
	}
	if r.ValidateOnly {
		return 0, nil
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
	b, err := f.working(c, op, kindBuffer, r.Buffer)
	if err != nil {
		return err
	}
	defer f.done(b)
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
