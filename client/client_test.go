package client_test

import (
	"context"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/client"
	"github.com/accelfab/accelfab/client/clienttest"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// awayFor is a daemon that is away for the first n calls and then answers.
func awayFor(n int, reply proto.Message) *clienttest.Daemon {
	return &clienttest.Daemon{Answer: func(context.Context, string, proto.Message) (proto.Message, error) {
		if n--; n >= 0 {
			return nil, status.Error(codes.Unavailable, "away")
		}
		return reply, nil
	}}
}

func TestRequestIDIsGivenAndRepeated(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := awayFor(2, &pb.Session{Name: "nodes/n1/sessions/s1"})
		c := connect(t, d)
		req := &pb.CreateSessionRequest{Parent: "nodes/local"}
		if _, err := c.Sessions.CreateSession(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		calls := d.Calls()
		if len(calls) != 3 {
			t.Fatalf("%d calls, want 2 that found nobody and 1", len(calls))
		}
		id := calls[0].Request.(*pb.CreateSessionRequest).GetRequestId()
		if len(id) < 16 || len(id) > 64 {
			t.Errorf("request id %q", id)
		}
		for _, call := range calls[1:] {
			if !proto.Equal(call.Request, calls[0].Request) {
				t.Errorf("repeated as %v, first it was %v", call.Request, calls[0].Request)
			}
		}
		if req.GetRequestId() != "" {
			t.Error("the caller's message was changed")
		}

		// Each change has an id of its own, and the caller's is kept.
		if _, err := c.Sessions.CreateSession(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		req.RequestId = "mine"
		if _, err := c.Sessions.CreateSession(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		calls = d.Calls()
		if got := calls[0].Request.(*pb.CreateSessionRequest).GetRequestId(); got == id || got == "" {
			t.Errorf("second change has request id %q, the first had %q", got, id)
		}
		if got := calls[1].Request.(*pb.CreateSessionRequest).GetRequestId(); got != "mine" {
			t.Errorf("request id %q, want the caller's", got)
		}
	})
}

func TestBatchHasOneRequestID(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := awayFor(0, &pb.BatchCreateQueuePairsResponse{})
		c := connect(t, d)
		req := &pb.BatchCreateQueuePairsRequest{Requests: []*pb.CreateQueuePairRequest{{}, {}}}
		if _, err := c.QueuePairs.BatchCreateQueuePairs(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		got := d.Calls()[0].Request.(*pb.BatchCreateQueuePairsRequest)
		if got.GetRequestId() == "" || got.GetRequests()[0].GetRequestId() != "" {
			t.Errorf("request ids: %v", got)
		}
	})
}

// What posts work is not repeated, for it may have been posted; all else is, a
// few times.
func TestRetries(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := awayFor(1000, nil)
		c := connect(t, d)
		for _, test := range []struct {
			name string
			call func() error
			want int
		}{
			{"PostWork", func() error { _, err := c.Transfers.PostWork(t.Context(), &pb.PostWorkRequest{}); return err }, 1},
			{"PollCompletions", func() error {
				_, err := c.Transfers.PollCompletions(t.Context(), &pb.PollCompletionsRequest{})
				return err
			}, 4},
			{"DeleteBuffer", func() error { _, err := c.Memory.DeleteBuffer(t.Context(), &pb.DeleteBufferRequest{}); return err }, 4},
			{"GetNode", func() error { _, err := c.Nodes.GetNode(t.Context(), &pb.GetNodeRequest{}); return err }, 4},
		} {
			if err := test.call(); status.Code(err) != codes.Unavailable || err.Error() != status.Error(codes.Unavailable, "away").Error() {
				t.Errorf("%s: %v", test.name, err)
			}
			if got := methods(d.Calls()); len(got) != test.want || slices.ContainsFunc(got, func(m string) bool { return m != test.name }) {
				t.Errorf("%s: calls %v, want %d", test.name, got, test.want)
			}
		}
	})
}

// A refusal that is no matter of a moment is not repeated.
func TestRefusalIsNotRepeated(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := &clienttest.Daemon{Answer: func(context.Context, string, proto.Message) (proto.Message, error) {
			return nil, clienttest.Refusal{Code: codes.FailedPrecondition, Reason: pb.ErrorReason_ERROR_REASON_IN_USE}.Err()
		}}
		c := connect(t, d)
		_, err := c.Memory.DeleteBuffer(t.Context(), &pb.DeleteBufferRequest{})
		if client.Reason(err) != pb.ErrorReason_ERROR_REASON_IN_USE || len(d.Calls()) != 1 {
			t.Errorf("%v", err)
		}
	})
}
