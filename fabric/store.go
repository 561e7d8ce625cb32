package fabric

import (
	"context"
	"errors"
	"io"
	"time"
)

// Store keeps records and the journal. It knows bytes, ids and names; what a
// record means is the fabric's business (see codec.go).
//
// A Store belongs to one Fabric, which closes it. All methods may be called
// concurrently; Load is called once, before the first Commit.
type Store interface {
	// Load gives every record in ascending order of id. A record whose
	// checksum is wrong is not given: it moves to quarantine and is counted in
	// the result. An error from fn ends the load and is returned.
	Load(ctx context.Context, fn func(Record) error) (LoadResult, error)
	// Commit makes one change durable, all of it or nothing, and returns the
	// revision of its last event (or of the change, if it has no event). It
	// returns after the change would survive a power loss. Changes waiting
	// when a commit begins share one transaction. ErrStoreClosed after Close;
	// ErrStoreFailed (wrapped) when the disk refuses.
	Commit(ctx context.Context, change Change) (revision uint64, err error)
	// Events gives up to limit events with revisions above after, oldest
	// first. Page.Oldest tells where the journal begins now: if it is above
	// after+1, what lies between was trimmed.
	Events(ctx context.Context, after uint64, limit int) (EventPage, error)
	// Quarantine moves a record that the fabric cannot decode out of the way,
	// with the reason. It is not given by Load again.
	Quarantine(ctx context.Context, id uint64, reason string) error
	Close() error
}

// Copier is a Store that gives a copy of itself while it serves.
type Copier interface {
	// Backup writes all that is committed by now to w, in the store's own form,
	// and gives its size in bytes. ErrStoreClosed, ErrStoreFailed, or w's error.
	Backup(ctx context.Context, w io.Writer) (int64, error)
}

// Record is one stored record. ID orders records by age; it is given by the
// fabric, ascending, and not used again while the record is there. Name is the
// resource name. Value is the fabric's encoding; the store adds its checksum.
type Record struct {
	ID    uint64
	Name  string
	Value []byte
}

// Change is what one commit makes durable.
type Change struct {
	Put    []Record
	Delete []uint64
	Events [][]byte // each becomes one journal entry
}

// LoadResult tells what an open found.
type LoadResult struct {
	Records     int
	Quarantined []string // names (or ids) of records with a wrong checksum
	Revision    uint64   // of the newest event; 0 if there is none
	NextID      uint64   // above every id ever stored
	Damage      string   // "", or what an open found broken, mended and lost
}

// StoredEvent is one journal entry.
type StoredEvent struct {
	Revision uint64
	Time     time.Time // of the commit
	Value    []byte
}

// EventPage is a piece of the journal.
type EventPage struct {
	Events []StoredEvent
	Oldest uint64 // lowest revision that is still kept; 0 if the journal is empty
	Newest uint64
}

// Errors of a store.
var (
	ErrStoreClosed = errors.New("store closed")
	ErrStoreFailed = errors.New("store failed")
	ErrStoreLocked = errors.New("store locked")
)
