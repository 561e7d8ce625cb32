package transport

import (
	"encoding/binary"
	"fmt"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// address puts on the packet being sent whom it is for and whom it is from. A
// key with its top bit set stands for the queue pair's own.
func (qp *QueuePair) address(to *device.Datagram) {
	key := to.QKey
	if key.Controlled() {
		key = qp.qkey
	}
	qp.packet.DestQP = to.QPN
	qp.packet.DETH = ib.DETH{QKey: key, SrcQP: qp.cfg.QPN}
}

// udRequest takes a datagram.
func (qp *QueuePair) udRequest(p *ib.Packet, from *Arrival) Fate {
	w := qp.responder.work.head()
	switch {
	case p.DETH.QKey != qp.qkey:
		return QKeyViolation
	case len(p.Payload) > qp.mtu:
		return Malformed
	case w == nil:
		return Unexpected
	}
	f := qp.executeDatagram(w, p, from)
	if f == noFault {
		return Taken
	}
	qp.failRecv(f, fmt.Sprintf("%v from QPN 0x%x of %v", p.Opcode, p.DETH.SrcQP, from.Src))
	return faults[f].fate
}

// executeDatagram fills a receive and completes it.
func (qp *QueuePair) executeDatagram(w *recvWork, p *ib.Packet, from *Arrival) fault {
	header := from.grh(p)
	length := grhLen + len(p.Payload)
	if uint64(length) > w.length {
		return faultRecvSpace
	}
	if qp.scatter(w.sgl, 0, header[:]) != nil || qp.scatter(w.sgl, grhLen, p.Payload) != nil {
		return faultRecvMemory
	}
	wc := device.Completion{
		Opcode: ib.WCRecv, Length: uint32(length), HasGRH: true, Solicited: p.SolicitedEvent,
		Source: device.Datagram{GID: from.Src, QPN: p.DETH.SrcQP},
	}
	if p.Opcode.HasImm() {
		wc.HasImm, wc.Imm = true, uint32(p.Imm)
	}
	qp.completeRecv(w, wc)
	return noFault
}

const (
	grhLen    = 40 // in front of every datagram that is received
	ipv4Len   = 20
	udpLen    = 8
	ipUDP     = 17
	ipDontCut = 0x40
)

// grh gives what verbs programs find in front of the payload: the IPv6 header of
// the packet, or 20 bytes of zeros and the IPv4 header (as rxe_hdr.h of Linux
// Soft-RoCE has it), made again from what is known of them.
func (a *Arrival) grh(p *ib.Packet) (h [grhLen]byte) {
	payload := len(p.Payload) + ib.PadCount(len(p.Payload))
	udp := udpLen + p.Opcode.HeaderLen() + payload + ib.ICRCLen
	if !a.Src.IsIPv4Mapped() {
		h[0], h[1] = 0x60|a.TrafficClass>>4, a.TrafficClass<<4
		binary.BigEndian.PutUint16(h[4:], uint16(udp))
		h[6], h[7] = ipUDP, a.HopLimit
		copy(h[8:], a.Src[:])
		copy(h[24:], a.Dst[:])
		return h
	}
	ip := h[grhLen-ipv4Len:]
	ip[0], ip[1] = 0x45, a.TrafficClass
	binary.BigEndian.PutUint16(ip[2:], uint16(ipv4Len+udp))
	binary.BigEndian.PutUint16(ip[4:], a.ID)
	ip[6], ip[8], ip[9] = ipDontCut, a.HopLimit, ipUDP
	copy(ip[12:], a.Src[12:])
	copy(ip[16:], a.Dst[12:])
	sum := uint32(0)
	for i := 0; i < ipv4Len; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	return h
}
