package transport

import (
	"fmt"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// responder is the receiving half: the receive queue, the message in progress
// and the answers that are due.
type responder struct {
	work     queue[recvWork]
	expected ib.PSN
	msn      uint32 // messages completed, 24 bits
	// skipping says that a NAK or RNR NAK for expected was made: packets after
	// it are dropped without another until it comes.
	skipping bool
	dead     bool // a fault was found: no more requests are taken

	message  message
	answers  answers
	rnrTimer uint8
}

// recvWork is an entry of the receive queue.
type recvWork struct {
	id     uint64
	sgl    []device.SGE
	length uint64
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

func (r *responder) start(t device.ToRTR) {
	r.expected = t.Remote.PSN
	r.rnrTimer = t.MinRNRTimer
	r.answers.start(t.MaxDestRDAtomic)
}

// stop drops the answers that are due.
func (r *responder) stop() {
	r.dead = true
	r.answers.clear()
}

func (qp *QueuePair) postRecv(wr *device.WorkRequest) error {
	r := &qp.responder
	length := lengthOf(wr.SGL)
	switch {
	case wr.Opcode != device.WorkRecv:
		return &device.FieldError{Field: "opcode", Problem: fmt.Sprintf("%d is none of a receive queue", wr.Opcode)}
	case len(wr.SGL) > qp.cfg.SGE:
		return &device.FieldError{Field: "sgl", Problem: fmt.Sprintf("has %d entries: at most %d", len(wr.SGL), qp.cfg.SGE)}
	}
	w := r.work.push()
	if w == nil {
		return &device.LimitError{Kind: "recv_wr", Asked: 1, Limit: uint64(qp.cfg.RecvWR)}
	}
	w.id, w.length = wr.ID, length
	w.sgl = append(w.sgl[:0], wr.SGL...)
	if qp.state == ib.Err {
		qp.completeRecv(w, device.Completion{Status: ib.WRFlushErr, Opcode: ib.WCRecv})
	}
	return nil
}

// completeRecv completes the head of the receive queue.
func (qp *QueuePair) completeRecv(w *recvWork, wc device.Completion) {
	wc.ID, wc.Receive = w.id, true
	qp.complete(wc)
	qp.responder.work.pop()
}

// request takes a request of the peer.
func (qp *QueuePair) request(p *ib.Packet) {
	r := &qp.responder
	if r.dead {
		qp.counters.Dropped++
		return
	}
	switch ahead := p.PSN.Sub(r.expected); {
	case ahead > 0:
		qp.counters.OutOfSequence++
		if !r.skipping {
			r.skipping = true
			r.answers.nak(ib.Nak(ib.PSNSequenceError), r.expected)
		}
		return
	case ahead < 0:
		qp.counters.DuplicateRequests++
		qp.duplicate(p)
		return
	}
	r.skipping = false
	r.answers.noNak()
	f := qp.check(p)
	if f == noFault && r.needsRecv(p.Opcode) && r.work.count == 0 {
		r.skipping = true
		r.answers.nak(ib.RNRNak(r.rnrTimer), p.PSN)
		return
	}
	if f == noFault {
		f = qp.execute(p)
	}
	if f != noFault {
		qp.refuse(f, p.PSN, fmt.Sprintf("%v of PSN 0x%06x from QPN 0x%x", p.Opcode, p.PSN, qp.remote))
	}
}

// refuse ends the connection for a fault of the request at psn.
func (qp *QueuePair) refuse(f fault, psn ib.PSN, what string) {
	r := &qp.responder
	row := faults[f]
	r.dead = true
	r.answers.nak(ib.Nak(row.nak), psn)
	usesRecv := r.message.kind == sendMessage || f == faultRecvSpace || f == faultRecvMemory
	if w := r.work.head(); w != nil && usesRecv {
		qp.completeRecv(w, device.Completion{Status: row.status, Opcode: ib.WCRecv})
	}
	qp.fail(row.status, "refused "+what+": "+row.text)
}

// needsRecv reports whether a packet, in its place, needs a posted receive.
func (r *responder) needsRecv(op ib.Opcode) bool {
	return isSend(op) || op == ib.RCRDMAWriteLastImm || op == ib.RCRDMAWriteOnlyImm
}

func isSend(op ib.Opcode) bool { return op <= ib.RCSendOnlyImm }

// check looks at what does not depend on memory: the place of the packet in a
// message, what the queue pair allows, and lengths.
func (qp *QueuePair) check(p *ib.Packet) fault {
	op, n := p.Opcode, len(p.Payload)
	kind := noMessage // that op continues
	if op.IsMiddle() || op.IsLast() {
		kind = writeMessage
		if isSend(op) || op == ib.RCSendLastInvalidate {
			kind = sendMessage
		}
	}
	switch {
	case kind != qp.responder.message.kind:
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
	case op >= ib.RCRDMAWriteFirst && op <= ib.RCRDMAWriteOnlyImm:
		return ib.RemoteWrite
	}
	return 0
}

// execute does what a request in its place asks for.
func (qp *QueuePair) execute(p *ib.Packet) fault {
	r := &qp.responder
	op := p.Opcode
	var f fault
	switch {
	case op == ib.RCRDMAReadRequest:
		return qp.executeRead(p)
	case op.HasAtomicETH():
		return qp.executeAtomic(p)
	case isSend(op):
		f = qp.executeSend(p)
	default:
		f = qp.executeWrite(p)
	}
	if f != noFault {
		return f
	}
	r.expected = p.PSN.Next()
	if op.IsLast() || op.IsOnly() {
		r.endMessage()
		if r.needsRecv(op) {
			wc := device.Completion{
				Opcode: ib.WCRecv, Length: r.message.done, Receive: true,
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
	}
	if p.AckReq {
		r.answers.ack()
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
		return faultLength
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

func (qp *QueuePair) executeRead(p *ib.Packet) fault {
	r := &qp.responder
	n := p.RETH.Length
	if n > 0 {
		if _, ok := qp.cfg.Memory.Remote(qp.cfg.PD, p.RETH.RKey, p.RETH.VA, n, ib.RemoteRead); !ok {
			return faultRemoteAccess
		}
	}
	r.endMessage()
	r.answers.read(p, r.msn, qp.mtu)
	r.expected = p.PSN.Add(readPackets(n, qp.mtu))
	return noFault
}

func (qp *QueuePair) executeAtomic(p *ib.Packet) fault {
	r := &qp.responder
	m, h := qp.cfg.Memory, &p.AtomicETH
	word, ok := m.Remote(qp.cfg.PD, h.RKey, h.VA, 8, ib.RemoteAtomic)
	if !ok {
		return faultRemoteAccess
	}
	var original uint64
	if p.Opcode == ib.RCCompareSwap {
		original = m.CompareSwap(word, h.Compare, h.Swap)
	} else {
		original = m.FetchAdd(word, h.Swap)
	}
	r.endMessage()
	r.answers.atomic(p.PSN, r.msn, original)
	r.expected = p.PSN.Next()
	return noFault
}

// duplicate answers a request that was executed before. Nothing is executed
// again but READ, which changes nothing here.
func (qp *QueuePair) duplicate(p *ib.Packet) {
	r := &qp.responder
	op := p.Opcode
	switch {
	case op == ib.RCRDMAReadRequest:
		n := p.RETH.Length
		old := qp.access&ib.RemoteRead != 0 && n <= MaxMessage && p.PSN.Sub(r.expected)+readPackets(n, qp.mtu) <= 0
		if !old || !r.answers.readAgain(p, r.expected, r.msn, qp.mtu) {
			qp.counters.Dropped++
		}
	case op.HasAtomicETH():
		if !r.answers.atomicAgain(p.PSN, r.expected) {
			qp.counters.Dropped++
		}
	default:
		r.answers.ack()
	}
}

// readPackets counts the responses to a READ.
func readPackets(length uint32, mtu int) int {
	return max(1, int((uint64(length)+uint64(mtu)-1)/uint64(mtu)))
}
