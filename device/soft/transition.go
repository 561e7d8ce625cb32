package soft

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/topology"
)

// steps takes the queue pair through transitions, up to the first that fails.
func (qp *queuePair) steps(steps []device.Transition, now time.Time) error {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	for _, t := range steps {
		if qp.transport == nil {
			return fmt.Errorf("queue pair: %w", device.ErrNotFound)
		}
		if err := qp.step(t, now); err != nil {
			return err
		}
	}
	return nil
}

// attributes are those that a step gives, for the table of device/ib: of the
// fields of a Transition, the ones that the transport has a use for. The others
// are ignored. Back to RTS from SQD and SQE only the state changes.
func attributes(transport ib.QPType, from ib.QPState, t device.Transition) ib.AttrMask {
	given := attributesOf[transport]
	switch t.(type) {
	case device.ToInit:
		return ib.AttrState | given.init
	case device.ToRTR:
		return ib.AttrState | given.rtr
	case device.ToRTS:
		if from == ib.RTR || from == ib.Reset || from == ib.Init {
			return ib.AttrState | given.rts
		}
	}
	return ib.AttrState
}

var attributesOf = [...]struct{ init, rtr, rts ib.AttrMask }{
	ib.RC: {
		init: ib.AttrPKeyIndex | ib.AttrPort | ib.AttrAccessFlags,
		rtr:  ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN | ib.AttrMaxDestRdAtomic | ib.AttrMinRNRTimer,
		rts:  ib.AttrSQPSN | ib.AttrTimeout | ib.AttrRetryCnt | ib.AttrRNRRetry | ib.AttrMaxQPRdAtomic,
	},
	ib.UC: {
		init: ib.AttrPKeyIndex | ib.AttrPort | ib.AttrAccessFlags,
		rtr:  ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN,
		rts:  ib.AttrSQPSN,
	},
	ib.UD: {
		init: ib.AttrPKeyIndex | ib.AttrPort | ib.AttrQKey,
		rts:  ib.AttrSQPSN,
	},
}

func (qp *queuePair) step(t device.Transition, now time.Time) error {
	from := qp.info.State
	if err := ib.CheckTransition(qp.info.Type, from, t.Target(), attributes(qp.info.Type, from, t)); err != nil {
		return err
	}
	switch s := t.(type) {
	case device.ToInit:
		if err := checkInit(s); err != nil {
			return err
		}
	case device.ToRTR:
		if err := qp.checkRTR(s); err != nil {
			return err
		}
		if qp.info.Type == ib.UD {
			s.Remote, s.PathMTU = device.Remote{}, qp.port.mtu
			t = s
		}
	case device.ToRTS:
		if from == ib.RTS {
			return nil
		}
		if err := qp.checkRTS(s); from == ib.RTR && err != nil {
			return err
		}
	}
	qp.transport.Modify(now, t)
	qp.info.State = t.Target()
	qp.moved(t)
	qp.transmit(now)
	qp.settle()
	return nil
}

// moved notes what a step that was done changes here.
func (qp *queuePair) moved(t device.Transition) {
	switch t := t.(type) {
	case device.ToReset:
		qp.peer.Store(nil)
		qp.completions.reset()
		qp.info.Remote, qp.info.GID, qp.info.GIDIndex, qp.info.PathMTU = device.Remote{}, ib.GID{}, -1, 0
		qp.info.Status, qp.info.Reason = ib.Success, ""
	case device.ToInit:
		qp.pkey = t.PKey
	case device.ToRTR:
		qp.info.Remote, qp.info.PathMTU = t.Remote, t.PathMTU
		if qp.info.Type == ib.UD {
			from := qp.port.preferred()
			if t.GIDIndex >= 0 {
				from = qp.port.entry(t.GIDIndex, ib.GID{})
			}
			qp.info.GID, qp.info.GIDIndex = from.GID, t.GIDIndex
			qp.router = router{port: qp.port, gidIndex: t.GIDIndex, trafficClass: t.TrafficClass, hopLimit: t.HopLimit}
			qp.peer.Store(&peer{pkey: qp.pkey})
			return
		}
		from := qp.port.entry(t.GIDIndex, t.Remote.GID) // as checked
		qp.info.GID, qp.info.GIDIndex = from.GID, from.Index
		qp.transport.SetWindow(qp.port.window(t.PathMTU))
		to := t.Remote.GID.Addr()
		qp.path = newPath(from.socket, to, t.TrafficClass, t.HopLimit)
		qp.peer.Store(&peer{addr: to, socket: from.socket, pkey: qp.pkey})
	case device.ToRTS:
		qp.info.Status, qp.info.Reason = ib.Success, "" // where it comes from SQE
	case device.ToErr:
		qp.peer.Store(nil)
	}
}

