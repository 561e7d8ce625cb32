package device

import (
	"time"

	"github.com/accelfab/accelfab/device/ib"
)

// A UID is the identity of a record: it is never used twice, on any node.
type UID [16]byte

// Info describes a card. It does not change while the device is open.
type Info struct {
	ID           string // name within the node: lower case, digits, hyphens; stable over restarts
	Driver       string // "soft", "habana", "verbs"
	Model        string
	Serial       string
	PCIAddress   string // domain:bus:device.function
	ModuleID     int    // the card's place in its chassis
	Topology     string // name of the port map, "" if there is none
	Ports        int    // ports are numbered from 0 to Ports-1
	MemoryBytes  uint64
	MemoryBase   uint64 // lowest device address
	Limits       Limits
	Capabilities []Capability
}

// Limits are the largest counts and sizes that a card accepts.
type Limits struct {
	QueuePairs        int
	ProtectionDomains int
	Regions           int
	SendWR            int // work requests outstanding on a send queue
	RecvWR            int
	SGE               int // scatter/gather entries of a work request
	MessageBytes      uint64
	RDAtomic          int    // READ and atomic operations outstanding on a queue pair
	ExportPage        uint64 // exports are made of whole pages of so many bytes; 0 if it exports nothing
	MaxMTU            ib.MTU
}

// A Capability names an optional thing that a driver can do.
type Capability string

// The capabilities of drivers.
const (
	CapRC         Capability = "RC"
	CapUC         Capability = "UC"
	CapUD         Capability = "UD"
	CapAtomics    Capability = "ATOMICS"
	CapSetPort    Capability = "SET_PORT"
	CapSimulate   Capability = "SIMULATE"
	CapExport     Capability = "EXPORT"      // Exports
	CapImport     Capability = "IMPORT"      // Imports
	CapMoveNotify Capability = "MOVE_NOTIFY" // as an importer it is told before memory moves, lets go and follows
	CapMappable   Capability = "MAPPABLE"    // its exports are real dma-bufs
	CapMove       Capability = "MOVE"        // Maintenance.MoveBuffer
	CapReset      Capability = "RESET"       // Maintenance.Reset
)

// PortClass says where a port leads.
type PortClass uint8

// The classes of ports.
const (
	PortNotConnected PortClass = iota
	PortInternal               // cabled to a card of the same chassis
	PortScaleOut               // leads to a switch outside
)

// PortState is the logical state of a port, with the numbers of IBTA Vol 1
// §14.2.5.6 (PortInfo:PortState).
type PortState uint8

// The logical port states.
const (
	PortDown   PortState = 1
	PortInit   PortState = 2
	PortArmed  PortState = 3
	PortActive PortState = 4
)

// Port is what a port is now.
type Port struct {
	Number     int    // the hardware's number, from 0
	IBPort     uint32 // the number verbs use, from 1, counted over the enabled ports; 0 if none
	Class      PortClass
	AdminUp    bool
	State      PortState
	SpeedMbps  uint32
	ActiveMTU  ib.MTU
	MaxMTU     ib.MTU
	GIDs       []GIDEntry
	PeerModule int // by the port map; -1 where none or unknown
	PeerPort   int
	Reason     string // for people: why the port is not active; "" where it is or nobody knows
	// ReceiveBuffer is what the port can hold of packets that arrived and were
	// not yet taken in, in bytes, and ReceiveBufferAsked what the driver would
	// have it be; 0 where the driver does not tell.
	ReceiveBuffer      int
	ReceiveBufferAsked int
	Counters           PortCounters
	ChangedAt          time.Time // last change of State
}

// GIDEntry is an entry of a port's GID table. Empty entries are left out, so
// Index may skip numbers.
type GIDEntry struct {
	Index int
	GID   ib.GID
	Type  ib.GIDType
}

// PortCounters count since the device was opened; they never go back.
type PortCounters struct {
	XmitPackets       uint64
	XmitBytes         uint64
	RcvPackets        uint64
	RcvBytes          uint64
	AcksSent          uint64
	NAKsSent          uint64
	RNRNAKsSent       uint64
	RNRNAKsReceived   uint64
	Retransmits       uint64 // packets sent again, for whatever reason
	AckTimeouts       uint64 // local ACK timer expired
	SequenceErrors    uint64 // NAK PSN sequence error received
	OutOfSequence     uint64 // request with a PSN ahead of the one expected
	DuplicateRequests uint64
	ICRCErrors        uint64
	PKeyViolations    uint64
	QKeyViolations    uint64
	WiringViolations  uint64 // packets from a port that is not cabled to this one
	UnknownQPs        uint64 // packets for a queue pair that is not there or not ready
	// What was dropped or refused for what it is, each packet once.
	Truncated           uint64 // shorter than its headers and ICRC
	UnsupportedVersions uint64 // BTH transport version that is not 0
	UnknownOpcodes      uint64
	Malformed           uint64 // bad pad, bytes where none may be, a length that does not fit the path MTU
	RemoteAccessErrors  uint64 // requests refused for R_Key, range, rights or protection domain
	InvalidRequests     uint64 // requests refused for what they ask
	UnexpectedPackets   uint64 // answers to nothing, a state that takes none, a datagram without a receive
	IDsPredicted        uint64 // ICRC right with the predicted IP identification
	IDsSolved           uint64 // identification had to be solved from the ICRC
	ReceiverDrops       uint64 // dropped by the host for want of buffer
	CongestionMarks     uint64 // packets that carried ECN congestion experienced
	CNPsReceived        uint64
}

// Event is a hint.
type Event struct {
	Kind EventKind
	Port int // for PortChanged, else -1
	QP   UID // for QueuePairChanged
}

// EventKind says what to look at again.
type EventKind uint8

// The kinds of events.
const (
	DeviceChanged EventKind = iota + 1
	PortChanged
	QueuePairChanged
	MemoryChanged // an export or an imported region: the memory moved, was revoked, or a descriptor was closed
)

// PD is the device's handle of a protection domain.
type PD uint32

// ProtectionDomain is a domain that exists.
type ProtectionDomain struct {
	UID UID
	PD  PD
}

// PDResult is the answer for one UID of a batch.
type PDResult struct {
	ProtectionDomain
	Err error
}

// BufferSpec asks for memory.
type BufferSpec struct {
	UID       UID
	Size      uint64 // bytes, at least 1; the driver may round up to its page
	Alignment uint64 // bytes, a power of two; 0 means the driver's page
}

// Buffer is an allocation that exists. Size is the size that was asked for.
type Buffer struct {
	UID     UID
	Address uint64 // device address
	Size    uint64
}

// RegionSpec asks for a memory region over part of one buffer.
type RegionSpec struct {
	UID     UID
	PD      PD
	Address uint64 // device address
	Length  uint64 // bytes
	Access  ib.Access
}

// Region is a memory region that exists. Its IOVA, the address that work
// requests and the wire use, is the device address.
type Region struct {
	UID     UID
	PD      PD
	Address uint64
	Length  uint64
	Access  ib.Access
	LKey    ib.LKey
	RKey    ib.RKey
	// Imported says that the memory is another device's: Address is the IOVA,
	// and Revoked that the exporter took it back, so that no access succeeds.
	Imported bool
	Revoked  bool
}

// RegionResult is the answer for one spec of a batch.
type RegionResult struct {
	Region
	Err error
}
