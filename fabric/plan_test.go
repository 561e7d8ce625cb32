package fabric

import (
	"errors"
	"slices"
	"testing"

	"github.com/accelfab/accelfab/device/ib"
)

func TestPlan(t *testing.T) {
	known, there := had{Known: true}, had{Known: true, There: true}
	for _, tc := range []struct {
		name string
		a    asked
		h    had
		want action
	}{
		{"the device does not answer", asked{Record: true, Ready: true}, had{}, actWait},
		{"nor for what is to go", asked{Record: true, Gone: true}, had{}, actWait},
		{"nobody knows it", asked{}, there, actDestroy},
		{"nothing is nothing", asked{}, known, actNone},
		{"new", asked{Record: true, Ready: true}, known, actCreate},
		{"new, and what it stands on is not there", asked{Record: true}, known, actWait},
		{"there", asked{Record: true, Ready: true, Made: true}, there, actAdopt},
		{"there, though what it stands on is not seen", asked{Record: true, Made: true}, there, actAdopt},
		{"lost, and can be made again", asked{Record: true, Ready: true, Made: true}, known, actCreate},
		{"lost with its contents", asked{Record: true, Ready: true, Made: true, Keeps: true}, known, actLose},
		{"new with contents to come", asked{Record: true, Ready: true, Keeps: true}, known, actCreate},
		{"what it stands on is lost", asked{Record: true, Lost: true, Made: true}, known, actLose},
		{"its session is lost, and it is there", asked{Record: true, Lost: true, Made: true}, there, actAdopt},
		{"to go", asked{Record: true, Gone: true, Made: true, Ready: true}, there, actDestroy},
		{"to go, lost or not", asked{Record: true, Gone: true, Lost: true}, there, actDestroy},
		{"to go, and not there", asked{Record: true, Gone: true, Keeps: true, Made: true}, known, actForget},
	} {
		if got := plan(tc.a, tc.h); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// Every way that qpSteps gives is one that the specification's table allows,
// and where it gives none no other is missing.
func TestQPSteps(t *testing.T) {
	const R, I, T, S, D, Q, E = ib.Reset, ib.Init, ib.RTR, ib.RTS, ib.SQD, ib.SQE, ib.Err
	no := []ib.QPState(nil)
	for _, tc := range []struct {
		from, to ib.QPState
		want     []ib.QPState
		ok       bool
	}{
		{R, R, no, true}, {R, I, []ib.QPState{I}, true}, {R, T, []ib.QPState{I, T}, true}, {R, S, []ib.QPState{I, T, S}, true}, {R, D, no, false}, {R, E, []ib.QPState{E}, true},
		{I, R, []ib.QPState{R}, true}, {I, I, no, true}, {I, T, []ib.QPState{I, T}, true}, {I, S, []ib.QPState{I, T, S}, true}, {I, D, no, false}, {I, E, []ib.QPState{E}, true},
		{T, I, []ib.QPState{R, I}, true}, {T, S, []ib.QPState{S}, true}, {T, D, no, false},
		{S, I, []ib.QPState{R, I}, true}, {S, T, no, false}, {S, S, no, true}, {S, D, []ib.QPState{D}, true},
		{D, S, []ib.QPState{S}, true}, {D, T, no, false}, {D, R, []ib.QPState{R}, true},
		{Q, S, no, false}, {Q, I, []ib.QPState{R, I}, true},
		{E, R, []ib.QPState{R}, true}, {E, I, []ib.QPState{R, I}, true}, {E, T, no, false}, {E, S, no, false}, {E, D, no, false},
	} {
		steps, err := qpSteps(&qpAsk{Type: ib.RC}, tc.from, tc.to)
		var got []ib.QPState
		for _, s := range steps {
			got = append(got, s.Target())
		}
		var te *ib.TransitionError
		if (err == nil) != tc.ok || !slices.Equal(got, tc.want) || err != nil && !(errors.As(err, &te) && te.From == tc.from && te.To == tc.to) {
			t.Errorf("%v to %v: %v, %v; want %v, %v", tc.from, tc.to, got, err, tc.want, tc.ok)
		}
	}
	for _, typ := range []ib.QPType{ib.UC, ib.UD} {
		if steps, err := qpSteps(&qpAsk{Type: typ}, Q, S); err != nil || len(steps) != 1 {
			t.Errorf("%v from SQE to RTS: %v, %v", typ, steps, err)
		}
	}
}

func TestIDs(t *testing.T) {
	long := "a23456789012345678901234567890123456789012345678901234567890123"
	for id, want := range map[string]bool{"a": true, "q-1": true, long: true, long + "4": false, "": false, "1a": false, "-a": false, "a-": false, "A": false, "a_b": false, "ä": false, "a.b": false} {
		if validID(id) != want {
			t.Errorf("%q: want %v", id, want)
		}
	}
	for _, k := range append(objectKinds[:], kindSession) {
		if id := newID(k, newUID()); !validID(id) {
			t.Errorf("a made id is not valid: %q", id)
		}
	}
}

func TestNames(t *testing.T) {
	n := names{node: "nodes/n1"}
	for _, tc := range []struct {
		k    kind
		name string
		want string
		ok   bool
	}{
		{kindSession, "nodes/local/sessions/s", "nodes/n1/sessions/s", true},
		{kindSession, "nodes/n1/sessions/s", "nodes/n1/sessions/s", true},
		{kindSession, "nodes/n2/sessions/s", "", false},
		{kindSession, "nodes/n1/sessions/s/x", "", false},
		{kindSession, "nodes/n1/sessions/", "", false},
		{kindBuffer, "nodes/local/devices/d0/buffers/b", "nodes/n1/devices/d0/buffers/b", true},
		{kindBuffer, "nodes/n1/devices/d0/queuePairs/b", "", false},
		{kindBuffer, "nodes/n1/devices//buffers/b", "", false},
		{kindPort, "nodes/n1/devices/d0/ports/10", "nodes/n1/devices/d0/ports/10", true},
		{kindPort, "nodes/n1/devices/d0/ports/+1", "", false},
		{kindPort, "nodes/n1/devices/d0/ports/-1", "", false},
		{kindPort, "nodes/n1/devices/d0/ports/99999999999999999999", "", false},
	} {
		if got, ok := n.object(tc.k, tc.name); ok != tc.ok || ok && got != tc.want {
			t.Errorf("%v %q: %q, %v", tc.k, tc.name, got, ok)
		}
	}
}
