package fabric

import (
	"fmt"
	"time"
)

// The wall clock dates the journal and is compared with those of other
// machines. Leases and timeouts do not run on it.
const (
	clockPeriod = 10 * time.Second // of looking at it
	clockStep   = time.Second      // the least difference that is a step: a clock that is slewed, by at most 1 in 2,000, makes less
	clockMemory = 10 * time.Minute // how long a step is told
)

// clock finds steps of the wall clock by comparing it with the uptime.
type clock struct {
	known   bool
	offset  int64         // of the wall clock to the uptime, in nanoseconds, when last looked at
	stepped time.Duration // when it was last set, on the uptime clock; 0: never
	by      time.Duration
}

// look takes in what both clocks show. It reports whether the wall clock has
// been set within clockMemory.
func (c *clock) look(wall time.Time, up time.Duration) bool {
	offset := wall.UnixNano() - int64(up)
	if by := time.Duration(offset - c.offset); c.known && by.Abs() >= clockStep {
		c.stepped, c.by = max(up, 1), by
	}
	c.known, c.offset = true, offset
	return c.stepped > 0 && up-c.stepped < clockMemory
}

// Keys of faults of the clock.
const (
	faultStep   = "step"
	faultUnsync = "unsync"
)

// watchClock looks at the wall clock again and again.
func (f *Fabric) watchClock(c *clock) {
	tick := time.NewTicker(clockPeriod)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f.judgeClock(c)
		case <-f.ctx.Done():
			return
		}
	}
}

// judgeClock looks at the wall clock.
func (f *Fabric) judgeClock(c *clock) {
	if c.look(time.Now(), f.cfg.Uptime()) {
		way := "forward"
		if c.by < 0 {
			way = "back"
		}
		f.SetFault(ComponentClock, faultStep, Fault{Status: HealthDegraded, Reason: ReasonClockStepped,
			Message: fmt.Sprintf("the wall clock was set %s by %v: times in the journal before and after do not compare; leases do not run on it; told for %v",
				way, c.by.Abs().Round(time.Millisecond), clockMemory)})
	} else {
		f.ClearFault(ComponentClock, faultStep)
	}
	// Nothing on one node depends on it, and many machines run no time service:
	// it is no reason to call the node unwell.
	fault := Fault{Status: HealthUnknown, Reason: ReasonClockUnsynchronized}
	switch ok, err := f.cfg.ClockSynchronized(); {
	case err != nil:
		fault.Message = "cannot tell whether anything keeps the wall clock right: " + err.Error()
	case !ok:
		fault.Message = "the kernel says that nothing keeps the wall clock right (STA_UNSYNC): times in the journal may differ from those of other machines; run chrony or systemd-timesyncd"
	default:
		f.ClearFault(ComponentClock, faultUnsync)
		return
	}
	f.SetFault(ComponentClock, faultUnsync, fault)
}
