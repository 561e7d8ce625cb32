package fabric

import (
	"context"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"
)

func itoa(n int) string { return strconv.Itoa(n) }

// creation is one create call, of one object or a batch.
type creation struct {
	op           string
	caller       Caller
	requestID    string
	validateOnly bool
	content      any // what the request id stands for
	// build checks the request against what is there and gives the records to
	// be. Fabric.mu is held.
	build func() ([]*record, error)
}

// create is the one way by which anything comes to exist: the intent becomes
// durable, then the worker of the device makes it so. view reads the records,
// with Fabric.mu held.
func (f *Fabric) create(ctx context.Context, cr creation, view func([]*record)) error {
	var sum uint64
	if cr.requestID != "" {
		if err := checkRequestID(cr.op, cr.requestID); err != nil {
			return err
		}
		b, err := sumMode.Marshal(cr.content)
		if err != nil {
			return &Error{Op: cr.op, Reason: Internal, Err: err}
		}
		h := fnv.New64a()
		h.Write([]byte(cr.op))
		h.Write(b)
		sum = h.Sum64()
	}
	for {
		ch, busy, err := f.begin(cr, sum, view)
		switch {
		case err != nil || ch == nil && busy == nil:
			return err
		case busy != nil: // the same call, still at work: then look again
			if err := f.wait(ctx, busy); err != nil {
				return err
			}
			continue
		}
		if err := f.intend(ch); err != nil {
			return err
		}
		if err := f.wait(ctx, ch); err != nil {
			return err
		}
		f.mu.RLock()
		defer f.mu.RUnlock()
		view(ch.records)
		return nil
	}
}

// begin checks a create and claims what it is to make. It gives the change that
// is to be made, or the one of the same call before that is not done, or neither
// where the answer was given to view.
func (f *Fabric) begin(cr creation, sum uint64, view func([]*record)) (ch, busy *change, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, nil, f.closing(cr.op)
	}
	if q := f.idx.requests[requestKey{cr.caller.Identity, cr.requestID}]; q != nil && cr.requestID != "" {
		busy, err = f.replay(cr, q, sum)
		if err == nil && busy == nil {
			view(q.records)
		}
		return nil, busy, err
	}
	recs, err := cr.build()
	if err != nil || cr.validateOnly {
		if err == nil {
			view(recs)
		}
		return nil, nil, err
	}
	ch = newChange(changeCreate, cr.op, cr.caller.Identity, recs)
	ch.claim()
	for _, r := range recs {
		r.id = f.idx.nextID
		r.Request, r.Sum = cr.requestID, sum
		f.idx.add(r)
	}
	return ch, nil, nil
}

// intend makes the records of a create durable and hands them to the workers.
func (f *Fabric) intend(ch *change) error {
	var c Change
	var err error
	for _, r := range ch.records {
		if err = c.put(r); err != nil {
			break
		}
		ev := r.event(EventCreated, ch.actor, CauseRequested)
		switch r.Kind {
		case kindSession:
			ev.After = string(StateActive)
		case kindQueuePair:
			ev.After = r.QPAsk.Target.String()
		case kindExport:
			ev.After = string(StateActive)
		default:
			ev.After = string(StateReady)
		}
		if err = c.event(ev); err != nil {
			break
		}
	}
	if err == nil {
		err = f.commit(ch.op, c)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		ch.err, _ = err.(*Error)
		for _, r := range ch.records {
			f.idx.remove(r, nil)
			if r.Kind == kindSession {
				for _, c := range f.cards {
					c.unhold(r)
				}
			} else if r.sess.Deleting {
				f.endSession(r.sess)
			}
		}
		ch.release()
		return err
	}
	for _, r := range ch.records {
		r.committed = true
		if r.Kind == kindSession {
			f.settle(r, nil)
			f.rearm()
			continue
		}
		r.card.push(r)
	}
	return nil
}

