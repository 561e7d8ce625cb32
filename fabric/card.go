package fabric

import (
	"context"
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

	lists   [len(collections)]list
	usage   Usage
	holders []*record // sessions, oldest first

	dirty     []*record
	later     []*record // to be tried again
	recording int       // outcomes that the keeper has yet to record before the worker goes on
	relist    bool      // compare everything again
	known     bool      // the device was listed and answers
	tries     int       // failed comparisons
	health    Condition
	since     time.Time
	ports     []device.Port // as last read
	asks      map[int]*record
}

// callTimeout bounds one call of a device, so that one that hangs is seen.
const callTimeout = 20 * time.Second

func (f *Fabric) addCard(id string, d device.Device) *card {
	c := &card{f: f, id: id, name: f.names.node + "/devices/" + id, dev: d, compared: make(chan struct{}),
		kick: make(chan struct{}, 1), relist: true, since: f.started, asks: map[int]*record{},
		health: Condition{Reconciling: true, Reason: DeviceUnavailable, Message: "the device is being reached"}}
	if d != nil {
		c.info = d.Info()
	} else {
		c.health.Message = "the device is in the records and not in the configuration"
	}
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

// look makes the worker compare everything. Fabric.mu is held.
func (c *card) look() {
	c.relist = true
	c.wake()
}

// backoff is the time before attempt n+1: 10 ms, doubled up to 10 s.
func backoff(n int) time.Duration {
	return min(10*time.Millisecond<<min(max(n-1, 0), 10), 10*time.Second)
}

// run is the worker.
func (c *card) run() {
	if c.dev == nil {
		close(c.compared)
		return
	}
	retry := time.NewTimer(0)
	defer retry.Stop()
	first := true
	for {
		select {
		case <-c.kick:
		case <-retry.C:
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
		delay := time.Duration(-1)
		if c.relist && c.tries > 0 {
			delay = backoff(c.tries)
		}
		for _, r := range c.later {
			if d := backoff(r.tries); delay < 0 || d < delay {
				delay = d
			}
		}
		c.f.mu.Unlock()
		if delay >= 0 {
			retry.Reset(delay)
		}
	}
}

// pass does what is due.
func (c *card) pass() {
	c.f.mu.Lock()
	work := c.dirty
	c.dirty = nil
	for _, r := range work {
		r.queued = false
	}
	relist := c.relist
	c.f.mu.Unlock()
	if relist {
		all, ok := c.compare()
		if !ok {
			c.f.mu.Lock()
			c.later = append(c.later, work...)
			c.f.mu.Unlock()
			return
		}
		work = all
		c.applyPorts()
	}
	if len(work) > 0 {
		c.act(work)
	}
}

// call gives the context of one call of the device.
func (c *card) call() (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.f.ctx, callTimeout)
}

// listen turns the device's hints into work.
func (c *card) listen() {
	for e := range c.dev.Events() {
		switch e.Kind {
		case device.PortChanged:
			c.readPort(e.Port)
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
		c.unavailable("the device was closed by its driver")
	}
}

// unavailable notes that the device does not answer. Fabric.mu is held.
func (c *card) unavailable(why string) {
	if c.known || c.health.Message != why {
		c.since = time.Now()
	}
	c.known = false
	c.health = Condition{Reconciling: true, Reason: DeviceUnavailable, Message: why}
	c.relist = true
	c.tries++
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
func (c *card) readPort(n int) (device.Port, error) {
	ctx, cancel := c.call()
	defer cancel()
	return c.readPortCtx(ctx, n)
}

func (c *card) readPortCtx(ctx context.Context, n int) (device.Port, error) {
	p, err := c.dev.Port(ctx, n)
	if err != nil {
		return p, err
	}
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if n < len(c.ports) {
		old := c.ports[n]
		c.ports[n] = p
		if old.State != p.State {
			c.f.portEvent(c, p, old.State)
		}
	}
	return p, nil
}
