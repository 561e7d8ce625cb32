package fabric

import (
	"fmt"

	"github.com/accelfab/accelfab/device"
)

// The faults of a card. Each function looks at a fact and sets or clears the
// fault that it is. Fabric.mu is held, but for judgeCall, which does not care.

// Keys of faults of the component of a card.
const (
	faultAway   = "away"   // not reached yet, or it does not answer
	faultCall   = "call"   // a call of it takes long
	faultSteps  = "steps"  // what is to be done fails again and again
	faultStrays = "strays" // objects of nobody that do not go
)

func (c *card) component() string { return "devices/" + c.id }

// failingTries is after how many attempts a step that fails is a fault of the
// device.
const failingTries = 3

// judgeSteps looks at what failed and is to be tried again.
func (c *card) judgeSteps() {
	n := 0
	var first *record
	for _, r := range c.later {
		if r.tries >= failingTries && r.failure.Reconciling && !r.removed {
			if n++; first == nil || r.id < first.id {
				first = r
			}
		}
	}
	if n == 0 {
		c.f.ClearFault(c.component(), faultSteps)
		return
	}
	c.f.SetFault(c.component(), faultSteps, Fault{Status: HealthDegraded, Resource: first.name, Reason: first.failure.Reason,
		Message: fmt.Sprintf("steps for %d objects fail and are tried again, of this one: %s", n, first.failure.Message)})
}

// judgeStrays notes how many objects of nobody the device did not let go.
func (c *card) judgeStrays(left int) {
	if left == 0 {
		c.f.ClearFault(c.component(), faultStrays)
		return
	}
	c.f.SetFault(c.component(), faultStrays, Fault{Status: HealthDegraded, Reason: DeviceUnavailable,
		Message: fmt.Sprintf("%d objects that no record knows cannot be destroyed; it is tried again, and a reset of the device ends them", left)})
}

// judgePort looks at a port as just read. One that is disabled, has no cable or
// no address is as it is meant to be.
func (c *card) judgePort(p *device.Port) {
	name, key := c.component()+"/ports", itoa(p.Number)
	if p.Class == device.PortNotConnected || !p.AdminUp || p.State == device.PortActive {
		c.f.ClearFault(name, key)
		return
	}
	msg := "the port is " + portWord(p.State)
	if p.Reason != "" {
		msg += ": " + p.Reason
	}
	c.f.SetFault(name, key, Fault{Status: HealthDegraded, Resource: c.portName(p.Number), Reason: ReasonPortDown,
		Message: msg + "; look at the cable and the port at its other end, or disable it"})
}

// judgeCall counts the calls that take long.
func (c *card) judgeCall(d int) {
	c.f.health.update(c.component(), func(fs faults) {
		if c.overdue += d; c.overdue <= 0 {
			delete(fs, faultCall)
			return
		}
		fs.set(faultCall, Fault{Status: HealthDegraded, Reason: Timeout,
			Message: fmt.Sprintf("the device has not answered a call for more than %v; what needs no answer of it goes on", callLate)})
	})
}