// replay answers a request id that was used before: an error, a change to wait
// for, or neither, and then the records are the answer. Fabric.mu is held.
func (f *Fabric) replay(cr creation, q *request, sum uint64) (*change, error) {
	if q.sum != sum {
		return nil, &Error{Op: cr.op, Field: "request_id", Reason: RequestIDReused,
			Message: fmt.Sprintf("%q was used before for another change; use a new one for each change", cr.requestID)}
	}
	if q.gone != "" {
		return nil, &Error{Op: cr.op, Name: q.gone, Field: "request_id", Reason: Tombstoned,
			Message: "this request made " + q.gone + ", which has been deleted since; nothing was made"}
	}
	var loose []*record
	for _, r := range q.records {
		if r.op != nil {
			r.op.callers++
			return r.op, nil
		}
		if r.Kind != kindSession && r.state() == StatePending {
			loose = append(loose, r)
		}
	}
	if loose == nil || cr.validateOnly {
		return nil, nil
	}
	// Nobody waits for these any more: take them up.
	ch := newChange(changeCreate, cr.op, cr.caller.Identity, loose)
	ch.claim()
	for _, r := range loose {
		r.card.push(r)
	}
	return ch, nil
}

func checkRequestID(op, id string) error {
	ok := len(id) <= 64
	for i := range len(id) {
		ok = ok && id[i] >= 0x20 && id[i] < 0x7f
	}
	if ok {
		return nil
	}
	return violations{{Field: "request_id", Reason: FieldInvalid, Problem: "want 1 to 64 printable ASCII characters"}}.err(op, "")
}

// newRecord begins a record of kind k below parent. Faults of the fields that
// all creates have go to v. Fabric.mu is held.
func (f *Fabric) newRecord(v *violations, k kind, parent string, cr *Create) *record {
	uid := newUID()
	id := cr.ID
	switch {
	case id == "":
		id = newID(k, uid)
	case !validID(id):
		v.invalid("id", fmt.Sprintf("%q: %s", id, idRule))
	}
	checkLabels(v, cr.Labels)
	r := &record{name: parent + "/" + collections[k] + "/" + id,
		stored: &stored{Kind: k, UID: uid, Revision: 1, Created: time.Now().UnixNano(), Labels: cr.Labels}}
	return r
}

// taken says whether the name of a record to be is there already.
func (f *Fabric) taken(op string, r *record) error {
	have := f.idx.byName[r.name]
	if have == nil {
		return nil
	}
	e := &Error{Op: op, Name: r.name, Field: "id", Reason: AlreadyExists, Message: "a " + r.Kind.String() + " with this name is there already; choose another id"}
	if have.gone() {
		e.Message, e.RetryAfter = "a "+r.Kind.String()+" with this name is still being deleted", time.Second
	}
	return e
}

func checkLabels(v *violations, labels map[string]string) {
	if len(labels) > 64 {
		v.invalid("labels", fmt.Sprintf("%d pairs; want at most 64", len(labels)))
		return
	}
	for k, val := range labels {
		ok := len(k) >= 1 && len(k) <= 63 && k[0] >= 'a' && k[0] <= 'z'
		for i := 0; ok && i < len(k); i++ {
			c := k[i]
			ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' || c == '/'
		}
		if !ok {
			v.invalid("labels", fmt.Sprintf("key %q: want 1 to 63 characters out of a-z, 0-9, '-', '_', '.' and '/', beginning with a letter", k))
		}
		if len(val) > 255 {
			v.invalid("labels", fmt.Sprintf("value of %q has %d bytes; want at most 255", k, len(val)))
		}
	}
}

// parentCard resolves the device that objects are made on. Fabric.mu is held.
func (f *Fabric) parentCard(op, parent string, v *violations) (*card, error) {
	if parent == "" {
		v.required("parent", "want "+f.node0()+"/devices/{device}")
		return nil, nil
	}
	id, ok := f.child(parent, "devices")
	if !ok {
		v.invalid("parent", fmt.Sprintf("%q: want %s/devices/{device}", parent, f.node0()))
		return nil, nil
	}
	c := f.card[id]
	if c == nil {
		return nil, &Error{Op: op, Name: f.canonical(parent), Field: "parent", Reason: NotFound, Message: "there is no such device; `device list` shows those that are there"}
	}
	return c, nil
}

func (f *Fabric) node0() string { return f.names.node }
