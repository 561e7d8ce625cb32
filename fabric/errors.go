package fabric

import (
	"strconv"
	"strings"
	"time"
)

// A Reason is the machine-readable cause of a refusal. It is an error itself,
// so that errors.Is(err, fabric.NotFound) asks for it.
type Reason string

// The reasons of errors and of conditions.
const (
	FieldInvalid      Reason = "FIELD_INVALID"
	FieldRequired     Reason = "FIELD_REQUIRED"
	NotFound          Reason = "NOT_FOUND"
	AlreadyExists     Reason = "ALREADY_EXISTS"
	PermissionDenied  Reason = "PERMISSION_DENIED"
	ETagMismatch      Reason = "ETAG_MISMATCH"
	InstanceMismatch  Reason = "INSTANCE_MISMATCH"
	RequestIDReused   Reason = "REQUEST_ID_REUSED"
	Tombstoned        Reason = "TOMBSTONED"
	StateInvalid      Reason = "STATE_INVALID"
	InUse             Reason = "IN_USE"
	DeviceBusy        Reason = "DEVICE_BUSY"
	Exhausted         Reason = "EXHAUSTED"
	Lost              Reason = "LOST"
	SessionClosed     Reason = "SESSION_CLOSED"
	GenerationStale   Reason = "GENERATION_STALE"
	DeviceUnavailable Reason = "DEVICE_UNAVAILABLE"
	Unsupported       Reason = "UNSUPPORTED"
	CursorExpired     Reason = "CURSOR_EXPIRED"
	Timeout           Reason = "TIMEOUT"
	Cancelled         Reason = "CANCELLED"
	GIDFamilyMismatch Reason = "GID_FAMILY_MISMATCH"
	MTUMismatch       Reason = "MTU_MISMATCH"
	PathNotCabled     Reason = "PATH_NOT_CABLED"
	PKeyMismatch      Reason = "PKEY_MISMATCH"
	StoreUnavailable  Reason = "STORE_UNAVAILABLE"
	Internal          Reason = "INTERNAL"
	ExportRevoked     Reason = "EXPORT_REVOKED"
	NotAnExport       Reason = "NOT_AN_EXPORT"
	OutOfRange        Reason = "OUT_OF_RANGE"

	// Why one device cannot attach what another exports, as device.AttachError
	// says.
	ImportUnsupported  Reason = "IMPORT_UNSUPPORTED"
	P2PUnsupported     Reason = "P2P_UNSUPPORTED"
	PathNotReachable   Reason = "PATH_NOT_REACHABLE"
	OutsideAperture    Reason = "OUTSIDE_APERTURE"
	SegmentUnsupported Reason = "SEGMENT_UNSUPPORTED"
)

func (r Reason) Error() string { return string(r) }

// Error is every refusal and failure of a Fabric. errors.Is finds its Reason
// and what Err wraps; errors.As finds the Error.
type Error struct {
	Op      string // the method, "CreateBuffer"
	Name    string // resource name that it is about; may be empty
	Field   string // request field that is wrong, "path_mtu"; may be empty
	Reason  Reason
	Message string // what was wrong and what to do, for people
	// Violations are all field faults of one request. Field and Reason repeat
	// the first.
	Violations []Violation
	// Shortage is set when something is used up (Exhausted) or held by others
	// (DeviceBusy, InUse).
	Shortage *Shortage
	// Index is that of the request within a batch; 0 outside one.
	Index int
	// Details are further facts, under the names that the contract tells for
	// the Reason: "asked" and "present", "state", "local_gid", ...
	Details map[string]string
	// RetryAfter is when a retry may help; 0 if it will not, or nobody knows.
	RetryAfter time.Duration
	Err        error // cause; may be nil
}

// Violation is one wrong field. "parent", "id", "labels", "request_id", "name"
// and "etag" are fields of the request; other fields are the resource's, under
// the contract's names ("size_bytes", "attributes.path_mtu_bytes").
type Violation struct {
	Index   int // of the request within a batch; 0 outside one
	Field   string
	Reason  Reason
	Problem string
}

// Shortage says what was asked, what is left and who has the rest.
type Shortage struct {
	Kind      string // "memory_bytes", "queue_pairs", "device", "children", ...
	Asked     uint64
	Available uint64
	Limit     uint64
	Holders   []Holder // the largest first, at most 16
}

// Holder is who holds something. Fields that the caller may not see are empty.
type Holder struct {
	Name     string // resource name: the session, or the object that is in the way
	Identity string
	PID      int32
	Command  string // of that process; may be empty
	Since    time.Time
	Amount   uint64
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Op != "" {
		b.WriteString(e.Op)
	}
	if e.Name != "" {
		b.WriteString(" " + e.Name)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	switch {
	case len(e.Violations) > 0:
		for i, v := range e.Violations {
			if i > 0 {
				b.WriteString("; ")
			}
			b.WriteString(v.Field + ": " + v.Problem)
		}
	case e.Field != "":
		b.WriteString(e.Field + ": " + e.Message)
	case e.Message != "":
		b.WriteString(e.Message)
	default:
		b.WriteString(string(e.Reason))
	}
	if s := e.Shortage; s != nil && s.Limit > 0 {
		b.WriteString(" (asked for " + strconv.FormatUint(s.Asked, 10) + ", " +
			strconv.FormatUint(s.Available, 10) + " of " + strconv.FormatUint(s.Limit, 10) + " available)")
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is matches the Reason, also that of any violation.
func (e *Error) Is(target error) bool {
	r, ok := target.(Reason)
	if !ok {
		return false
	}
	if e.Reason == r {
		return true
	}
	for _, v := range e.Violations {
		if v.Reason == r {
			return true
		}
	}
	return false
}

// violations gathers the field faults of one request.
type violations []Violation

func (v *violations) add(field string, reason Reason, problem string) {
	*v = append(*v, Violation{Field: field, Reason: reason, Problem: problem})
}

func (v *violations) invalid(field, problem string)  { v.add(field, FieldInvalid, problem) }
func (v *violations) required(field, problem string) { v.add(field, FieldRequired, problem) }

// err gives nil if there is no fault.
func (v violations) err(op, name string) error {
	if len(v) == 0 {
		return nil
	}
	return &Error{Op: op, Name: name, Field: v[0].Field, Reason: v[0].Reason, Message: v[0].Problem, Violations: v}
}
