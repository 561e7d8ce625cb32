package fabric

import (
	"fmt"
	"slices"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// An attribute says which types of queue pair have one of the Attributes, and
// with which step the device is told it.
type attribute struct {
	field string // in the contract, below "attributes."
	types []ib.QPType
	step  ib.QPState
	given func(*Attributes) bool
	clear func(*Attributes)
}

var (
	reliable  = []ib.QPType{ib.RC}
	connected = []ib.QPType{ib.RC, ib.UC}
	datagram  = []ib.QPType{ib.UD}
	everyType = []ib.QPType{ib.RC, ib.UC, ib.UD}
)

// attributes is what device/ib's table of transitions asks of each type.
var attributes = []attribute{
	{"path_mtu_bytes", connected, ib.RTR, func(a *Attributes) bool { return a.PathMTU != 0 }, func(a *Attributes) { a.PathMTU = 0 }},
	held("timeout", reliable, ib.RTS, func(a *Attributes) **uint8 { return &a.Timeout }),
	held("retry_count", reliable, ib.RTS, func(a *Attributes) **uint8 { return &a.RetryCount }),
	held("rnr_retry", reliable, ib.RTS, func(a *Attributes) **uint8 { return &a.RNRRetry }),
	held("min_rnr_timer", reliable, ib.RTR, func(a *Attributes) **uint8 { return &a.MinRNRTimer }),
	held("max_rd_atomic", reliable, ib.RTS, func(a *Attributes) **int { return &a.MaxRDAtomic }),
	held("max_dest_rd_atomic", reliable, ib.RTR, func(a *Attributes) **int { return &a.MaxDestRDAtomic }),
	held("traffic_class", everyType, ib.RTR, func(a *Attributes) **uint8 { return &a.TrafficClass }),
	held("hop_limit", everyType, ib.RTR, func(a *Attributes) **uint8 { return &a.HopLimit }),
	held("gid_index", everyType, ib.RTR, func(a *Attributes) **int { return &a.GIDIndex }),
	held("psn", everyType, ib.RTS, func(a *Attributes) **ib.PSN { return &a.PSN }),
	held("qkey", datagram, ib.Init, func(a *Attributes) **ib.QKey { return &a.QKey }),
	held("remote_access", connected, ib.Init, func(a *Attributes) **ib.Access { return &a.Access }),
}

// held is an attribute that is not given where its pointer is nil.
func held[T any](field string, types []ib.QPType, step ib.QPState, at func(*Attributes) **T) attribute {
	return attribute{field, types, step, func(a *Attributes) bool { return *at(a) != nil }, func(a *Attributes) { *at(a) = nil }}
}

// of leaves the attributes that a type has.
func (a *Attributes) of(t ib.QPType) {
	for i := range attributes {
		if x := &attributes[i]; !slices.Contains(x.types, t) {
			x.clear(a)
		}
	}
}

// tooLate gives the field of an attribute that the device was told before and
// is not told again on the way from a state by steps; "" if there is none.
func (a *Attributes) tooLate(at ib.QPState, steps []device.Transition) string {
	again := func(s device.Transition) bool { return s.Target() != ib.RTS || at <= ib.RTR }
	if at == ib.Err { // the way out is by RESET, which takes all
		return ""
	}
	for i := range attributes {
		x := &attributes[i]
		told := at >= x.step // SQD and SQE come after RTS
		if told && x.given(a) && !slices.ContainsFunc(steps, func(s device.Transition) bool {
			return s.Target() == ib.Reset || s.Target() == ib.Err || s.Target() == x.step && again(s)
		}) {
			return "attributes." + x.field
		}
	}
	return ""
}

// apply takes the attributes that are set into the ask.
func (q *qpAsk) apply(v *violations, a *Attributes, info *device.Info) {
	for i := range attributes {
		if x := &attributes[i]; x.given(a) && !slices.Contains(x.types, q.Type) {
			v.invalid("attributes."+x.field, fmt.Sprintf("a %v queue pair has none: leave it out", q.Type))
		}
	}
	byteOf := func(field string, p *uint8, low, high int, to *uint8) {
		if p != nil {
			within(v, "attributes."+field, int(*p), low, high)
			*to = *p
		}
	}
	byteOf("timeout", a.Timeout, 0, 31, &q.Timeout)
	byteOf("retry_count", a.RetryCount, 0, 7, &q.RetryCount)
	byteOf("rnr_retry", a.RNRRetry, 0, 7, &q.RNRRetry)
	byteOf("min_rnr_timer", a.MinRNRTimer, 0, 31, &q.MinRNRTimer)
	byteOf("traffic_class", a.TrafficClass, 0, 255, &q.TrafficClass)
	byteOf("hop_limit", a.HopLimit, 1, 255, &q.HopLimit)
	for _, x := range []struct {
		field string
		p     *int
		to    *int
	}{{"max_rd_atomic", a.MaxRDAtomic, &q.MaxRDAtomic}, {"max_dest_rd_atomic", a.MaxDestRDAtomic, &q.MaxDestRDAtomic}} {
		if x.p != nil {
			within(v, "attributes."+x.field, *x.p, 0, info.Limits.RDAtomic)
			*x.to = *x.p
		}
	}
	if a.PathMTU != 0 {
		if !a.PathMTU.Valid() || a.PathMTU > info.Limits.MaxMTU {
			v.invalid("attributes.path_mtu_bytes", fmt.Sprintf("want 256, 512, 1024, 2048 or 4096, and at most the device's %d", info.Limits.MaxMTU.Bytes()))
		}
		q.PathMTU = a.PathMTU
	}
	if a.GIDIndex != nil {
		if *a.GIDIndex < 0 {
			v.invalid("attributes.gid_index", "want an index of the port's GID table")
		}
		q.GIDIndex = *a.GIDIndex
	}
	if a.PSN != nil {
		if *a.PSN > 0xffffff {
			v.invalid("attributes.psn", "want 0 to 0xffffff")
		}
		q.PSN = *a.PSN
	}
	if a.QKey != nil {
		q.QKey = *a.QKey
	}
	if a.Access != nil {
		allowed := map[ib.QPType]ib.Access{ib.RC: ib.RemoteWrite | ib.RemoteRead | ib.RemoteAtomic, ib.UC: ib.RemoteWrite}[q.Type]
		if *a.Access&^allowed != 0 && allowed != 0 {
			v.invalid("attributes.remote_access", fmt.Sprintf("%v: a %v queue pair may have %v", *a.Access, q.Type, allowed))
		}
		q.Access = *a.Access
	}
}
