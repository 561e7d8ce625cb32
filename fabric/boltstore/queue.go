package boltstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"go.etcd.io/bbolt"

	"github.com/accelfab/accelfab/fabric"
)

// groupBytes bounds what one transaction takes, so that the last of many big
// changes does not make the first wait for long.
const groupBytes = 8 << 20

// request is something for the writer to do: a change, or one of the rare
// others.
type request struct {
	ops    []op
	events [][]byte
	size   int // bytes to be written

	admin   func(*bbolt.Tx) error // runs in a transaction of its own
	compact chan<- error          // gets the outcome; the request itself is answered at once

	revision uint64 // the answer
	// taken decides between the writer, who takes a request, and a caller whose
	// context ended before.
	taken atomic.Bool
	done  chan error // 1
}

// op puts a frame under an id, or with a nil frame deletes what is there.
type op struct {
	id    uint64
	frame []byte
}

// encode makes the frames of a change, in the caller's goroutine, so that the
// writer has as little as possible to do.
func encode(change fabric.Change) (*request, error) {
	r := &request{events: change.Events}
	for _, p := range change.Put {
		switch {
		case p.ID == 0:
			return nil, fmt.Errorf("record %q: id is 0, ids begin at 1", p.Name)
		case len(p.Name) > maxName:
			return nil, fmt.Errorf("record %d: name has %d bytes, at most %d can be stored", p.ID, len(p.Name), maxName)
		case len(p.Value) > maxValue:
			return nil, fmt.Errorf("record %q: value has %d bytes, at most %d can be stored", p.Name, len(p.Value), maxValue)
		}
		r.size += frameSize(p.Name, p.Value)
	}
	slab := make([]byte, 0, r.size)
	r.ops = make([]op, 0, len(change.Put)+len(change.Delete))
	var k [8]byte
	for _, p := range change.Put {
		at := len(slab)
		slab = appendFrame(slab, appendKey(k[:0], p.ID), p.Name, p.Value)
		r.ops = append(r.ops, op{p.ID, slab[at:len(slab):len(slab)]})
	}
	for _, id := range change.Delete {
		r.ops = append(r.ops, op{id: id})
	}
	for _, e := range change.Events {
		if len(e) > maxValue {
			return nil, fmt.Errorf("event: value has %d bytes, at most %d can be stored", len(e), maxValue)
		}
		r.size += len(e)
	}
	return r, nil
}

// queue holds what waits for the writer.
type queue struct {
	mu      sync.Mutex
	wake    *sync.Cond // of mu: something waits, or closed
	waiting []*request
	nudged  bool // wake the writer though nothing waits
	closed  bool
}

// submit has the writer carry a request out and gives its error.
func (q *queue) submit(ctx context.Context, r *request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.done = make(chan error, 1)
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return fabric.ErrStoreClosed
	}
	q.waiting = append(q.waiting, r)
	q.mu.Unlock()
	q.wake.Signal()
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		if r.taken.CompareAndSwap(false, true) {
			return ctx.Err()
		}
		return <-r.done
	}
}

// take waits for requests and gives those of one transaction, oldest first;
// none, and more false, when the queue is closed and empty.
func (q *queue) take() (group []*request, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) == 0 && !q.closed && !q.nudged {
		q.wake.Wait()
	}
	q.nudged = false
	n, size := 0, 0
	for n < len(q.waiting) && (n == 0 || size+q.waiting[n].size <= groupBytes) {
		size += q.waiting[n].size
		n++
	}
	all := q.waiting
	if n == len(all) {
		q.waiting = nil
	} else {
		q.waiting = all[n:]
	}
	group = all[:0:n]
	for _, r := range all[:n] {
		if r.taken.CompareAndSwap(false, true) {
			group = append(group, r)
		}
	}
	return group, n > 0 || !q.closed
}

// nudge wakes the writer to look around.
func (q *queue) nudge() {
	q.mu.Lock()
	q.nudged = true
	q.mu.Unlock()
	q.wake.Signal()
}

func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.wake.Signal()
}

func (q *queue) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}
