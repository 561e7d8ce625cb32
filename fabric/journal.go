package fabric

import (
	"context"
	"iter"
	"sync"
	"time"
)

// journal tells watchers that there is something to read. They read it from
// the store, by cursor: however slow one is, it holds one page.
type journal struct {
	mu      sync.Mutex
	newest  uint64
	waiting chan struct{} // closed when newest grows; nil if nobody waits
}

func (j *journal) init(newest uint64) { j.newest = newest }

// advance notes that the store has events up to rev.
func (j *journal) advance(rev uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if rev > j.newest {
		j.newest = rev
		if j.waiting != nil {
			close(j.waiting)
			j.waiting = nil
		}
	}
}

func (j *journal) last() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.newest
}

// beyond gives a channel that is closed when there is more than after.
func (j *journal) beyond(after uint64) <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.newest > after {
		c := make(chan struct{})
		close(c)
		return c
	}
	if j.waiting == nil {
		j.waiting = make(chan struct{})
	}
	return j.waiting
}

// mayRead says whether c may see an event: its own, and what belongs to
// nobody.
func mayRead(c Caller, e *Event) bool {
	return c.Operator || e.Owner == "" || e.Owner == c.Identity
}

// watchPage is how many events a watcher reads at once.
const watchPage = 256

// ListEvents lists past events that the caller may see, oldest first.
// Page.Next is the cursor to go on from. CURSOR_EXPIRED if events after r.After
// were trimmed, or the journal has not come so far.
func (f *Fabric) ListEvents(ctx context.Context, c Caller, r ListEvents, match func(*Event) bool) (Page[Event], error) {
	const op = "ListEvents"
	var out Page[Event]
	size, err := pageSize(op, r.Limit)
	if err != nil {
		return out, err
	}
	for after := r.After; ; {
		page, err := f.store.Events(ctx, after, watchPage)
		if err != nil {
			return Page[Event]{}, f.readFault(ctx, op, err)
		}
		if r.After > 0 && after == r.After && gap(page, after) {
			return Page[Event]{}, cursorExpired(op, page, after)
		}
		for _, se := range page.Events {
			e := decodeEvent(se)
			after = e.Cursor
			if !mayRead(c, &e) || match != nil && !match(&e) {
				continue
			}
			if out.Items = append(out.Items, e); len(out.Items) == size {
				if after < page.Newest {
					out.Next = after
				}
				return out, nil
			}
		}
		if len(page.Events) == 0 {
			return out, nil
		}
	}
}

// gap says whether events right after the cursor were trimmed, or the cursor is
// of another journal: a store may have been put back, or begun anew.
func gap(p EventPage, after uint64) bool {
	return p.Oldest > after+1 || p.Oldest == 0 && p.Newest > after || after > p.Newest
}

func cursorExpired(op string, p EventPage, after uint64) *Error {
	e := &Error{Op: op, Field: "after", Reason: CursorExpired, Message: "the journal begins at " + utoa(p.Oldest), Details: map[string]string{"oldest": utoa(p.Oldest)}}
	if after > p.Newest {
		e.Message = utoa(after) + " is of another journal: this one ends at " + utoa(p.Newest)
	}
	e.Message += "; list the resources and go on from " + utoa(p.Newest)
	return e
}

func (f *Fabric) readFault(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if f.ctx.Err() != nil {
		return f.closing(op)
	}
	return &Error{Op: op, Reason: StoreUnavailable, Message: "the journal cannot be read", RetryAfter: time.Second, Err: err}
}

// Watch yields events in order, each once, then waits for more. Where events
// were trimmed before they could be read, or r.After is of another journal, it
// yields EventGap, an EventSnapshot of every object, and goes on. EventBookmark comes when all was yielded, and
// every 30 s. The loop ends when the body ends it, ctx is done or the fabric
// is closed; an error comes once, as the last.
func (f *Fabric) Watch(ctx context.Context, c Caller, r Watch) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		after := r.After
		if r.FromNow {
			after = f.journal.last()
		}
		beat := time.NewTicker(30 * time.Second)
		defer beat.Stop()
		told := false // a bookmark was given at after
		fresh := true // nothing was read yet: 0 begins with the oldest
		for {
			page, err := f.store.Events(ctx, after, watchPage)
			if err != nil {
				yield(Event{}, f.readFault(ctx, "Watch", err))
				return
			}
			if gap(page, after) && !(fresh && after == 0) {
				to := page.Oldest
				if !yield(Event{Type: EventGap, Cursor: after, Oldest: to, Time: time.Now()}, nil) {
					return
				}
				// Whatever happens from here on is in the journal after newest.
				after = page.Newest
				if !f.snapshot(c, after, yield) {
					return
				}
				fresh, told = false, false
				continue
			}
			fresh = false
			for _, se := range page.Events {
				e := decodeEvent(se)
				after, told = e.Cursor, false
				if mayRead(c, &e) && !yield(e, nil) {
					return
				}
			}
			if len(page.Events) > 0 {
				continue
			}
			if !told {
				told = true
				if !yield(Event{Type: EventBookmark, Cursor: after, Time: time.Now()}, nil) {
					return
				}
			}
			select {
			case <-f.journal.beyond(after):
			case <-beat.C:
				told = false
			case <-ctx.Done():
				yield(Event{}, ctx.Err())
				return
			case <-f.ctx.Done():
				yield(Event{}, f.closing("Watch"))
				return
			}
		}
	}
}

// snapshot yields the present state of every object that the caller may see,
// a page at a time.
func (f *Fabric) snapshot(c Caller, cursor uint64, yield func(Event, error) bool) bool {
	for _, k := range []kind{kindSession, kindPD, kindBuffer, kindExport, kindRegion, kindQueuePair} {
		parent := f.names.node
		if k != kindSession {
			parent += "/devices/-"
		}
		r := List{Parent: parent, PageSize: 1000}
		for {
			p, err := page(f, c, "Watch", k, r, nil, func(x *record) Event {
				e := x.event(EventSnapshot, system, CauseRequested)
				e.Cursor, e.Time, e.After = cursor, time.Now(), x.label()
				return e
			})
			if err != nil {
				return yield(Event{}, err) && false
			}
			for _, e := range p.Items {
				if !yield(e, nil) {
					return false
				}
			}
			if p.Next == 0 {
				break
			}
			r.After = p.Next
		}
	}
	return true
}
