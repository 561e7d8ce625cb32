package fabric

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/accelfab/accelfab/device"
)

// card is one device and its worker. Fabric.mu guards what is not fixed.
//
// The worker is the only one that makes or destroys objects on the device. It
// drains the dirty set in batches, so that many concurrent requests take few
// calls of the device and none waits for company.
type card struct {
	f        *Fabric
	id, name string
	dev      device.Device // nil: recorded, but not configured now
	info     device.Info
	compared chan struct{} // closed after the first comparison, done or failed
	kick     chan struct{}
	admin    chan struct{} // holds a token while a port's administrative state changes

	lists   [len(collections)]list
	usage   Usage
	holders []*record // sessions, oldest first

	dirty     []*record
	later     []*record       // to be tried again
	lookers   []chan struct{} // closed after the next comparison and what follows from it
	recording int             // outcomes that the keeper has yet to record before the worker goes on
	compareAt time.Time       // compare everything from then on; zero: nothing asks for it
	known     bool            // the device was listed and answers
	listed    bool            // it was listed once
	tries     int             // comparisons in a row that failed or left strays
	health    Condition
	overdue   int           // calls of the device that take long; health.mu guards it
	ports     []device.Port // as last read
	asks      map[int]*record
	flaps     map[int]uint64 // by port: how often it left ACTIVE since the daemon began
}

// callTimeout bounds one call of a device, so that one that hangs is seen.
const callTimeout = 20 * time.Second

// callLate is after what time a call makes the device DEGRADED.
const callLate = 5 * time.Second

// beingReached is the condition of a device that was not compared yet.
var beingReached = Condition{Reconciling: true, Reason: DeviceUnavailable, Message: "the device is being reached"}

func (f *Fabric) addCard(id string, d device.Device) *card {
	c := &card{f: f, id: id, name: f.names.node + "/devices/" + id, dev: d, compared: make(chan struct{}),
		kick: make(chan struct{}, 1), admin: make(chan struct{}, 1), compareAt: f.started, asks: map[int]*record{}, flaps: map[int]uint64{},
		health: beingReached}
	status := HealthUnknown
	if d != nil {
		c.info = d.Info()
	} else {
		status, c.health.Message = HealthFailed, "the device is in the records and not in the configuration"
	}
	f.SetFault(c.component(), faultAway, Fault{Status: status, Reason: c.health.Reason, Message: c.health.Message})
	f.card[id] = c
	i := 0
	for i < len(f.cards) && f.cards[i].id < id {
		i++
	}
	f.cards = append(f.cards[:i], append([]*card{c}, f.cards[i:]...)...)
	return c
}

// cardOf gives the card of an object's name, which has the right form. A card
// that is not configured gets a stand-in, so that its records are kept.
func (f *Fabric) cardOf(name string) *card {
	rest := strings.TrimPrefix(name, f.names.node+"/devices/")
	id, _, _ := strings.Cut(rest, "/")
	if c := f.card[id]; c != nil {
		return c
	}
	return f.addCard(id, nil)
}

// push makes the worker look at r. Fabric.mu is held.
func (c *card) push(r *record) {
	if !r.queued {
		r.queued = true
		c.dirty = append(c.dirty, r)
	}
	c.wake()
}

func (c *card) wake() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// look makes the worker compare everything now. Fabric.mu is held.
func (c *card) look() {
	c.compareAt = time.Now()
	c.wake()
}

// lookLater makes it compare after the back-off. Fabric.mu is held.
func (c *card) lookLater() {
	c.tries++
	c.compareAt = time.Now().Add(backoff(c.tries))
}

// backoff is the time before attempt n+1: 10 ms, doubled up to 10 s.
func backoff(n int) time.Duration {
	return min(10*time.Millisecond<<min(max(n-1, 0), 10), 10*time.Second)
}

// start lets the worker work.
func (c *card) start() {
	if c.dev == nil {
		close(c.compared)
		return
	}
	c.f.wg.Go(c.run)
	c.f.wg.Go(c.listen)
}

// newTimer gives a timer that rings only after a Reset.
func newTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// run is the worker.
func (c *card) run() {
	retry := newTimer()
	defer retry.Stop()
	c.wake()
	var ring time.Time // when retry fires; zero: it does not
	first := true
	for {
		select {
		case <-c.kick:
		case <-retry.C:
			ring = time.Time{}
			c.f.mu.Lock()
			for _, r := range c.later {
				c.push(r)
			}
			c.later = nil
			c.f.mu.Unlock()
		case <-c.f.ctx.Done():
			return
		}
		c.pass()
		c.f.mu.Lock()
		if first && c.recording == 0 && len(c.dirty) == 0 {
			first = false
			close(c.compared)
		}
		now := time.Now()
		at := c.next(now)
		c.judgeSteps()
		c.f.mu.Unlock()
		// The timer moves to an earlier time only: else work that never ends
		// would put off for ever what is to be tried again.
		if !at.IsZero() && (ring.IsZero() || at.Before(ring)) {
			ring = at
			retry.Reset(at.Sub(now))
		}
	}
}

