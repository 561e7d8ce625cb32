package transport

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// response takes an answer to one of our requests.
func (c *Conn) response(now time.Time, p *ib.Packet) {
	r := &c.requester
	if distance(r.una, p.PSN) >= distance(r.una, r.high) {
		c.counters.Dropped++ // of a request that is done, or was never made
		return
	}
	switch kind := p.AETH.Syndrome.Kind(); {
	case p.Opcode == ib.RCAtomicAcknowledge:
		c.atomicAnswer(now, p)
	case p.Opcode != ib.RCAcknowledge:
		c.readAnswer(now, p)
	case kind == ib.KindAck:
		c.acknowledgeOrRetry(now, p.PSN.Next())
	case kind == ib.KindRNRNak:
		c.rnrNak(now, p)
	case kind == ib.KindNak && p.AETH.Syndrome.NakCode() == ib.PSNSequenceError:
		c.counters.SequenceErrors++
		if c.acknowledgeOrRetry(now, p.PSN) {
			c.nakRetry(now)
		}
	case kind == ib.KindNak:
		if c.acknowledgeOrRetry(now, p.PSN) {
			c.failSend(remoteFailure(p.AETH.Syndrome.NakCode(), r.work.head(), c.remote, p.PSN))
		}
	default:
		c.counters.Dropped++
	}
}

// acknowledgeOrRetry takes every packet before psn as received. Where one of
// them needs an answer with data that has not come, the answer is lost: it goes
// back to there and reports false.
func (c *Conn) acknowledgeOrRetry(now time.Time, psn ib.PSN) bool {
	r := &c.requester
	for r.una != psn {
		w := r.work.head()
		if w.answered() {
			c.nakRetry(now)
			return false
		}
		n := min(distance(r.una, psn), distance(r.una, w.end()))
		c.advance(now, w, n)
	}
	c.checkBlocked()
	return c.state != ib.Err
}

// advance takes n packets from una on, all of the head of the queue, as done.
func (c *Conn) advance(now time.Time, w *sendWork, n int) {
	r := &c.requester
	behind := distance(r.una, r.next) < n // sent before, and not yet again
	r.una = r.una.Add(n)
	if r.una == w.end() {
		c.completeSend(w, ib.Success)
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

func (c *Conn) readAnswer(now time.Time, p *ib.Packet) {
	r := &c.requester
	if !c.acknowledgeOrRetry(now, p.PSN) {
		return
	}
	w := r.work.head()
	if w.Opcode != device.WorkRead {
		c.counters.Dropped++
		return
	}
	index := distance(w.psn, p.PSN)
	offset := uint32(index) * uint32(c.mtu)
	if want := min(w.length-offset, uint32(c.mtu)); uint32(len(p.Payload)) != want {
		c.failSend(ib.BadRespErr, fmt.Sprintf("READ response of PSN 0x%06x from QPN 0x%x has %d bytes: want %d", p.PSN, c.remote, len(p.Payload), want))
		return
	}
	if bad := c.scatter(w.SGL, offset, p.Payload); bad != nil {
		c.failSend(ib.LocProtErr, localReason(bad, "writable"))
		return
	}
	if index++; index%r.chunk == 0 || index == w.packets {
		r.answerDone()
	}
	c.advance(now, w, 1)
	c.checkBlocked()
}

func (c *Conn) atomicAnswer(now time.Time, p *ib.Packet) {
	r := &c.requester
	if !c.acknowledgeOrRetry(now, p.PSN) {
		return
	}
	w := r.work.head()
	if w.Opcode != device.WorkCompareSwap && w.Opcode != device.WorkFetchAdd {
		c.counters.Dropped++
		return
	}
	var original [8]byte
	binary.NativeEndian.PutUint64(original[:], p.AtomicAck.Original)
	if bad := c.scatter(w.SGL, 0, original[:]); bad != nil {
		c.failSend(ib.LocProtErr, localReason(bad, "writable"))
		return
	}
	r.answerDone()
	c.advance(now, w, 1)
	c.checkBlocked()
}

// rnrNak waits as long as the peer asks for before going back.
func (c *Conn) rnrNak(now time.Time, p *ib.Packet) {
	c.counters.RNRNAKsReceived++
	if !c.acknowledgeOrRetry(now, p.PSN) {
		return
	}
	r := &c.requester
	switch t := &r.timers; {
	case !t.rnrUntil.IsZero(): // a copy
	case t.rnrLeft == 0:
		c.failSend(ib.RNRRetryExcErr, fmt.Sprintf(
			"QPN 0x%x had no receive posted for PSN 0x%06x in %d tries (rnr_retry %d)", c.remote, p.PSN, int(t.rnrRetry)+1, t.rnrRetry))
	default:
		if t.rnrRetry != retryForEver {
			t.rnrLeft--
		}
		c.goBack()
		t.rnrUntil = now.Add(ib.RNRTimer(p.AETH.Syndrome.RNRTimer()))
	}
}

// nakRetry goes back to una because the peer said that it is lost, once for
// each una: the peer says so once, but copies and the answers that were already
// on their way would repeat it.
func (c *Conn) nakRetry(now time.Time) {
	r := &c.requester
	if r.timers.nakked || !r.timers.rnrUntil.IsZero() {
		return
	}
	r.timers.nakked = true
	r.window.lost()
	c.goBack()
}

// goBack makes una the next to send.
func (c *Conn) goBack() {
	r := &c.requester
	r.next, r.cursor, r.reads, r.sinceAck = r.una, 0, 0, 0
	r.timers.wentBack()
}

// expire takes the end of the RNR wait, of the early timer or of the ACK timer.
func (c *Conn) expire(now time.Time) {
	r := &c.requester
	t := &r.timers
	switch {
	case !t.rnrUntil.IsZero():
		t.rnrUntil, t.nakked = time.Time{}, false
		return
	case now.Before(t.ackUntil):
		ackUntil := t.ackUntil
		t.earlyTries++
		c.goBack()
		t.ackUntil = ackUntil
	case t.retryLeft == 0:
		c.counters.AckTimeouts++
		c.failSend(ib.RetryExcErr, fmt.Sprintf("no ACK after %d tries of PSN 0x%06x to QPN 0x%x, timeout code %d", int(t.retryCount)+1, r.una, c.remote, t.timeoutCode))
		return
	default:
		c.counters.AckTimeouts++
		t.retryLeft--
		c.goBack()
	}
	t.nakked = false
	r.window.lost()
}
