package device

import (
	"context"
	"os"
	"time"

	"github.com/accelfab/accelfab/device/ib"
)

// Exports let other devices reach a card's memory, as dma-buf does: a range of a
// buffer is exported, descriptors of the export are given out, and whoever has
// one can hand it to an importer. The descriptor is good for nothing else, but
// for an export that is Mappable.
type Exports interface {
	// CreateExport exports a range of one buffer. A UID that has an export
	// already is answered with it if the range agrees, else ErrExists. A
	// *FieldError for a range that is empty, is not made of whole pages (see
	// Limits.ExportPage) or leaves the buffer.
	CreateExport(ctx context.Context, spec ExportSpec) (Export, error)
	ListExports(ctx context.Context) ([]Export, error)
	// OpenExport gives a new descriptor, which the caller owns. ErrNotFound, or
	// ErrRevoked.
	OpenExport(ctx context.Context, uid UID) (*os.File, error)
	// FindExport says which export of this device a descriptor stands for, by
	// what the kernel says of it. ErrNotFound if none does. The descriptor stays
	// the caller's.
	FindExport(ctx context.Context, f *os.File) (UID, error)
	// RevokeExport ends all access by the export: importers are told, and what
	// does not let go is cut off. When it returns nothing reaches the memory by
	// it any more, and nothing new can attach. ErrNotFound. For an export that is
	// Mappable it cuts importers off and can do no more, as holders may have it
	// mapped: an error that wraps errors.ErrUnsupported. Doing it twice is
	// doing it once.
	RevokeExport(ctx context.Context, uid UID) error
	// DestroyExport forgets an export. Descriptors that are still held stand
	// for nothing from then on. ErrNotFound, or ErrBusy while it is attached.
	DestroyExport(ctx context.Context, uid UID) error
}

// Imports make memory regions of what other devices export.
type Imports interface {
	// Import attaches an export of any device of this machine and makes a
	// memory region of a part of it, which is then as one that RegisterRegions
	// made: listed by ListRegions, ended by DeregisterRegions, which detaches.
	// The descriptor stays the caller's and may be closed afterwards. A UID that
	// has a region already is answered with it if the spec agrees, else
	// ErrExists. ErrNotFound for a descriptor that stands for no export,
	// ErrRevoked, a *FieldError for the part or the IOVA, a *AttachError where
	// the two devices cannot do it.
	Import(ctx context.Context, spec ImportSpec, f *os.File) (Region, error)
	// PeerAccess says whether this device can reach memory of the device with
	// the ID exporter, and what is in the way. ErrNotFound.
	PeerAccess(ctx context.Context, exporter string) (PeerAccess, error)
}

// Maintenance is what an operator does to a card.
type Maintenance interface {
	// MoveBuffer puts a buffer at another place of the card's memory, the lowest
	// that is free, and keeps its contents and its device address. Importers
	// that can follow are told before and attach anew, within the time of ctx or
	// the buffer stays where it is; one that pins the memory
	// makes the move fail with ErrBusy, and so does one that could not reach the
	// new place. ErrNotFound; a *LimitError where there is no other place.
	MoveBuffer(ctx context.Context, uid UID) (Buffer, error)
	// Reset makes the card as new: what was on it is gone, memory reads as
	// zeros, and who imported of it is cut off as by RevokeExport. Ports stay as
	// they are. It tells with a
	// DeviceChanged event.
	Reset(ctx context.Context) error
}

// ExportSpec asks for an export.
type ExportSpec struct {
	UID     UID
	Address uint64 // device address, a multiple of Limits.ExportPage
	Length  uint64 // bytes, a multiple of it
}

// Export is an export that exists.
type Export struct {
	UID     UID
	Address uint64 // device address
	Length  uint64 // bytes
	Revoked bool
	// Mappable says that a descriptor is a real dma-buf, which its holder may
	// map, and which cannot be revoked.
	Mappable bool
	Opened   uint64 // descriptors given out so far
	// Held is how many of those are still open somewhere. Copies of one, made
	// by dup or sent to other processes, count once.
	Held        int
	Segments    []Segment // of all of it that is on the bus, ascending; none if Revoked
	Attachments []Attachment
}

// Segment is a piece of memory as an importer sees it. There is no host page
// behind it.
type Segment struct {
	Address uint64 // device address, of the exporter
	Bus     uint64 // bus address
	Length  uint64 // bytes
}

// Attachment is one importer's hold on an export.
type Attachment struct {
	Importer string // ID of the device
	Region   UID    // made of it
	Offset   uint64 // bytes into the export
	Length   uint64 // bytes
	Dynamic  bool   // it follows when memory moves; else it pins it
	Since    time.Time
}

// ImportSpec asks for a memory region over a part of an export.
type ImportSpec struct {
	UID    UID
	PD     PD
	Offset uint64 // bytes into the export
	Length uint64 // bytes, at least 1
	// IOVA is the address of the first byte for work requests and the wire. Its
	// place in a page must be that of Offset. 0 means the exporter's device
	// address.
	IOVA   uint64
	Access ib.Access
}

// PeerAccess says whether one device can reach another's memory.
type PeerAccess struct {
	Exporter  string
	Importer  string
	Reachable bool
	Path      string // for people: "same chassis", "PCIe switch 03:00.0", ...
	Obstacle  string // what is in the way, if it is not reachable
}
