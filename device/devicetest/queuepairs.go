package devicetest

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

func testQueuePairs(t *testing.T, p Pair) {
	ctx := t.Context()
	e := newEnd(t, p.A, p.PortA)
	spec := e.spec(toInit(ib.RemoteRead))
	first := p.A.CreateQueuePairs(ctx, []device.QueuePairSpec{spec})[0]
	if first.Err != nil {
		t.Fatal(first.Err)
	}
	if first.UID != spec.UID || first.PD != e.pd || first.Port != p.PortA || first.Type != ib.RC || first.State != ib.Init ||
		first.QPN < 2 || first.QPN >= ib.MaxQPN || first.SendWR < 1 || first.RecvWR < 1 || first.SGE < 1 || first.GIDIndex != -1 {
		t.Errorf("queue pair %+v", first)
	}
	// A repeated create answers what is there and does nothing.
	r := e.modify(first.QueuePair, device.ToErr{})
	again := p.A.CreateQueuePairs(ctx, []device.QueuePairSpec{spec})[0]
	if r.Err != nil || again.Err != nil || again.QPN != first.QPN || again.State != ib.Err {
		t.Errorf("the same again: %+v after %+v", again, r)
	}
	second := e.queuePair()
	if second.State != ib.Reset || second.QPN == first.QPN {
		t.Errorf("queue pair without steps: %+v", second)
	}
	if list, err := p.A.ListQueuePairs(ctx); err != nil || len(list) != 2 {
		t.Errorf("list %+v, %v", list, err)
	}
	errs := p.A.DestroyQueuePairs(ctx, []device.UID{first.UID, second.UID, first.UID})
	wantError(t, errs[0], nil)
	wantError(t, errs[1], nil)
	wantError(t, errs[2], device.ErrNotFound)
	_, err := p.A.GetQueuePair(ctx, first.UID)
	wantError(t, err, device.ErrNotFound)
	third := e.queuePair()
	if third.QPN == first.QPN || third.QPN == second.QPN {
		t.Errorf("QPN %#x came back at once", third.QPN)
	}
	for _, c := range []struct {
		capability device.Capability
		typ        ib.QPType
	}{{device.CapUC, ib.UC}, {device.CapUD, ib.UD}} {
		spec := e.spec()
		spec.Type = c.typ
		err := p.A.CreateQueuePairs(ctx, []device.QueuePairSpec{spec})[0].Err
		if has(p.A, c.capability) {
			wantError(t, err, nil)
		} else {
			wantError(t, err, errors.ErrUnsupported)
		}
	}
}

func has(d device.Device, c device.Capability) bool {
	for _, have := range d.Info().Capabilities {
		if have == c {
			return true
		}
	}
	return false
}

