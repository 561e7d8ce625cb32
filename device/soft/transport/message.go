package transport

import (
	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// buildData makes the packet at next of a SEND or WRITE. It returns the entry
// of the list that is not readable, nil if all went well.
func (qp *QueuePair) buildData(w *sendWork) (bad *device.SGE) {
	p, r := &qp.packet, &qp.requester
	index := distance(w.psn, r.next)
	offset := uint32(index) * uint32(qp.mtu)
	first, last := index == 0, index == w.packets-1
	if p.Payload, bad = qp.gather(w.SGL, offset, min(w.length-offset, uint32(qp.mtu))); bad != nil {
		return bad
	}
	p.BTH = ib.BTH{
		Opcode: dataOpcode(qp.cfg.Type, w.Opcode, first, last),
		PKey:   qp.pkey, DestQP: qp.remote, PSN: r.next,
		SolicitedEvent: last && w.Solicited && w.Opcode != device.WorkWrite,
	}
	p.RETH = ib.RETH{VA: w.RemoteAddr, RKey: w.RKey, Length: w.length}
	p.Imm = ib.ImmDt(w.Imm)
	return nil
}

// dataOpcode gives the opcode of a packet by its place in a message.
func dataOpcode(t ib.QPType, op device.WorkOpcode, first, last bool) ib.Opcode {
	o := ib.RCSendFirst
	if op == device.WorkWrite || op == device.WorkWriteImm {
		o = ib.RCRDMAWriteFirst
	}
	switch t {
	case ib.UC:
		o += ib.UCSendFirst
	case ib.UD:
		o += ib.UDSendOnly - ib.RCSendOnly
	}
	imm := ib.Opcode(0)
	if op == device.WorkSendImm || op == device.WorkWriteImm {
		imm = 1
	}
	switch { // FIRST, MIDDLE, LAST, LAST with immediate, ONLY, ONLY with immediate
	case first && last:
		return o + 4 + imm
	case last:
		return o + 2 + imm
	case first:
		return o
	}
	return o + 1
}

// message is the SEND or WRITE in progress.
type message struct {
	kind  messageKind
	done  uint32 // bytes received
	va    uint64 // WRITE: the rest of the RETH
	rkey  ib.RKey
	total uint32
}

type messageKind uint8

const (
	noMessage messageKind = iota
	sendMessage
	writeMessage
)

// needsRecv reports whether a packet, in its place, needs a posted receive.
func (r *responder) needsRecv(op ib.Opcode) bool {
	return isSend(op) || op.HasImm()
}

// operation is an opcode without its transport.
func operation(op ib.Opcode) ib.Opcode { return op & 0x1f }

func isSend(op ib.Opcode) bool { return operation(op) <= ib.RCSendOnlyImm }

// continues gives the message that an opcode is a part of, noMessage for one that
// begins a message.
func continues(op ib.Opcode) messageKind {
	switch {
	case !op.IsMiddle() && !op.IsLast():
		return noMessage
	case isSend(op) || op == ib.RCSendLastInvalidate:
		return sendMessage
	}
	return writeMessage
}

// check looks at what does not depend on memory: the place of the packet in a
// message, what the queue pair allows, and lengths.
func (qp *QueuePair) check(p *ib.Packet) fault {
	op, n := p.Opcode, len(p.Payload)
	switch {
	case continues(op) != qp.responder.message.kind:
		return faultSequence
	case op == ib.RCSendLastInvalidate, op == ib.RCSendOnlyInvalidate, qp.access&needed(op) != needed(op):
		return faultUnsupported
	case (op.IsFirst() || op.IsMiddle()) && n != qp.mtu, n > qp.mtu, op.IsLast() && n == 0:
		return faultLength
	case op.HasRETH() && p.RETH.Length > MaxMessage:
		return faultTooLong
	case op.HasAtomicETH() && p.AtomicETH.VA%8 != 0:
		return faultAlignment
	case (op == ib.RCRDMAReadRequest || op.HasAtomicETH()) && !qp.responder.answers.room():
		return faultResources
	}
	return noFault
}

// needed is the access that a queue pair must allow for a request.
func needed(op ib.Opcode) ib.Access {
	switch {
	case op == ib.RCRDMAReadRequest:
		return ib.RemoteRead
	case op.HasAtomicETH():
		return ib.RemoteAtomic
	case operation(op) >= ib.RCRDMAWriteFirst && operation(op) <= ib.RCRDMAWriteOnlyImm:
		return ib.RemoteWrite
	}
	return 0
}

// executeData does what a packet of a SEND or WRITE in its place asks for, and
// completes the receive that its message ends.
func (qp *QueuePair) executeData(p *ib.Packet) (f fault) {
	r := &qp.responder
	op := p.Opcode
	if isSend(op) {
		f = qp.executeSend(p)
	} else {
		f = qp.executeWrite(p)
	}
	if f != noFault {
		return f
	}
	r.expected = p.PSN.Next()
	if !op.IsLast() && !op.IsOnly() {
		return noFault
	}
	r.endMessage()
	if r.needsRecv(op) {
		wc := device.Completion{
			Opcode: ib.WCRecv, Length: r.message.done,
			HasImm: op.HasImm(), Solicited: p.SolicitedEvent,
		}
		if wc.HasImm {
			wc.Imm = uint32(p.Imm)
		}
		if !isSend(op) {
			wc.Opcode = ib.WCRecvRDMAWithImm
		}
		qp.completeRecv(r.work.head(), wc)
	}
	return noFault
}

// endMessage counts a message. Its length stays readable.
func (r *responder) endMessage() {
	r.message.kind = noMessage
	r.msn = (r.msn + 1) & (1<<24 - 1)
}

func (qp *QueuePair) executeSend(p *ib.Packet) fault {
	m := &qp.responder.message
	w := qp.responder.work.head()
	if p.Opcode.IsFirst() || p.Opcode.IsOnly() {
		*m = message{kind: sendMessage}
	}
	if uint64(m.done)+uint64(len(p.Payload)) > min(w.length, MaxMessage) {
		return faultRecvSpace
	}
	if qp.scatter(w.sgl, m.done, p.Payload) != nil {
		return faultRecvMemory
	}
	m.done += uint32(len(p.Payload))
	return noFault
}

// executeWrite writes one packet. The whole range of a message is looked up
// when it begins, and the part that a packet writes with every packet.
func (qp *QueuePair) executeWrite(p *ib.Packet) fault {
	m := &qp.responder.message
	op, n := p.Opcode, uint32(len(p.Payload))
	if op.IsFirst() || op.IsOnly() {
		*m = message{kind: writeMessage, va: p.RETH.VA, rkey: p.RETH.RKey, total: p.RETH.Length}
	}
	left := m.total - m.done
	ends := op.IsLast() || op.IsOnly()
	if n > left || ends != (n == left) {
		return faultTotal
	}
	if n > 0 {
		part := n
		if op.IsFirst() {
			part = m.total
		}
		b, ok := qp.cfg.Memory.Remote(qp.cfg.PD, m.rkey, m.va+uint64(m.done), part, ib.RemoteWrite)
		if !ok {
			return faultRemoteAccess
		}
		copy(b, p.Payload)
	}
	m.done += n
	return noFault
}
