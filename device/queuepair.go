package device

import "github.com/accelfab/accelfab/device/ib"

// QueuePairSpec asks for a queue pair.
type QueuePairSpec struct {
	UID    UID
	PD     PD
	Port   int // the hardware's number, from 0
	Type   ib.QPType
	SendWR int          // capacity of the send queue and its completion queue; 0 means the driver's default
	RecvWR int          // of the receive queue and its completion queue; 0 the same
	SGE    int          // most entries of a work request's list; 0 the same
	Steps  []Transition // taken in order, from RESET
}

// QueuePairChange asks for steps on a queue pair that exists.
type QueuePairChange struct {
	UID   UID
	Steps []Transition
}

// QueuePair is a queue pair that exists.
type QueuePair struct {
	UID      UID
	QPN      ib.QPN
	PD       PD
	Port     int
	Type     ib.QPType
	SendWR   int
	RecvWR   int
	SGE      int
	State    ib.QPState
	GID      ib.GID // local address; zero until it is known (RTR)
	GIDIndex int    // its index; -1 until it is known, and where a UD queue pair leaves it to each send
	Remote   Remote // the peer it is connected to, from RTR on
	PathMTU  ib.MTU // from RTR on; UD: the active MTU of the port
	// Outstanding is how many send work requests are posted and not completed, 0
	// to SendWR; 0 too where the device cannot tell.
	Outstanding int
	// Status is the first completion status that was not success and took the
	// queue pair to SQE or ERR, Success while there was none; Reason says more.
	Status ib.WCStatus
	Reason string
}

// Remote names the other end of a connected queue pair.
type Remote struct {
	GID ib.GID
	QPN ib.QPN
	PSN ib.PSN // first PSN that the other end sends
}

// QueuePairResult is the answer for one entry of a batch. With an error from a
// change, QueuePair still holds the state that was reached.
type QueuePairResult struct {
	QueuePair
	Err error
}

// A Transition is one step of a queue pair's state, with the attributes that
// the target state needs. Whether it is legal is decided by the table in
// device/ib; an illegal one fails with *ib.TransitionError and changes
// nothing. SQE and ERR are also entered by the device itself.
type Transition interface {
	// Target is the state that the step leads to.
	Target() ib.QPState
	sealed()
}

// ToReset goes to RESET from any state. Queued work is dropped without
// completions.
type ToReset struct{}

// ToInit goes from RESET to INIT, or sets the attributes of INIT anew.
type ToInit struct {
	PKey   ib.PKey
	Access ib.Access // what the peer may do at most
	QKey   ib.QKey   // UD only
}

// ToRTR goes from INIT to RTR. What a transport has no use for is ignored: UC
// has none for MaxDestRDAtomic and MinRNRTimer, UD uses GIDIndex, TrafficClass
// and HopLimit alone.
type ToRTR struct {
	Remote          Remote
	GIDIndex        int // of the local port's GID table; UD: -1 means the first entry of the destination's family
	PathMTU         ib.MTU
	MaxDestRDAtomic int   // READ and atomics accepted at once, 0 to Limits.RDAtomic
	MinRNRTimer     uint8 // code 0 to 31
	TrafficClass    uint8
	HopLimit        uint8 // 0 means 64
}

// ToRTS goes from RTR to RTS. From SQD, SQE or RTS only the state changes: the
// attributes stay as they are. UC and UD use PSN alone.
type ToRTS struct {
	PSN         ib.PSN // first PSN to send
	Timeout     uint8  // code 0 to 31: 4.096 us times 2 to the power of it; 0 waits for ever
	RetryCount  uint8  // 0 to 7
	RNRRetry    uint8  // 0 to 7; 7 means without end
	MaxRDAtomic int    // READ and atomics outstanding at once
}

// ToSQD goes from RTS to SQD: the send queue drains and starts nothing new.
type ToSQD struct{}

// ToErr goes to ERR from any state. Queued work completes with WRFlushErr.
type ToErr struct{}

// Target implements Transition.
func (ToReset) Target() ib.QPState { return ib.Reset }

// Target implements Transition.
func (ToInit) Target() ib.QPState { return ib.Init }

// Target implements Transition.
func (ToRTR) Target() ib.QPState { return ib.RTR }

// Target implements Transition.
func (ToRTS) Target() ib.QPState { return ib.RTS }

// Target implements Transition.
func (ToSQD) Target() ib.QPState { return ib.SQD }

// Target implements Transition.
func (ToErr) Target() ib.QPState { return ib.Err }

func (ToReset) sealed() {}
func (ToInit) sealed()  {}
func (ToRTR) sealed()   {}
func (ToRTS) sealed()   {}
func (ToSQD) sealed()   {}
func (ToErr) sealed()   {}
