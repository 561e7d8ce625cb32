package fabric

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// HealthStatus is how well a component works.
type HealthStatus string

// The grades of health.
const (
	HealthOK            HealthStatus = "OK"       // no fault is known
	HealthUnknown       HealthStatus = "UNKNOWN"  // not found out yet, or it cannot be
	HealthDegraded      HealthStatus = "DEGRADED" // it serves, and something needs a look
	HealthFailed        HealthStatus = "FAILED"   // it does not serve
	HealthNotApplicable HealthStatus = "NOT_APPLICABLE"
)

// severity orders the grades.
func (s HealthStatus) severity() int {
	switch s {
	case HealthUnknown:
		return 1
	case HealthDegraded:
		return 2
	case HealthFailed:
		return 3
	}
	return 0
}

// well is the greatest severity of what may be well.
const well = 1

// What only health tells; other faults have the reason of the refusals that
// they lead to.
const (
	ReasonRecordSetAside      Reason = "RECORD_SET_ASIDE"     // a record could not be read
	ReasonStoreMended         Reason = "STORE_MENDED"         // the store was damaged
	ReasonPortDown            Reason = "PORT_DOWN"            // a port that is enabled and has a cable
	ReasonClockStepped        Reason = "CLOCK_STEPPED"        // the wall clock was set
	ReasonClockUnsynchronized Reason = "CLOCK_UNSYNCHRONIZED" // nothing keeps the wall clock right
)

// The components that every node has. Those of a device are
// "devices/{device}" and "devices/{device}/ports", that of a device host which was
// missing at the start "hosts/{host}".
const (
	ComponentStore   = "store"
	ComponentClock   = "clock"
	ComponentCluster = "cluster"
)

// Fault is something that is wrong with a component.
type Fault struct {
	Status   HealthStatus // UNKNOWN, DEGRADED or FAILED
	Resource string       // name of what is at fault; "" means what the component is of
	Reason   Reason
	Message  string // for people: what is wrong and what to do
}

// Component is a part of the node and how well it works.
type Component struct {
	Name     string
	Resource string // the node, or the device that it is of
	Status   HealthStatus
	Reason   Reason    // of the worst fault; empty if there is none
	Message  string    // of the worst fault
	Since    time.Time // of Status
}

// Health is that of a node or a device.
type Health struct {
	Status     HealthStatus
	Reason     Reason      // of the first component that makes Status what it is
	Components []Component // in ascending order of their names
	Problems   []Problem   // the faults that make it other than OK, oldest first
}

// A component that got worse flapCount times within flapWindow gets better only
// after flapQuiet without a change. Once or twice is told as it is.
const (
	flapCount  = 3
	flapWindow = time.Minute
	flapQuiet  = 30 * time.Second
)

// present fault of a component, and since when.
type presentFault struct {
	Fault
	since time.Time
}

// faults of a component, by key.
type faults map[string]*presentFault

func (fs faults) set(key string, fault Fault) {
	now := &presentFault{fault, time.Now()}
	if old := fs[key]; old != nil && old.Status == fault.Status && old.Reason == fault.Reason {
		now.since = old.since
	}
	fs[key] = now
}

// part is a component with what is known of it.
type part struct {
	Component              // as shown
	rest      HealthStatus // without faults
	told      HealthStatus // in the journal; "" before the first look
	faults    faults
	is        HealthStatus    // by the faults alone, as of the last step
	worse     []time.Duration // the last times at which it got worse, on the uptime clock
	changed   time.Duration   // when is last changed
	held      bool            // it is shown worse than it is
}

// worst gives the fault that counts most: the most severe, and of those the
// oldest.
func (p *part) worst() *presentFault {
	var best *presentFault
	var key string
	for k, f := range p.faults {
		if best == nil || f.Status.severity() > best.Status.severity() ||
			f.Status == best.Status && (f.since.Before(best.since) || f.since.Equal(best.since) && k < key) {
			best, key = f, k
		}
	}
	return best
}

