package transport

import (
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// requester is the sending half: the send queue and how far it got. The PSNs
// una, next and high follow each other in this order, at most 2^23 apart; the
// head of the queue is the work that una belongs to.
type requester struct {
	work   queue[sendWork]
	post   ib.PSN // first PSN of the work posted next
	una    ib.PSN // oldest PSN not acknowledged
	next   ib.PSN // the one to send next
	high   ib.PSN // one past the newest ever sent
	cursor int    // index of the work that next belongs to

	// reads counts the READ requests and atomics between una and next, of which
	// there are at most maxReads. A READ request asks for at most chunk
	// packets, and its bounds are multiples of chunk from the work's first PSN.
	reads, maxReads int
	chunk           int

	window   window
	sinceAck int // packets since one that asked for an acknowledgement

	timers retryTimers

	// blocked is the first PSN of work that failed locally: it completes with
	// an error when all work before it is done.
	blocked     bool
	blockedAt   ib.PSN
	blockReason string
}

// distance counts the packets from one PSN to a later one, 0 to 2^24-1.
func distance(from, to ib.PSN) int { return int((to - from) & (1<<24 - 1)) }

func (r *requester) start(t device.ToRTS, window, mtu int) {
	r.post, r.una, r.next, r.high = t.PSN, t.PSN, t.PSN, t.PSN
	r.maxReads = t.MaxRDAtomic
	r.chunk = max(1, window/min(max(1, t.MaxRDAtomic), 4))
	r.window.start(window, mtu)
	r.timers.start(t)
}

// stop forgets what was sent: the queue is about to be flushed.
func (r *requester) stop() {
	r.una, r.next, r.high = r.post, r.post, r.post
	r.timers.clear()
}

// outstanding counts the packets sent since una in this pass.
func (r *requester) outstanding() int { return distance(r.una, r.next) }

// readyToSend reports whether a request may leave now.
func (qp *QueuePair) readyToSend() bool {
	r := &qp.requester
	if qp.state != ib.RTS && qp.state != ib.SQD || r.cursor >= r.work.count || !r.timers.rnrUntil.IsZero() {
		return false
	}
	w := r.work.at(r.cursor)
	switch {
	case r.blocked && w.psn == r.blockedAt:
		return false
	case qp.state == ib.SQD && !r.started(w):
		return false
	case !w.answered():
		return r.window.open(r.outstanding())
	case r.reads >= r.maxReads:
		return false
	}
	out, n := r.outstanding(), r.chunkAt(w)
	return out == 0 || out+n <= r.window.size
}

// started reports whether a packet of w was ever sent.
func (r *requester) started(w *sendWork) bool {
	return distance(w.psn, r.una) < w.packets && w.psn != r.una || distance(r.una, w.psn) < distance(r.una, r.high)
}

// chunkAt counts the packets that a READ request at next asks for.
func (r *requester) chunkAt(w *sendWork) int {
	if w.Opcode != device.WorkRead {
		return 1
	}
	done := distance(w.psn, r.next)
	return min(w.packets, done-done%r.chunk+r.chunk) - done
}

// sendRequests sends up to budget requests.
func (qp *QueuePair) sendRequests(now time.Time, sink Sink, budget int) (sent int) {
	r := &qp.requester
	for sent < budget && qp.readyToSend() {
		w := r.work.at(r.cursor)
		n := 1
		if w.answered() {
			n = r.chunkAt(w)
			qp.buildAnswered(w, n)
			r.reads++
		} else if bad := qp.buildData(w); bad != nil {
			qp.block(w, bad)
			break
		} else {
			qp.packet.AckReq = r.wantsAck(w)
		}
		if distance(r.una, r.next) < distance(r.una, r.high) {
			qp.counters.Retransmits++
		} else if qp.packet.AckReq {
			r.timers.time(now, r.next)
		}
		r.next = r.next.Add(n)
		if distance(r.una, r.next) > distance(r.una, r.high) {
			r.high = r.next
		}
		if r.next == w.end() {
			r.cursor++
		}
		r.window.sent(r.outstanding())
		sink.Send(&qp.packet, nil)
		sent++
	}
	if sent > 0 {
		r.timers.sent(now)
	}
	return sent
}

// buildAnswered makes the READ request for n packets at next, or the atomic.
func (qp *QueuePair) buildAnswered(w *sendWork, n int) {
	p, r := &qp.packet, &qp.requester
	p.BTH = ib.BTH{PKey: qp.pkey, DestQP: qp.remote, PSN: r.next, AckReq: true}
	p.Payload = nil
	r.sinceAck = 0
	switch w.Opcode {
	case device.WorkRead:
		p.Opcode = ib.RCRDMAReadRequest
		offset := uint64(distance(w.psn, r.next)) * uint64(qp.mtu)
		length := min(uint64(w.length)-offset, uint64(n)*uint64(qp.mtu))
		p.RETH = ib.RETH{VA: w.RemoteAddr + offset, RKey: w.RKey, Length: uint32(length)}
	case device.WorkCompareSwap:
		p.Opcode = ib.RCCompareSwap
		p.AtomicETH = ib.AtomicETH{VA: w.RemoteAddr, RKey: w.RKey, Swap: w.Swap, Compare: w.Compare}
	case device.WorkFetchAdd:
		p.Opcode = ib.RCFetchAdd
		p.AtomicETH = ib.AtomicETH{VA: w.RemoteAddr, RKey: w.RKey, Swap: w.Compare}
	}
}

// wantsAck decides whether the packet at next of a SEND or WRITE asks for an
// acknowledgement: the last one does, and others so often that the window never
// closes without one on its way.
func (r *requester) wantsAck(w *sendWork) bool {
	r.sinceAck++
	if r.next.Next() != w.end() && r.sinceAck < r.window.portion() && r.outstanding()+1 < r.window.size {
		return false
	}
	r.sinceAck = 0
	return true
}

// block stops sending at work whose own memory is not right.
func (qp *QueuePair) block(w *sendWork, bad *device.SGE) {
	r := &qp.requester
	r.blocked, r.blockedAt = true, w.psn
	r.blockReason = localReason(bad, "readable")
	qp.checkBlocked()
}

// checkBlocked fails blocked work when it is the oldest.
func (qp *QueuePair) checkBlocked() {
	r := &qp.requester
	if w := r.work.head(); r.blocked && w != nil && w.psn == r.blockedAt {
		qp.failSend(ib.LocProtErr, r.blockReason)
	}
}