// testRefused holds case L16: what is refused leaves no queue pair.
func testRefused(t *testing.T, p Pair) {
	ctx := t.Context()
	a, b := newEnd(t, p.A, p.PortA), newEnd(t, p.B, p.PortB)
	other := b.queuePair(toInit(0))
	rtr := a.toRTR(b, other.QPN)
	remote := func(change func(*device.ToRTR)) func(*device.QueuePairSpec) {
		return func(s *device.QueuePairSpec) {
			bad := rtr
			change(&bad)
			s.Steps = []device.Transition{toInit(0), bad, toRTS()}
		}
	}
	rts := func(change func(*device.ToRTS)) func(*device.QueuePairSpec) {
		return func(s *device.QueuePairSpec) {
			bad := toRTS()
			change(&bad)
			s.Steps = []device.Transition{toInit(0), rtr, bad}
		}
	}
	limits := p.A.Info().Limits
	cases := []struct {
		field  string
		change func(*device.QueuePairSpec)
	}{
		{"port", func(s *device.QueuePairSpec) { s.Port = p.A.Info().Ports }},
		{"port", func(s *device.QueuePairSpec) { s.Port = -1 }},
		{"protection_domain", func(s *device.QueuePairSpec) { s.PD += 12345 }},
		{"type", func(s *device.QueuePairSpec) { s.Type = 0 }},
		{"capacities.send_wr", func(s *device.QueuePairSpec) { s.SendWR = limits.SendWR + 1 }},
		{"capacities.recv_wr", func(s *device.QueuePairSpec) { s.RecvWR = -1 }},
		{"capacities.sge", func(s *device.QueuePairSpec) { s.SGE = limits.SGE + 1 }},
		{"pkey", func(s *device.QueuePairSpec) { s.Steps = []device.Transition{device.ToInit{PKey: 0x8000}} }},
		// Case Q04: no GID.
		{"remote_endpoint.gid", remote(func(s *device.ToRTR) { s.Remote.GID = ib.GID{} })},
		// The path leads elsewhere.
		{"remote_endpoint.gid", remote(func(s *device.ToRTR) { s.Remote.GID = a.gid().GID })},
		{"remote_endpoint.qpn", remote(func(s *device.ToRTR) { s.Remote.QPN = 0 })},
		{"remote_endpoint.psn", remote(func(s *device.ToRTR) { s.Remote.PSN = 1 << 24 })},
		{"gid_index", remote(func(s *device.ToRTR) { s.GIDIndex = 200 })},
		{"path_mtu", remote(func(s *device.ToRTR) { s.PathMTU = 0 })},
		{"max_dest_rd_atomic", remote(func(s *device.ToRTR) { s.MaxDestRDAtomic = limits.RDAtomic + 1 })},
		{"min_rnr_timer", remote(func(s *device.ToRTR) { s.MinRNRTimer = 32 })},
		{"psn", rts(func(s *device.ToRTS) { s.PSN = 1 << 24 })},
		{"timeout", rts(func(s *device.ToRTS) { s.Timeout = 32 })},
		{"retry_count", rts(func(s *device.ToRTS) { s.RetryCount = 8 })},
		{"rnr_retry", rts(func(s *device.ToRTS) { s.RNRRetry = 8 })},
		{"max_rd_atomic", rts(func(s *device.ToRTS) { s.MaxRDAtomic = -1 })},
	}
	if p.NotConnected >= 0 {
		cases = append(cases, struct {
			field  string
			change func(*device.QueuePairSpec)
		}{"port", func(s *device.QueuePairSpec) { s.Port = p.NotConnected }})
	}
	before, _ := p.A.ListQueuePairs(ctx)
	for _, c := range cases {
		spec := a.spec()
		c.change(&spec)
		wantField(t, p.A.CreateQueuePairs(ctx, []device.QueuePairSpec{spec})[0].Err, c.field)
	}
	if left, err := p.A.ListQueuePairs(ctx); err != nil || len(left) != len(before) {
		t.Errorf("left after refusals: %+v, %v", left, err)
	}
	// No object holds the domain either.
	wantError(t, p.A.DestroyProtectionDomains(ctx, []device.UID{domainUID(t, p.A, a.pd)})[0], nil)
}

func domainUID(t *testing.T, d device.Device, pd device.PD) device.UID {
	t.Helper()
	list, err := d.ListProtectionDomains(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.PD == pd {
			return e.UID
		}
	}
	t.Fatalf("no domain %d", pd)
	return device.UID{}
}

func testTransitions(t *testing.T, p Pair) {
	a, b := newEnd(t, p.A, p.PortA), newEnd(t, p.B, p.PortB)
	other := b.queuePair(toInit(0))
	rtr := a.toRTR(b, other.QPN)
	transitionsOf(t, ib.RC, a, rtr, toRTS())
	// What a transport has no use for is ignored.
	if has(p.A, device.CapUC) {
		odd := rtr
		odd.MaxDestRDAtomic, odd.MinRNRTimer = -1, 200
		transitionsOf(t, ib.UC, a, odd, device.ToRTS{PSN: firstPSN, Timeout: 200, RetryCount: 200, RNRRetry: 200, MaxRDAtomic: -1})
	}
	if has(p.A, device.CapUD) {
		transitionsOf(t, ib.UD, a, device.ToRTR{GIDIndex: -1}, device.ToRTS{PSN: firstPSN})
	}
	// Once more from INIT: the same number connects anew.
	qp := a.queuePair(toInit(0), rtr, toRTS())
	if qp.Remote != rtr.Remote || qp.PathMTU != rtr.PathMTU || qp.GID != a.gid().GID || qp.GIDIndex != rtr.GIDIndex {
		t.Errorf("connected queue pair %+v", qp)
	}
	r := a.modify(qp, device.ToReset{}, toInit(0))
	if r.Err != nil || r.State != ib.Init || r.QPN != qp.QPN || !r.Remote.GID.IsZero() || r.GIDIndex != -1 {
		t.Errorf("after RESET and INIT: %+v", r)
	}
}

