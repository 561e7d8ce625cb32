package rc

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

// retryTimers decide when the requester tries again and when it gives up.
type retryTimers struct {
	timeoutCode          uint8
	retryCount, rnrRetry uint8
	timeout              time.Duration // 0 waits for ever

	retryLeft, rnrLeft uint8
	ackUntil           time.Time // when una is taken as lost; zero while nothing is outstanding
	rnrUntil           time.Time // nothing is sent before; zero if the peer is ready
	nakked             bool      // a NAK for una was honoured
}

func (t *retryTimers) start(a device.ToRTS) {
	*t = retryTimers{timeoutCode: a.Timeout, retryCount: a.RetryCount, rnrRetry: a.RNRRetry}
	if t.timeout = ib.AckTimeout(a.Timeout); t.timeout != 0 {
		t.timeout = max(t.timeout, minAckTimeout)
	}
	t.retryLeft, t.rnrLeft = t.retryCount, t.rnrRetry
}

func (t *retryTimers) clear() { t.ackUntil, t.rnrUntil = time.Time{}, time.Time{} }

// sent starts the ACK timer if it does not run.
func (t *retryTimers) sent(now time.Time) {
	if t.ackUntil.IsZero() && t.timeout != 0 {
		t.ackUntil = now.Add(t.timeout)
	}
}

// progress notes that una moved; more says whether packets are outstanding.
func (t *retryTimers) progress(now time.Time, more bool) {
	t.retryLeft, t.rnrLeft, t.nakked = t.retryCount, t.rnrRetry, false
	t.rnrUntil, t.ackUntil = time.Time{}, time.Time{}
	if more {
		t.sent(now)
	}
}
