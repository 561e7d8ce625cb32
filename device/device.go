// Package device says what an accelerator is: the interface that every driver
// answers and the values that cross it. There is no behaviour here.
//
// A Device is one card: its memory, its RoCE ports, the protection domains,
// memory regions and queue pairs on it. It is the truth about what exists. The
// fabric keeps what was asked and compares; it reads a Device, it never
// assembles its state from events.
//
// The interface can cross a process boundary: arguments and results are
// values, handles are numbers, and the only thing with an identity is an open
// descriptor. Every create carries the UID of the record it is made for and
// every list gives it back: that is how a record and its object find each
// other again after a restart. Calls that schedulers make by the thousand take
// a batch, and bring a queue pair to its target state in one call.
//
// A driver that cannot do a thing returns an error that wraps
// errors.ErrUnsupported and leaves the capability out of Info.
package device

import (
	"context"
	"io"
)

// A Device is one accelerator card. All methods may be called concurrently.
// After Close every method fails with ErrClosed.
type Device interface {
	// Info is fixed while the device is open.
	Info() Info
	// Port reads the present state of a port by the hardware's number, from 0.
	// ErrNotFound if there is no such port.
	Port(ctx context.Context, number int) (Port, error)
	// SetPort sets the administrative state. The port may follow later; an
	// event tells. A port that is not connected refuses with FieldError.
	SetPort(ctx context.Context, number int, up bool) error
	// Events gives hints that something is worth a look. They may be merged
	// and may be lost when the reader is slow. Close closes the channel.
	Events() <-chan Event

	ProtectionDomains
	Memory
	Regions
	Exports
	Imports
	QueuePairs
	Work
	Maintenance
	io.Closer
}

// ProtectionDomains are the scopes that tie queue pairs to the memory they may
// touch.
type ProtectionDomains interface {
	// CreateProtectionDomains makes one domain for each UID. Results are in
	// the order of the arguments. A UID that has a domain already is answered
	// with that domain.
	CreateProtectionDomains(ctx context.Context, uids []UID) []PDResult
	ListProtectionDomains(ctx context.Context) ([]ProtectionDomain, error)
	// DestroyProtectionDomains returns one error (or nil) for each domain:
	// ErrNotFound, or ErrBusy while regions or queue pairs are in it.
	DestroyProtectionDomains(ctx context.Context, uids []UID) []error
}

// Memory is the card's own memory, addressed by device addresses.
type Memory interface {
	// Allocate takes memory for one buffer. It reads as zeros. The error is a
	// *LimitError when the card is full. A UID that has a buffer already is
	// answered with that buffer if size and alignment agree, else ErrExists.
	Allocate(ctx context.Context, spec BufferSpec) (Buffer, error)
	// Free returns a buffer's memory; it is zeroed before anyone else gets it.
	// ErrNotFound, or ErrBusy while regions are on it.
	Free(ctx context.Context, uid UID) error
	ListBuffers(ctx context.Context) ([]Buffer, error)
	// ReadMemory and WriteMemory copy between p and device memory for the
	// host. The range must lie inside one buffer, else a *FieldError.
	ReadMemory(ctx context.Context, address uint64, p []byte) error
	WriteMemory(ctx context.Context, address uint64, p []byte) error
}

// Regions are registered ranges of memory, named on the wire by RKey and in
// work requests by LKey. Keys are random and carry no structure.
type Regions interface {
	// RegisterRegions makes one region for each spec, inside one buffer. A UID
	// that has a region already is answered with that region if the spec
	// agrees, else ErrExists. A *FieldError for a range, a protection domain or
	// an access that is not right; a *LimitError when the card has no more.
	RegisterRegions(ctx context.Context, specs []RegionSpec) []RegionResult
	ListRegions(ctx context.Context) ([]Region, error)
	// DeregisterRegions returns one error (or nil) for each region:
	// ErrNotFound. After it returns, no access by these keys succeeds.
	DeregisterRegions(ctx context.Context, uids []UID) []error
}

// QueuePairs makes and moves queue pairs. Each has a send and a receive
// completion queue of its own, which hold as many entries as the work queue of
// their side (SendWR, RecvWR). So callers keep what they posted on a side and
// have not yet read the completions of at or below that; a completion that finds
// its queue full takes the queue pair to ERR with GeneralErr.
type QueuePairs interface {
	// CreateQueuePairs makes queue pairs and takes each through its Steps, so
	// that one call reaches the target state. A queue pair whose steps fail is
	// not left behind. A UID that has a queue pair already is answered with it,
	// and its steps are not run again.
	CreateQueuePairs(ctx context.Context, specs []QueuePairSpec) []QueuePairResult
	// ModifyQueuePairs takes existing queue pairs through further steps. When
	// a step fails, the result carries the state that was reached.
	ModifyQueuePairs(ctx context.Context, changes []QueuePairChange) []QueuePairResult
	ListQueuePairs(ctx context.Context) ([]QueuePair, error)
	// GetQueuePair reads one. ErrNotFound if there is none.
	GetQueuePair(ctx context.Context, uid UID) (QueuePair, error)
	// DestroyQueuePairs returns one error (or nil) for each: ErrNotFound.
	// Outstanding work is dropped, without completions. The QPN rests before it
	// is used again.
	DestroyQueuePairs(ctx context.Context, uids []UID) []error
}

// Work posts to queue pairs and reads their completion queues, for the
// transfer service, probes and tests.
type Work interface {
	// Post queues work requests in order. When one is refused the error tells
	// which (*PostError) and those before it are queued; in it are a
	// *LimitError when the work queue is full, a *StateError for a state that
	// takes none, or a *FieldError. ErrNotFound for the queue pair. The
	// requests are copied.
	Post(ctx context.Context, qp UID, requests []WorkRequest) error
	// Completions takes up to limit completions, oldest first, from both
	// completion queues of a queue pair, and so makes room in them. If there are
	// none it waits until there is one or ctx is done (then it returns ctx's
	// error). ErrNotFound for the queue pair, also if it is destroyed meanwhile;
	// a *FieldError for a limit below 1.
	Completions(ctx context.Context, qp UID, limit int) ([]Completion, error)
}
