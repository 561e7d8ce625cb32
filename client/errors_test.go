package client_test

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/accelfab/accelfab/client"
	"github.com/accelfab/accelfab/client/clienttest"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

func TestErrors(t *testing.T) {
	full := clienttest.Refusal{
		Code: codes.ResourceExhausted, Reason: pb.ErrorReason_ERROR_REASON_EXHAUSTED, Message: "buffer: 2 GiB asked,\n\t1 GiB free",
		Details: map[string]string{"asked": "2147483648", "available": "1073741824"},
	}.Err()
	fields := clienttest.Refusal{
		Code: codes.InvalidArgument, Reason: pb.ErrorReason_ERROR_REASON_FIELD_INVALID, Message: "buffer.size_bytes: 0: want 1 or more",
		Fields: [][2]string{{"buffer.size_bytes", "0: want 1 or more"}, {"buffer.session", "want a session"}},
	}.Err()
	foreign, err := status.New(codes.NotFound, "elsewhere").WithDetails(&errdetails.ErrorInfo{Domain: "example", Reason: "NOT_FOUND"})
	if err != nil {
		t.Fatal(err)
	}
	exhausted, invalid := pb.ErrorReason_ERROR_REASON_EXHAUSTED, pb.ErrorReason_ERROR_REASON_FIELD_INVALID
	details := map[string]string{"asked": "2147483648", "available": "1073741824"}
	violations := []client.Violation{{"buffer.size_bytes", "0: want 1 or more"}, {"buffer.session", "want a session"}}
	for _, test := range []struct {
		name       string
		err        error
		reason     pb.ErrorReason
		details    map[string]string
		violations []client.Violation
		explained  string
	}{
		{"refusal", full, exhausted, details, nil, "buffer: 2 GiB asked, 1 GiB free"},
		{"wrapped", fmt.Errorf("step 3: %w", full), exhausted, details, nil, "step 3: buffer: 2 GiB asked, 1 GiB free"},
		{"text after", fmt.Errorf("a: %w (b)", fmt.Errorf("c: %w, d", full)), exhausted, details, nil, "a: c: buffer: 2 GiB asked, 1 GiB free, d (b)"},
		{"fields", fields, invalid, nil, violations, "buffer.size_bytes: 0: want 1 or more; buffer.session: want a session"},
		{"joined", errors.Join(fmt.Errorf("x: %w", fields), full), invalid, nil, violations,
			"x: buffer.size_bytes: 0: want 1 or more; buffer.session: want a session; buffer: 2 GiB asked, 1 GiB free"},
		{"both wrapped", fmt.Errorf("%w, and then %w", full, status.Error(codes.NotFound, "gone")), exhausted, details, nil,
			"buffer: 2 GiB asked, 1 GiB free, and then gone"},
		{"another domain", foreign.Err(), 0, nil, nil, "elsewhere"},
		{"bare status", status.Error(codes.NotFound, "gone"), 0, nil, nil, "gone"},
		{"no daemon", fmt.Errorf("phase read, q1: %w", status.Error(codes.Unavailable, "refused")), 0, nil, nil,
			"phase read, q1: no daemon answers: refused; is accelfabd running, and is this its address"},
		{"no right to the socket", fmt.Errorf("phase read, q1: %w", status.Error(codes.Unavailable, "permission denied")), 0, nil, nil,
			"phase read, q1: no daemon answers: permission denied; this user may not open the socket: only the daemon's user and group may"},
		{"a daemon that is ending", clienttest.Refusal{Code: codes.Unavailable, Reason: pb.ErrorReason_ERROR_REASON_DEVICE_UNAVAILABLE, Message: "the daemon is ending"}.Err(),
			pb.ErrorReason_ERROR_REASON_DEVICE_UNAVAILABLE, nil, nil, "the daemon is ending"},
		{"late", status.Error(codes.DeadlineExceeded, "context deadline exceeded"), 0, nil, nil, "the daemon did not answer in time: context deadline exceeded"},
		{"old daemon", status.Error(codes.Unimplemented, "unknown method X"), 0, nil, nil, "unknown method X; the daemon may be older than this program"},
		{"no status", errors.New("disk\n full"), 0, nil, nil, "disk; full"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := client.Reason(test.err); got != test.reason {
				t.Errorf("reason %v, want %v", got, test.reason)
			}
			if got := client.Details(test.err); !maps.Equal(got, test.details) {
				t.Errorf("details %v, want %v", got, test.details)
			}
			if got := client.Violations(test.err); !reflect.DeepEqual(got, test.violations) {
				t.Errorf("violations %v, want %v", got, test.violations)
			}
			if got := client.Explain(test.err); got != test.explained {
				t.Errorf("explained as\n%s\nwant\n%s", got, test.explained)
			}
		})
	}
}

func TestNoError(t *testing.T) {
	if r, d, v := client.Reason(nil), client.Details(nil), client.Violations(nil); r != 0 || d != nil || v != nil {
		t.Errorf("of no error: %v %v %v", r, d, v)
	}
}

// A reason that this client does not know yet is none that it can name; the rest
// is there.
func TestUnknownReason(t *testing.T) {
	s, err := status.New(codes.Aborted, "new").WithDetails(&errdetails.ErrorInfo{Domain: "accelfab", Reason: "NEWER", Metadata: map[string]string{"k": "v"}})
	if err != nil {
		t.Fatal(err)
	}
	if client.Reason(s.Err()) != 0 || client.Details(s.Err())["k"] != "v" {
		t.Errorf("%v %v", client.Reason(s.Err()), client.Details(s.Err()))
	}
}

func TestHolders(t *testing.T) {
	refusal := func(reason pb.ErrorReason, key, value string) error {
		return clienttest.Refusal{Code: codes.FailedPrecondition, Reason: reason, Details: map[string]string{key: value}}.Err()
	}
	inUse, err := status.New(codes.FailedPrecondition, "in use").WithDetails(
		&errdetails.ErrorInfo{Domain: "accelfab", Reason: "IN_USE", Metadata: map[string]string{"count": "2"}},
		&errdetails.PreconditionFailure{Violations: []*errdetails.PreconditionFailure_Violation{{Subject: "q1"}, {Subject: "mr1"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		err  error
		want []string
	}{
		{refusal(pb.ErrorReason_ERROR_REASON_DEVICE_BUSY, "holder", "nodes/n/sessions/s"), []string{"nodes/n/sessions/s"}},
		{refusal(pb.ErrorReason_ERROR_REASON_DEVICE_BUSY, "name", "nodes/n/devices/d"), nil},
		{fmt.Errorf("wrapped: %w", refusal(pb.ErrorReason_ERROR_REASON_EXHAUSTED, "holders", "nodes/n/sessions/s=12,nodes/n/sessions/t=1")),
			[]string{"nodes/n/sessions/s", "nodes/n/sessions/t"}},
		{refusal(pb.ErrorReason_ERROR_REASON_EXHAUSTED, "holders", "nodes/n/sessions/s=12,nodes/n/sess..."), []string{"nodes/n/sessions/s"}},
		{refusal(pb.ErrorReason_ERROR_REASON_EXHAUSTED, "holders", ""), nil},
		{inUse.Err(), []string{"q1", "mr1"}},
		{refusal(pb.ErrorReason_ERROR_REASON_NOT_FOUND, "holder", "x"), nil},
		{errors.New("no refusal"), nil},
		{nil, nil},
	} {
		if got := client.Holders(test.err); !slices.Equal(got, test.want) {
			t.Errorf("%v: holders %q, want %q", test.err, got, test.want)
		}
	}
}
