package transport

import (
	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// sendUnacknowledged is the requester of UC and UD: packets leave in order, each
// once, and work is done when its last packet has left. It sends up to budget
// packets and reports whether more could be sent at once.
func (qp *QueuePair) sendUnacknowledged(sink Sink, budget int) (more bool) {
	r := &qp.requester
	for ; qp.mayContinue(); budget-- {
		if budget <= 0 {
			return true
		}
		w := r.work.head()
		if bad := qp.buildData(w); bad != nil {
			qp.failSend(ib.LocProtErr, localReason(bad, "readable"))
			return false
		}
		var to *device.Datagram
		if qp.cfg.Type == ib.UD {
			to = &w.to
			qp.address(to)
		}
		r.next = r.next.Next()
		r.una, r.high = r.next, r.next // nothing is ever outstanding
		sink.Send(&qp.packet, to)
		if r.next == w.end() {
			qp.completeSend(w, ib.Success)
		}
	}
	return false
}

// mayContinue reports whether there is work that may begin or go on.
func (qp *QueuePair) mayContinue() bool {
	w := qp.requester.work.head()
	switch {
	case w == nil:
		return false
	case qp.state == ib.SQD:
		return qp.requester.next != w.psn
	}
	return qp.state == ib.RTS
}
