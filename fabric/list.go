package fabric

import (
	"context"
	"fmt"
	"sort"
)

// pageSize gives the size of a page.
func pageSize(op string, n int) (int, error) {
	switch {
	case n < 0:
		return 0, violations{{Field: "page_size", Reason: FieldInvalid, Problem: fmt.Sprintf("%d: want 0 to 1000", n)}}.err(op, "")
	case n == 0:
		return 100, nil
	}
	return min(n, 1000), nil
}

// page gives the records of one page that the caller may see and that keep
// accepts, oldest first. It looks at a bounded number of records at a time, so
// that a filter which few pass does not hold the lock for long.
func page[T any](f *Fabric, c Caller, op string, k kind, r List, match func(*T) bool, view func(*record) T) (Page[T], error) {
	var out Page[T]
	size, err := pageSize(op, r.PageSize)
	if err != nil {
		return out, err
	}
	after := r.After
	for {
		more, err := pagePart(f, c, op, k, r, &after, size, &out, match, view)
		if err != nil {
			return Page[T]{}, err
		}
		if !more {
			return out, nil
		}
		if len(out.Items) >= size {
			out.Next = after
			return out, nil
		}
	}
}

// scanMax is how many records one hold of the lock looks at.
const scanMax = 4096

// pagePart does a part of the work of page. It moves after on, and says whether
// there may be more behind it.
func pagePart[T any](f *Fabric, c Caller, op string, k kind, r List, after *uint64, size int, out *Page[T], match func(*T) bool, view func(*record) T) (bool, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	lists, card, err := f.lists(c, op, k, r)
	if err != nil {
		return false, err
	}
	var recs []*record
	for _, l := range lists {
		n := 0
		l.after(*after, func(x *record) bool {
			recs = append(recs, x)
			n++
			return n < scanMax
		})
	}
	if len(lists) > 1 {
		sort.Slice(recs, func(i, j int) bool { return recs[i].id < recs[j].id })
	}
	for i, x := range recs {
		if i >= scanMax || len(out.Items) >= size {
			return true, nil
		}
		*after = x.id
		if !x.committed || card != nil && x.card != card || !f.sees(c, x) {
			continue
		}
		v := view(x)
		if match == nil || match(&v) {
			out.Items = append(out.Items, v)
		}
	}
	return len(recs) >= scanMax, nil
}

// lists resolves what is to be listed. Fabric.mu is held.
func (f *Fabric) lists(c Caller, op string, k kind, r List) ([]*list, *card, error) {
	if k == kindSession {
		if f.canonical(r.Parent) != f.names.node {
			return nil, nil, violations{{Field: "parent", Reason: FieldInvalid, Problem: fmt.Sprintf("%q: want %s", r.Parent, f.names.node)}}.err(op, "")
		}
		return []*list{&f.idx.sessions}, nil, nil
	}
	var card *card
	if f.canonical(r.Parent) != f.names.node+"/devices/-" {
		var v violations
		var err error
		if card, err = f.parentCard(op, r.Parent, &v); err == nil {
			err = v.err(op, "")
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if r.Session != "" {
		s, err := f.find(c, op, kindSession, "session", r.Session)
		if err != nil {
			return nil, nil, err
		}
		return []*list{&s.life.lists[k]}, card, nil
	}
	if card != nil {
		return []*list{&card.lists[k]}, nil, nil
	}
	var all []*list
	for _, card := range f.cards {
		all = append(all, &card.lists[k])
	}
	return all, nil, nil
}

// get reads one object.
func get[T any](f *Fabric, c Caller, op string, k kind, name string, view func(*record) T) (T, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	r, err := f.find(c, op, k, "name", name)
	if err != nil {
		var zero T
		return zero, err
	}
	return view(r), nil
}

// ListSessions lists the sessions that the caller may see.
func (f *Fabric) ListSessions(_ context.Context, c Caller, r List, match func(*Session) bool) (Page[Session], error) {
	return page(f, c, "ListSessions", kindSession, r, match, f.viewSession)
}

// GetProtectionDomain reads a protection domain.
func (f *Fabric) GetProtectionDomain(_ context.Context, c Caller, name string) (ProtectionDomain, error) {
	return get(f, c, "GetProtectionDomain", kindPD, name, f.viewPD)
}

// ListProtectionDomains lists the protection domains that the caller may see.
func (f *Fabric) ListProtectionDomains(_ context.Context, c Caller, r List, match func(*ProtectionDomain) bool) (Page[ProtectionDomain], error) {
	return page(f, c, "ListProtectionDomains", kindPD, r, match, f.viewPD)
}

// GetBuffer reads a buffer.
func (f *Fabric) GetBuffer(_ context.Context, c Caller, name string) (Buffer, error) {
	return get(f, c, "GetBuffer", kindBuffer, name, f.viewBuffer)
}

// ListBuffers lists the buffers that the caller may see.
func (f *Fabric) ListBuffers(_ context.Context, c Caller, r List, match func(*Buffer) bool) (Page[Buffer], error) {
	return page(f, c, "ListBuffers", kindBuffer, r, match, f.viewBuffer)
}

// GetMemoryRegion reads a memory region.
func (f *Fabric) GetMemoryRegion(_ context.Context, c Caller, name string) (MemoryRegion, error) {
	return get(f, c, "GetMemoryRegion", kindRegion, name, func(r *record) MemoryRegion { return f.viewRegion(c, r) })
}

// ListMemoryRegions lists the memory regions that the caller may see.
func (f *Fabric) ListMemoryRegions(_ context.Context, c Caller, r List, match func(*MemoryRegion) bool) (Page[MemoryRegion], error) {
	return page(f, c, "ListMemoryRegions", kindRegion, r, match, func(r *record) MemoryRegion { return f.viewRegion(c, r) })
}

// ListQueuePairs lists the queue pairs that the caller may see, with states as
// the device last told them.
func (f *Fabric) ListQueuePairs(_ context.Context, c Caller, r List, match func(*QueuePair) bool) (Page[QueuePair], error) {
	return page(f, c, "ListQueuePairs", kindQueuePair, r, match, func(r *record) QueuePair { return f.viewQP(c, r) })
}

// GetQueuePair reads a queue pair, with its state read from the device now.
func (f *Fabric) GetQueuePair(ctx context.Context, c Caller, name string) (QueuePair, error) {
	const op = "GetQueuePair"
	f.mu.RLock()
	r, err := f.find(c, op, kindQueuePair, "name", name)
	if err != nil {
		f.mu.RUnlock()
		return QueuePair{}, err
	}
	uid, ask := r.UID, r.there && r.card.known && !r.gone()
	f.mu.RUnlock()
	if ask {
		// Where the device does not answer, the last known state does.
		if q, err := r.card.dev.GetQueuePair(ctx, uid); err == nil {
			f.mu.Lock()
			if r.there && (r.is.state != q.State || r.is.status != q.Status) {
				r.stale = true
				r.card.push(r)
			}
			v := f.viewQP(c, r)
			f.mu.Unlock()
			v.QPState, v.Status, v.StatusText = q.State, q.Status, q.Reason
			return v, nil
		}
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.viewQP(c, r), nil
}
