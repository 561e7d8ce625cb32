package transport

import (
	"fmt"
	"slices"

	"github.com/accelfab/accelfab/device/ib"
)

// answers is what a responder owes its peer. They leave in the order of PSNs:
// first the list, then a NAK, or else an acknowledgement of everything so far.
// As an answer with data acknowledges all requests before its own, nobody waits
// for that acknowledgement while the list is not empty.
type answers struct {
	list     []answer // ascending by PSN
	most     int      // READs and atomics accepted at once
	ackDue   bool
	nakDue   bool
	syndrome ib.Syndrome // of the NAK
	nakPSN   ib.PSN

	// saved are the results of the last atomics, for when they are asked for
	// again: as many as a requester may have outstanding.
	saved     []answer
	nextSaved int
}

// answer is a READ or an atomic to be answered.
type answer struct {
	first   ib.PSN // of the request
	psn     ib.PSN // of the next response
	packets int    // responses left
	msn     uint32
	repeat  bool // answers a repeated request
	atomic  bool

	original uint64 // atomic: what was in memory

	// READ: what is left.
	begun  bool
	va     uint64
	rkey   ib.RKey
	length uint32
}

// spareAnswers is the room in the list for repeated requests.
const spareAnswers = 8

func (a *answers) start(most int) { *a = answers{most: most} }

func (a *answers) clear() { a.list, a.ackDue, a.nakDue = a.list[:0], false, false }

func (a *answers) due() bool { return len(a.list) > 0 || a.nakDue || a.ackDue }

// onlyAck reports whether nothing but an acknowledgement is due.
func (a *answers) onlyAck() bool { return a.ackDue && !a.nakDue && len(a.list) == 0 }

// ack asks for an acknowledgement of everything so far.
func (a *answers) ack() { a.ackDue = !a.nakDue }

// nak asks for a NAK, which acknowledges everything before psn too.
func (a *answers) nak(s ib.Syndrome, psn ib.PSN) {
	a.nakDue, a.syndrome, a.nakPSN = true, s, psn
	a.ackDue = false
}

// noNak takes back a NAK that did not leave, as what it asked for has come.
func (a *answers) noNak() {
	if a.nakDue {
		a.nakDue, a.ackDue = false, true
	}
}

// room reports whether one more READ or atomic is within max_dest_rd_atomic.
func (a *answers) room() bool {
	n := 0
	for i := range a.list {
		if !a.list[i].repeat {
			n++
		}
	}
	return n < a.most
}

// read adds a new READ, whose PSN is the newest.
func (a *answers) read(p *ib.Packet, msn uint32, mtu int) {
	a.list = append(a.list, newRead(p, msn, mtu))
	a.ackDue = false
}

func newRead(p *ib.Packet, msn uint32, mtu int) answer {
	return answer{
		first: p.PSN, psn: p.PSN, packets: readPackets(p.RETH.Length, mtu), msn: msn,
		va: p.RETH.VA, rkey: p.RETH.RKey, length: p.RETH.Length,
	}
}

// readAgain answers a repeated READ, or a part of one, that lies before
// expected. Where the first answer is still due it is enough to go on with it,
// or to go back in it. Where there is no room the requester will ask once more.
func (a *answers) readAgain(p *ib.Packet, expected ib.PSN, msn uint32, mtu int) {
	again := newRead(p, msn, mtu)
	again.repeat = true
	for i := range a.list {
		old := &a.list[i]
		switch {
		case old.atomic || p.PSN.Before(old.first) || !p.PSN.Before(old.psn.Add(old.packets)):
		case p.PSN.Before(old.psn):
			again.first = old.first
			*old = again
			return
		default:
			return
		}
	}
	a.insert(again, expected)
}

// atomic adds and saves the result of an atomic operation.
func (a *answers) atomic(psn ib.PSN, msn uint32, original uint64) {
	result := answer{first: psn, psn: psn, packets: 1, msn: msn, atomic: true, original: original}
	a.list = append(a.list, result)
	a.ackDue = false
	if len(a.saved) < a.most {
		a.saved = append(a.saved, result)
		return
	}
	a.saved[a.nextSaved] = result
	a.nextSaved = (a.nextSaved + 1) % a.most
}