func invalid(field, format string, args ...any) error {
	return &device.FieldError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

func checkInit(t device.ToInit) error {
	const known = ib.LocalWrite | ib.RemoteWrite | ib.RemoteRead | ib.RemoteAtomic
	switch {
	case !t.PKey.Valid():
		return invalid("pkey", "%#04x names no partition: the default partition is %#04x", uint16(t.PKey), uint16(ib.DefaultPKey))
	case t.Access&^known != 0:
		return invalid("access", "%v has unknown flags", t.Access)
	}
	return nil
}

func (qp *queuePair) checkRTR(t device.ToRTR) error {
	limits := qp.card.info.Limits
	reliable := qp.info.Type == ib.RC
	switch {
	case qp.info.Type == ib.UD:
		return qp.port.checkIndex(t.GIDIndex)
	case t.Remote.GID.IsZero():
		return invalid("remote_endpoint.gid", "is missing: on RoCE a queue pair is connected by the GID of its peer")
	case t.Remote.QPN < firstQPN || t.Remote.QPN >= ib.MaxQPN:
		return invalid("remote_endpoint.qpn", "%#x: from %#x to %#x", t.Remote.QPN, firstQPN, ib.MaxQPN-1)
	case t.Remote.PSN > maxPSN:
		return invalid("remote_endpoint.psn", "%#x: 24 bits", t.Remote.PSN)
	case !t.PathMTU.Valid():
		return invalid("path_mtu", "%v: 256, 512, 1024, 2048 or 4096 bytes", t.PathMTU)
	case t.PathMTU > qp.port.mtu:
		return invalid("path_mtu", "%v bytes: the active MTU of port %d is %v", t.PathMTU, qp.port.number, qp.port.mtu)
	case reliable && (t.MaxDestRDAtomic < 0 || t.MaxDestRDAtomic > limits.RDAtomic):
		return invalid("max_dest_rd_atomic", "%d: from 0 to %d", t.MaxDestRDAtomic, limits.RDAtomic)
	case reliable && t.MinRNRTimer > 31:
		return invalid("min_rnr_timer", "%d: a code from 0 to 31", t.MinRNRTimer)
	}
	if _, err := qp.port.source(t.GIDIndex, t.Remote.GID); err != nil {
		return err
	}
	return qp.port.checkCable(t.Remote.GID.Addr())
}

// source gives the entry of the GID table (-1: the first of the right family)
// from which packets go to a remote GID.
func (p *port) source(index int, remote ib.GID) (*gidEntry, error) {
	e := p.entry(index, remote)
	switch {
	case e == nil && index < 0:
		return nil, invalid("gid_index", "port %d has no GID of the family of the remote one, %s (%v): it has %s", p.number, remote.Family(), remote, p.table())
	case e == nil:
		return nil, invalid("gid_index", "%d: port %d has %s", index, p.number, p.table())
	case e.GID.Family() != remote.Family():
		return nil, invalid("gid_index", "%d of port %d is %s (%v), the remote GID is %s (%v): both ends must be of one family; port %d has %s",
			index, p.number, e.GID.Family(), e.GID, remote.Family(), remote, p.number, p.table())
	case e.socket == nil:
		return nil, p.carriesNothing(e)
	}
	return e, nil
}

// table lists the GID table for people.
func (p *port) table() string {
	var have []string
	for i := range p.gids {
		have = append(have, fmt.Sprintf("%d (%v)", p.gids[i].Index, p.gids[i].GID))
	}
	return strings.Join(have, ", ")
}

// checkIndex says whether the GID table has an entry that carries packets; -1
// stands for any.
func (p *port) checkIndex(index int) error {
	if index == -1 {
		return nil
	}
	e := p.entry(index, ib.GID{})
	switch {
	case index < 0 || e == nil:
		return invalid("gid_index", "%d: port %d has %s", index, p.number, p.table())
	case e.socket == nil:
		return p.carriesNothing(e)
	}
	return nil
}

// carriesNothing is the error of choosing an entry that has no socket.
func (p *port) carriesNothing(e *gidEntry) error {
	return invalid("gid_index", "%d: the loopback network of port %d has no link-local addresses, %v carries no packets; port %d has %s",
		e.Index, p.number, e.GID, p.number, p.table())
}

// checkCable says whether the port can reach an address.
func (p *port) checkCable(remote netip.Addr) error {
	switch {
	case p.wiring.Class == topology.Internal && remote != p.peer:
		return invalid("remote_endpoint.gid", "%v: port %d of module %d is cabled to port %d of module %d, whose GID is %v",
			ib.GIDFromAddr(remote), p.number, p.card.info.ModuleID, p.wiring.PeerPort, p.wiring.PeerCard, ib.GIDFromAddr(p.peer))
	case p.wiring.Class == topology.ScaleOut && p.own.owns(remote):
		return invalid("remote_endpoint.gid", "%v is a port of this chassis: scale-out port %d of module %d leads out of it",
			ib.GIDFromAddr(remote), p.number, p.card.info.ModuleID)
	case !remote.IsGlobalUnicast() && !remote.IsLoopback() && !remote.IsLinkLocalUnicast():
		return invalid("remote_endpoint.gid", "%v is not the address of one port", ib.GIDFromAddr(remote))
	}
	return nil
}

func (qp *queuePair) checkRTS(t device.ToRTS) error {
	limit := qp.card.info.Limits.RDAtomic
	switch {
	case t.PSN > maxPSN:
		return invalid("psn", "%#x: 24 bits", t.PSN)
	case qp.info.Type != ib.RC:
		return nil
	case t.Timeout > 31:
		return invalid("timeout", "%d: a code from 0 to 31", t.Timeout)
	case t.RetryCount > 7:
		return invalid("retry_count", "%d: from 0 to 7", t.RetryCount)
	case t.RNRRetry > 7:
		return invalid("rnr_retry", "%d: from 0 to 7", t.RNRRetry)
	case t.MaxRDAtomic < 0 || t.MaxRDAtomic > limit:
		return invalid("max_rd_atomic", "%d: from 0 to %d", t.MaxRDAtomic, limit)
	}
	return nil
}