// next is when the worker has to look by itself, zero if it need not. Fabric.mu
// is held.
func (c *card) next(now time.Time) time.Time {
	at := c.compareAt
	if !c.known {
		return at // nothing else can be done before
	}
	for _, r := range c.later {
		if t := now.Add(backoff(r.tries)); at.IsZero() || t.Before(at) {
			at = t
		}
	}
	return at
}

// pass does what is due.
func (c *card) pass() {
	c.f.mu.Lock()
	work := c.dirty
	c.dirty = nil
	for _, r := range work {
		r.queued = false
	}
	compare := !c.compareAt.IsZero() && !time.Now().Before(c.compareAt)
	var lookers []chan struct{}
	if compare {
		c.compareAt = time.Time{} // before it begins: what asks for it meanwhile asks for another
		lookers, c.lookers = c.lookers, nil
	}
	if !compare && !c.known {
		c.later = append(c.later, work...)
		work = nil
	}
	c.f.mu.Unlock()
	if compare {
		all, ok := c.compare()
		if !ok {
			c.f.mu.Lock()
			c.later = append(c.later, work...)
			c.lookers = append(c.lookers, lookers...)
			c.f.mu.Unlock()
			return
		}
		work = all
		c.applyPorts()
	}
	if len(work) > 0 {
		c.act(work)
	}
	for _, ch := range lookers {
		close(ch)
	}
}

// call gives the context of one call of the device. The function is to be
// called once, when the call has returned.
func (c *card) call() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(c.f.ctx, callTimeout)
	late := time.AfterFunc(callLate, func() { c.judgeCall(1) })
	return ctx, func() {
		cancel()
		if !late.Stop() {
			c.judgeCall(-1)
		}
	}
}

// listen turns the device's hints into work.
func (c *card) listen() {
	for e := range c.dev.Events() {
		switch e.Kind {
		case device.PortChanged:
			ctx, cancel := c.call()
			c.readPort(ctx, e.Port) // what cannot be read now is read when somebody asks
			cancel()
		case device.MemoryChanged:
			c.f.lookAtExports()
		case device.QueuePairChanged:
			c.f.mu.Lock()
			if r := c.f.idx.byUID[e.QP]; r != nil && r.card == c && r.committed {
				r.stale = true
				c.push(r)
			}
			c.f.mu.Unlock()
		default:
			c.f.mu.Lock()
			c.look()
			c.f.mu.Unlock()
		}
	}
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if !c.f.closed {
		c.unavailable("the device was closed by its driver", device.ErrClosed)
	}
}

// unavailable notes that the device does not answer; it is compared again after
// the back-off. Fabric.mu is held.
func (c *card) unavailable(why string, err error) {
	c.known = false
	c.health = Condition{Reconciling: true, Reason: DeviceUnavailable, Message: why}
	fault := Fault{Status: HealthFailed, Reason: DeviceUnavailable, Message: why + "; look at the device and its log; it is tried again by itself"}
	if errors.Is(err, context.DeadlineExceeded) {
		fault.Reason = Timeout
	}
	c.f.SetFault(c.component(), faultAway, fault)
	c.lookLater()
}

// usable says whether objects can be made now. Fabric.mu is held.
func (c *card) usable() *Error {
	if c.known {
		return nil
	}
	return &Error{Name: c.name, Reason: DeviceUnavailable, Message: c.health.Message, RetryAfter: max(backoff(c.tries), time.Second)}
}

func (c *card) unhold(s *record) {
	for i, h := range c.holders {
		if h == s {
			c.holders = append(c.holders[:i:i], c.holders[i+1:]...)
			return
		}
	}
}

// readPort reads a port and keeps what it says.
func (c *card) readPort(ctx context.Context, n int) (device.Port, error) {
	p, err := c.dev.Port(ctx, n)
	if err != nil {
		return p, err
	}
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if n < len(c.ports) {
		old := c.ports[n]
		c.ports[n] = p
		c.portChanged(&p, &old)
		c.judgePort(&p)
	}
	return p, nil
}