// transitionsOf tries every step from every state that is entered by steps.
func transitionsOf(t *testing.T, typ ib.QPType, a *end, rtr device.ToRTR, rts device.ToRTS) {
	t.Helper()
	steps := map[ib.QPState]device.Transition{
		ib.Reset: device.ToReset{}, ib.Init: toInit(0), ib.RTR: rtr, ib.RTS: rts,
		ib.SQD: device.ToSQD{}, ib.Err: device.ToErr{},
	}
	path := map[ib.QPState][]ib.QPState{
		ib.Reset: nil, ib.Init: {ib.Init}, ib.RTR: {ib.Init, ib.RTR}, ib.RTS: {ib.Init, ib.RTR, ib.RTS},
		ib.SQD: {ib.Init, ib.RTR, ib.RTS, ib.SQD}, ib.Err: {ib.Err},
	}
	legal := map[[2]ib.QPState]bool{
		{ib.Reset, ib.Init}: true, {ib.Init, ib.Init}: true, {ib.Init, ib.RTR}: true, {ib.RTR, ib.RTS}: true,
		{ib.RTS, ib.RTS}: true, {ib.RTS, ib.SQD}: true, {ib.SQD, ib.RTS}: true, {ib.SQD, ib.SQD}: true,
	}
	for from := range path {
		for to, step := range steps {
			var way []device.Transition
			for _, s := range path[from] {
				way = append(way, steps[s])
			}
			qp := a.queuePairOf(typ, way...)
			if qp.State != from {
				t.Fatalf("%v: the way to %v led to %v", typ, from, qp.State)
			}
			r := a.modify(qp, step)
			if legal[[2]ib.QPState{from, to}] || to == ib.Reset || to == ib.Err {
				if r.Err != nil || r.State != to || r.QPN != qp.QPN {
					t.Errorf("%v: %v to %v: %+v", typ, from, to, r)
				}
				continue
			}
			var refused *ib.TransitionError
			if !errors.As(r.Err, &refused) || refused.From != from || refused.To != to ||
				!strings.Contains(r.Err.Error(), from.String()) || !strings.Contains(r.Err.Error(), to.String()) {
				t.Errorf("%v: %v to %v: error %v", typ, from, to, r.Err)
			}
			if got := a.get(qp); r.State != from || !reflect.DeepEqual(got, qp) {
				t.Errorf("%v: %v to %v was refused and changed %+v to %+v", typ, from, to, qp, got)
			}
		}
	}
}

func testBatches(t *testing.T, p Pair) {
	ctx := t.Context()
	e := newEnd(t, p.A, p.PortA)
	specs := []device.QueuePairSpec{e.spec(toInit(0)), e.spec(toRTS()), e.spec(toInit(0))}
	made := p.A.CreateQueuePairs(ctx, specs)
	if made[0].Err != nil || made[2].Err != nil || made[2].UID != specs[2].UID {
		t.Errorf("%+v", made)
	}
	wantError(t, made[1].Err, ib.ErrTransition)
	changed := p.A.ModifyQueuePairs(ctx, []device.QueuePairChange{
		{UID: specs[0].UID, Steps: []device.Transition{device.ToErr{}, toInit(0)}},
		{UID: specs[1].UID, Steps: []device.Transition{device.ToErr{}}},
		{UID: specs[2].UID, Steps: []device.Transition{device.ToErr{}, device.ToReset{}}},
	})
	wantError(t, changed[0].Err, ib.ErrTransition)
	if changed[0].State != ib.Err {
		t.Errorf("the state reached is %v, want ERR", changed[0].State)
	}
	wantError(t, changed[1].Err, device.ErrNotFound)
	if changed[2].Err != nil || changed[2].State != ib.Reset {
		t.Errorf("%+v", changed[2])
	}
}
