package host

import (
	"context"
	"errors"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	pb "github.com/accelfab/accelfab/proto/accelfab/device/v1"
)

// causes are the errors without attributes that cross the contract.
var causes = []struct {
	err   error
	cause pb.Error_Cause
}{
	{device.ErrNotFound, pb.Error_CAUSE_NOT_FOUND},
	{device.ErrExists, pb.Error_CAUSE_EXISTS},
	{device.ErrBusy, pb.Error_CAUSE_BUSY},
	{device.ErrClosed, pb.Error_CAUSE_CLOSED},
	{device.ErrExhausted, pb.Error_CAUSE_EXHAUSTED},
	{device.ErrInvalid, pb.Error_CAUSE_INVALID},
	{device.ErrRevoked, pb.Error_CAUSE_REVOKED},
	{device.ErrAttach, pb.Error_CAUSE_ATTACH},
	{device.ErrUnavailable, pb.Error_CAUSE_UNAVAILABLE},
	{errors.ErrUnsupported, pb.Error_CAUSE_UNSUPPORTED},
	{context.Canceled, pb.Error_CAUSE_CANCELED},
	{context.DeadlineExceeded, pb.Error_CAUSE_DEADLINE},
}

// encodeError gives all that a program can tell from an error; nil for nil.
func encodeError(err error) *pb.Error {
	if err == nil {
		return nil
	}
	out := &pb.Error{Text: err.Error()}
	if post, ok := errors.AsType[*device.PostError](err); ok {
		out.Post = &pb.PostError{Index: int32(post.Index), Error: encodeError(post.Err)}
		return out // its reason has the rest
	}
	for _, c := range causes {
		if errors.Is(err, c.err) {
			out.Causes = append(out.Causes, c.cause)
		}
	}
	if e, ok := errors.AsType[*device.FieldError](err); ok {
		out.Field = &pb.FieldError{Field: e.Field, Problem: e.Problem}
	}
	if e, ok := errors.AsType[*device.LimitError](err); ok {
		out.Limit = &pb.LimitError{Kind: e.Kind, Asked: e.Asked, Available: e.Available, Limit: e.Limit, Detail: e.Detail}
	}
	if e, ok := errors.AsType[*device.StateError](err); ok {
		out.State = &pb.StateError{State: uint32(e.State), Want: e.Want}
	}
	if e, ok := errors.AsType[*device.AttachError](err); ok {
		out.Attach = &pb.AttachError{Reason: string(e.Reason), Problem: e.Problem, Alternatives: e.Alternatives}
	}
	if e, ok := errors.AsType[*ib.TransitionError](err); ok {
		out.Transition = &pb.TransitionError{Type: uint32(e.Type), From: uint32(e.From), To: uint32(e.To),
			Missing: uint32(e.Missing), NotAllowed: uint32(e.NotAllowed)}
	}
	return out
}

// remoteError is an error of the other side: its text, and what errors.Is and
// errors.As find in it.
type remoteError struct {
	text   string
	causes []error
}

func (e *remoteError) Error() string   { return e.text }
func (e *remoteError) Unwrap() []error { return e.causes }

// decodeError is the reverse of encodeError. An Error that says nothing is none.
func decodeError(in *pb.Error) error {
	if in == nil || in.Text == "" && len(in.Causes) == 0 && in.Post == nil {
		return nil
	}
	var found []error
	if p := in.Post; p != nil {
		inner := decodeError(p.Error)
		if inner == nil {
			inner = errors.New("refused")
		}
		found = append(found, &device.PostError{Index: int(p.Index), Err: inner})
	}
	if e := in.Field; e != nil {
		found = append(found, &device.FieldError{Field: e.Field, Problem: e.Problem})
	}
	if e := in.Limit; e != nil {
		found = append(found, &device.LimitError{Kind: e.Kind, Asked: e.Asked, Available: e.Available, Limit: e.Limit, Detail: e.Detail})
	}
	if e := in.State; e != nil {
		found = append(found, &device.StateError{State: ib.QPState(e.State), Want: e.Want})
	}
	if e := in.Attach; e != nil {
		found = append(found, &device.AttachError{Reason: device.AttachReason(e.Reason), Problem: e.Problem, Alternatives: e.Alternatives})
	}
	if e := in.Transition; e != nil {
		found = append(found, &ib.TransitionError{Type: ib.QPType(e.Type), From: ib.QPState(e.From), To: ib.QPState(e.To),
			Missing: ib.AttrMask(e.Missing), NotAllowed: ib.AttrMask(e.NotAllowed)})
	}
	for _, cause := range in.Causes {
		for _, c := range causes {
			if c.cause == cause {
				found = append(found, c.err)
			}
		}
	}
	if len(found) > 0 && found[0].Error() == in.Text {
		return found[0] // it was that one, not wrapped
	}
	return &remoteError{text: in.Text, causes: found}
}

// decodeErrors gives an error, or nil, for each of n entries of a batch.
func decodeErrors(in []*pb.Error, n int) []error {
	out := make([]error, n)
	for i := range out {
		if i < len(in) {
			out[i] = decodeError(in[i])
		} else {
			out[i] = errShort
		}
	}
	return out
}

// encodeErrors has an Error that says nothing for what is done.
func encodeErrors(errs []error) []*pb.Error {
	out := make([]*pb.Error, len(errs))
	for i, err := range errs {
		if out[i] = encodeError(err); out[i] == nil {
			out[i] = &pb.Error{}
		}
	}
	return out
}

// errShort is the answer for an entry that the host has not answered.
var errShort = errors.New("the device host answered fewer entries than were asked")
