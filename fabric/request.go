package fabric

import (
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// Create is what every create asks. Violations name these fields "parent",
// "id", "labels" and "request_id".
type Create struct {
	Parent string // "nodes/n" or "nodes/n/devices/d"
	ID     string // last part of the name; one is made if it is empty
	Labels map[string]string
	// RequestID makes a create safe to repeat: the same caller with the same
	// request id gets the first answer. At most 64 printable ASCII characters.
	// In a batch only that of the batch counts.
	RequestID string
	// ValidateOnly: check everything, change nothing. It is no part of what a
	// request id stands for: a check and the call it is for are one request.
	ValidateOnly bool `cbor:"-"`
}

// Update is what every change of an existing resource asks.
type Update struct {
	Name         string
	ETag         string // if not empty, must be the resource's
	ValidateOnly bool
}

// Delete asks for a resource to be destroyed.
type Delete struct {
	Name         string
	ETag         string // if not empty, must be the resource's
	ValidateOnly bool
}

// List asks for one page. Items come in the order they were created.
type List struct {
	Parent   string // "-" in place of the device's id means all devices
	PageSize int    // 0 means 100; at most 1,000 are given
	After    uint64 // Page.Next of the page before; 0 for the first
	Session  string // if not empty, only objects of this session; resource name
}

// Page is one page of a list. Next is 0 on the last.
type Page[T any] struct {
	Items []T
	Next  uint64
}

// SetPort asks for an administrative state. A port has no etag.
type SetPort struct {
	Update
	Up bool
}

// CreateSession asks for a session.
type CreateSession struct {
	Create
	// Devices are the resource names of those it may use. None means every
	// device of the node, which only a shared session may ask for.
	Devices   []string
	Exclusive bool
	// TTL is how long the session lives after its last keep-alive: from 1 s to
	// 24 h; 0 means 60 s. There is no session without an end.
	TTL time.Duration
	// Process, if not nil, is what the session dies with; PID 0 is the caller's.
	Process *Process `cbor:",omitempty"`
	// Drain is how long sends that are under way may go on when the session ends:
	// from 0 to 60 s; nil means 500 ms.
	Drain *time.Duration `cbor:",omitempty"`
}

// ResumeSession takes a session over.
type ResumeSession struct {
	Update
	Generation uint64   // that the caller believes in; 0: not checked
	Process    *Process // that it dies with from now on
}

// ReleaseSession ends anybody's session.
type ReleaseSession struct {
	Delete
	Why string // for the journal and the owner, 1 to 256 bytes in one line
}

// UpdateSession changes what is set.
type UpdateSession struct {
	Update
	TTL       time.Duration // 0: as it is
	Labels    map[string]string
	SetLabels bool // Labels replace those that are there
}

// KeepAlive says that the owner is still there.
type KeepAlive struct {
	Name         string
	Generation   uint64 // that the caller believes in; 0 asks for no check
	ValidateOnly bool
}

// CloseSession ends a session and all it owns.
type CloseSession struct {
	Delete
	Message string // written to the journal; may be empty
}

// CreateProtectionDomain asks for a protection domain.
type CreateProtectionDomain struct {
	Create
	Session string // resource name; it must hold the device
}

// CreateBuffer asks for device memory. It reads as zeros.
type CreateBuffer struct {
	Create
	Session   string // resource name; it must hold the device
	Size      uint64 // bytes, at least 1
	Alignment uint64 // bytes, a power of two up to 1 GiB; 0 means 4,096
}

// CreateMemoryRegion asks for a region over part of a buffer, or of an export:
// one of Buffer and Import is given. Its session is that of the protection
// domain.
type CreateMemoryRegion struct {
	Create
	ProtectionDomain string
	Buffer           string // of the same session
	Offset           uint64 // bytes
	Length           uint64 // bytes; 0 means to the end of the buffer
	Import           *CreateImport
	Access           ib.Access
}

// CreateQueuePair asks for a queue pair, and for its connection where Target
// is RTR or RTS. Its session is that of the protection domain.
type CreateQueuePair struct {
	Create
	ProtectionDomain string
	Port             int // the hardware's number, from 0
	Type             ib.QPType
	SendWR           int         // 0 means 128
	RecvWR           int         // 0 means 128
	SGE              int         // 0 means 1
	Target           *ib.QPState // RESET, INIT, RTR or RTS; nil means INIT, for UD RTS
	Remote           *Endpoint
	Attributes       Attributes
}

// ConnectQueuePair asks for RTS towards a peer. The same endpoint again is no
// change.
type ConnectQueuePair struct {
	Update
	Remote     Endpoint
	Attributes Attributes // to change on the way
}

// ModifyQueuePair asks for a state. Steps between are taken as needed. On the
// way to RTR an RC or UC queue pair needs Remote, unless it has one already.
type ModifyQueuePair struct {
	Update
	Target     ib.QPState
	Remote     *Endpoint
	Attributes Attributes // to change on the way
}

// PostWork asks for work on a queue pair of a session of the caller's own.
type PostWork struct {
	QueuePair string
	Requests  []device.WorkRequest // 1 to 1,024
	// ValidateOnly: check what can be told without the device, and post nothing.
	ValidateOnly bool
}

// PollCompletions asks for completions of a queue pair.
type PollCompletions struct {
	QueuePair string
	// After is the sequence of the last completion that the caller has: it and
	// those before are given up.
	After uint64
	Limit int           // 0 means 128; at most 1,024
	Wait  time.Duration // for the first one, up to 60 s; 0 does not wait
	// SolicitedOnly: there are none until one is solicited or no success, or
	// until so many wait to be given up that no more are read.
	SolicitedOnly bool
}

// Completion is a completion with its place in the queue pair's sequence,
// from 1.
type Completion struct {
	Sequence uint64
	device.Completion
}

// BufferRange is a piece of a buffer.
type BufferRange struct {
	Buffer string
	Offset uint64 // bytes
}

// ListEvents asks for past events.
type ListEvents struct {
	After uint64 // only events with a greater cursor; 0 begins with the oldest
	Limit int    // 0 means 100; at most 1,000
}

// Watch asks for events as they happen.
type Watch struct {
	After   uint64 // only events with a greater cursor; 0 begins with the oldest
	FromNow bool   // only what comes; After is ignored
}