// step brings what is shown to what the faults say. Worse is shown at once,
// better too unless it flaps: then step gives the time after which it wants to
// be called again.
func (p *part) step(now time.Duration, wall time.Time) (again time.Duration) {
	next := Component{Name: p.Name, Resource: p.Resource, Status: p.rest}
	if f := p.worst(); f != nil {
		next.Status, next.Reason, next.Message = f.Status, f.Reason, f.Message
		if n := len(p.faults) - 1; n > 0 {
			next.Message += fmt.Sprintf(" (and %d more)", n)
		}
	}
	if next.Status != p.is {
		if next.Status.severity() > well && p.is.severity() <= well {
			p.worse = append(p.worse[max(0, len(p.worse)-flapCount+1):], now)
		}
		p.is, p.changed = next.Status, now
	}
	p.held = false
	if next.Status.severity() < p.Status.severity() && len(p.worse) == flapCount && p.worse[flapCount-1]-p.worse[0] <= flapWindow {
		if left := p.changed + flapQuiet - now; left > 0 {
			p.held = true
			if !strings.HasSuffix(p.Message, flapText) {
				p.Message += flapText
			}
			return left
		}
		p.worse = nil
	}
	next.Since = p.Since
	if next.Status != p.Status || p.Since.IsZero() {
		next.Since = wall
	}
	p.Component = next
	return 0
}

var flapText = fmt.Sprintf("; it comes and goes: this is told until nothing changed for %v", flapQuiet)

// health is all components. Its lock is taken last.
type health struct {
	mu     sync.Mutex
	node   string // resource name
	uptime func() time.Duration
	parts  map[string]*part
	due    chan struct{} // somebody should tell the journal
	next   chan struct{} // closed at the next change of what is shown; nil if nobody waits
}

func newHealth(node string, uptime func() time.Duration) *health {
	h := &health{node: node, uptime: uptime, parts: map[string]*part{}, due: make(chan struct{}, 1)}
	h.add(ComponentStore, HealthOK)
	h.add(ComponentClock, HealthOK)
	h.add(ComponentCluster, HealthNotApplicable)
	return h
}

// add makes a component, which has no fault yet. health.mu is held, or nobody
// else has h.
func (h *health) add(name string, rest HealthStatus) *part {
	p := &part{Component: Component{Name: name, Resource: h.node, Status: rest, Since: time.Now()}, rest: rest, is: rest, faults: faults{}}
	if tail, ok := strings.CutPrefix(name, "devices/"); ok {
		id, _, _ := strings.Cut(tail, "/")
		p.Resource = h.node + "/devices/" + id
	}
	h.parts[name] = p
	return p
}

// update changes the faults of a component, which is made if it is not there.
func (h *health) update(name string, change func(faults)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.parts[name]
	if p == nil {
		p = h.add(name, HealthOK)
	}
	change(p.faults)
	if again := h.step(p); again > 0 || p.Status != p.told {
		select {
		case h.due <- struct{}{}:
		default:
		}
	}
}

// step brings a component up to date and tells those who wait for a change.
// health.mu is held.
func (h *health) step(p *part) time.Duration {
	before := p.Component
	again := p.step(h.uptime(), time.Now())
	if p.Component != before && h.next != nil {
		close(h.next)
		h.next = nil
	}
	return again
}

// SetFault says that a component has a fault now. Said again it changes
// nothing but the message. key tells the faults of one component apart. It may
// be called with Fabric.mu held or without; the journal gets to know of it
// later, by a goroutine of its own.
func (f *Fabric) SetFault(component, key string, fault Fault) {
	f.health.update(component, func(fs faults) { fs.set(key, fault) })
}

// ClearFault says that a component does not have a fault, or no longer. It is
// called as SetFault is.
func (f *Fabric) ClearFault(component, key string) {
	f.health.update(component, func(fs faults) { delete(fs, key) })
}

// NodeHealth tells how well the node and its components work.
func (f *Fabric) NodeHealth() Health { return f.health.view("") }

// HealthChanged gives a channel that is closed when any component is next shown
// otherwise than now. To miss nothing, get it before NodeHealth.
func (f *Fabric) HealthChanged() <-chan struct{} {
	f.health.mu.Lock()
	defer f.health.mu.Unlock()
	if f.health.next == nil {
		f.health.next = make(chan struct{})
	}
	return f.health.next
}

