package fabric

import (
	"time"
)

// sweepPause is the least time between two looks at all exports, and
// sweepPeriod the longest.
const (
	sweepPause  = time.Second
	sweepPeriod = 10 * time.Second
)

// lookAtExports makes the sweep look soon.
func (f *Fabric) lookAtExports() {
	select {
	case f.sweepDue <- struct{}{}:
	default:
	}
}

// sweep revokes exports whose ttl has ended, reads what devices say of the
// others, and destroys those that nobody has needed for the grace time. One
// goroutine does it for all.
func (f *Fabric) sweep() {
	timer := time.NewTimer(sweepPeriod)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-f.sweepDue:
		case <-f.ctx.Done():
			return
		}
		next := f.endExports()
		f.readAllExports(f.ctx)
		f.reclaimOrphans()
		// Hints come as often as descriptors are closed.
		select {
		case <-time.After(min(sweepPause, next)):
		case <-f.ctx.Done():
			return
		}
		timer.Reset(min(sweepPeriod, next))
	}
}

// activeExports calls fn for all exports that are ACTIVE. Fabric.mu is held.
func (f *Fabric) activeExports(fn func(*record)) {
	for _, c := range f.cards {
		c.lists[kindExport].after(0, func(r *record) bool {
			if r.committed && r.state() == StateActive {
				fn(r)
			}
			return true
		})
	}
}

// endExports revokes the exports whose ttl has ended. It gives the time until
// the next one ends.
func (f *Fabric) endExports() time.Duration {
	now, next := f.cfg.Uptime(), sweepPeriod
	var ended []*change
	f.mu.Lock()
	defer f.mu.Unlock()
	f.activeExports(func(r *record) {
		switch left := r.given.ttl - now; {
		case r.given.ttl == 0 || r.is.export.Mappable:
		case left > 0:
			next = min(next, left)
		case r.op != nil:
			next = min(next, sweepPause) // it is being changed: look again
		default:
			ch := newChange(changeRevoke, "expire", system, []*record{r})
			ch.claim()
			ended = append(ended, ch)
		}
	})
	for _, ch := range ended {
		if err := f.markRevoked(ch, CauseExpired); err != nil {
			f.log.Warn("export not revoked at the end of its ttl; tried again", "name", ch.records[0].name, "error", err)
			next = min(next, sweepPause)
		}
	}
	return next
}

// judge says whether anybody seems to need an export. Fabric.mu is held.
func (f *Fabric) judge(r *record) {
	why := ""
	switch x := r.is.export; {
	case len(x.Attachments) > 0 || x.Held > 0:
	case x.Opened == 0:
		why = OrphanUnfetched
	default:
		why = OrphanAbandoned
	}
	if g := r.given; why != g.orphan {
		g.orphan, g.orphaned, g.since = why, f.cfg.Uptime(), time.Now()
		if why == "" {
			g.since = time.Time{}
		}
	}
}

// reclaimOrphans destroys exports that were orphans for the grace time.
func (f *Fabric) reclaimOrphans() {
	now := f.cfg.Uptime()
	f.mu.Lock()
	defer f.mu.Unlock()
	var gone []*record
	f.activeExports(func(r *record) {
		if g := r.given; g.orphan != "" && now-g.orphaned >= f.cfg.OrphanGrace && r.op == nil && len(g.imports) == 0 {
			gone = append(gone, r)
		}
	})
	for _, r := range gone {
		if r.op != nil { // meanwhile: the lock was given back
			continue
		}
		ch := newChange(changeDelete, "reclaim", system, []*record{r})
		ch.claim()
		r.stored = r.with(func(s *stored) { s.Cause = CauseOrphan })
		if err := f.markDeleting(ch); err != nil {
			f.log.Warn("orphan not reclaimed; tried again", "name", r.name, "error", err)
			ch.release()
		}
	}
}
