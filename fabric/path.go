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
		if port := &r.card.ports[ask.Port]; need && port.Class == device.PortNotConnected {
			return fault(PathNotCabled, "port", fmt.Sprintf("port %d of %s has no cable", ask.Port, r.card.name), map[string]string{"port": r.card.portName(ask.Port)})
		}
		return f.checkGIDIndex(fault, r.card, ask)
	}
	if remote == nil {
		if need && ask.Remote == nil {
			return violations{{Field: "remote_endpoint.gid", Reason: FieldRequired, Problem: "the way to RTR needs the peer's GID, QPN and PSN"},
				{Field: "remote_endpoint.qpn", Reason: FieldRequired, Problem: "want 2 to 0xfffffe"}}.err(op, r.name)
		}
		return f.checkGIDIndex(fault, r.card, ask)
	}
	if err := checkEndpoint(op, r.name, remote); err != nil {
		return err
	}
	port := &r.card.ports[ask.Port]
	index, err := pickGID(fault, port, ask, remote)
	if err != nil {
		return err
	}
	if err := checkPKey(fault, remote.PKey); err != nil {
		return err
	}
	mtu, err := pickMTU(fault, port, ask, remote)
	if err != nil {
		return err
	}
	if err := f.checkCable(fault, r.card, port, remote); err != nil {
		return err
	}
	ask.Remote = &remoteAsk{GID: remote.GID, QPN: remote.QPN, PSN: remote.PSN, PathMTU: mtu, GIDIndex: index, PKey: remote.PKey, Port: remote.Port}
	return nil
}

// checkEndpoint checks the form of a remote endpoint.
func checkEndpoint(op, name string, remote *Endpoint) error {
	var v violations
	if remote.GID.IsZero() {
		v.required("remote_endpoint.gid", "want the peer's GID, as its local_endpoint tells it")
	}
	if remote.QPN < 2 || remote.QPN >= ib.MaxQPN { // the last is multicast
		v.invalid("remote_endpoint.qpn", fmt.Sprintf("%#x: want 2 to 0xfffffe", uint32(remote.QPN)))
	}
	if remote.PSN > 0xffffff {
		v.invalid("remote_endpoint.psn", fmt.Sprintf("%#x: want 0 to 0xffffff", uint32(remote.PSN)))
	}
	return v.err(op, name)
}

// faultFunc makes the refusal of a path.
type faultFunc = func(reason Reason, field, message string, details map[string]string) error

// checkGIDIndex checks an index that is asked for without a peer.
func (f *Fabric) checkGIDIndex(fault faultFunc, c *card, ask *qpAsk) error {
	if ask.GIDIndex < 0 {
		return nil
	}
	for _, e := range c.ports[ask.Port].GIDs {
		switch {
		case e.Index != ask.GIDIndex:
		case e.Type != ib.RoCEv2 && ask.Type == ib.UD: // with a peer both ends can be named
			return fault(FieldInvalid, "attributes.gid_index", fmt.Sprintf("%d: the entry is of %v, want one of RoCE v2", ask.GIDIndex, e.Type), nil)
		default:
			return nil
		}
	}
	return fault(FieldInvalid, "attributes.gid_index", fmt.Sprintf("%d: port %d has no such entry in its GID table", ask.GIDIndex, ask.Port), nil)
}

// pickGID gives the local GID's index for a peer: RoCE v2, of the peer's
// address family.
func pickGID(fault faultFunc, port *device.Port, ask *qpAsk, remote *Endpoint) (int, error) {
	mismatch := func(have *device.GIDEntry) error {
		text, kind := "none", "no RoCE v2 GID"
		if have == nil {
			have = localGID(port, -1)
		}
		if have != nil {
			text, kind = have.GID.String(), fmt.Sprintf("%s (%v, %s)", have.GID, have.Type, have.GID.Family())
		}
		of := remote.GID.Family()
		if remote.HasType {
			of = remote.GIDType.String() + ", " + of
		}
		return fault(GIDFamilyMismatch, "remote_endpoint.gid", fmt.Sprintf("the ends do not fit: local %s, remote %s (%s); both need RoCE v2 and one address family", kind, remote.GID, of),
			map[string]string{"local_gid": text, "remote_gid": remote.GID.String()})
	}
	for i := range port.GIDs {
		e := &port.GIDs[i]
		fits := e.Type == ib.RoCEv2 && e.GID.Family() == remote.GID.Family() && (!remote.HasType || remote.GIDType == ib.RoCEv2)
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

// checkPKey refuses a peer whose partition is another; 0 is not told.
func checkPKey(fault faultFunc, remote ib.PKey) error {
	if remote == 0 || ib.DefaultPKey.Matches(remote) {
		return nil
	}
	local, other := fmt.Sprintf("%#04x", uint16(ib.DefaultPKey)), fmt.Sprintf("%#04x", uint16(remote))
	return fault(PKeyMismatch, "remote_endpoint.pkey", fmt.Sprintf("the peer's P_Key %s and this end's %s have nothing in common", other, local),
		map[string]string{"local_pkey": local, "remote_pkey": other})
}

// pickMTU gives the path MTU: the one that is asked, else the largest that both
// ports carry, as far as the peer's is told.
func pickMTU(fault faultFunc, port *device.Port, ask *qpAsk, remote *Endpoint) (ib.MTU, error) {
	carried := port.ActiveMTU
	if remote.ActiveMTU != 0 {
		carried = min(carried, remote.ActiveMTU)
	}
	switch mtu := ask.PathMTU; {
	case mtu == 0:
		return carried, nil
	case mtu > carried:
		return 0, fault(MTUMismatch, "attributes.path_mtu_bytes",
			fmt.Sprintf("%d bytes: this port carries %d and the peer's %d (0: not told)", mtu.Bytes(), port.ActiveMTU.Bytes(), remote.ActiveMTU.Bytes()),
			map[string]string{"asked_bytes": itoa(mtu.Bytes()), "local_bytes": itoa(port.ActiveMTU.Bytes()), "remote_bytes": itoa(remote.ActiveMTU.Bytes())})
	}
	return ask.PathMTU, nil
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

// end is a port that queue pairs are to connect by.
type end struct {
	card *card
	port int
}

// readEnds brings ports up to date, before paths from them are checked.
func readEnds(ctx context.Context, op string, ends map[end]bool) error {
	for e := range ends {
		if _, err := e.card.readPort(ctx, e.port); err != nil {
			return &Error{Op: op, Name: e.card.portName(e.port), Reason: DeviceUnavailable, Message: "the port cannot be read", Err: err}
		}
	}
	return nil
}

// endsOfCreates gives the ports of creates that are to have a path. What is wrong
// with a request is told later.
func (f *Fabric) endsOfCreates(rs []CreateQueuePair) map[end]bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	ends := map[end]bool{}
	for i := range rs {
		id, ok := f.child(rs[i].Parent, "devices")
		if c := f.card[id]; ok && (rs[i].Remote != nil || rs[i].Type == ib.UD) && c != nil && c.known && rs[i].Port >= 0 && rs[i].Port < c.info.Ports {
			ends[end{c, rs[i].Port}] = true
		}
	}
	return ends
}

// endsOfAims gives the ports of queue pairs that are to connect.
func (f *Fabric) endsOfAims(c Caller, op string, aims []aim) map[end]bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	ends := map[end]bool{}
	for i := range aims {
		r, err := f.find(c, op, kindQueuePair, "name", aims[i].update.Name)
		if err == nil && aims[i].remote != nil && r.card.known {
			ends[end{r.card, r.QPAsk.Port}] = true
		}
	}
	return ends
}
