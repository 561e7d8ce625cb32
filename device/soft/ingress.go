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

// ingress takes in what a socket of a port receives. It is used by the socket's
// goroutine alone.
type ingress struct {
	port     *port
	socket   *socket
	packet   ib.Packet
	from     transport.Arrival
	lastID   uint16 // IP identification of the packet before
	counting bool   // which was one more than that of the packet before it
	drops    uint32 // as the socket last told
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
	header := newHeader(a.from, netip.AddrPortFrom(in.socket.addr, ib.UDPPort))
	in.from = transport.Arrival{
		Src: ib.GIDFromAddr(a.from.Addr()), Dst: ib.GIDFromAddr(in.socket.addr),
		TrafficClass: a.tos, HopLimit: a.ttl,
	}
	now := time.Now()
	var qp *queuePair
	for i := range count { // an empty datagram counts too
		d := b[:min(a.segment, len(b))]
		b = b[len(d):]
		if !in.check(d, uint16(i), &header) {
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
func (in *ingress) check(d []byte, i uint16, header *header) bool {
	p := in.port
	body, icrc, ok := ib.CutICRC(d)
	if !ok || len(body) < ib.BTHLen {
		p.truncated.Add(1)
		return false
	}
	if !in.checkICRC(body, icrc, i, header) {
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

// checkICRC checks the invariant CRC. Over IPv4 it covers the identification,
// which the socket hides. Predicted are the index of a datagram of many that
// were sent in one call, 0 of a lone one, also where several of them arrive as
// one, and one more than before of a sender that counts. Other identifications
// are solved for, which leaves half of the CRC to check the packet with. IPv6
// has no identification: its packets count as neither predicted nor solved.
func (in *ingress) checkICRC(body []byte, icrc uint32, i uint16, header *header) bool {
	if header.is6 {
		return header.icrc(0, body) == icrc
	}
	id, next := i, in.lastID+1
	if in.counting {
		id = next
	}
	if header.icrc(id, body) != icrc {
		var ok bool
		if id, ok = ib.SolveIPv4ID(header.v4, icrc, body); !ok {
			return false
		}
	}
	in.counting = id == next && id != i
	in.lastID = id
	if id == i || id == 0 || id == next {
		in.port.idsPredicted.Add(1)
	} else {
		in.port.idsSolved.Add(1)
	}
	return true
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
	case peer == nil || peer.addr.IsValid() && (peer.addr != from || peer.socket != in.socket):
		p.unknownQPs.Add(1)
		return nil, nil
	case !peer.pkey.Matches(in.packet.PKey):
		p.pkeyViolations.Add(1)
		return nil, nil
	}
	return qp, peer
}