// savedAt finds the newest saved result of a PSN, which may have come round since
// an older one; -1 if there is none.
func (a *answers) savedAt(psn ib.PSN) int {
	for n := len(a.saved) - 1; n >= 0; n-- {
		if i := (a.nextSaved + n) % len(a.saved); a.saved[i].psn == psn {
			return i
		}
	}
	return -1
}

// atomicAgain answers a repeated atomic from the saved results. One that is not
// there any more is of a requester that had more outstanding than was agreed, and
// gets no answer.
func (a *answers) atomicAgain(psn, expected ib.PSN) {
	i := a.savedAt(psn)
	if i < 0 || slices.ContainsFunc(a.list, func(x answer) bool { return x.atomic && x.psn == psn }) {
		return
	}
	again := a.saved[i]
	again.repeat = true
	a.insert(again, expected)
}

// insert puts a repeated answer in its place, if there is room. Every PSN in the
// list is before expected.
func (a *answers) insert(again answer, expected ib.PSN) {
	if len(a.list) >= a.most+spareAnswers {
		return
	}
	at := again.psn.Sub(expected)
	i := slices.IndexFunc(a.list, func(x answer) bool { return x.psn.Sub(expected) > at })
	if i < 0 {
		i = len(a.list)
	}
	a.list = slices.Insert(a.list, i, again)
}

// sendResponses sends up to budget answers.
func (qp *QueuePair) sendResponses(sink Sink, budget int) (sent int) {
	a := &qp.responder.answers
	for sent < budget && a.due() {
		switch {
		case len(a.list) > 0:
			x := &a.list[0]
			if x.atomic {
				qp.buildAck(ib.RCAtomicAcknowledge, x.psn, ib.AckSyndrome(ib.UnlimitedCredits), x.msn)
				qp.packet.AtomicAck.Original = x.original
				x.packets--
			} else if !qp.buildReadResponse(x) {
				if x.repeat {
					a.list = slices.Delete(a.list, 0, 1)
				} else {
					a.list = a.list[:0]
					qp.refuse(faultRemoteAccess, x.psn, fmt.Sprintf("response to READ of QPN 0x%x, PSN 0x%06x", qp.remote, x.psn))
				}
				continue
			}
			if x.packets == 0 {
				a.list = slices.Delete(a.list, 0, 1)
			}
		case a.nakDue:
			a.nakDue = false
			qp.buildAck(ib.RCAcknowledge, a.nakPSN, a.syndrome, qp.responder.msn)
			if a.syndrome.Kind() == ib.KindRNRNak {
				qp.counters.RNRNAKsSent++
			} else {
				qp.counters.NAKsSent++
			}
		default:
			a.ackDue = false
			qp.buildAck(ib.RCAcknowledge, qp.responder.expected.Add(-1), ib.AckSyndrome(ib.UnlimitedCredits), qp.responder.msn)
			qp.counters.AcksSent++
		}
		sink.Send(&qp.packet, nil)
		sent++
	}
	return sent
}

// buildAck makes a packet without payload.
func (qp *QueuePair) buildAck(op ib.Opcode, psn ib.PSN, s ib.Syndrome, msn uint32) {
	p := &qp.packet
	p.BTH = ib.BTH{Opcode: op, PKey: qp.pkey, DestQP: qp.remote, PSN: psn}
	p.AETH = ib.AETH{Syndrome: s, MSN: msn}
	p.Payload = nil
}

// buildReadResponse makes the next response to a READ. It reports false if the
// memory cannot be read any more.
func (qp *QueuePair) buildReadResponse(x *answer) bool {
	n := min(x.length, uint32(qp.mtu))
	var payload []byte
	if n > 0 {
		var ok bool
		if payload, ok = qp.cfg.Memory.Remote(qp.cfg.PD, x.rkey, x.va, n, ib.RemoteRead); !ok {
			return false
		}
	}
	op := ib.RCRDMAReadResponseMiddle
	switch last := x.packets == 1; {
	case last && !x.begun:
		op = ib.RCRDMAReadResponseOnly
	case last:
		op = ib.RCRDMAReadResponseLast
	case !x.begun:
		op = ib.RCRDMAReadResponseFirst
	}
	qp.buildAck(op, x.psn, ib.AckSyndrome(ib.UnlimitedCredits), x.msn)
	qp.packet.Payload = payload
	x.begun = true
	x.va += uint64(n)
	x.length -= n
	x.psn = x.psn.Next()
	x.packets--
	return true
}
