package transport

import (
	"fmt"

	"github.com/accelfab/accelfab/device/ib"
)

// ucRequest takes a request of the peer of an unreliable connection. The first
// packet of a message is always in its place, whatever its PSN. When another is
// missing, or wrong, the rest of its message is dropped, and a receive that it
// had begun to fill waits for the next one.
func (qp *QueuePair) ucRequest(p *ib.Packet) Fate {
	r := &qp.responder
	op := p.Opcode
	switch {
	case op.IsFirst() || op.IsOnly():
		r.message.kind = noMessage
	case p.PSN != r.expected || continues(op) != r.message.kind:
		r.message.kind = noMessage
		return OutOfSequence
	}
	f := qp.check(p)
	if f == noFault && r.needsRecv(op) && r.work.count == 0 {
		r.message.kind = noMessage
		return Unexpected
	}
	if f == noFault {
		f = qp.executeData(p)
	}
	switch {
	case f == noFault:
		return Taken
	case f.ofReceive():
		qp.failRecv(f, fmt.Sprintf("%v of PSN 0x%06x from QPN 0x%x", op, p.PSN, qp.remote))
	}
	r.message.kind = noMessage
	return faults[f].fate
}
