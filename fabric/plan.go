package fabric

import (
	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// action is what reconcile does about one object.
type action uint8

const (
	actNone    action = iota
	actWait           // cannot be decided or done now: look again later
	actAdopt          // it is there: take it as the record's own
	actCreate         // make it
	actDestroy        // take it off the device
	actForget         // it is not there and shall not be: drop the record
	actLose           // it was there, is not, and cannot be given back
)

func (a action) String() string {
	return [...]string{"none", "wait", "adopt", "create", "destroy", "forget", "lose"}[a]
}

// asked is what the records say about one object.
type asked struct {
	Record bool // there is one
	Gone   bool // it, or its session, is to go
	Lost   bool // its session or what it stands on is lost
	Made   bool // it was made before, so its absence is a loss
	Ready  bool // all that it stands on is there
	Keeps  bool // it holds contents that cannot be made again
}

// had is what the device says.
type had struct {
	Known bool // the device answered
	There bool
}

// plan decides. It is the only place that does.
func plan(a asked, h had) action {
	switch {
	case !h.Known:
		return actWait
	case !a.Record:
		if h.There {
			return actDestroy
		}
		return actNone
	case a.Gone && h.There:
		return actDestroy
	case a.Gone:
		return actForget
	case h.There:
		return actAdopt
	case a.Lost, a.Made && a.Keeps:
		return actLose
	case !a.Ready:
		return actWait
	}
	return actCreate
}

// qpSteps gives the steps from a state to a target, an empty list if it is
// there already. The error is an *ib.TransitionError that names both states.
func qpSteps(q *qpAsk, from, to ib.QPState) ([]device.Transition, error) {
	if from == to {
		return nil, nil
	}
	toInit := device.ToInit{PKey: ib.DefaultPKey, Access: q.Access, QKey: q.QKey}
	var steps []device.Transition
	at := from
	step := func(t device.Transition) { steps, at = append(steps, t), t.Target() }
	switch to {
	case ib.Reset:
		step(device.ToReset{})
		return steps, nil
	case ib.Err:
		step(device.ToErr{})
		return steps, nil
	case ib.Init:
		if at != ib.Reset {
			step(device.ToReset{})
		}
		step(toInit)
		return steps, nil
	case ib.SQD:
		if at == ib.RTS {
			return append(steps, device.ToSQD{}), nil
		}
	case ib.RTR, ib.RTS:
		if to == ib.RTS && (at == ib.SQD || at == ib.SQE && q.Type != ib.RC) {
			return append(steps, q.toRTS()), nil
		}
		if at > ib.RTR {
			break
		}
		// From INIT too: what the peer may do is among what is asked anew.
		if at == ib.Reset || at == ib.Init {
			step(toInit)
		}
		if at == ib.Init {
			step(q.toRTR())
		}
		if to == ib.RTS {
			step(q.toRTS())
		}
		return steps, nil
	}
	return nil, &ib.TransitionError{Type: q.Type, From: from, To: to}
}

func (q *qpAsk) toRTR() device.ToRTR {
	t := device.ToRTR{MaxDestRDAtomic: q.MaxDestRDAtomic, MinRNRTimer: q.MinRNRTimer,
		TrafficClass: q.TrafficClass, HopLimit: q.HopLimit, GIDIndex: q.GIDIndex, PathMTU: q.PathMTU}
	if r := q.Remote; r != nil {
		t.Remote = device.Remote{GID: r.GID, QPN: r.QPN, PSN: r.PSN}
		t.PathMTU, t.GIDIndex = r.PathMTU, r.GIDIndex
	}
	return t
}

func (q *qpAsk) toRTS() device.ToRTS {
	return device.ToRTS{PSN: q.PSN, Timeout: q.Timeout, RetryCount: q.RetryCount, RNRRetry: q.RNRRetry, MaxRDAtomic: q.MaxRDAtomic}
}
