package ib

import (
	"errors"
	"fmt"
	"strings"
)

// ErrTransition is what errors.Is finds in every *TransitionError.
var ErrTransition = errors.New("transition refused")

// TransitionError says why a queue pair may not go from one state to another.
// With Missing and NotAllowed both empty no attributes make the step legal.
type TransitionError struct {
	Type       QPType
	From, To   QPState
	Missing    AttrMask // required by the step and not given
	NotAllowed AttrMask // given and not taken by the step
}

// Error names both states and the attributes.
func (e *TransitionError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v queue pair cannot go from %v to %v", e.Type, e.From, e.To)
	if e.Missing != 0 {
		fmt.Fprintf(&b, ": missing %v", e.Missing)
	}
	if e.NotAllowed != 0 {
		fmt.Fprintf(&b, ": not allowed here %v", e.NotAllowed)
	}
	if e.Missing|e.NotAllowed == 0 {
		var legal []string
		for to := Reset; to <= Err; to++ {
			if ruleOf(e.Type, e.From, to).legal {
				legal = append(legal, to.String())
			}
		}
		if legal != nil {
			fmt.Fprintf(&b, ": from %v it may go to %s", e.From, strings.Join(legal, ", "))
		}
	}
	return b.String()
}

// Is makes errors.Is(err, ErrTransition) true.
func (e *TransitionError) Is(target error) bool { return target == ErrTransition }

// CheckTransition decides whether a queue pair of type t may be moved from one
// state to another with the attributes in mask (AttrState may be in it). It
// returns nil or a *TransitionError. RESET and ERR can be entered from every
// state; the steps that a device takes by itself (RTS to SQE) are not asked for
// and so are not legal here.
func CheckTransition(t QPType, from, to QPState, mask AttrMask) error {
	r := ruleOf(t, from, to)
	missing := r.need &^ mask
	extra := mask &^ (r.need | r.may | AttrState)
	switch {
	case !r.legal:
		return &TransitionError{Type: t, From: from, To: to}
	case missing|extra != 0:
		return &TransitionError{Type: t, From: from, To: to, Missing: missing, NotAllowed: extra}
	}
	return nil
}

// A rule is what one step takes for one type.
type rule struct {
	legal     bool
	need, may AttrMask
}

func ruleOf(t QPType, from, to QPState) rule {
	if !t.Valid() || !from.Valid() || !to.Valid() {
		return rule{}
	}
	if to == Reset || to == Err {
		return rule{legal: true}
	}
	s := steps[from][to]
	if s == nil || s.unreliable && t == RC {
		return rule{}
	}
	return rule{true, s.need[t], s.may[t]}
}

// A step is a cell of the state table, with its attributes by QPType.
type step struct {
	unreliable bool // for UC and UD only
	need, may  [UD + 1]AttrMask
}

const (
	migration = AttrAltPath | AttrPathMigState
	connInit  = AttrPKeyIndex | AttrPort | AttrAccessFlags
	dgramInit = AttrPKeyIndex | AttrPort | AttrQKey
	connRTR   = AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN
	connRTS   = AttrCurState | AttrAccessFlags | migration
)

// steps holds every step that may be asked for but those to RESET and ERR. It
// has the content of qp_state_table in drivers/infiniband/core/verbs.c, but
// that RESET may go to ERR here (IBTA lets every state do so) and that RC never
// leaves SQE for RTS, as it is never in it.
var steps = [Err + 1][Err + 1]*step{
	Reset: {
		Init: {need: [...]AttrMask{RC: connInit, UC: connInit, UD: dgramInit}},
	},
	Init: {
		Init: {may: [...]AttrMask{RC: connInit, UC: connInit, UD: dgramInit}},
		RTR: {
			need: [...]AttrMask{RC: connRTR | AttrMaxDestRdAtomic | AttrMinRNRTimer, UC: connRTR, UD: 0},
			may: [...]AttrMask{
				RC: AttrAltPath | AttrAccessFlags | AttrPKeyIndex,
				UC: AttrAltPath | AttrAccessFlags | AttrPKeyIndex,
				UD: AttrPKeyIndex | AttrQKey,
			},
		},
	},
	RTR: {
		RTS: {
			need: [...]AttrMask{
				RC: AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrSQPSN | AttrMaxQPRdAtomic,
				UC: AttrSQPSN,
				UD: AttrSQPSN,
			},
			may: [...]AttrMask{RC: connRTS | AttrMinRNRTimer, UC: connRTS, UD: AttrCurState | AttrQKey},
		},
	},
	RTS: {
		RTS: {may: [...]AttrMask{RC: connRTS | AttrMinRNRTimer, UC: connRTS, UD: AttrCurState | AttrQKey}},
		SQD: {may: [...]AttrMask{RC: AttrSQDAsyncNotify, UC: AttrSQDAsyncNotify, UD: AttrSQDAsyncNotify}},
	},
	SQD: {
		RTS: {may: [...]AttrMask{RC: connRTS | AttrMinRNRTimer, UC: connRTS, UD: AttrCurState | AttrQKey}},
		SQD: {may: [...]AttrMask{
			RC: AttrPort | AttrAV | AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxQPRdAtomic | AttrMaxDestRdAtomic |
				AttrAccessFlags | AttrPKeyIndex | AttrMinRNRTimer | migration,
			UC: AttrAV | AttrAccessFlags | AttrPKeyIndex | migration,
			UD: AttrPKeyIndex | AttrQKey,
		}},
	},
	SQE: {
		RTS: {unreliable: true, may: [...]AttrMask{UC: AttrCurState | AttrAccessFlags, UD: AttrCurState | AttrQKey}},
	},
}
