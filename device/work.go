package device

import (
	"context"
	"time"

	"github.com/accelfab/accelfab/device/ib"
)

// NumberedWork is what a Device has besides Work if it outlives those who use
// it. It numbers the completions of a queue pair from 1 and keeps those that were
// not given up, so that a reader that dies with completions in its hands, or
// before it got them, has a successor that reads them again. A queue pair that was
// lost and made again with the same UID goes on in the same numbers.
type NumberedWork interface {
	// CompletionsAfter gives completions by their numbers. If there are none it
	// waits as ask says, and then gives none and no error. Errors are as those of
	// Completions.
	CompletionsAfter(ctx context.Context, qp UID, ask AskCompletions) (NumberedCompletions, error)
}

// AskCompletions asks for completions by their numbers.
type AskCompletions struct {
	After   uint64        // only those with a higher number; the next number is higher in any case
	GivenUp uint64        // those up to this one are not needed any more
	Limit   int           // 1 to 1,024; 0 for all that are kept, and takes none from the queue pair
	Wait    time.Duration // for the first; 0 does not wait
}

// NumberedCompletions are completions without a gap.
type NumberedCompletions struct {
	First  uint64 // number of the first
	List   []Completion
	Newest uint64 // number of the newest that was taken from the queue pair; 0 if there was none
}

// WorkOpcode says what a work request does.
type WorkOpcode uint8

// The operations of work requests.
const (
	WorkSend WorkOpcode = iota + 1
	WorkSendImm
	WorkWrite
	WorkWriteImm
	WorkRead
	WorkCompareSwap
	WorkFetchAdd
	WorkRecv // goes to the receive queue
)

// WorkRequest is one entry of a send or a receive queue.
type WorkRequest struct {
	ID         uint64 // given back in the completion
	Opcode     WorkOpcode
	SGL        []SGE
	RemoteAddr uint64  // WRITE, READ, atomics
	RKey       ib.RKey // WRITE, READ, atomics
	Imm        uint32  // in host order; big-endian on the wire
	Compare    uint64  // compare-swap: compare; fetch-add: the addend
	Swap       uint64
	Signaled   bool // a successful send queue entry completes only if set
	Solicited  bool
	Dest       *Datagram // UD sends, which need it, only
}

// SGE is one range of a scatter/gather list.
type SGE struct {
	Address uint64 // device address
	Length  uint32 // bytes
	LKey    ib.LKey
}

// Datagram says where a UD send goes.
type Datagram struct {
	GID  ib.GID
	QPN  ib.QPN
	QKey ib.QKey // with the top bit set: the sending queue pair's own in its place
}

// Completion is one entry of a completion queue.
type Completion struct {
	ID        uint64
	Status    ib.WCStatus
	Opcode    ib.WCOpcode
	Length    uint32 // bytes received or read; for sends 0
	Imm       uint32
	HasImm    bool
	Receive   bool     // from the receive completion queue
	Solicited bool     // the peer asked for an event
	Source    Datagram // UD receives, those with HasGRH: who sent (QKey is zero)
	HasGRH    bool     // UD receives: the first 40 bytes are a GRH, which Length counts; over IPv4 the IP header is the last 20 of them
	VendorErr uint32   // driver's own code, 0 if none
}
