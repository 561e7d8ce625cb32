package fabric

import (
	"context"
	"fmt"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// How long sends under way may go on when their session ends.
const (
	defaultDrain = 500 * time.Millisecond
	maxDrain     = time.Minute
)

// A device is asked again after the first pause, then after twice as long each time
// up to the last.
const (
	firstDrainPause = time.Millisecond
	lastDrainPause  = 50 * time.Millisecond
)

// fewQueuePairs are asked for one by one; for more the device lists all it has.
const fewQueuePairs = 8

// drain lets sends of a session that ends go on for a bounded time, while all that
// it owns stays. Posts are refused by then, so that what is under way gets less. It
// reports whether there may be any: then takeDown is called again. Fabric.mu is held.
func (f *Fabric) drain(s *record) bool {
	if s.life.drained || s.life.draining || s.SessionAsk.Drain == 0 {
		return s.life.draining
	}
	busy := map[*card][]device.UID{}
	s.life.lists[kindQueuePair].after(0, func(r *record) bool {
		if r.committed && r.there && r.card.known && !r.Deleting && (r.is.state == ib.RTS || r.is.state == ib.SQD) {
			busy[r.card] = append(busy[r.card], r.UID)
		}
		return true
	})
	if len(busy) == 0 || f.closed {
		return false
	}
	s.life.draining = true
	f.wg.Go(func() { f.awaitDrain(s, busy, time.Duration(s.SessionAsk.Drain)) })
	return true
}

// awaitDrain waits until no send is under way on the queue pairs, or for so long,
// and has the session taken down.
func (f *Fabric) awaitDrain(s *record, busy map[*card][]device.UID, most time.Duration) {
	ctx, cancel := context.WithTimeout(f.ctx, most)
	defer cancel()
	sends, known := 0, false
	for pause := firstDrainPause; ; pause = min(2*pause, lastDrainPause) {
		n, ok := outstanding(ctx, busy)
		if ok || ctx.Err() == nil { // else it was not asked in time
			sends, known = n, ok
		}
		if len(busy) == 0 || ctx.Err() != nil {
			break
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	if f.ctx.Err() != nil {
		return // the next start takes it down
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s.life.draining, s.life.drained = false, true
	if n := len(busy); n > 0 {
		ev := s.event(EventChanged, system, Timeout)
		ev.Before, ev.After = s.label(), s.label()
		ev.Message = fmt.Sprintf("the drain ended after %v: %d sends that were under way are dropped", most, sends)
		if !known {
			ev.Message = fmt.Sprintf("the drain ended after %v: the device does not say what is under way", most)
		}
		f.enter(entry{events: []Event{ev}})
	}
	f.takeDown(s)
}

// outstanding asks how many sends are under way, and keeps in busy the queue pairs
// that have any. A device that does not answer keeps its own, and is told.
func outstanding(ctx context.Context, busy map[*card][]device.UID) (sends int, known bool) {
	known = true
	for c, uids := range busy {
		counts, err := c.outstanding(ctx, uids)
		if err != nil {
			known = false
			continue
		}
		still := uids[:0]
		for _, uid := range uids {
			if n := counts[uid]; n > 0 {
				sends += n
				still = append(still, uid)
			}
		}
		if busy[c] = still; len(still) == 0 {
			delete(busy, c)
		}
	}
	return sends, known
}

// outstanding reads the number of sends under way on queue pairs. One that is no
// more has none.
func (c *card) outstanding(ctx context.Context, uids []device.UID) (map[device.UID]int, error) {
	counts := map[device.UID]int{}
	if len(uids) > fewQueuePairs {
		all, err := c.dev.ListQueuePairs(ctx)
		for i := range all {
			if n := all[i].Outstanding; n > 0 {
				counts[all[i].UID] = n
			}
		}
		return counts, err
	}
	for _, uid := range uids {
		q, err := c.dev.GetQueuePair(ctx, uid)
		if err != nil && !isNotFound(err) {
			return nil, err
		}
		counts[uid] = q.Outstanding
	}
	return counts, nil
}
