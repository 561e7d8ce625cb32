package transport

import (
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// Memory is what the keys of work requests and packets lead to. The slices
// alias device memory and are used only until the QueuePair's method returns, so a
// driver that holds its regions still while it calls a QueuePair needs no more.
// Every access looks its key up anew: a region that is deregistered in the
// middle of a message fails the next packet. Lengths are at least 1 and at most
// 2^31. An answer of false means that the key, the protection domain, the range
// or the access is not right.
type Memory interface {
	// Local finds memory for a work request. Access is 0 for reading or
	// ib.LocalWrite.
	Local(pd device.PD, key ib.LKey, address uint64, length uint32, access ib.Access) ([]byte, bool)
	// Remote finds memory for the peer. Access is one of ib.RemoteRead,
	// ib.RemoteWrite and ib.RemoteAtomic.
	Remote(pd device.PD, key ib.RKey, address uint64, length uint32, access ib.Access) ([]byte, bool)
	// FetchAdd adds to the 8 bytes of word, in the host's byte order, and
	// CompareSwap replaces them if they are as compared. Both give what was
	// there before, and are atomic against each other on all queue pairs of
	// the device. word comes from Remote with ib.RemoteAtomic; its device
	// address is a multiple of 8.
	FetchAdd(word []byte, add uint64) (original uint64)
	CompareSwap(word []byte, compare, swap uint64) (original uint64)
}

// A Sink takes packets to transmit. The packet, its payload, which may alias
// device memory, and the destination are valid only during the call.
type Sink interface {
	// Send takes a packet for the peer that the queue pair is connected to or,
	// of a UD queue pair, for the port that to names; to is nil for RC and UC.
	Send(p *ib.Packet, to *device.Datagram)
}

// Arrival is what the network header of a packet said. UD queue pairs show it to
// their user; RC and UC have no need of it.
type Arrival struct {
	Src, Dst     ib.GID
	TrafficClass uint8
	HopLimit     uint8
	ID           uint16 // IPv4 identification
}

// DefaultWindow is the window, in packets, for a Config that does not say.
const DefaultWindow = 32

// MaxMessage is the largest message in bytes.
const MaxMessage = 1 << 31

// Config is what a queue pair is made with. What it learns by transitions is
// not here.
type Config struct {
	Type   ib.QPType
	Memory Memory
	PD     device.PD
	QPN    ib.QPN // for texts only
	SendWR int    // capacity of the send queue
	RecvWR int
	SGE    int // most entries of a work request
	// Window is the most packets that are outstanding: requests that are not
	// acknowledged, and READ responses asked for. All queue pairs that share a
	// receive buffer should fit into half of it. At most MaxWindow.
	Window int
}

// MaxWindow is the largest window in packets.
const MaxWindow = 1 << 16

// Counters count what happened on a QueuePair since they were last taken. The names
// are those of device.PortCounters.
type Counters struct {
	AcksSent        uint64 // acknowledgements without data
	NAKsSent        uint64
	RNRNAKsSent     uint64
	RNRNAKsReceived uint64
	Retransmits     uint64 // requests sent again
	AckTimeouts     uint64
	SequenceErrors  uint64
	// Packets counts what was handed to Receive, each packet once.
	Packets [Fates]uint64
}

// QueuePair is the transport half of one queue pair. Its methods must not be called
// concurrently. It is made in RESET; Modify moves it.
type QueuePair struct {
	cfg   Config
	state ib.QPState

	pkey   ib.PKey
	qkey   ib.QKey // UD
	access ib.Access
	remote ib.QPN // RC and UC
	mtu    int

	requester requester
	responder responder

	packet      ib.Packet // the one being sent
	scratch     []byte    // gathers a payload that spans entries, made when needed
	completions []device.Completion
	status      ib.WCStatus
	reason      string
	counters    Counters
}

// New makes a QueuePair in RESET.
func New(cfg Config) *QueuePair {
	if cfg.Window <= 0 {
		cfg.Window = DefaultWindow
	}
	cfg.Window = min(cfg.Window, MaxWindow)
	qp := &QueuePair{cfg: cfg}
	qp.requester.work.limit = cfg.SendWR
	qp.responder.work.limit = cfg.RecvWR
	return qp
}

// SetWindow sets the window in packets, as Config.Window, of the next connection:
// it counts from the transition to RTS on. A driver that reckons in bytes knows
// it when it learns the path MTU.
func (qp *QueuePair) SetWindow(packets int) { qp.cfg.Window = max(1, min(packets, MaxWindow)) }

// State is the present state. The QueuePair itself moves only to ERR.
func (qp *QueuePair) State() ib.QPState { return qp.state }

// Failure gives the first error that took the queue pair to ERR and tells what
// happened; Success and "" while there was none. ToErr is no failure.
func (qp *QueuePair) Failure() (ib.WCStatus, string) { return qp.status, qp.reason }

// Sends is how many sends are posted and not completed.
func (qp *QueuePair) Sends() int { return qp.requester.work.count }

// Modify carries out a transition. The caller has checked that it is legal
// (ib.CheckTransition) and that its values are in range. Going to RESET drops
// all work; going to ERR completes it with WRFlushErr; going from SQD to RTS
// changes the state only.
func (qp *QueuePair) Modify(now time.Time, t device.Transition) {
	switch t := t.(type) {
	case device.ToReset:
		counters := qp.counters
		*qp = *New(qp.cfg)
		qp.counters = counters
		return
	case device.ToInit:
		qp.pkey, qp.qkey, qp.access = t.PKey, t.QKey, t.Access
	case device.ToRTR:
		qp.remote = t.Remote.QPN
		qp.mtu = t.PathMTU.Bytes()
		qp.responder.start(t)
	case device.ToRTS:
		switch qp.state {
		case ib.RTR:
			qp.requester.start(t, qp.cfg.Window, qp.mtu)
		case ib.SQE:
			qp.status, qp.reason = ib.Success, ""
		}
	case device.ToErr:
		qp.responder.stop()
		qp.flush()
	}
	qp.state = t.Target()
}

// PostSend queues a request. The request and its list are copied. In ERR it
// completes as flushed. The error is a *device.FieldError, a *device.LimitError
// when the queue is full, or a *device.StateError for a state that takes none.
func (qp *QueuePair) PostSend(wr *device.WorkRequest) error {
	switch qp.state {
	case ib.RTS, ib.SQD, ib.SQE, ib.Err:
	default:
		return &device.StateError{State: qp.state, Want: "RTS, SQD or ERR to post sends"}
	}
	return qp.postSend(wr)
}

// PostRecv queues a receive, from INIT on. Otherwise as PostSend.
func (qp *QueuePair) PostRecv(wr *device.WorkRequest) error {
	if qp.state == ib.Reset {
		return &device.StateError{State: qp.state, Want: "INIT or later to post receives"}
	}
	return qp.postRecv(wr)
}

// Receive takes a packet that arrived for this queue pair: its ICRC, P_Key and
// source are right. Neither the packet nor from is kept; from may be nil for RC
// and UC. What the packet calls for leaves with the next Transmit.
func (qp *QueuePair) Receive(now time.Time, p *ib.Packet, from *Arrival) {
	qp.counters.Packets[qp.receive(now, p, from)]++
}

func (qp *QueuePair) receive(now time.Time, p *ib.Packet, from *Arrival) Fate {
	op := p.Opcode
	sends := qp.state == ib.RTS || qp.state == ib.SQD
	receives := sends || qp.state == ib.RTR || qp.state == ib.SQE
	switch {
	case op.Type() != qp.cfg.Type || !receives:
	case op.IsResponse() && sends:
		return qp.response(now, p)
	case op.IsResponse():
	case op.Type() == ib.RC:
		return qp.request(p)
	case op.Type() == ib.UC:
		return qp.ucRequest(p)
	case op.Type() == ib.UD:
		return qp.udRequest(p, from)
	}
	return Unexpected
}

// Transmit gives up to budget packets to the sink. It reports whether more could
// be sent at once. Answers with data and NAKs come first, but when there are also
// requests they take no more than half; an acknowledgement comes last, in a place
// that is kept for it, as it is shorter than all else and so can end a run of
// packets of one size.
func (qp *QueuePair) Transmit(now time.Time, sink Sink, budget int) (more bool) {
	if qp.cfg.Type != ib.RC {
		return qp.sendUnacknowledged(sink, budget)
	}
	requests := qp.readyToSend()
	share := budget
	if requests {
		share = (budget + 1) / 2
	}
	if !requests || !qp.responder.answers.onlyAck() {
		budget -= qp.sendResponses(sink, share)
	}
	if requests {
		ack := 0
		if qp.responder.answers.onlyAck() {
			ack = 1
		}
		budget -= qp.sendRequests(now, sink, budget-ack)
		qp.sendResponses(sink, budget)
	}
	return qp.responder.answers.due() || qp.readyToSend()
}

// OwesOnlyAck reports whether Transmit would send an acknowledgement and no more.
// It may wait for a moment for more to go with it.
func (qp *QueuePair) OwesOnlyAck() bool {
	return qp.responder.answers.onlyAck() && !qp.readyToSend()
}

// Deadline is the time at which Expire should be called, zero if there is none.
// It may change with every call of another method.
func (qp *QueuePair) Deadline() time.Time {
	if qp.cfg.Type != ib.RC || qp.state != ib.RTS && qp.state != ib.SQD {
		return time.Time{}
	}
	return qp.requester.timers.deadline()
}

// Expire lets time-outs happen that are due at now; it does nothing before the
// Deadline. What it calls for leaves with the next Transmit.
func (qp *QueuePair) Expire(now time.Time) {
	if d := qp.Deadline(); !d.IsZero() && !now.Before(d) {
		qp.expire(now)
	}
}

// Completions appends the completions since the last call to dst, in the order
// of each queue.
func (qp *QueuePair) Completions(dst []device.Completion) []device.Completion {
	dst = append(dst, qp.completions...)
	qp.completions = qp.completions[:0]
	return dst
}

// TakeCounters gives what was counted since the last call.
func (qp *QueuePair) TakeCounters() Counters {
	counters := qp.counters
	qp.counters = Counters{}
	return counters
}

// complete delivers a completion.
func (qp *QueuePair) complete(wc device.Completion) { qp.completions = append(qp.completions, wc) }

// note keeps the first failure.
func (qp *QueuePair) note(status ib.WCStatus, reason string) {
	if qp.status == ib.Success {
		qp.status, qp.reason = status, reason
	}
}

// fail notes a failure and goes to ERR.
func (qp *QueuePair) fail(status ib.WCStatus, reason string) {
	qp.note(status, reason)
	qp.state = ib.Err
	qp.flush()
}

// flush completes all work as flushed.
func (qp *QueuePair) flush() {
	qp.flushSends()
	for w := qp.responder.work.head(); w != nil; w = qp.responder.work.head() {
		qp.completeRecv(w, device.Completion{Status: ib.WRFlushErr, Opcode: ib.WCRecv})
	}
}

// flushSends completes all work of the send queue as flushed.
func (qp *QueuePair) flushSends() {
	qp.requester.stop()
	for w := qp.requester.work.head(); w != nil; w = qp.requester.work.head() {
		qp.completeSend(w, ib.WRFlushErr)
	}
}
