package transport

import (
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// retryForEver is the rnr_retry that has no end.
const retryForEver = 7

// minAckTimeout is the shortest ACK timeout. Codes that ask for less are told
// in microseconds, which no process can keep; the specification lets a timeout
// be late.
const minAckTimeout = time.Millisecond

// minEarly is the shortest wait before an early retry: longer than a busy host
// lets a process wait now and then.
const minEarly = 2 * time.Millisecond

// retryTimers decide when the requester tries again and when it gives up.
//
// Two timers watch una. The ACK timer is the specification's: each time it ends
// a retry is used up. Its usual 67 ms are an age on a wire with a round trip
// of microseconds, and a NAK, a resent packet or the last packet of all may be
// lost, so an early timer goes back before, after a few round trips as measured
// (a quarter of the timeout where none was) and twice as long each time. It uses up nothing: the peer takes what it had
// as duplicates and acknowledges again.
type retryTimers struct {
	timeoutCode          uint8
	retryCount, rnrRetry uint8
	timeout              time.Duration // 0 waits for ever

	retryLeft, rnrLeft uint8
	ackUntil           time.Time // zero while nothing is outstanding
	earlyUntil         time.Time // zero while there is no early retry to come
	earlyTries         int       // since una moved
	rnrUntil           time.Time // nothing is sent before; zero if the peer is ready
	nakked             bool      // a NAK for una was honoured

	// The round trip, smoothed as RFC 6298 does, zero before the first sample,
	// and the packet that is being timed.
	trip, spread time.Duration
	timing       bool
	timedPSN     ib.PSN
	timedAt      time.Time
}

func (t *retryTimers) start(a device.ToRTS) {
	*t = retryTimers{timeoutCode: a.Timeout, retryCount: a.RetryCount, rnrRetry: a.RNRRetry}
	if t.timeout = ib.AckTimeout(a.Timeout); t.timeout != 0 {
		t.timeout = max(t.timeout, minAckTimeout)
	}
	t.retryLeft, t.rnrLeft = t.retryCount, t.rnrRetry
}

func (t *retryTimers) clear() {
	t.ackUntil, t.earlyUntil, t.rnrUntil = time.Time{}, time.Time{}, time.Time{}
	t.timing = false
}

// deadline is the first of the ends to come.
func (t *retryTimers) deadline() time.Time {
	switch {
	case !t.rnrUntil.IsZero():
		return t.rnrUntil
	case !t.earlyUntil.IsZero() && t.earlyUntil.Before(t.ackUntil):
		return t.earlyUntil
	}
	return t.ackUntil
}

// sent starts the timers that do not run.
func (t *retryTimers) sent(now time.Time) {
	if t.timeout == 0 {
		return
	}
	if t.ackUntil.IsZero() {
		t.ackUntil = now.Add(t.timeout)
	}
	if t.earlyUntil.IsZero() {
		trips := t.trip + 4*t.spread
		if t.trip == 0 {
			trips = t.timeout / 4 // who chose it had some round trips in mind
		}
		t.earlyUntil = now.Add(max(trips, minEarly) << min(t.earlyTries, 16))
	}
}

// time takes the time of a packet that asks for an answer, if none is being
// timed.
func (t *retryTimers) time(now time.Time, psn ib.PSN) {
	if !t.timing {
		t.timing, t.timedPSN, t.timedAt = true, psn, now
	}
}

// progress notes that una moved; more says whether packets are outstanding.
func (t *retryTimers) progress(now time.Time, una ib.PSN, more bool) {
	if t.timing && t.timedPSN.Before(una) {
		t.timing = false
		t.sample(now.Sub(t.timedAt))
	}
	t.retryLeft, t.rnrLeft, t.nakked, t.earlyTries = t.retryCount, t.rnrRetry, false, 0
	t.rnrUntil, t.ackUntil, t.earlyUntil = time.Time{}, time.Time{}, time.Time{}
	if more {
		t.sent(now)
	}
}

func (t *retryTimers) sample(trip time.Duration) {
	trip = max(trip, 1)
	if t.trip == 0 {
		t.trip, t.spread = trip, trip/2
		return
	}
	t.spread += (max(t.trip-trip, trip-t.trip) - t.spread) / 4
	t.trip += (trip - t.trip) / 8
}

// wentBack notes that everything from una on is sent again, so that an answer
// may belong to either time.
func (t *retryTimers) wentBack() {
	t.timing = false
	t.ackUntil, t.earlyUntil = time.Time{}, time.Time{}
}
