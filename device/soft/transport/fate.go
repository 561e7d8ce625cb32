package transport

// Fate is what became of a packet that was handed to Receive.
type Fate uint8

// The fates of packets. The words of device.PortCounters fit them.
const (
	Taken             Fate = iota // it did what it is for
	ReceiverNotReady              // RC: answered with an RNR NAK
	OutOfSequence                 // ahead of the PSN expected; UC: of a message whose beginning is lost
	Duplicate                     // RC: a request that was executed before
	RemoteAccessError             // request refused for R_Key, range, rights or protection domain
	InvalidRequest                // request refused for what it asks
	Malformed                     // a length that does not fit the path MTU, or the READ
	QKeyViolation                 // UD
	Unexpected                    // answer to nothing, other transport, a state that takes none; UC and UD: no receive posted
	fates
)

// Fates is how many there are, for arrays by Fate.
const Fates = int(fates)
