package fabric

import (
	"context"
	"iter"
	"log/slog"
	"time"

	"github.com/accelfab/accelfab/device"
)

// Config is what Open needs.
type Config struct {
	NodeID  string          // last part of the node's name
	BootID  string          // of the machine; a new one tells that device objects are gone
	Version string          // of the daemon
	Store   Store           // closed by Close
	Devices []device.Device // closed by Close; Info().ID must be distinct
	Logger  *slog.Logger    // nil: none
	// Uptime is a clock that counts while the machine sleeps; leases run on
	// it. nil means CLOCK_BOOTTIME.
	Uptime func() time.Duration
	// ActTimeout is how long a call waits for a device before it answers
	// TIMEOUT (the work goes on); 0 means 30 s.
	ActTimeout time.Duration
}

type Fabric struct{}

var errStub = &Error{Reason: Unsupported}

func Open(ctx context.Context, cfg Config) (*Fabric, error) { return nil, errStub }
func (f *Fabric) Close() error                              { return errStub }
func (f *Fabric) Node() Node                                { return Node{} }
func (f *Fabric) ListDevices(ctx context.Context, c Caller, r List, match func(*Device) bool) (Page[Device], error) {
	return Page[Device]{}, errStub
}
func (f *Fabric) GetDevice(ctx context.Context, c Caller, name string) (Device, error) {
	return Device{}, errStub
}
func (f *Fabric) ListPorts(ctx context.Context, c Caller, r List, match func(*Port) bool) (Page[Port], error) {
	return Page[Port]{}, errStub
}
func (f *Fabric) GetPort(ctx context.Context, c Caller, name string) (Port, error) {
	return Port{}, errStub
}
func (f *Fabric) SetPort(ctx context.Context, c Caller, r SetPort) (Port, error) {
	return Port{}, errStub
}
func (f *Fabric) Topology(ctx context.Context, c Caller) (Topology, error) {
	return Topology{}, errStub
}
func (f *Fabric) CreateSession(ctx context.Context, c Caller, r CreateSession) (Session, error) {
	return Session{}, errStub
}
func (f *Fabric) GetSession(ctx context.Context, c Caller, name string) (Session, error) {
	return Session{}, errStub
}
func (f *Fabric) ListSessions(ctx context.Context, c Caller, r List, match func(*Session) bool) (Page[Session], error) {
	return Page[Session]{}, errStub
}
func (f *Fabric) UpdateSession(ctx context.Context, c Caller, r UpdateSession) (Session, error) {
	return Session{}, errStub
}
func (f *Fabric) KeepAlive(ctx context.Context, c Caller, r KeepAlive) (Session, error) {
	return Session{}, errStub
}
func (f *Fabric) CloseSession(ctx context.Context, c Caller, r CloseSession) error { return errStub }
func (f *Fabric) CreateProtectionDomain(ctx context.Context, c Caller, r CreateProtectionDomain) (ProtectionDomain, error) {
	return ProtectionDomain{}, errStub
}
func (f *Fabric) GetProtectionDomain(ctx context.Context, c Caller, name string) (ProtectionDomain, error) {
	return ProtectionDomain{}, errStub
}
func (f *Fabric) ListProtectionDomains(ctx context.Context, c Caller, r List, match func(*ProtectionDomain) bool) (Page[ProtectionDomain], error) {
	return Page[ProtectionDomain]{}, errStub
}
func (f *Fabric) DeleteProtectionDomain(ctx context.Context, c Caller, r Delete) error {
	return errStub
}
func (f *Fabric) CreateBuffer(ctx context.Context, c Caller, r CreateBuffer) (Buffer, error) {
	return Buffer{}, errStub
}
func (f *Fabric) GetBuffer(ctx context.Context, c Caller, name string) (Buffer, error) {
	return Buffer{}, errStub
}
func (f *Fabric) ListBuffers(ctx context.Context, c Caller, r List, match func(*Buffer) bool) (Page[Buffer], error) {
	return Page[Buffer]{}, errStub
}
func (f *Fabric) DeleteBuffer(ctx context.Context, c Caller, r Delete) error { return errStub }
func (f *Fabric) CreateMemoryRegion(ctx context.Context, c Caller, r CreateMemoryRegion) (MemoryRegion, error) {
	return MemoryRegion{}, errStub
}
func (f *Fabric) GetMemoryRegion(ctx context.Context, c Caller, name string) (MemoryRegion, error) {
	return MemoryRegion{}, errStub
}
func (f *Fabric) ListMemoryRegions(ctx context.Context, c Caller, r List, match func(*MemoryRegion) bool) (Page[MemoryRegion], error) {
	return Page[MemoryRegion]{}, errStub
}
func (f *Fabric) DeleteMemoryRegion(ctx context.Context, c Caller, r Delete) error { return errStub }

// CreateQueuePairs makes all of them or none, as one change. requestID is that of the change.
func (f *Fabric) CreateQueuePairs(ctx context.Context, c Caller, requestID string, validateOnly bool, rs []CreateQueuePair) ([]QueuePair, error) {
	return nil, errStub
}

// GetQueuePair reads the queue pair's state from the device.
func (f *Fabric) GetQueuePair(ctx context.Context, c Caller, name string) (QueuePair, error) {
	return QueuePair{}, errStub
}
func (f *Fabric) ListQueuePairs(ctx context.Context, c Caller, r List, match func(*QueuePair) bool) (Page[QueuePair], error) {
	return Page[QueuePair]{}, errStub
}

// ConnectQueuePairs connects: all are checked before anything is done. Of one
// request a failure of the device is the error; of several each queue pair's
// Condition tells.
func (f *Fabric) ConnectQueuePairs(ctx context.Context, c Caller, validateOnly bool, rs []ConnectQueuePair) ([]QueuePair, error) {
	return nil, errStub
}
func (f *Fabric) ModifyQueuePair(ctx context.Context, c Caller, r ModifyQueuePair) (QueuePair, error) {
	return QueuePair{}, errStub
}
func (f *Fabric) DeleteQueuePairs(ctx context.Context, c Caller, validateOnly bool, rs []Delete) error {
	return errStub
}

// PostWork gives how many were posted, also with an error.
func (f *Fabric) PostWork(ctx context.Context, c Caller, r PostWork) (int, error) { return 0, errStub }
func (f *Fabric) PollCompletions(ctx context.Context, c Caller, r PollCompletions) ([]Completion, error) {
	return nil, errStub
}
func (f *Fabric) ReadBuffer(ctx context.Context, c Caller, r BufferRange, p []byte) error {
	return errStub
}
func (f *Fabric) WriteBuffer(ctx context.Context, c Caller, r BufferRange, p []byte) error {
	return errStub
}
func (f *Fabric) ListEvents(ctx context.Context, c Caller, r ListEvents, match func(*Event) bool) (Page[Event], error) {
	return Page[Event]{}, errStub
}

// Watch yields events until the loop ends, ctx is done or the fabric is closed. It
// ends with an error, given once as the second value.
func (f *Fabric) Watch(ctx context.Context, c Caller, r Watch) iter.Seq2[Event, error] { return nil }
