package soft

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/soft/transport"
)

// Capacities of a queue pair that does not ask.
const (
	defaultWR  = 128
	defaultSGE = 4
)

// firstQPN is the lowest number of an ordinary queue pair: 0 and 1 are for
// management.
const firstQPN = 2

// maxPSN is the largest packet sequence number.
const maxPSN = 1<<24 - 1

// queuePairs are the queue pairs of a card.
type queuePairs struct {
	mu      sync.RWMutex
	byUID   map[device.UID]*queuePair
	byQPN   map[ib.QPN]*queuePair // nil for a number that is being given out
	next    ib.QPN
	resting quarantine[ib.QPN]
	rest    time.Duration
	limit   int
	closed  bool
}

func newQueuePairs(limit int, rest time.Duration) *queuePairs {
	return &queuePairs{
		byUID: make(map[device.UID]*queuePair), byQPN: make(map[ib.QPN]*queuePair),
		next:  firstQPN + ib.QPN(rand.N(uint32(ib.MaxQPN-firstQPN))),
		limit: limit, rest: rest,
	}
}

// byNumber finds a queue pair for a packet, nil if there is none.
func (t *queuePairs) byNumber(n ib.QPN) *queuePair {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byQPN[n]
}

func (t *queuePairs) find(uid device.UID) (*queuePair, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if qp := t.byUID[uid]; qp != nil {
		return qp, nil
	}
	return nil, fmt.Errorf("queue pair: %w", device.ErrNotFound)
}

// reserve takes a number out of the free ones. Numbers ascend from a random
// start, so that one comes back late, also after a restart.
func (t *queuePairs) reserve(now time.Time) (ib.QPN, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return 0, device.ErrClosed
	}
	if len(t.byQPN) >= t.limit {
		return 0, &device.LimitError{Kind: "queue_pairs", Asked: 1, Limit: uint64(t.limit)}
	}
	for range ib.MaxQPN {
		n := t.next
		if t.next++; t.next >= ib.MaxQPN {
			t.next = firstQPN
		}
		if _, taken := t.byQPN[n]; !taken && !t.resting.holds(n, now) {
			t.byQPN[n] = nil
			return n, nil
		}
	}
	return 0, &device.LimitError{
		Kind: "queue_pair_numbers", Asked: 1, Limit: uint64(ib.MaxQPN - firstQPN),
		Detail: fmt.Sprintf("numbers rest for %v before they are used again", t.rest),
	}
}

// insert makes a queue pair known. If its UID has one already it gives that,
// and lets the number of the new one go.
func (t *queuePairs) insert(qp *queuePair) (old *queuePair, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, device.ErrClosed
	}
	if old := t.byUID[qp.info.UID]; old != nil {
		delete(t.byQPN, qp.info.QPN)
		return old, nil
	}
	t.byUID[qp.info.UID], t.byQPN[qp.info.QPN] = qp, qp
	return nil, nil
}

// release lets a reserved number go that nobody saw.
func (t *queuePairs) release(n ib.QPN) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byQPN, n)
}

func (t *queuePairs) remove(uid device.UID) (*queuePair, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	qp := t.byUID[uid]
	if qp == nil {
		return nil, fmt.Errorf("queue pair: %w", device.ErrNotFound)
	}
	delete(t.byUID, uid)
	delete(t.byQPN, qp.info.QPN)
	t.resting.add(qp.info.QPN, time.Now().Add(t.rest))
	return qp, nil
}

func (t *queuePairs) all() []*queuePair {
	t.mu.RLock()
	defer t.mu.RUnlock()
	list := make([]*queuePair, 0, len(t.byUID))
	for _, qp := range t.byUID {
		list = append(list, qp)
	}
	return list
}

// close drops all queue pairs.
func (t *queuePairs) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	for _, qp := range t.all() {
		qp.destroy()
	}
}

// capacity checks a capacity of a spec and fills in what is zero.
func capacity(field string, n *int, preset, limit int) error {
	if *n == 0 {
		*n = min(preset, limit)
	}
	if *n < 0 || *n > limit {
		return &device.FieldError{Field: field, Problem: fmt.Sprintf("%d: from 1 to %d, or 0 for %d", *n, limit, min(preset, limit))}
	}
	return nil
}

// check finds the port of a spec and completes the spec.
func (c *card) check(spec *device.QueuePairSpec) (*port, error) {
	switch {
	case !spec.Type.Valid():
		return nil, &device.FieldError{Field: "type", Problem: fmt.Sprintf("%v: RC, UC or UD", spec.Type)}
	case spec.Port < 0 || spec.Port >= len(c.ports):
		return nil, &device.FieldError{Field: "port", Problem: fmt.Sprintf("%d: %s has ports 0 to %d", spec.Port, c.info.ID, len(c.ports)-1)}
	}
	p := c.ports[spec.Port]
	if !p.plugged() {
		return nil, &device.FieldError{Field: "port", Problem: fmt.Sprintf("%d of %s is %s", spec.Port, c.info.ID, p.nowhere())}
	}
	return p, errors.Join(
		capacity("capacities.send_wr", &spec.SendWR, defaultWR, c.info.Limits.SendWR),
		capacity("capacities.recv_wr", &spec.RecvWR, defaultWR, c.info.Limits.RecvWR),
		capacity("capacities.sge", &spec.SGE, defaultSGE, c.info.Limits.SGE))
}

