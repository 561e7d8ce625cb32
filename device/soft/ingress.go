package soft

import (
	"errors"
	"net/netip"
	"time"

	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/soft/transport"
)

// ecnMask is congestion experienced in the type of service of IP.
const ecnMask = 3

// ingress takes in what a port receives. It is used by the port's goroutine
// alone.
type ingress struct {
	port   *port
	packet ib.Packet
	from   transport.Arrival
	lastID uint16 // IP identification of the packet before
	drops  uint32 // as the socket last told
}

// take takes in one arrival. Packets for one queue pair that come together are
// handed to it under one lock and answered together.
func (in *ingress) take(b []byte, a arrival) {
	p := in.port
	p.receiverDrops.Add(uint64(a.drops - in.drops))
	in.drops = a.drops
	if !p.up.Load() {
		return
	}
	count := uint64(1)
	if a.segment > 0 {
		count = uint64((len(b) + a.segment - 1) / a.segment)
	}
	p.rcvPackets.Add(count)
	p.rcvBytes.Add(uint64(len(b)))
	if !p.cabled(a.from.Addr()) {
		p.wiringViolations.Add(count)
		return
	}
	if a.tos&ecnMask == ecnMask {
		p.congestionMarks.Add(count)
	}
	pseudo := ib.PseudoIPv4{
		Src: a.from.Addr().As4(), Dst: p.addr.As4(),
		SrcPort: a.from.Port(), DstPort: ib.UDPPort, DontFragment: true,
	}
	in.from = transport.Arrival{
		Src: ib.GIDFromAddr(a.from.Addr()), Dst: ib.GIDFromAddr(p.addr),
		TrafficClass: a.tos, HopLimit: a.ttl,
	}
	now := time.Now()
	var qp *queuePair
	for i := uint16(0); len(b) > 0; i++ {
		d := b[:min(a.segment, len(b))]
		b = b[len(d):]
		if !in.check(d, i, pseudo) {
			continue
		}
		to, from := in.address(a.from.Addr())
		if to == nil {
			continue
		}
		if to != qp {
			if qp != nil {
				qp.endReceive(now)
			}
			if qp = to; !qp.beginReceive(from) {
				p.unknownQPs.Add(1)
				qp = nil
				continue
			}
		}
		in.from.ID = in.lastID
		qp.transport.Receive(now, &in.packet, &in.from)
	}
	if qp != nil {
		qp.endReceive(now)
	}
}

// check parses datagram i of an arrival and checks its invariant CRC.
func (in *ingress) check(d []byte, i uint16, pseudo ib.PseudoIPv4) bool {
	p := in.port
	body, icrc, ok := ib.CutICRC(d)
	if !ok || len(body) < ib.BTHLen {
		p.truncated.Add(1)
		return false
	}
	if !in.checkICRC(body, icrc, i, pseudo) {
		p.icrcErrors.Add(1)
		return false
	}
	switch err := in.packet.Parse(body); {
	case err == nil:
		return true
	case errors.Is(err, ib.ErrTruncated):
		p.truncated.Add(1)
	case errors.Is(err, ib.ErrVersion):
		p.unsupportedVersions.Add(1)
	case errors.Is(err, ib.ErrOpcode):
		p.unknownOpcodes.Add(1)
	default:
		p.malformed.Add(1)
	}
	return false
}

// checkICRC checks the invariant CRC, which covers the IP identification that
// the socket hides: 0 for a lone datagram, its index for one of many that were
// sent in one call, one more than before for a sender that counts. Failing
// these it is solved for.
func (in *ingress) checkICRC(body []byte, icrc uint32, i uint16, pseudo ib.PseudoIPv4) bool {
	for _, id := range [...]uint16{i, in.lastID + 1} {
		pseudo.ID = id
		if pseudo.ICRC(body) == icrc {
			in.lastID = id
			in.port.idsPredicted.Add(1)
			return true
		}
	}
	id, ok := ib.SolveIPv4ID(pseudo, icrc, body)
	if ok {
		in.lastID = id
		in.port.idsSolved.Add(1)
	}
	return ok
}

// address finds the queue pair that the packet is for, and the peer of it that
// sender and partition were found to be right for. It gives nil, and counts why,
// if the packet is for nobody.
func (in *ingress) address(from netip.Addr) (*queuePair, *peer) {
	p := in.port
	if in.packet.Opcode == ib.CNP {
		p.cnpsReceived.Add(1)
		return nil, nil
	}
	qp := p.card.qps.byNumber(in.packet.DestQP)
	if qp == nil || qp.port != p {
		p.unknownQPs.Add(1)
		return nil, nil
	}
	peer := qp.peer.Load()
	switch {
	case peer == nil || peer.addr.IsValid() && peer.addr != from:
		p.unknownQPs.Add(1)
		return nil, nil
	case !peer.pkey.Matches(in.packet.PKey):
		p.pkeyViolations.Add(1)
		return nil, nil
	}
	return qp, peer
}
