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

// request takes a request of the peer.
func (qp *QueuePair) request(p *ib.Packet) Fate {
	r := &qp.responder
	if r.dead {
		return Unexpected
	}
	switch ahead := p.PSN.Sub(r.expected); {
	case ahead > 0:
		if !r.skipping {
			r.skipping = true
			r.answers.nak(ib.Nak(ib.PSNSequenceError), r.expected)
		}
		return OutOfSequence
	case ahead < 0:
		qp.duplicate(p)
		return Duplicate
	}
	r.skipping = false
	r.answers.noNak()
	f := qp.check(p)
	if f == noFault && r.needsRecv(p.Opcode) && r.work.count == 0 {
		r.skipping = true
		r.answers.nak(ib.RNRNak(r.rnrTimer), p.PSN)
		return ReceiverNotReady
	}
	if f == noFault {
		f = qp.execute(p)
	}
	if f == noFault {
		return Taken
	}
	qp.refuse(f, p.PSN, fmt.Sprintf("%v of PSN 0x%06x from QPN 0x%x", p.Opcode, p.PSN, qp.remote))
	return faults[f].fate
}

// refuse ends the connection for a fault of the request at psn.
func (qp *QueuePair) refuse(f fault, psn ib.PSN, what string) {
	r := &qp.responder
	r.dead = true
	r.answers.nak(ib.Nak(faults[f].nak), psn)
	qp.failRecv(f, "refused "+what)
}

// execute does what a request in its place asks for.
func (qp *QueuePair) execute(p *ib.Packet) fault {
	switch {
	case p.Opcode == ib.RCRDMAReadRequest:
		return qp.executeRead(p)
	case p.Opcode.HasAtomicETH():
		return qp.executeAtomic(p)
	}
	f := qp.executeData(p)
	if f == noFault && p.AckReq {
		qp.responder.answers.ack()
	}
	return f
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
		if old {
			r.answers.readAgain(p, r.expected, r.msn, qp.mtu)
		}
	case op.HasAtomicETH():
		r.answers.atomicAgain(p.PSN, r.expected)
	default:
		r.answers.ack()
	}
}

// readPackets counts the responses to a READ.
func readPackets(length uint32, mtu int) int {
	return max(1, int((uint64(length)+uint64(mtu)-1)/uint64(mtu)))
}
