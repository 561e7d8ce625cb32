package client

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// domain marks the error details of accelfab.
const domain = "accelfab"

// detail finds an error detail of one type.
func detail[T any](err error) (found T, ok bool) {
	s, is := statusOf(err)
	if !is {
		return found, false
	}
	for _, d := range s.Details() {
		if t, is := d.(T); is {
			return t, true
		}
	}
	return found, false
}

// statusOf finds the gRPC status that an error holds, also where it is wrapped.
func statusOf(err error) (*status.Status, bool) {
	var s interface{ GRPCStatus() *status.Status }
	if err == nil || !errors.As(err, &s) {
		return nil, false
	}
	return s.GRPCStatus(), true
}

// Reason tells why the daemon refused a call, UNSPECIFIED if err is nil or is no
// refusal of a daemon.
func Reason(err error) pb.ErrorReason {
	info, ok := detail[*errdetails.ErrorInfo](err)
	if !ok || info.GetDomain() != domain {
		return pb.ErrorReason_ERROR_REASON_UNSPECIFIED
	}
	return pb.ErrorReason(pb.ErrorReason_value["ERROR_REASON_"+info.GetReason()])
}

// Details are the facts that come with a reason; the contract tells the keys
// with each reason. nil if there are none.
func Details(err error) map[string]string {
	info, ok := detail[*errdetails.ErrorInfo](err)
	if !ok || info.GetDomain() != domain {
		return nil
	}
	return info.GetMetadata()
}

// Holders names what stands in the way: the sessions that hold a busy device or
// what is short of it, or the objects that need one which shall go. It names as
// many as the caller may know and the refusal has room for; nil if none.
func Holders(err error) []string {
	var names []string
	switch details := Details(err); Reason(err) {
	case pb.ErrorReason_ERROR_REASON_DEVICE_BUSY:
		if holder := details["holder"]; holder != "" {
			names = append(names, holder)
		}
	case pb.ErrorReason_ERROR_REASON_EXHAUSTED:
		for holder := range strings.SplitSeq(details["holders"], ",") {
			if name, _, ok := strings.Cut(holder, "="); ok { // the last may be cut short
				names = append(names, name)
			}
		}
	case pb.ErrorReason_ERROR_REASON_IN_USE:
		needs, _ := detail[*errdetails.PreconditionFailure](err)
		for _, v := range needs.GetViolations() {
			names = append(names, v.GetSubject())
		}
	}
	return names
}

// Violation is one field that a daemon found wrong.
type Violation struct {
	Field   string // path in the request, such as queue_pair.port
	Problem string
}

// Violations lists the fields that were wrong, nil if the refusal is for
// another reason.
func Violations(err error) []Violation {
	bad, _ := detail[*errdetails.BadRequest](err)
	var list []Violation
	for _, v := range bad.GetFieldViolations() {
		list = append(list, Violation{v.GetField(), v.GetDescription()})
	}
	return list
}

// Explain says an error in one line: what was wrong, why, and what to do where
// the daemon said so. Of errors that were joined it says each.
func Explain(err error) string {
	text := err.Error()
	for _, s := range statuses(err, nil) {
		// What wraps the status tells where it happened.
		text = strings.ReplaceAll(text, s.Err().Error(), explain(s))
	}
	var said []string
	for line := range strings.Lines(text) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			said = append(said, line)
		}
	}
	return strings.Join(said, "; ")
}

// explain says a status without its code, in one line.
func explain(s *status.Status) string {
	err := s.Err()
	text := s.Message()
	if Reason(err) == pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		switch s.Code() {
		case codes.Unavailable:
			hint := "is accelfabd running, and is this its address"
			if strings.Contains(text, "permission denied") {
				hint = "this user may not open the socket: only the daemon's user and group may"
			}
			text = "no daemon answers: " + text + "; " + hint
		case codes.DeadlineExceeded:
			text = "the daemon did not answer in time: " + text
		case codes.Unimplemented:
			text += "; the daemon may be older than this program"
		}
	}
	for _, v := range Violations(err) {
		if !strings.Contains(text, v.Problem) {
			text += fmt.Sprintf("; %s: %s", v.Field, v.Problem)
		}
	}
	return strings.Join(strings.Fields(text), " ")
}

// statuses adds the gRPC statuses that an error holds, wrapped or joined.
func statuses(err error, list []*status.Status) []*status.Status {
	switch x := err.(type) {
	case interface{ GRPCStatus() *status.Status }:
		list = append(list, x.GRPCStatus())
	case interface{ Unwrap() error }:
		list = statuses(x.Unwrap(), list)
	case interface{ Unwrap() []error }:
		for _, one := range x.Unwrap() {
			list = statuses(one, list)
		}
	}
	return list
}
