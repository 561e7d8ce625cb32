package soft

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/soft/transport"
)

// queuePair is one queue pair: its transport and what drives it.
type queuePair struct {
	card *card
	port *port
	// peer is who may send to it, nil while it takes no packets. It is read
	// without the lock, to turn packets away early.
	peer atomic.Pointer[peer]

	mu        sync.Mutex
	info      device.QueuePair
	pkey      ib.PKey
	transport *transport.QueuePair // nil once destroyed
	path      path                 // of a connected one
	router    router               // of a UD one
	alarm     time.Time            // when the timers will call; zero: not at all

	completions completionQueue
}

type peer struct {
	addr   netip.Addr // invalid: anyone, who must know the Q_Key
	socket *socket    // at which its packets arrive; any of the port if addr is invalid
	pkey   ib.PKey
}

// rounds is how many batches a queue pair sends before others have their turn.
const rounds = 8

// beginReceive locks the queue pair and the regions for packets of a peer, which
// was read without the lock. It reports false, and locks nothing, if that is not
// the peer any more: the queue pair was destroyed, or connected anew.
func (qp *queuePair) beginReceive(from *peer) bool {
	qp.mu.Lock()
	if qp.peer.Load() != from {
		qp.mu.Unlock()
		return false
	}
	qp.card.regions.mu.RLock()
	return true
}

// endReceive lets out what the packets called for. Who waits for the completions
// goes first: what it posts then leaves in one call with the acknowledgement,
// which halves the calls and wake-ups of messages that are answered by messages.
// It costs the acknowledgement one turn of the scheduler and no more.
func (qp *queuePair) endReceive(now time.Time) {
	defer qp.mu.Unlock()
	qp.card.regions.mu.RUnlock()
	if qp.settle() && qp.transport.OwesOnlyAck() {
		qp.mu.Unlock()
		runtime.Gosched()
		qp.mu.Lock()
		if qp.transport == nil {
			return
		}
	}
	qp.transmit(now)
	qp.settle()
}

// alarmed is called by the timers at the time that was set.
func (qp *queuePair) alarmed(at time.Time) {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	if qp.transport == nil || !qp.alarm.Equal(at) {
		return // destroyed, or an earlier alarm took its place
	}
	qp.alarm = time.Time{}
	now := time.Now()
	qp.transport.Expire(now)
	qp.transmit(now)
	qp.settle()
}

// transmit sends what may leave now, and sets the alarm for the rest. The lock
// is held, so that packets leave in order.
func (qp *queuePair) transmit(now time.Time) {
	if qp.info.PathMTU == 0 {
		return // not connected. In ERR a last NAK may still leave.
	}
	t := batches.Get().(*batch)
	t.port, t.path, t.router = qp.port, &qp.path, &qp.router
	budget := packetsOf(qp.info.PathMTU)
	more := true
	for range rounds {
		qp.card.regions.mu.RLock()
		more = qp.transport.Transmit(now, t, budget)
		qp.card.regions.mu.RUnlock()
		t.flush()
		if !more {
			break
		}
	}
	t.port, t.path, t.router = nil, nil, nil
	batches.Put(t)
	at := qp.transport.Deadline()
	if more {
		at = now
	}
	if !at.IsZero() && (qp.alarm.IsZero() || at.Before(qp.alarm)) {
		qp.alarm = at
		qp.card.timers.set(qp, at)
	}
}

// settle delivers completions and counters, and notices a failure. It reports
// whether somebody waited for the completions. The lock is held.
func (qp *queuePair) settle() (woken bool) {
	waits := qp.completions.arrived
	qp.port.add(qp.transport.TakeCounters())
	if full := qp.completions.take(qp.transport); full != "" && qp.transport.State() != ib.Err {
		qp.transport.Modify(time.Now(), device.ToErr{})
		qp.completions.take(qp.transport) // flushes that find no room are lost
		qp.fail(ib.GeneralErr, full)
		return false
	}
	if qp.transport.State() != qp.info.State {
		status, reason := qp.transport.Failure()
		qp.fail(status, reason)
	}
	return waits != nil && qp.completions.arrived == nil
}

// fail notes that the device itself moved the queue pair to SQE or ERR.
func (qp *queuePair) fail(status ib.WCStatus, reason string) {
	qp.info.State = qp.transport.State()
	if qp.info.Status == ib.Success {
		qp.info.Status, qp.info.Reason = status, reason
	}
	if qp.info.State == ib.Err {
		qp.peer.Store(nil)
	}
	qp.card.events.post(device.Event{Kind: device.QueuePairChanged, Port: -1, QP: qp.info.UID})
}

// destroy drops all work. Nothing reaches the queue pair after it.
func (qp *queuePair) destroy() {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	qp.peer.Store(nil)
	qp.transport = nil
	qp.completions.close()
}

// post queues work requests and sends what may leave.
func (qp *queuePair) post(requests []device.WorkRequest) error {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	if qp.transport == nil {
		return fmt.Errorf("queue pair: %w", device.ErrNotFound)
	}
	var refused error
	for i := range requests {
		wr := &requests[i]
		var err error
		switch {
		case wr.Opcode == device.WorkRecv:
			err = qp.transport.PostRecv(wr)
		case wr.Dest != nil && qp.info.Type == ib.UD:
			if err = qp.checkDestination(wr.Dest); err == nil {
				err = qp.transport.PostSend(wr)
			}
		default:
			err = qp.transport.PostSend(wr)
		}
		if err != nil {
			refused = &device.PostError{Index: i, Err: err}
			break
		}
	}
	qp.transmit(time.Now())
	qp.settle()
	return refused
}

// checkDestination says what is wrong with where a datagram is to go.
func (qp *queuePair) checkDestination(to *device.Datagram) error {
	if to.QPN == 0 || to.QPN >= ib.MaxQPN {
		return invalid("destination.qpn", "%#x: from 0x1 to %#x", to.QPN, ib.MaxQPN-1)
	}
	if qp.info.State == ib.Reset || qp.info.State == ib.Init {
		return nil // refused for its state
	}
	_, err := qp.router.path(to.GID)
	if err == nil {
		return nil
	}
	if field := (*device.FieldError)(nil); errors.As(err, &field) {
		return invalid("destination.gid", "%s", field.Problem)
	}
	return err
}

// add adds what happened on a queue pair of the port.
func (c *counters) add(n transport.Counters) {
	for _, e := range [...]struct {
		total *atomic.Uint64
		n     uint64
	}{
		{&c.acksSent, n.AcksSent}, {&c.naksSent, n.NAKsSent},
		{&c.rnrNAKsSent, n.RNRNAKsSent}, {&c.rnrNAKsReceived, n.RNRNAKsReceived},
		{&c.retransmits, n.Retransmits}, {&c.ackTimeouts, n.AckTimeouts},
		{&c.sequenceErrors, n.SequenceErrors},
	} {
		if e.n != 0 {
			e.total.Add(e.n)
		}
	}
	for fate, n := range n.Packets {
		if n != 0 {
			c.packets[fate].Add(n)
		}
	}
}
