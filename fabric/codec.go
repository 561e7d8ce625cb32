package fabric

import (
	"errors"
	"fmt"

	"github.com/fxamacker/cbor/v2"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// A record's value is a CBOR map (RFC 8949) with small integer keys. Keys are
// never given another meaning. A reader keeps the keys that it does not know
// and writes them back, so that a store which a later version wrote loses
// nothing by an earlier one. Keys are added to the record's own map only: the
// maps inside it are closed. The version grows only when an old reader must not
// read on.
const codecVersion = 1

// stored is what is durable of a record. References to other records are
// their store ids.
type stored struct {
	Version  uint8             `cbor:"0,keyasint"`
	Kind     kind              `cbor:"1,keyasint"`
	UID      device.UID        `cbor:"2,keyasint"`
	Revision uint64            `cbor:"3,keyasint"`
	Created  int64             `cbor:"4,keyasint"` // Unix nanoseconds
	Labels   map[string]string `cbor:"5,keyasint,omitempty"`
	Request  string            `cbor:"6,keyasint,omitempty"` // request id of the create
	Sum      uint64            `cbor:"7,keyasint,omitempty"` // of that request
	Session  uint64            `cbor:"8,keyasint,omitempty"`
	Deleting bool              `cbor:"9,keyasint,omitempty"` // for a session: closing
	Cause    Reason            `cbor:"10,keyasint,omitempty"`

	SessionAsk *sessionAsk `cbor:"20,keyasint,omitempty"`
	BufferAsk  *bufferAsk  `cbor:"21,keyasint,omitempty"`
	RegionAsk  *regionAsk  `cbor:"22,keyasint,omitempty"`
	QPAsk      *qpAsk      `cbor:"23,keyasint,omitempty"`
	PortAsk    *portAsk    `cbor:"24,keyasint,omitempty"`
	Gone       *gone       `cbor:"25,keyasint,omitempty"`
	ExportAsk  *exportAsk  `cbor:"26,keyasint,omitempty"`
	ImportAsk  *importAsk  `cbor:"27,keyasint,omitempty"` // of a region made of an export
	ProcessAsk *processAsk `cbor:"28,keyasint,omitempty"` // of a session that dies with one
	Command    string      `cbor:"29,keyasint,omitempty"` // of a session's owner
	Why        string      `cbor:"30,keyasint,omitempty"` // of a session that was released: the operator's words
	Life       *nodeLife   `cbor:"31,keyasint,omitempty"` // of the node
	// Devices are those that the node has had, by their ids in names.
	Devices map[string]deviceMark `cbor:"32,keyasint,omitempty"`

	extra []byte // encoded keys and values that this version does not know
	nx    int    // how many
}

type sessionAsk struct {
	Identity   string   `cbor:"0,keyasint"`
	UID        uint32   `cbor:"1,keyasint,omitempty"`
	GID        uint32   `cbor:"2,keyasint,omitempty"`
	PID        int32    `cbor:"3,keyasint,omitempty"`
	HasPeer    bool     `cbor:"4,keyasint,omitempty"`
	Devices    []string `cbor:"5,keyasint"` // ids
	Exclusive  bool     `cbor:"6,keyasint,omitempty"`
	TTL        int64    `cbor:"7,keyasint"` // nanoseconds
	Generation uint64   `cbor:"8,keyasint"`
	BootID     string   `cbor:"9,keyasint"`
	Drain      int64    `cbor:"10,keyasint,omitempty"` // nanoseconds
}

type bufferAsk struct {
	Size      uint64 `cbor:"0,keyasint"`
	Alignment uint64 `cbor:"1,keyasint"`
}

// regionAsk: a region made of an export has Buffer 0, and its offset is into
// the export.
type regionAsk struct {
	PD     uint64    `cbor:"0,keyasint"`
	Buffer uint64    `cbor:"1,keyasint"`
	Offset uint64    `cbor:"2,keyasint,omitempty"`
	Length uint64    `cbor:"3,keyasint"`
	Access ib.Access `cbor:"4,keyasint,omitempty"`
}

type exportAsk struct {
	Buffer   uint64       `cbor:"0,keyasint"`
	Offset   uint64       `cbor:"1,keyasint,omitempty"`
	Length   uint64       `cbor:"2,keyasint"`
	TTL      int64        `cbor:"3,keyasint,omitempty"` // nanoseconds
	Fetchers []fetcherAsk `cbor:"4,keyasint,omitempty"`
	Revoked  bool         `cbor:"5,keyasint,omitempty"`
}

// fetcherAsk has one of its fields. A session is meant by its UID: its name may
// be another's one day.
type fetcherAsk struct {
	UID        *uint32     `cbor:"0,keyasint,omitempty"`
	GID        *uint32     `cbor:"1,keyasint,omitempty"`
	Session    string      `cbor:"2,keyasint,omitempty"`
	SessionUID *device.UID `cbor:"3,keyasint,omitempty"`
}

type importAsk struct {
	Export    string     `cbor:"0,keyasint"` // name
	ExportUID device.UID `cbor:"1,keyasint"`
	IOVA      uint64     `cbor:"2,keyasint,omitempty"` // asked
}

// qpAsk is what is asked of a queue pair. Attributes that come out of the
// connection (MTU, GID index) are 0 and -1 while they are left to it.
type qpAsk struct {
	PD     uint64     `cbor:"0,keyasint"`
	Port   int        `cbor:"1,keyasint"`
	Type   ib.QPType  `cbor:"2,keyasint"`
	SendWR int        `cbor:"3,keyasint"`
	RecvWR int        `cbor:"4,keyasint"`
	SGE    int        `cbor:"5,keyasint"`
	Target ib.QPState `cbor:"6,keyasint"`
	Remote *remoteAsk `cbor:"7,keyasint,omitempty"`

	PathMTU         ib.MTU    `cbor:"8,keyasint,omitempty"` // asked; 0 is the largest
	Timeout         uint8     `cbor:"9,keyasint"`
	RetryCount      uint8     `cbor:"10,keyasint"`
	RNRRetry        uint8     `cbor:"11,keyasint"`
	MinRNRTimer     uint8     `cbor:"12,keyasint"`
	MaxRDAtomic     int       `cbor:"13,keyasint"`
	MaxDestRDAtomic int       `cbor:"14,keyasint"`
	TrafficClass    uint8     `cbor:"15,keyasint,omitempty"`
	HopLimit        uint8     `cbor:"16,keyasint"`
	GIDIndex        int       `cbor:"17,keyasint"` // asked; -1 is by the remote GID
	PSN             ib.PSN    `cbor:"18,keyasint"`
	QKey            ib.QKey   `cbor:"19,keyasint,omitempty"`
	Access          ib.Access `cbor:"20,keyasint,omitempty"`
}

// remoteAsk is the peer, and what was found for the path to it.
type remoteAsk struct {
	GID      ib.GID  `cbor:"0,keyasint"`
	QPN      ib.QPN  `cbor:"1,keyasint"`
	PSN      ib.PSN  `cbor:"2,keyasint"`
	PathMTU  ib.MTU  `cbor:"3,keyasint"`
	GIDIndex int     `cbor:"4,keyasint"`
	PKey     ib.PKey `cbor:"5,keyasint,omitempty"`
	Port     string  `cbor:"6,keyasint,omitempty"`
}

type portAsk struct {
	Up bool `cbor:"0,keyasint"`
}

// gone is what stays of a deleted object while a late retry of its create may
// come.
type gone struct {
	Identity string `cbor:"0,keyasint"` // who created it
	At       int64  `cbor:"1,keyasint"` // Unix nanoseconds
}

var (
	encMode = must(cbor.EncOptions{Sort: cbor.SortNone, TextMarshaler: cbor.TextMarshalerNone, BinaryMarshaler: cbor.BinaryMarshalerNone}.EncMode())
	// sumMode is for what must encode alike each time.
	sumMode = must(cbor.EncOptions{Sort: cbor.SortCanonical}.EncMode())
	decMode = must(cbor.DecOptions{DupMapKey: cbor.DupMapKeyEnforcedAPF, ExtraReturnErrors: cbor.ExtraDecErrorUnknownField}.DecMode())
	laxMode = must(cbor.DecOptions{}.DecMode())
)

// must is for options that are constants.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// encode gives the value to store.
func (s *stored) encode() ([]byte, error) {
	s.Version = codecVersion
	b, err := encMode.Marshal(s)
	if err != nil || s.nx == 0 {
		return b, err
	}
	// A definite-length map: its count is in the first byte, or in the second
	// where there are 24 keys or more. A stored record has fewer than 24 known
	// keys and the unknown ones go to its end.
	if b[0] < 0xa0 || b[0] > 0xb7 {
		return nil, fmt.Errorf("map head %#x", b[0])
	}
	n := int(b[0]&0x1f) + s.nx
	if n > 255 {
		return nil, fmt.Errorf("%d unknown keys", s.nx)
	}
	out := make([]byte, 0, len(b)+1+len(s.extra))
	out = append(out, 0xb8, byte(n))
	out = append(out, b[1:]...)
	return append(out, s.extra...), nil
}

// knownKeys are the keys of stored.
var knownKeys = func() map[uint64]bool {
	m := map[uint64]bool{}
	for k := range uint64(11) {
		m[k] = true
	}
	for k := uint64(20); k <= 32; k++ {
		m[k] = true
	}
	return m
}()

// decodeStored reads a value. It fails on a version above codecVersion.
func decodeStored(b []byte) (*stored, error) {
	s := new(stored)
	err := decMode.Unmarshal(b, s)
	var unknown *cbor.UnknownFieldError
	if errors.As(err, &unknown) {
		*s = stored{}
		err = s.decodeLax(b)
	}
	if err != nil {
		return nil, err
	}
	if s.Version > codecVersion {
		return nil, fmt.Errorf("version %d of a record, which needs a later accelfab (this one reads up to %d)", s.Version, codecVersion)
	}
	if !s.complete() {
		return nil, fmt.Errorf("record of kind %d is not complete", s.Kind)
	}
	return s, nil
}

func (s *stored) decodeLax(b []byte) error {
	if err := laxMode.Unmarshal(b, s); err != nil {
		return err
	}
	var all map[uint64]cbor.RawMessage
	if err := laxMode.Unmarshal(b, &all); err != nil {
		return err
	}
	for k, v := range all {
		if knownKeys[k] {
			continue
		}
		key, err := encMode.Marshal(k)
		if err != nil {
			return err
		}
		s.extra = append(append(s.extra, key...), v...)
		s.nx++
	}
	return nil
}

// complete says whether the kind's own part is there.
func (s *stored) complete() bool {
	switch s.Kind {
	case kindSession:
		return s.SessionAsk != nil
	case kindPD:
		return s.Session != 0
	case kindBuffer:
		return s.Session != 0 && s.BufferAsk != nil
	case kindRegion:
		return s.Session != 0 && s.RegionAsk != nil
	case kindQueuePair:
		return s.Session != 0 && s.QPAsk != nil
	case kindPort:
		return s.PortAsk != nil
	case kindExport:
		return s.Session != 0 && s.ExportAsk != nil
	case kindTombstone:
		return s.Gone != nil
	case kindNode:
		return true
	}
	return false
}

// storedEvent is a journal entry.
type storedEvent struct {
	Type     uint8             `cbor:"0,keyasint"` // 1 created, 2 changed, 3 deleted
	Resource string            `cbor:"1,keyasint"`
	UID      device.UID        `cbor:"2,keyasint"`
	Labels   map[string]string `cbor:"3,keyasint,omitempty"`
	Session  string            `cbor:"4,keyasint,omitempty"`
	Owner    string            `cbor:"5,keyasint,omitempty"`
	Actor    string            `cbor:"6,keyasint,omitempty"`
	Before   string            `cbor:"7,keyasint,omitempty"`
	After    string            `cbor:"8,keyasint,omitempty"`
	Reason   Reason            `cbor:"9,keyasint,omitempty"`
	Message  string            `cbor:"10,keyasint,omitempty"`
}

var eventTypes = [...]EventType{1: EventCreated, 2: EventChanged, 3: EventDeleted}

func encodeEvent(e *Event) ([]byte, error) {
	s := storedEvent{Resource: e.Resource, UID: e.ResourceUID, Labels: e.Labels, Session: e.Session, Owner: e.Owner,
		Actor: e.Actor, Before: e.Before, After: e.After, Reason: e.Reason, Message: e.Message}
	for i, t := range eventTypes {
		if t == e.Type {
			s.Type = uint8(i)
		}
	}
	return encMode.Marshal(&s)
}

// decodeEvent never fails: an entry that cannot be read is told as such, so
// that the cursor goes on.
func decodeEvent(se StoredEvent) Event {
	var s storedEvent
	e := Event{Cursor: se.Revision, Time: se.Time, Type: EventChanged}
	if err := laxMode.Unmarshal(se.Value, &s); err != nil {
		e.Reason, e.Message = Internal, "this entry of the journal cannot be read: "+err.Error()
		return e
	}
	if int(s.Type) < len(eventTypes) && s.Type > 0 {
		e.Type = eventTypes[s.Type]
	}
	e.Resource, e.ResourceUID, e.Labels, e.Session, e.Owner = s.Resource, s.UID, s.Labels, s.Session, s.Owner
	e.Actor, e.Before, e.After, e.Reason, e.Message = s.Actor, s.Before, s.After, s.Reason, s.Message
	return e
}