// createQueuePair makes one queue pair and takes it through its steps.
func (c *card) createQueuePair(spec device.QueuePairSpec, now time.Time) (device.QueuePair, error) {
	if old, err := c.qps.find(spec.UID); err == nil {
		return old.read(), nil
	}
	p, err := c.check(&spec)
	if err != nil {
		return device.QueuePair{}, err
	}
	if err := c.domains.join(spec.PD, 1); err != nil {
		return device.QueuePair{}, err
	}
	qp, err := c.makeQueuePair(p, &spec, now)
	if err != nil {
		c.domains.leave(spec.PD, 1)
		return device.QueuePair{}, err
	}
	return qp.read(), nil
}

func (c *card) makeQueuePair(p *port, spec *device.QueuePairSpec, now time.Time) (*queuePair, error) {
	qpn, err := c.qps.reserve(now)
	if err != nil {
		return nil, err
	}
	qp := &queuePair{card: c, port: p, router: router{port: p}}
	qp.info = device.QueuePair{
		UID: spec.UID, QPN: qpn, PD: spec.PD, Port: spec.Port, Type: spec.Type,
		SendWR: spec.SendWR, RecvWR: spec.RecvWR, SGE: spec.SGE, GIDIndex: -1,
	}
	qp.completions.maxSends, qp.completions.maxReceive = spec.SendWR, spec.RecvWR
	qp.transport = transport.New(transport.Config{
		Type: spec.Type, Memory: &c.keyed, PD: spec.PD, QPN: qpn, SendWR: spec.SendWR, RecvWR: spec.RecvWR, SGE: spec.SGE,
	})
	if err := qp.steps(spec.Steps, now); err != nil {
		c.qps.release(qpn)
		return nil, err
	}
	old, err := c.qps.insert(qp)
	switch {
	case err != nil:
		return nil, err
	case old != nil:
		c.domains.leave(spec.PD, 1)
		return old, nil
	}
	return qp, nil
}

func (qp *queuePair) read() device.QueuePair {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	info := qp.info
	info.Outstanding = qp.transport.Sends()
	return info
}

// CreateQueuePairs implements device.QueuePairs.
func (c *card) CreateQueuePairs(ctx context.Context, specs []device.QueuePairSpec) []device.QueuePairResult {
	results := make([]device.QueuePairResult, len(specs))
	now := time.Now()
	c.gate.RLock()
	defer c.gate.RUnlock()
	for i := range specs {
		r := &results[i]
		if r.Err = c.usable(ctx); r.Err == nil {
			r.QueuePair, r.Err = c.createQueuePair(specs[i], now)
		}
	}
	return results
}

// ModifyQueuePairs implements device.QueuePairs.
func (c *card) ModifyQueuePairs(ctx context.Context, changes []device.QueuePairChange) []device.QueuePairResult {
	results := make([]device.QueuePairResult, len(changes))
	now := time.Now()
	for i, change := range changes {
		r := &results[i]
		if r.Err = c.usable(ctx); r.Err != nil {
			continue
		}
		qp, err := c.qps.find(change.UID)
		if err != nil {
			r.Err = err
			continue
		}
		r.Err = qp.steps(change.Steps, now)
		r.QueuePair = qp.read()
	}
	return results
}

// ListQueuePairs implements device.QueuePairs.
func (c *card) ListQueuePairs(ctx context.Context) ([]device.QueuePair, error) {
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	all := c.qps.all()
	list := make([]device.QueuePair, len(all))
	for i, qp := range all {
		list[i] = qp.read()
	}
	return list, nil
}

// GetQueuePair implements device.QueuePairs.
func (c *card) GetQueuePair(ctx context.Context, uid device.UID) (device.QueuePair, error) {
	if err := c.usable(ctx); err != nil {
		return device.QueuePair{}, err
	}
	qp, err := c.qps.find(uid)
	if err != nil {
		return device.QueuePair{}, err
	}
	return qp.read(), nil
}

// DestroyQueuePairs implements device.QueuePairs.
func (c *card) DestroyQueuePairs(ctx context.Context, uids []device.UID) []error {
	errs := make([]error, len(uids))
	c.gate.RLock()
	defer c.gate.RUnlock()
	for i, uid := range uids {
		if errs[i] = c.usable(ctx); errs[i] != nil {
			continue
		}
		qp, err := c.qps.remove(uid)
		if err != nil {
			errs[i] = err
			continue
		}
		qp.destroy()
		c.domains.leave(qp.info.PD, 1)
	}
	return errs
}
