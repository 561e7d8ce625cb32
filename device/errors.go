package device

import (
	"errors"
	"fmt"

	"github.com/accelfab/accelfab/device/ib"
)

// Errors that drivers return, wrapped with what is known. What a driver cannot
// do at all wraps errors.ErrUnsupported.
var (
	ErrNotFound  = errors.New("not found")
	ErrExists    = errors.New("already exists with other attributes")
	ErrBusy      = errors.New("in use")
	ErrClosed    = errors.New("device closed")
	ErrExhausted = errors.New("exhausted")
	ErrInvalid   = errors.New("invalid argument")
	ErrRevoked   = errors.New("export revoked")
	ErrAttach    = errors.New("cannot attach")
	// ErrUnavailable: the device is away for now, as the process that has it
	// open ended or does not answer. Whether the call was carried out is not
	// known. A DeviceChanged event tells when it is back.
	ErrUnavailable = errors.New("device unavailable")
)

// FieldError says which field of an argument is wrong, and how. errors.Is
// finds ErrInvalid.
type FieldError struct {
	Field   string // name in lower_snake_case, as callers of the API know it
	Problem string // what was wrong and what would be right
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// Unwrap makes errors.Is find ErrInvalid.
func (e *FieldError) Unwrap() error { return ErrInvalid }

// LimitError says that something is used up. errors.Is finds ErrExhausted.
type LimitError struct {
	Kind      string // "memory_bytes", "queue_pairs", ...
	Asked     uint64
	Available uint64
	Limit     uint64
	Detail    string // for instance that free memory is in pieces; may be empty
}

func (e *LimitError) Error() string {
	s := fmt.Sprintf("%s: asked for %d, %d of %d available", e.Kind, e.Asked, e.Available, e.Limit)
	if e.Detail != "" {
		s += " (" + e.Detail + ")"
	}
	return s
}

// Unwrap makes errors.Is find ErrExhausted.
func (e *LimitError) Unwrap() error { return ErrExhausted }

// StateError says that the present state of a queue pair forbids to post.
// errors.Is finds ErrInvalid.
type StateError struct {
	State ib.QPState
	Want  string // the states in which it may be done, such as "RTS, SQD or ERR"
}

func (e *StateError) Error() string {
	return fmt.Sprintf("the queue pair is in %v: want %s", e.State, e.Want)
}

// Unwrap makes errors.Is find ErrInvalid.
func (e *StateError) Unwrap() error { return ErrInvalid }

// PostError says which work request of a list was refused. Those before it
// were queued.
type PostError struct {
	Index int
	Err   error
}

func (e *PostError) Error() string { return fmt.Sprintf("work request %d: %v", e.Index, e.Err) }

// Unwrap gives the reason.
func (e *PostError) Unwrap() error { return e.Err }

// AttachReason says in one word why an importer cannot attach an export.
type AttachReason string

// The reasons of an AttachError.
const (
	NoImport       AttachReason = "IMPORT_UNSUPPORTED"  // the importer imports nothing
	NoPeerToPeer   AttachReason = "P2P_UNSUPPORTED"     // the importer needs host memory
	NotReachable   AttachReason = "PATH_NOT_REACHABLE"  // something between the devices is in the way
	NotInAperture  AttachReason = "OUTSIDE_APERTURE"    // the memory is not on the bus
	SegmentTooLong AttachReason = "SEGMENT_UNSUPPORTED" // the importer cannot take the pieces
)

// AttachError says why an importer cannot attach an export. errors.Is finds
// ErrAttach.
type AttachError struct {
	Reason       AttachReason
	Problem      string
	Alternatives []string // IDs of devices that could
}

func (e *AttachError) Error() string { return string(e.Reason) + ": " + e.Problem }

// Unwrap makes errors.Is find ErrAttach.
func (e *AttachError) Unwrap() error { return ErrAttach }
