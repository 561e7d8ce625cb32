package fabric

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

func isNotFound(err error) bool { return errors.Is(err, device.ErrNotFound) }

// transient says that the device did not answer, so that nothing is known.
func transient(err error) bool {
	return errors.Is(err, device.ErrClosed) || errors.Is(err, device.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// deviceError says in the domain's words what a device refused. Fabric.mu is
// held.
func (f *Fabric) deviceError(r *record, err error) *Error {
	e := &Error{Name: r.name, Reason: DeviceUnavailable, Message: "the device failed: " + err.Error(), RetryAfter: time.Second, Err: err}
	set := func(reason Reason, message string) {
		e.Reason, e.Message, e.RetryAfter = reason, message, 0
	}
	var limit *device.LimitError
	var field *device.FieldError
	var attach *device.AttachError
	var step *ib.TransitionError
	var state *device.StateError
	switch {
	case errors.As(err, &limit):
		set(Exhausted, "the device has no more: "+limit.Error())
		e.Err = nil
		e.Shortage = &Shortage{Kind: limit.Kind, Asked: limit.Asked, Available: limit.Available, Limit: limit.Limit,
			Holders: f.holders(r.card, limit.Kind)}
		e.Message += describe(e.Shortage.Holders)
	case errors.As(err, &field) && field.Field == "address" && (r.buf != nil || r.Kind == kindBuffer):
		// The caller named a buffer, and where that is the device said itself.
		set(Lost, "the device does not have the buffer any more: "+field.Problem)
		e.Err = nil
	case errors.As(err, &field):
		set(FieldInvalid, field.Problem)
		e.Field, e.Err = field.Field, nil
		if r.ImportAsk != nil {
			e.Field = importField(e.Field)
		}
		if q := r.QPAsk; q != nil && q.Remote != nil {
			connectFault(e, r, field)
		}
		e.Violations = []Violation{{Field: e.Field, Reason: e.Reason, Problem: e.Message}}
	case errors.As(err, &attach):
		set(Reason(attach.Reason), attach.Problem)
		e.Err = nil
		f.attachFault(e, r, attach)
	case errors.Is(err, device.ErrRevoked):
		set(ExportRevoked, "the export was revoked: nothing reaches its memory any more; make another")
		if r.ImportAsk != nil {
			e.Details = map[string]string{"memory_export": r.ImportAsk.Export}
		}
	case r.ImportAsk != nil && !r.made && isNotFound(err):
		set(NotAnExport, "the export of the descriptor is gone; make another and upload its descriptor")
	case errors.As(err, &step):
		set(StateInvalid, step.Error())
		e.Details = map[string]string{"state": step.From.String(), "asked": step.To.String()}
		e.Err = nil
	case errors.As(err, &state):
		set(StateInvalid, state.Error())
		e.Details = map[string]string{"state": state.State.String(), "asked": state.Want}
		e.Err = nil
	case errors.Is(err, errors.ErrUnsupported):
		set(Unsupported, "the device cannot do this: "+err.Error())
	case errors.Is(err, device.ErrExhausted):
		set(Exhausted, "the device has no more of this: "+err.Error())
	case errors.Is(err, device.ErrBusy):
		set(InUse, "the device still uses it: "+err.Error())
	case isNotFound(err):
		set(Lost, "the device does not have it any more: "+err.Error())
	case errors.Is(err, device.ErrInvalid), errors.Is(err, device.ErrExists):
		set(FieldInvalid, "the device refuses it: "+err.Error())
	}
	return e
}

// connectFault names what is wrong with a path that the device refused: a
// field of the remote GID is about the cable, since the family was checked
// before.
func connectFault(e *Error, r *record, field *device.FieldError) {
	remote := r.QPAsk.Remote
	switch {
	case strings.Contains(field.Field, "mtu"):
		e.Reason, e.Field = MTUMismatch, "attributes.path_mtu_bytes"
	case strings.Contains(field.Field, "pkey"), strings.Contains(field.Field, "p_key"):
		e.Reason, e.Field = PKeyMismatch, "remote_endpoint.pkey"
	case strings.Contains(field.Field, "gid_index"):
		e.Reason, e.Field = GIDFamilyMismatch, "attributes.gid_index"
	case strings.Contains(field.Field, "gid"):
		e.Reason, e.Field = PathNotCabled, "remote_endpoint.gid"
	default:
		return
	}
	e.Details = map[string]string{"remote_gid": remote.GID.String(), "port": r.card.portName(r.QPAsk.Port)}
}

// most holders that a refusal names
const maxHolders = 16

// holders names the sessions that have the most of a kind on a card. Fabric.mu
// is held.
func (f *Fabric) holders(c *card, kind string) []Holder {
	amount := func(u *Usage) uint64 {
		switch {
		case strings.Contains(kind, "memory_region"), strings.Contains(kind, "regions"):
			return uint64(u.MemoryRegions)
		case strings.Contains(kind, "memory"):
			return u.BufferBytes
		case strings.Contains(kind, "domain"):
			return uint64(u.ProtectionDomains)
		case strings.Contains(kind, "queue_pair"):
			return uint64(u.QueuePairs)
		}
		return 0
	}
	var hs []Holder
	f.idx.sessions.after(0, func(s *record) bool {
		if u := s.life.use[c]; u != nil && amount(u) > 0 {
			hs = append(hs, s.holder(amount(u)))
		}
		return true
	})
	slices.SortStableFunc(hs, func(a, b Holder) int {
		switch {
		case a.Amount > b.Amount:
			return -1
		case a.Amount < b.Amount:
			return 1
		}
		return 0
	})
	return hs[:min(len(hs), maxHolders)]
}

// holder names a session.
func (r *record) holder(amount uint64) Holder {
	return Holder{Name: r.name, Identity: r.SessionAsk.Identity, PID: r.SessionAsk.PID, Command: r.Command, Since: time.Unix(0, r.Created), Amount: amount}
}

// describe says for people who holds.
func describe(hs []Holder) string {
	var b strings.Builder
	for i, h := range hs {
		if i == 3 {
			b.WriteString(" and others")
			break
		}
		b.WriteString([]string{"; held by ", ", "}[min(i, 1)])
		b.WriteString(h.String())
	}
	return b.String()
}

// String says who, since when, and as which process.
func (h Holder) String() string {
	s := h.Name + " (" + h.Identity
	if h.PID != 0 {
		s += ", pid " + itoa(int(h.PID))
	}
	if h.Command != "" {
		s += ", " + strconv.Quote(h.Command)
	}
	return s + ", since " + h.Since.UTC().Format(time.RFC3339) + ")"
}
