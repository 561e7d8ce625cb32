package transport

import (
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// Memory is what the keys of work requests and packets lead to. The slices
// alias device memory and are used only until the Conn's method returns, so a
// driver that holds its regions still while it calls a Conn needs no more.
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

// A Sink takes packets to transmit. The packet and its payload, which may alias
// device memory, are valid only during the call.
type Sink interface {
	Send(p *ib.Packet)
}

// DefaultWindow is the window, in packets, for a Config that does not say.
const DefaultWindow = 32

// MaxMessage is the largest message in bytes.
const MaxMessage = 1 << 31

// Config is what a queue pair is made with. What it learns by transitions is
// not here.
type Config struct {
	Memory Memory
	PD     device.PD
	QPN    ib.QPN // for texts only
	SendWR int    // capacity of the send queue
	RecvWR int
	SGE    int // most entries of a work request
	// Window is the most packets that are outstanding: requests that are not
	// acknowledged, and READ responses asked for. All Conns that share a
	// receive buffer should fit into half of it. At most MaxWindow.
	Window int
}

// MaxWindow is the largest window in packets.
const MaxWindow = 1 << 16

// Counters count what happened on a Conn since they were last taken. The names
// are those of device.PortCounters.
type Counters struct {
	AcksSent          uint64 // acknowledgements without data
	NAKsSent          uint64
	RNRNAKsSent       uint64
	RNRNAKsReceived   uint64
	Retransmits       uint64 // requests sent again
	AckTimeouts       uint64
	SequenceErrors    uint64
	OutOfSequence     uint64
	DuplicateRequests uint64
	// Dropped packets were not expected: for a state that takes none, an answer
	// to nothing, a repeated request whose result is no longer known.
	Dropped uint64
}

// Conn is the transport half of one queue pair. Its methods must not be called
// concurrently. It is made in RESET; Modify moves it.
type Conn struct {
	cfg   Config
	state ib.QPState

	pkey   ib.PKey
	access ib.Access
	remote ib.QPN
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

// New makes a Conn in RESET.
func New(cfg Config) *Conn {
	if cfg.Window <= 0 {
		cfg.Window = DefaultWindow
	}
	cfg.Window = min(cfg.Window, MaxWindow)
	c := &Conn{cfg: cfg}
	c.requester.work.limit = cfg.SendWR
	c.responder.work.limit = cfg.RecvWR
	return c
}

// State is the present state. The Conn itself moves only to ERR.
func (c *Conn) State() ib.QPState { return c.state }

// Failure gives the first error that took the queue pair to ERR and tells what
// happened; Success and "" while there was none. ToErr is no failure.
func (c *Conn) Failure() (ib.WCStatus, string) { return c.status, c.reason }

// Modify carries out a transition. The caller has checked that it is legal
// (ib.CheckTransition) and that its values are in range. Going to RESET drops
// all work; going to ERR completes it with WRFlushErr; going from SQD to RTS
// changes the state only.
func (c *Conn) Modify(now time.Time, t device.Transition) {
	switch t := t.(type) {
	case device.ToReset:
		counters := c.counters
		*c = *New(c.cfg)
		c.counters = counters
		return
	case device.ToInit:
		c.pkey, c.access = t.PKey, t.Access
	case device.ToRTR:
		c.remote = t.Remote.QPN
		c.mtu = t.PathMTU.Bytes()
		c.responder.start(t)
	case device.ToRTS:
		if c.state == ib.RTR {
			c.requester.start(t, c.cfg.Window)
		}
	case device.ToErr:
		c.responder.stop()
		c.flush()
	}
	c.state = t.Target()
}

// PostSend queues a request. The request and its list are copied. In ERR it
// completes as flushed. The error is a *device.FieldError, a *device.LimitError
// when the queue is full, or a *device.StateError for a state that takes none.
func (c *Conn) PostSend(wr *device.WorkRequest) error {
	switch c.state {
	case ib.RTS, ib.SQD, ib.Err:
	default:
		return &device.StateError{State: c.state, Want: "RTS, SQD or ERR to post sends"}
	}
	return c.postSend(wr)
}

// PostRecv queues a receive, from INIT on. Otherwise as PostSend.
func (c *Conn) PostRecv(wr *device.WorkRequest) error {
	if c.state == ib.Reset {
		return &device.StateError{State: c.state, Want: "INIT or later to post receives"}
	}
	return c.postRecv(wr)
}

// Receive takes a packet that arrived for this queue pair: its ICRC, P_Key and
// source are right. The packet is not kept. What it calls for leaves with the
// next Transmit.
func (c *Conn) Receive(now time.Time, p *ib.Packet) {
	op := p.Opcode
	receives := c.state == ib.RTR || c.state == ib.RTS || c.state == ib.SQD
	sends := c.state == ib.RTS || c.state == ib.SQD
	switch {
	case op.Type() == ib.RC && op.IsRequest() && receives:
		c.request(p)
	case op.Type() == ib.RC && op.IsResponse() && sends:
		c.response(now, p)
	default:
		c.counters.Dropped++
	}
}

// Transmit gives up to budget packets to the sink. It reports whether more could
// be sent at once. Answers come first, but when there are also requests they
// take no more than half.
func (c *Conn) Transmit(now time.Time, sink Sink, budget int) (more bool) {
	requests := c.readyToSend()
	share := budget
	if requests {
		share = (budget + 1) / 2
	}
	budget -= c.sendResponses(sink, share)
	if requests {
		budget -= c.sendRequests(now, sink, budget)
		c.sendResponses(sink, budget)
	}
	return c.responder.answers.due() || c.readyToSend()
}

// Deadline is the time at which Expire should be called, zero if there is none.
// It may change with every call of another method.
func (c *Conn) Deadline() time.Time {
	if c.state != ib.RTS && c.state != ib.SQD {
		return time.Time{}
	}
	return c.requester.timers.deadline()
}

// Expire lets time-outs happen that are due at now; it does nothing before the
// Deadline. What it calls for leaves with the next Transmit.
func (c *Conn) Expire(now time.Time) {
	if d := c.Deadline(); !d.IsZero() && !now.Before(d) {
		c.expire(now)
	}
}

// Completions appends the completions since the last call to dst, in the order
// of each queue.
func (c *Conn) Completions(dst []device.Completion) []device.Completion {
	dst = append(dst, c.completions...)
	c.completions = c.completions[:0]
	return dst
}

// TakeCounters gives what was counted since the last call.
func (c *Conn) TakeCounters() Counters {
	counters := c.counters
	c.counters = Counters{}
	return counters
}

// complete delivers a completion.
func (c *Conn) complete(wc device.Completion) { c.completions = append(c.completions, wc) }

// fail notes the first failure and goes to ERR.
func (c *Conn) fail(status ib.WCStatus, reason string) {
	if c.status == ib.Success {
		c.status, c.reason = status, reason
	}
	c.state = ib.Err
	c.flush()
}

// flush completes all work as flushed.
func (c *Conn) flush() {
	c.requester.stop()
	for w := c.requester.work.head(); w != nil; w = c.requester.work.head() {
		c.completeSend(w, ib.WRFlushErr)
	}
	for w := c.responder.work.head(); w != nil; w = c.responder.work.head() {
		c.completeRecv(w, device.Completion{Status: ib.WRFlushErr, Opcode: ib.WCRecv})
	}
}
