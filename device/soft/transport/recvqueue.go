package transport

import (
	"fmt"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// recvWork is an entry of the receive queue.
type recvWork struct {
	id     uint64
	sgl    []device.SGE
	length uint64
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

// failRecv takes the queue pair to ERR for a fault of a request. The receive that
// the request used completes with it.
func (qp *QueuePair) failRecv(f fault, what string) {
	r := &qp.responder
	row := faults[f]
	usesRecv := r.message.kind == sendMessage || f.ofReceive()
	if w := r.work.head(); w != nil && usesRecv {
		qp.completeRecv(w, device.Completion{Status: row.status, Opcode: ib.WCRecv})
	}
	qp.fail(row.status, what+": "+row.text)
}
