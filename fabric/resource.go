package fabric

import (
	"encoding/hex"
	"strconv"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// Caller is who asks, as the door has established it. It never comes from what
// the caller says about itself.
type Caller struct {
	Identity string // "uid:1000", a SPIFFE URI, a common name, "anonymous"
	UID      uint32 // of the peer process, if HasPeer
	GID      uint32
	Groups   []uint32 // supplementary ones
	PID      int32
	Began    uint64 // when that process began, clock ticks after the boot; 0: not known
	HasPeer  bool   // the peer is a process of this machine and UID, GID, Groups and PID are known
	Operator bool   // sees and ends everything, not only its own
	Command  string // of a session's owner: what the process called itself
	// Generations of sessions that the caller believes in; a call about one that
	// has another is refused with GENERATION_STALE.
	Generations Generations
}

// Meta is what every resource carries.
type Meta struct {
	Name       string
	UID        device.UID
	Revision   uint64 // grows with every change of what was asked
	CreateTime time.Time
	Labels     map[string]string // not to be changed by the receiver
}

// ETag is the version of the resource for optimistic concurrency: it differs
// between two resources of the same name.
func (m Meta) ETag() string {
	return hex.EncodeToString(m.UID[:4]) + "-" + strconv.FormatUint(m.Revision, 10)
}

// State is where an object is on its way. Sessions are ACTIVE, CLOSING or
// LOST; exports PENDING, ACTIVE, REVOKING, REVOKED, LOST or DELETING; the others
// PENDING, READY, LOST or DELETING.
type State string

// The states of resources.
const (
	StatePending  State = "PENDING" // recorded, and not yet on the device
	StateReady    State = "READY"
	StateLost     State = "LOST" // the device lost it and it cannot be given back; delete it
	StateDeleting State = "DELETING"
	StateActive   State = "ACTIVE"
	StateClosing  State = "CLOSING"
	StateRevoking State = "REVOKING"
	StateRevoked  State = "REVOKED"
)

// Condition says whether a resource is as asked.
type Condition struct {
	Reconciling bool   // work is going on, or will be tried again
	Reason      Reason // why it is not as asked; empty if it is
	Message     string
}

// Node is this daemon.
type Node struct {
	Name       string // "nodes/" and the node id
	UID        device.UID
	Revision   uint64
	CreateTime time.Time // when the store was first opened for this node
	BootID     string
	InstanceID string // new at every start of the daemon
	Version    string
	StartTime  time.Time
	Health     Health
	Devices    int
}

// Problem is a fault that is present.
type Problem struct {
	Resource  string
	Component string // Component.Name
	Reason    Reason
	Message   string
	Since     time.Time
}

// Device is a card and who holds it.
type Device struct {
	Name      string
	Info      device.Info
	Condition Condition // Reason empty: usable
	Health    Health
	Holders   []DeviceHolder
	Usage     Usage // of what is recorded
}

// DeviceHolder is a session that claims a device.
type DeviceHolder struct {
	Session   string
	Identity  string
	Peer      Caller // UID, GID and PID, if HasPeer
	Exclusive bool
	Since     time.Time
}

// Usage counts objects.
type Usage struct {
	ProtectionDomains int
	Buffers           int
	MemoryRegions     int
	QueuePairs        int
	MemoryExports     int
	BufferBytes       uint64 // sum of the sizes asked for
}

// Port is a port of a device, read when asked.
type Port struct {
	Name string
	// PeerDevice is the other end of the cable by the port map, a device of
	// this node; "" where there is none or it is not on this node.
	PeerDevice string
	// Flaps is how often the port left ACTIVE since the daemon began.
	Flaps uint64
	device.Port
}

// Topology is how the node's devices are cabled.
type Topology struct {
	Map     string           // name of the port map, "" where there is none
	Devices []TopologyDevice // by ascending module id
	// Islands are the names of the cards that reach each other over active
	// lanes; cards and islands by ascending module id. Each card of a port map is
	// in one.
	Islands [][]string
}

// TopologyDevice is a card of the topology with all its ports.
type TopologyDevice struct {
	Name  string
	Info  device.Info
	Ports []Port
}

// Session owns everything that a job builds.
type Session struct {
	Meta
	Owner      Caller // who made it; Operator is not kept
	Devices    []string
	Exclusive  bool
	TTL        time.Duration
	Drain      time.Duration
	ExpireTime time.Time
	LastSeen   time.Time
	Generation uint64   // fencing token, from 1
	Process    *Process // that it dies with; nil if there is none
	State      State
	Condition  Condition
	Usage      Usage
}

// ProtectionDomain ties queue pairs to the memory they may touch.
type ProtectionDomain struct {
	Meta
	Session       string
	State         State
	Condition     Condition
	MemoryRegions int // in it
	QueuePairs    int
}

// Buffer is a piece of device memory.
type Buffer struct {
	Meta
	Session       string
	Size          uint64 // bytes
	Alignment     uint64 // bytes
	Address       uint64 // device address; 0 until READY
	State         State
	Condition     Condition
	MemoryRegions int // on it
	MemoryExports int // of it
}

// MemoryRegion is memory that the device may be told to touch: a range of a
// buffer, or of an export, whose Buffer is empty then. The keys are zero for
// callers who do not own it.
type MemoryRegion struct {
	Meta
	Session          string
	ProtectionDomain string
	Buffer           string
	Offset           uint64 // bytes into the buffer
	Length           uint64 // bytes
	Import           *Import
	Access           ib.Access
	IOVA             uint64 // address that work requests and the wire use
	LKey             ib.LKey
	RKey             ib.RKey
	State            State
	Condition        Condition
}

// QueuePair is one end of a connection.
type QueuePair struct {
	Meta
	Session          string
	ProtectionDomain string
	Port             int // the hardware's number, from 0
	PortName         string
	Type             ib.QPType
	SendWR           int
	RecvWR           int
	SGE              int
	Target           ib.QPState // asked
	Remote           *Endpoint  // asked; nil if it has no peer
	// Attributes are those of the type. They are all set, but PathMTU and
	// GIDIndex only once they are known, which is from the connection on. QKey
	// is nil for callers who do not own it.
	Attributes Attributes

	State      State      // READY: QPState says where
	QPState    ib.QPState // as the device says
	Local      Endpoint
	Status     ib.WCStatus // first that took it to SQE or ERR
	StatusText string
	Condition  Condition
}

// Endpoint is one end of a connection. Of a remote one GID, QPN and PSN count;
// what else is set is checked before RTR.
type Endpoint struct {
	GID       ib.GID
	QPN       ib.QPN
	PSN       ib.PSN // first that this end sends
	GIDIndex  int    // of the local end; -1 if not known
	GIDType   ib.GIDType
	HasType   bool    // GIDType is told
	PKey      ib.PKey // 0 is not told
	ActiveMTU ib.MTU  // of this end's port; 0 is not told
	Port      string  // resource name; may be empty
}

// Attributes are the attributes of a queue pair. A nil pointer or zero MTU in a
// request means: as it is, or in a create the default, which is in the comment.
// One that the type does not have is refused.
type Attributes struct {
	PathMTU         ib.MTU     // RC, UC: the largest that both ends carry
	Timeout         *uint8     // RC: code 0 to 31: 14, that is 67 ms
	RetryCount      *uint8     // RC: 0 to 7: 7
	RNRRetry        *uint8     // RC: 0 to 7: 7, without end
	MinRNRTimer     *uint8     // RC: code 0 to 31: 12, that is 0.64 ms
	MaxRDAtomic     *int       // RC: the smaller of 16 and the device's limit
	MaxDestRDAtomic *int       // RC: the same
	TrafficClass    *uint8     // 0
	HopLimit        *uint8     // 1 to 255: 64
	GIDIndex        *int       // the first RoCE v2 entry of the remote GID's family
	PSN             *ib.PSN    // first to send: random
	QKey            *ib.QKey   // UD: random, with the highest bit clear
	Access          *ib.Access // RC: REMOTE_WRITE and REMOTE_READ; UC: REMOTE_WRITE
}

// EventType says what kind of thing happened.
type EventType string

// The types of events. The last three are made for watchers and are in no
// journal.
const (
	EventCreated EventType = "CREATED"
	EventChanged EventType = "CHANGED"
	EventDeleted EventType = "DELETED"
	// EventSnapshot tells the present state of an object, after a gap.
	EventSnapshot EventType = "SNAPSHOT"
	// EventGap says that events after Cursor and before Oldest are gone. A
	// snapshot of every object and a bookmark follow.
	EventGap EventType = "GAP"
	// EventBookmark says that nothing up to Cursor is outstanding.
	EventBookmark EventType = "BOOKMARK"
)

// What led to an event, beside the reasons of errors.
const (
	CauseRequested  Reason = "REQUESTED"
	CauseExpired    Reason = "EXPIRED"
	CauseClosed     Reason = "CLOSED"       // its session was closed
	CauseReleased   Reason = "RELEASED"     // an operator ended the session
	CauseProcess    Reason = "PROCESS_GONE" // the session's process ended
	CauseResumed    Reason = "RESUMED"      // the session changed hands
	CauseReconciled Reason = "RECONCILED"   // after a restart or a reset of the device
	CauseOrphan     Reason = "ORPHAN_RECLAIMED"
	CauseDevice     Reason = "DEVICE"  // the device did it by itself
	CauseCleared    Reason = "CLEARED" // the fault of a component is gone
)

// Event is one entry of the journal.
type Event struct {
	Cursor      uint64
	Oldest      uint64 // EventGap only: the oldest cursor still there, 0 if none
	Time        time.Time
	Type        EventType
	Resource    string
	ResourceUID device.UID
	Labels      map[string]string // that the object had
	Session     string            // that the object belongs to, or is; may be empty
	Owner       string            // identity of that session's owner
	Actor       string            // identity that asked, or "system"
	Before      string            // state; empty if it was not there
	After       string            // state; empty if it is gone
	Reason      Reason
	Message     string
}
