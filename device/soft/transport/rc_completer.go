package transport

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// response takes an answer to one of our requests.
func (qp *QueuePair) response(now time.Time, p *ib.Packet) Fate {
	r := &qp.requester
	if distance(r.una, p.PSN) >= distance(r.una, r.high) {
		return Unexpected // of a request that is done, or was never made
	}
	switch kind := p.AETH.Syndrome.Kind(); {
	case p.Opcode == ib.RCAtomicAcknowledge:
		return qp.atomicAnswer(now, p)
	case p.Opcode != ib.RCAcknowledge:
		return qp.readAnswer(now, p)
	case kind == ib.KindAck:
		qp.acknowledgeOrRetry(now, p.PSN.Next())
	case kind == ib.KindRNRNak:
		qp.rnrNak(now, p)
	case kind == ib.KindNak && p.AETH.Syndrome.NakCode() == ib.PSNSequenceError:
		qp.counters.SequenceErrors++
		if qp.acknowledgeOrRetry(now, p.PSN) {
			qp.nakRetry(now)
		}
	case kind == ib.KindNak:
		if qp.acknowledgeOrRetry(now, p.PSN) {
			qp.failSend(remoteFailure(p.AETH.Syndrome.NakCode(), r.work.head(), qp.remote, p.PSN))
		}
	default:
		return Unexpected
	}
	return Taken
}

// acknowledgeOrRetry takes every packet before psn as received. Where one of
// them needs an answer with data that has not come, the answer is lost: it goes
// back to there and reports false.
func (qp *QueuePair) acknowledgeOrRetry(now time.Time, psn ib.PSN) bool {
	r := &qp.requester
	for r.una != psn {
		w := r.work.head()
		if w.answered() {
			qp.nakRetry(now)
			return false
		}
		n := min(distance(r.una, psn), distance(r.una, w.end()))
		qp.advance(now, w, n)
	}
	qp.checkBlocked()
	return qp.state != ib.Err
}

// advance takes n packets from una on, all of the head of the queue, as done.
func (qp *QueuePair) advance(now time.Time, w *sendWork, n int) {
	r := &qp.requester
	behind := distance(r.una, r.next) < n // sent before, and not yet again
	r.una = r.una.Add(n)
	if r.una == w.end() {
		qp.completeSend(w, ib.Success)
	}
	if behind {
		r.next, r.cursor, r.reads = r.una, 0, 0
	}
	r.window.acknowledged(n)
	r.timers.progress(now, r.una, r.outstanding() > 0)
}

// answerDone counts a READ request or atomic as answered, when una has just
// come to its end.
func (r *requester) answerDone() { r.reads = max(0, r.reads-1) }

func (qp *QueuePair) readAnswer(now time.Time, p *ib.Packet) Fate {
	r := &qp.requester
	if !qp.acknowledgeOrRetry(now, p.PSN) {
		return Taken
	}
	w := r.work.head()
	if w.Opcode != device.WorkRead {
		return Unexpected
	}
	index := distance(w.psn, p.PSN)
	offset := uint32(index) * uint32(qp.mtu)
	if want := min(w.length-offset, uint32(qp.mtu)); uint32(len(p.Payload)) != want {
		qp.failSend(ib.BadRespErr, fmt.Sprintf("READ response of PSN 0x%06x from QPN 0x%x has %d bytes: want %d", p.PSN, qp.remote, len(p.Payload), want))
		return Malformed
	}
	if bad := qp.scatter(w.SGL, offset, p.Payload); bad != nil {
		qp.failSend(ib.LocProtErr, localReason(bad, "writable"))
		return Taken
	}
	if index++; index%r.chunk == 0 || index == w.packets {
		r.answerDone()
	}
	qp.advance(now, w, 1)
	qp.checkBlocked()
	return Taken
}

func (qp *QueuePair) atomicAnswer(now time.Time, p *ib.Packet) Fate {
	r := &qp.requester
	if !qp.acknowledgeOrRetry(now, p.PSN) {
		return Taken
	}
	w := r.work.head()
	if w.Opcode != device.WorkCompareSwap && w.Opcode != device.WorkFetchAdd {
		return Unexpected
	}
	var original [8]byte
	binary.NativeEndian.PutUint64(original[:], p.AtomicAck.Original)
	if bad := qp.scatter(w.SGL, 0, original[:]); bad != nil {
		qp.failSend(ib.LocProtErr, localReason(bad, "writable"))
		return Taken
	}
	r.answerDone()
	qp.advance(now, w, 1)
	qp.checkBlocked()
	return Taken
}

// rnrNak waits as long as the peer asks for before going back.
func (qp *QueuePair) rnrNak(now time.Time, p *ib.Packet) {
	qp.counters.RNRNAKsReceived++
	if !qp.acknowledgeOrRetry(now, p.PSN) {
		return
	}
	r := &qp.requester
	switch t := &r.timers; {
	case !t.rnrUntil.IsZero(): // a copy
	case t.rnrLeft == 0:
		qp.failSend(ib.RNRRetryExcErr, fmt.Sprintf(
			"QPN 0x%x had no receive posted for PSN 0x%06x in %d tries (rnr_retry %d)", qp.remote, p.PSN, int(t.rnrRetry)+1, t.rnrRetry))
	default:
		if t.rnrRetry != retryForEver {
			t.rnrLeft--
		}
		qp.goBack()
		t.rnrUntil = now.Add(ib.RNRTimer(p.AETH.Syndrome.RNRTimer()))
	}
}

// nakRetry goes back to una because the peer said that it is lost, once for
// each una: the peer says so once, but copies and the answers that were already
// on their way would repeat it.
func (qp *QueuePair) nakRetry(now time.Time) {
	r := &qp.requester
	if r.timers.nakked || !r.timers.rnrUntil.IsZero() {
		return
	}
	r.timers.nakked = true
	r.window.gap()
	qp.goBack()
}

// goBack makes una the next to send.
func (qp *QueuePair) goBack() {
	r := &qp.requester
	r.next, r.cursor, r.reads, r.sinceAck = r.una, 0, 0, 0
	r.timers.wentBack()
}

// expire takes the end of the RNR wait, of the early timer or of the ACK timer.
func (qp *QueuePair) expire(now time.Time) {
	r := &qp.requester
	t := &r.timers
	switch {
	case !t.rnrUntil.IsZero():
		t.rnrUntil, t.nakked = time.Time{}, false
		return
	case now.Before(t.ackUntil):
		ackUntil := t.ackUntil
		t.earlyTries++
		qp.goBack()
		t.ackUntil = ackUntil
	case t.retryLeft == 0:
		qp.counters.AckTimeouts++
		qp.failSend(ib.RetryExcErr, fmt.Sprintf("no ACK after %d tries of PSN 0x%06x to QPN 0x%x, timeout code %d", int(t.retryCount)+1, r.una, qp.remote, t.timeoutCode))
		return
	default:
		qp.counters.AckTimeouts++
		t.retryLeft--
		qp.goBack()
	}
	t.nakked = false
	r.window.timedOut()
}
