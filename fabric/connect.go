package fabric

import (
	"context"
	"fmt"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// checkPath checks the remote endpoint of a queue pair against its port, and
// writes what was found to ask. need says that the target needs a peer; a UD
// queue pair never has one. Fabric.mu is held.
func (f *Fabric) checkPath(op string, r *record, ask *qpAsk, remote *Endpoint, need bool) error {
	fault := func(reason Reason, field, message string, details map[string]string) error {
		return &Error{Op: op, Name: r.name, Field: field, Reason: reason, Message: message, Details: details}
	}
	if ask.Type == ib.UD {
		if remote != nil {
			return fault(FieldInvalid, "remote_endpoint", "a UD queue pair has no peer: each send names its destination", nil)
		}
		return f.checkGIDIndex(fault, r.card, ask)
	}
	if remote == nil {
		if need && ask.Remote == nil {
			return violations{{Field: "remote_endpoint.gid", Reason: FieldRequired, Problem: "the way to RTR needs the peer's GID, QPN and PSN"},
				{Field: "remote_endpoint.qpn", Reason: FieldRequired, Problem: "want 2 to 0xffffff"}}.err(op, r.name)
		}
		return f.checkGIDIndex(fault, r.card, ask)
	}
	var v violations
	if remote.GID.IsZero() {
		v.required("remote_endpoint.gid", "want the peer's GID, as its local_endpoint tells it")
	}
	if remote.QPN < 2 || remote.QPN > 0xffffff {
		v.invalid("remote_endpoint.qpn", fmt.Sprintf("%#x: want 2 to 0xffffff", uint32(remote.QPN)))
	}
	if remote.PSN > 0xffffff {
		v.invalid("remote_endpoint.psn", fmt.Sprintf("%#x: want 0 to 0xffffff", uint32(remote.PSN)))
	}
	if err := v.err(op, r.name); err != nil {
		return err
	}
	port := &r.card.ports[ask.Port]
	local, err := pickGID(fault, port, ask, remote)
	if err != nil {
		return err
	}
	if p := remote.PKey; p != 0 && (p&0x7fff != pkeyDefault&0x7fff || (p|pkeyDefault)&0x8000 == 0) {
		return fault(PKeyMismatch, "remote_endpoint.pkey", fmt.Sprintf("the peer's P_Key %#04x and this end's %#04x have nothing in common", uint16(p), uint16(pkeyDefault)),
			map[string]string{"local_pkey": fmt.Sprintf("%#04x", uint16(pkeyDefault)), "remote_pkey": fmt.Sprintf("%#04x", uint16(p))})
	}
	mtu := ask.PathMTU
	carried := port.ActiveMTU
	if remote.ActiveMTU != 0 {
		carried = min(carried, remote.ActiveMTU)
	}
	if mtu == 0 {
		mtu = carried
	}
	if mtu > carried {
		return fault(MTUMismatch, "attributes.path_mtu_bytes", fmt.Sprintf("%d bytes: this port carries %d and the peer's %d (0: not told)", mtu.Bytes(), port.ActiveMTU.Bytes(), remote.ActiveMTU.Bytes()),
			map[string]string{"asked_bytes": itoa(mtu.Bytes()), "local_bytes": itoa(port.ActiveMTU.Bytes()), "remote_bytes": itoa(remote.ActiveMTU.Bytes())})
	}
	if err := f.checkCable(fault, r.card, port, remote); err != nil {
		return err
	}
	ask.Remote = &remoteAsk{GID: remote.GID, QPN: remote.QPN, PSN: remote.PSN, PathMTU: mtu, GIDIndex: local, PKey: remote.PKey, Port: remote.Port}
	return nil
}

type faultFunc = func(reason Reason, field, message string, details map[string]string) error

// checkGIDIndex checks an index that is asked for without a peer.
func (f *Fabric) checkGIDIndex(fault faultFunc, c *card, ask *qpAsk) error {
	if ask.GIDIndex < 0 {
		return nil
	}
	for _, e := range c.ports[ask.Port].GIDs {
		if e.Index == ask.GIDIndex {
			return nil
		}
	}
	return fault(FieldInvalid, "attributes.gid_index", fmt.Sprintf("%d: port %d has no such entry in its GID table", ask.GIDIndex, ask.Port), nil)
}

// pickGID gives the local GID's index for a peer: RoCE v2, of the peer's
// address family.
func pickGID(fault faultFunc, port *device.Port, ask *qpAsk, remote *Endpoint) (int, error) {
	family := func(g ib.GID) string {
		switch {
		case g.IsIPv4Mapped():
			return "IPv4"
		case g.IsLinkLocal():
			return "IPv6 link-local"
		}
		return "IPv6"
	}
	mismatch := func(have *device.GIDEntry) error {
		text, kind := "none", "no RoCE v2 GID"
		if have == nil {
			have = localGID(port, -1)
		}
		if have != nil {
			text, kind = have.GID.String(), fmt.Sprintf("%s (%v, %s)", have.GID, have.Type, family(have.GID))
		}
		of := family(remote.GID)
		if remote.HasType {
			of = remote.GIDType.String() + ", " + of
		}
		return fault(GIDFamilyMismatch, "remote_endpoint.gid", fmt.Sprintf("the ends do not fit: local %s, remote %s (%s); both need RoCE v2 and one address family", kind, remote.GID, of),
			map[string]string{"local_gid": text, "remote_gid": remote.GID.String()})
	}
	for i := range port.GIDs {
		e := &port.GIDs[i]
		fits := e.Type == ib.RoCEv2 && family(e.GID) == family(remote.GID) && (!remote.HasType || remote.GIDType == ib.RoCEv2)
		switch {
		case ask.GIDIndex >= 0 && e.Index == ask.GIDIndex:
			if !fits {
				return 0, mismatch(e)
			}
			return e.Index, nil
		case ask.GIDIndex < 0 && fits:
			return e.Index, nil
		}
	}
	if ask.GIDIndex >= 0 {
		return 0, fault(FieldInvalid, "attributes.gid_index", fmt.Sprintf("%d: port %d has no such entry in its GID table", ask.GIDIndex, ask.Port), nil)
	}
	return 0, mismatch(nil)
}

// checkCable refuses a peer at which no cable of the port ends, as far as the
// node knows: the device checks too.
func (f *Fabric) checkCable(fault faultFunc, c *card, port *device.Port, remote *Endpoint) error {
	details := map[string]string{"port": c.portName(port.Number), "remote_gid": remote.GID.String()}
	switch port.Class {
	case device.PortNotConnected:
		return fault(PathNotCabled, "port", fmt.Sprintf("port %d of %s has no cable", port.Number, c.name), details)
	case device.PortInternal:
		peer := f.peerCard(c, port)
		if peer == nil || port.PeerPort < 0 || port.PeerPort >= len(peer.ports) {
			return nil
		}
		for _, e := range peer.ports[port.PeerPort].GIDs {
			if e.GID == remote.GID {
				return nil
			}
		}
		details["peer"] = peer.portName(port.PeerPort)
		return fault(PathNotCabled, "remote_endpoint.gid", fmt.Sprintf("%s is not at the other end of port %d's cable, which is %s", remote.GID, port.Number, details["peer"]), details)
	}
	return nil
}

// peerCard is the card at the other end of an internal port's cable; nil where
// it is not on this node or not to be told from another.
func (f *Fabric) peerCard(c *card, port *device.Port) *card {
	var peer *card
	for _, x := range f.cards {
		if x.dev != nil && x.info.ModuleID == port.PeerModule && x.info.Driver == c.info.Driver && x.info.Topology == c.info.Topology {
			if peer != nil {
				return nil
			}
			peer = x
		}
	}
	return peer
}

// readPorts brings the ports up to date that a batch of creates connects by.
func (f *Fabric) readPorts(ctx context.Context, c Caller, op string, rs []CreateQueuePair) error {
	type end struct {
		card *card
		port int
	}
	var ends []end
	f.mu.RLock()
	seen := map[end]bool{}
	for i := range rs {
		if rs[i].Remote == nil {
			continue
		}
		if id, ok := f.child(rs[i].Parent, "devices"); ok {
			e := end{f.card[id], rs[i].Port}
			if e.card != nil && e.card.known && !seen[e] && e.port >= 0 && e.port < e.card.info.Ports {
				seen[e] = true
				ends = append(ends, e)
			}
		}
	}
	f.mu.RUnlock()
	for _, e := range ends {
		if err := e.card.freshPort(ctx, op, e.port); err != nil {
			return err
		}
	}
	return nil
}

func (c *card) freshPort(ctx context.Context, op string, n int) error {
	if _, err := c.readPortCtx(ctx, n); err != nil {
		return &Error{Op: op, Name: c.portName(n), Reason: DeviceUnavailable, Message: "the port cannot be read", Err: err}
	}
	return nil
}

// aim is what a request wants of one queue pair.
type aim struct {
	update Update
	target ib.QPState
	remote *Endpoint
	attrs  *Attributes
}

// ConnectQueuePairs takes queue pairs to RTS. All are checked before anything
// is done, and what is asked is one commit. Of a single request a failure of
// the device is the error; of several each queue pair's Condition tells.
func (f *Fabric) ConnectQueuePairs(ctx context.Context, c Caller, validateOnly bool, rs []ConnectQueuePair) ([]QueuePair, error) {
	const op = "ConnectQueuePairs"
	if err := checkBatch(op, len(rs)); err != nil {
		return nil, err
	}
	aims := make([]aim, len(rs))
	for i := range rs {
		aims[i] = aim{rs[i].Update, ib.RTS, &rs[i].Remote, &rs[i].Attributes}
	}
	return f.moveTo(ctx, c, op, validateOnly, aims)
}

// ModifyQueuePair takes a queue pair to a state. STATE_INVALID names both
// states where the way is not allowed.
func (f *Fabric) ModifyQueuePair(ctx context.Context, c Caller, r ModifyQueuePair) (QueuePair, error) {
	qs, err := f.moveTo(ctx, c, "ModifyQueuePair", r.ValidateOnly, []aim{{r.Update, r.Target, r.Remote, &r.Attributes}})
	if len(qs) == 0 {
		return QueuePair{}, err
	}
	return qs[0], err
}

func (f *Fabric) moveTo(ctx context.Context, c Caller, op string, validateOnly bool, aims []aim) ([]QueuePair, error) {
	if err := f.freshPorts(ctx, c, op, aims); err != nil {
		return nil, err
	}
	next := make([]*qpAsk, len(aims))
	recs, err := f.lockIdle(ctx, op, func() ([]*record, error) {
		recs := make([]*record, len(aims))
		for i := range aims {
			r, err := f.findUsable(c, op, kindQueuePair, "name", aims[i].update.Name)
			if err != nil {
				return nil, atIndex(err, i)
			}
			recs[i] = r
		}
		return recs, nil
	})
	if err != nil {
		return nil, err
	}
	var moving []*record
	var steps []*qpAsk
	seen := map[*record]bool{}
	for i, r := range recs {
		if next[i], err = f.aimAt(op, r, &aims[i]); err == nil && seen[r] {
			err = violations{{Field: "name", Reason: FieldInvalid, Problem: "the batch has it twice"}}.err(op, r.name)
		}
		if err != nil {
			f.mu.Unlock()
			return nil, atIndex(err, i)
		}
		seen[r] = true
		if next[i] != nil {
			moving, steps = append(moving, r), append(steps, next[i])
		}
	}
	if validateOnly || len(moving) == 0 {
		defer f.mu.Unlock()
		return f.viewQPs(c, recs), nil
	}
	ch := newChange(changeMove, op, c.Identity, moving)
	ch.claim()
	nexts := make([]*stored, len(moving))
	var change Change
	for i, r := range moving {
		nexts[i] = r.with(func(s *stored) { s.QPAsk = steps[i] })
		ev := r.event(EventChanged, c.Identity, CauseRequested)
		ev.Before, ev.After = r.label(), steps[i].Target.String()
		if err = change.put(&record{id: r.id, name: r.name, stored: nexts[i]}); err == nil {
			err = change.event(ev)
		}
		if err != nil {
			break
		}
	}
	f.mu.Unlock()
	if err == nil {
		err = f.commit(op, change)
	}
	f.mu.Lock()
	if err != nil {
		ch.release()
		f.mu.Unlock()
		return nil, err
	}
	for i, r := range moving {
		r.stored, r.failure = nexts[i], Condition{}
		r.card.push(r)
	}
	f.mu.Unlock()
	err = f.wait(ctx, ch)
	f.mu.RLock()
	defer f.mu.RUnlock()
	select {
	case <-ch.done: // a device's refusal of one of many is in its condition
		if len(aims) > 1 {
			err = nil
		}
	default:
	}
	return f.viewQPs(c, recs), err
}

func (f *Fabric) viewQPs(c Caller, recs []*record) []QueuePair {
	out := make([]QueuePair, len(recs))
	for i, r := range recs {
		out[i] = f.viewQP(c, r)
	}
	return out
}

// freshPorts brings up to date the ports that queue pairs connect by.
func (f *Fabric) freshPorts(ctx context.Context, c Caller, op string, aims []aim) error {
	type end struct {
		card *card
		port int
	}
	ends := map[end]bool{}
	f.mu.RLock()
	for i := range aims {
		r, err := f.find(c, op, kindQueuePair, "name", aims[i].update.Name)
		if err == nil && aims[i].remote != nil && r.card.known {
			ends[end{r.card, r.QPAsk.Port}] = true
		}
	}
	f.mu.RUnlock()
	for e := range ends {
		if err := e.card.freshPort(ctx, op, e.port); err != nil {
			return err
		}
	}
	return nil
}

// aimAt checks what is wanted of a queue pair, and gives the ask that says so;
// nil if there is nothing to change. Fabric.mu is held.
func (f *Fabric) aimAt(op string, r *record, a *aim) (*qpAsk, error) {
	if err := checkETag(op, a.update.ETag, r); err != nil {
		return nil, err
	}
	if err := r.card.usable(); err != nil {
		err.Op = op
		return nil, err
	}
	if !r.there {
		return nil, &Error{Op: op, Name: r.name, Reason: StateInvalid, Message: "the queue pair is not on the device yet", Details: map[string]string{"state": string(r.state())}}
	}
	var v violations
	ask := *r.QPAsk
	ask.apply(&v, a.attrs, &r.card.info)
	if a.target == ib.SQE || !a.target.Valid() {
		v.invalid("target_state", fmt.Sprintf("%v: want RESET, INIT, RTR, RTS, SQD or ERR", a.target))
	}
	if err := v.err(op, r.name); err != nil {
		return nil, err
	}
	at := r.is.state
	ask.Target = a.target
	same := a.remote != nil && ask.Remote != nil && ask.Remote.GID == a.remote.GID && ask.Remote.QPN == a.remote.QPN && ask.Remote.PSN == a.remote.PSN
	if a.target == at && r.QPAsk.Target == at && (same || a.remote == nil) && ask == *r.QPAsk {
		return nil, nil
	}
	steps, err := qpSteps(&ask, at, a.target)
	if err != nil || a.remote != nil && ask.Remote != nil && !same && at > ib.Init {
		e := &Error{Op: op, Name: r.name, Field: "target_state", Reason: StateInvalid, Details: map[string]string{"state": at.String(), "asked": a.target.String()}}
		e.Message = fmt.Sprintf("a queue pair in %v cannot go to %v; modify it to RESET or INIT first", at, a.target)
		if err == nil {
			e.Field = "remote_endpoint"
			e.Message = fmt.Sprintf("the queue pair in %v is connected with GID %v QPN %#x; modify it to RESET or INIT first to connect it in %v with another", at, ask.Remote.GID, uint32(ask.Remote.QPN), a.target)
		}
		return nil, e
	}
	if len(steps) == 0 && *a.attrs != (Attributes{}) {
		return nil, &Error{Op: op, Name: r.name, Field: "attributes", Reason: StateInvalid, Details: map[string]string{"state": at.String(), "asked": a.target.String()},
			Message: "the queue pair is in " + at.String() + " already; attributes change only on the way to a state"}
	}
	if a.target == ib.Reset || a.target == ib.Init {
		ask.Remote = nil
		if a.remote != nil {
			return nil, violations{{Field: "remote_endpoint", Reason: FieldInvalid, Problem: "a queue pair in " + a.target.String() + " has no peer"}}.err(op, r.name)
		}
	}
	passes := false
	for _, s := range steps {
		passes = passes || s.Target() == ib.RTR
	}
	if a.remote != nil || passes {
		if err := f.checkPath(op, r, &ask, a.remote, passes); err != nil {
			return nil, err
		}
	}
	return &ask, nil
}
