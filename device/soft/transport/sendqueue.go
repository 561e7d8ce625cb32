package transport

import (
	"fmt"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// sendWork is an entry of the send queue.
type sendWork struct {
	device.WorkRequest // owns its SGL
	length             uint32
	psn                ib.PSN          // of the first packet
	packets            int             // PSNs taken; at least 1
	to                 device.Datagram // UD
}

// answered reports whether the work completes by an answer with data rather
// than by an acknowledgement.
func (w *sendWork) answered() bool {
	return w.Opcode >= device.WorkRead && w.Opcode <= device.WorkFetchAdd
}

func (w *sendWork) end() ib.PSN { return w.psn.Add(w.packets) }

func (w *sendWork) wcOpcode() ib.WCOpcode {
	switch w.Opcode {
	case device.WorkWrite, device.WorkWriteImm:
		return ib.WCRDMAWrite
	case device.WorkRead:
		return ib.WCRDMARead
	case device.WorkCompareSwap:
		return ib.WCCompSwap
	case device.WorkFetchAdd:
		return ib.WCFetchAdd
	}
	return ib.WCSend
}

func (qp *QueuePair) postSend(wr *device.WorkRequest) error {
	r := &qp.requester
	length := lengthOf(wr.SGL)
	switch {
	case wr.Opcode < device.WorkSend || wr.Opcode > device.WorkFetchAdd:
		return &device.FieldError{Field: "opcode", Problem: fmt.Sprintf("%d is none of a send queue", wr.Opcode)}
	case len(wr.SGL) > qp.cfg.SGE:
		return &device.FieldError{Field: "sgl", Problem: fmt.Sprintf("has %d entries: at most %d", len(wr.SGL), qp.cfg.SGE)}
	case length > MaxMessage:
		return &device.FieldError{Field: "sgl", Problem: fmt.Sprintf("has %d bytes: at most %d", length, uint64(MaxMessage))}
	case wr.Opcode >= device.WorkCompareSwap && length != 8:
		return &device.FieldError{Field: "sgl", Problem: fmt.Sprintf("has %d bytes: an atomic operation gives 8", length)}
	}
	if err := qp.suits(wr, length); err != nil {
		return err
	}
	w := r.work.push()
	if w == nil {
		return &device.LimitError{Kind: "send_wr", Asked: 1, Limit: uint64(qp.cfg.SendWR)}
	}
	sgl := append(w.SGL[:0], wr.SGL...)
	*w = sendWork{WorkRequest: *wr, length: uint32(length), psn: r.post, packets: 1}
	w.SGL, w.Dest = sgl, nil
	if wr.Dest != nil {
		w.to = *wr.Dest
	}
	if qp.state == ib.Err || qp.state == ib.SQE {
		qp.completeSend(w, ib.WRFlushErr)
		return nil
	}
	if wr.Opcode <= device.WorkRead && length > 0 {
		w.packets = int((length + uint64(qp.mtu) - 1) / uint64(qp.mtu))
	}
	r.post = w.end()
	return nil
}

// suits says what of a request does not suit the transport.
func (qp *QueuePair) suits(wr *device.WorkRequest, length uint64) error {
	t := qp.cfg.Type
	switch {
	case t == ib.UD && wr.Opcode > device.WorkSendImm, t == ib.UC && wr.Opcode > device.WorkWriteImm:
		return &device.FieldError{Field: "opcode", Problem: fmt.Sprintf("%d is none of a %v queue pair", wr.Opcode, t)}
	case wr.Opcode >= device.WorkRead && qp.requester.maxReads == 0 && qp.state != ib.Err:
		return &device.FieldError{Field: "opcode", Problem: "READ and atomics need a max_rd_atomic of at least 1; it is 0"}
	case t == ib.UD && wr.Dest == nil:
		return &device.FieldError{Field: "destination", Problem: "is missing: a send of a UD queue pair says where it goes"}
	case t != ib.UD && wr.Dest != nil:
		return &device.FieldError{Field: "destination", Problem: fmt.Sprintf("is for UD alone: this is a %v queue pair", t)}
	case t == ib.UD && length > uint64(qp.mtu) && qp.mtu > 0:
		return &device.FieldError{Field: "sgl", Problem: fmt.Sprintf("has %d bytes: a datagram has at most the port's active MTU, %d", length, qp.mtu)}
	}
	return nil
}

// completeSend completes the head of the send queue.
func (qp *QueuePair) completeSend(w *sendWork, status ib.WCStatus) {
	if w.Signaled || status != ib.Success {
		wc := device.Completion{ID: w.ID, Status: status, Opcode: w.wcOpcode()}
		if w.answered() && status == ib.Success {
			wc.Length = w.length
		}
		qp.complete(wc)
	}
	r := &qp.requester
	r.work.pop()
	r.cursor = max(0, r.cursor-1)
}

// failSend completes the head of the send queue with an error. RC goes to ERR; UC
// and UD, whose receiving does not depend on their sending, to SQE.
func (qp *QueuePair) failSend(status ib.WCStatus, reason string) {
	qp.completeSend(qp.requester.work.head(), status)
	if qp.cfg.Type != ib.RC {
		qp.note(status, reason)
		qp.state = ib.SQE
		qp.flushSends()
		return
	}
	qp.responder.stop()
	qp.fail(status, reason)
}

func localReason(e *device.SGE, what string) string {
	return fmt.Sprintf("local memory 0x%x, %d bytes, L_Key 0x%08x is not %s in this protection domain", e.Address, e.Length, uint32(e.LKey), what)
}