// view gives the components of a resource, all for "", and what follows from
// them.
func (h *health) view(resource string) Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	var v Health
	for _, p := range h.parts {
		if resource != "" && p.Resource != resource {
			continue
		}
		v.Components = append(v.Components, p.Component)
		for _, f := range p.faults {
			if f.Status == HealthUnknown && !p.vital() {
				continue
			}
			v.Problems = append(v.Problems, Problem{Resource: cmp.Or(f.Resource, p.Resource), Component: p.Name, Reason: f.Reason, Message: f.Message, Since: f.since})
		}
		if p.held && len(p.faults) == 0 {
			v.Problems = append(v.Problems, Problem{Resource: p.Resource, Component: p.Name, Reason: p.Reason, Message: p.Message, Since: p.Since})
		}
	}
	slices.SortFunc(v.Components, func(a, b Component) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(v.Problems, func(a, b Problem) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Component, b.Component), strings.Compare(a.Resource, b.Resource), strings.Compare(a.Message, b.Message))
	})
	if resource == "" {
		v.Status, v.Reason = nodeStatus(v.Components)
	} else {
		v.Status, v.Reason = deviceStatus(v.Components)
	}
	return v
}

// nodeStatus is FAILED if the store or every device is, DEGRADED if any
// component is FAILED or DEGRADED, and else UNKNOWN if the store or a device is.
// A clock of which nothing is known makes no node unwell.
func nodeStatus(list []Component) (HealthStatus, Reason) {
	devices := slices.DeleteFunc(slices.Clone(list), func(c Component) bool { return !isDevice(c.Name) })
	allFailed := len(devices) > 0 && !slices.ContainsFunc(devices, func(c Component) bool { return c.Status != HealthFailed })
	return worst(list, func(c Component) HealthStatus {
		switch {
		case c.Status == HealthFailed && c.Name != ComponentStore && !(allFailed && isDevice(c.Name)):
			return HealthDegraded
		case c.Status == HealthUnknown && !c.vital():
			return HealthOK
		}
		return c.Status
	})
}

// deviceStatus is that of the device itself, and DEGRADED if another component
// of it, such as its ports, is not well.
func deviceStatus(list []Component) (HealthStatus, Reason) {
	return worst(list, func(c Component) HealthStatus {
		if c.Status == HealthFailed && !isDevice(c.Name) {
			return HealthDegraded
		}
		return c.Status
	})
}

// worst gives the worst of what components count for, and the reason of the
// first that does.
func worst(list []Component, counts func(Component) HealthStatus) (HealthStatus, Reason) {
	status, reason := HealthOK, Reason("")
	for _, c := range list {
		if s := counts(c); s.severity() > status.severity() {
			status, reason = s, c.Reason
		}
	}
	return status, reason
}

// vital says whether nothing can be said of the node while c is not known.
func (c *Component) vital() bool { return c.Name == ComponentStore || isDevice(c.Name) }

// isDevice says whether a component is a device itself.
func isDevice(name string) bool {
	id, ok := strings.CutPrefix(name, "devices/")
	return ok && !strings.Contains(id, "/")
}

// tellHealth writes changes of health into the journal, and ends what was held.
// What comes and goes between two looks is not told.
func (f *Fabric) tellHealth() {
	timer := newTimer()
	defer timer.Stop()
	for {
		if again := f.newsOfHealth(); again > 0 {
			timer.Reset(again)
		}
		select {
		case <-timer.C:
		case <-f.health.due:
		case <-f.ctx.Done():
			return
		}
	}
}

// newsOfHealth gives the journal what is new, and the time until it should be
// called again; 0: not before something changes.
func (f *Fabric) newsOfHealth() time.Duration {
	events, again := f.health.news()
	if len(events) > 0 {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.enter(entry{events: events})
	}
	return again
}

// news gives an event for each component that is otherwise than last told, and
// the time until one that flaps is to be looked at again.
func (h *health) news() (events []Event, again time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(h.parts)) {
		p := h.parts[name]
		if left := h.step(p); left > 0 && (again == 0 || left < again) {
			again = left
		}
		// What a start finds well, or has not found out yet, is no news.
		if p.told != p.Status && (p.told != "" || p.Status.severity() > well) {
			e := Event{Type: EventChanged, Resource: p.Resource, Actor: system, Before: string(p.told), After: string(p.Status),
				Reason: cmp.Or(p.Reason, CauseCleared), Message: "health of " + p.Name}
			if p.Message != "" {
				e.Message += ": " + p.Message
			}
			events = append(events, e)
		}
		p.told = p.Status
	}
	return events, again
}

// known marks what a component is now as told: the journal has it otherwise.
func (h *health) known(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.parts[name].told = h.parts[name].Status
}
