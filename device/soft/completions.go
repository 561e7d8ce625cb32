package soft

import (
	"context"
	"fmt"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/soft/transport"
)

// completionQueue is the send and the receive completion queue of a queue pair,
// in one order. Each holds as many as the work queue that it belongs to, so it
// cannot overflow for callers who keep what is posted and not yet read below
// that. Guarded by the lock of the queue pair.
type completionQueue struct {
	entries              []device.Completion
	first                int // entries before it are taken
	sends, receives      int // not taken
	maxSends, maxReceive int
	arrived              chan struct{} // closed when something arrives; nil: nobody waits
}

// take moves completions from the transport to the queue. It drops those that
// find no room and says which queue is full, else "".
func (q *completionQueue) take(from *transport.QueuePair) (full string) {
	if q.first == len(q.entries) {
		q.entries, q.first = q.entries[:0], 0
	}
	start := len(q.entries)
	q.entries = from.Completions(q.entries)
	kept := q.entries[:start]
	for _, c := range q.entries[start:] {
		switch {
		case c.Receive && q.receives < q.maxReceive:
			q.receives++
		case !c.Receive && q.sends < q.maxSends:
			q.sends++
		case c.Receive:
			full = fmt.Sprintf("receive completion queue overflow: %d completions were not read", q.receives)
			continue
		default:
			full = fmt.Sprintf("send completion queue overflow: %d completions were not read", q.sends)
			continue
		}
		kept = append(kept, c)
	}
	q.entries = kept
	if len(kept) > start && q.arrived != nil {
		close(q.arrived)
		q.arrived = nil
	}
	return full
}

// pop takes up to limit completions, oldest first.
func (q *completionQueue) pop(limit int) []device.Completion {
	n := min(limit, len(q.entries)-q.first)
	if n == 0 {
		return nil
	}
	list := append([]device.Completion(nil), q.entries[q.first:q.first+n]...)
	q.first += n
	for _, c := range list {
		if c.Receive {
			q.receives--
		} else {
			q.sends--
		}
	}
	// What is taken moves out when it is the larger part.
	if q.first > len(q.entries)/2 {
		q.entries = q.entries[:copy(q.entries, q.entries[q.first:])]
		q.first = 0
	}
	return list
}

// wait gives a channel that is closed when something arrives or the queue pair
// ends.
func (q *completionQueue) wait() <-chan struct{} {
	if q.arrived == nil {
		q.arrived = make(chan struct{})
	}
	return q.arrived
}

// reset drops what was not read.
func (q *completionQueue) reset() {
	q.entries, q.first, q.sends, q.receives = q.entries[:0], 0, 0, 0
}

// close wakes those who wait.
func (q *completionQueue) close() {
	if q.arrived != nil {
		close(q.arrived)
		q.arrived = nil
	}
}

// Post implements device.Work.
func (c *card) Post(ctx context.Context, uid device.UID, requests []device.WorkRequest) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	qp, err := c.qps.find(uid)
	if err != nil {
		return err
	}
	return qp.post(requests)
}

// Completions implements device.Work.
func (c *card) Completions(ctx context.Context, uid device.UID, limit int) ([]device.Completion, error) {
	if limit < 1 {
		return nil, &device.FieldError{Field: "limit", Problem: fmt.Sprintf("%d: at least 1", limit)}
	}
	for {
		if err := c.usable(ctx); err != nil {
			return nil, err
		}
		qp, err := c.qps.find(uid)
		if err != nil {
			return nil, err
		}
		list, arrived := qp.pop(limit)
		if len(list) > 0 {
			return list, nil
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// pop takes completions, or gives what to wait for if there are none.
func (qp *queuePair) pop(limit int) ([]device.Completion, <-chan struct{}) {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	list := qp.completions.pop(limit)
	if len(list) > 0 || qp.transport == nil {
		return list, closedChannel
	}
	return nil, qp.completions.wait()
}

// closedChannel makes a waiter look again at once: the queue pair is gone.
var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()
