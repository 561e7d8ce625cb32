package client_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/client"
	"github.com/accelfab/accelfab/client/clienttest"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// stream is one stream of a daemon, written down: what it tells, how it
// ends, and the cursor that it must be asked from.
type stream struct {
	after string // of the request; "now" if unset
	tells []*pb.WatchEventsResponse
	end   error // nil is the end of the stream
}

// follow runs a watch against streams and gives what the caller was told, and
// the error, if any. It stops after enough messages, or when the daemon is asked
// for a stream too many.
func follow(t *testing.T, w client.Watch, enough int, streams ...stream) (told []string, err error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d := &clienttest.Daemon{Watch: func(r *pb.WatchEventsRequest, s grpc.ServerStreamingServer[pb.WatchEventsResponse]) error {
		if len(streams) == 0 {
			cancel()
			return nil
		}
		now := streams[0]
		streams = streams[1:]
		after := "now"
		if r.After != nil {
			after = fmt.Sprint(r.GetAfter())
		}
		if after != now.after || r.GetParent() != "nodes/local" || r.GetFilter() != w.Filter {
			t.Errorf("asked for %v, want after %s", r, now.after)
		}
		for _, m := range now.tells {
			if err := s.Send(m); err != nil {
				return err
			}
		}
		return now.end
	}}
	w.Node = "nodes/local"
	for m, e := range connect(t, d).Watch(ctx, w) {
		switch {
		case e != nil:
			err = e
		case m.GetGap() != nil:
			told = append(told, fmt.Sprintf("gap %d-%d", m.GetGap().GetAfter(), m.GetGap().GetOldest()))
		default:
			told = append(told, fmt.Sprintf("%d %s", m.GetEvent().GetCursor(), m.GetEvent().GetResource()))
		}
		if len(told) == enough {
			break
		}
	}
	if len(streams) > 0 {
		t.Errorf("%d streams were not asked for", len(streams))
	}
	return told, err
}

func event(cursor uint64, resource string) *pb.WatchEventsResponse {
	return &pb.WatchEventsResponse{Message: &pb.WatchEventsResponse_Event{Event: &pb.Event{Cursor: cursor, Resource: resource, Type: pb.Event_TYPE_CHANGED}}}
}

func snapshot(cursor uint64, resource string) *pb.WatchEventsResponse {
	m := event(cursor, resource)
	m.GetEvent().Type = pb.Event_TYPE_SNAPSHOT
	return m
}

func bookmark(cursor uint64) *pb.WatchEventsResponse {
	return &pb.WatchEventsResponse{Message: &pb.WatchEventsResponse_Bookmark{Bookmark: &pb.Bookmark{Cursor: cursor}}}
}

func gap(after, oldest uint64) *pb.WatchEventsResponse {
	return &pb.WatchEventsResponse{Message: &pb.WatchEventsResponse_Gap{Gap: &pb.Gap{After: after, Oldest: oldest}}}
}

func TestWatchGoesOn(t *testing.T) {
	ending := clienttest.Refusal{Code: codes.Unavailable, Reason: pb.ErrorReason_ERROR_REASON_DEVICE_UNAVAILABLE, Message: "the daemon is ending"}.Err()
	lost := status.Error(codes.Unavailable, "connection lost")
	type watch = []*pb.WatchEventsResponse
	for _, test := range []struct {
		name    string
		after   *uint64
		streams []stream
		want    []string
	}{
		{"after a broken stream", proto.Uint64(4),
			[]stream{{"4", watch{event(5, "a"), event(6, "b")}, lost}, {"6", nil, lost}, {"6", watch{event(7, "c")}, nil}}, []string{"5 a", "6 b", "7 c"}},
		{"after a daemon that ended", proto.Uint64(0), []stream{{"0", watch{event(1, "a")}, ending}, {"1", watch{event(2, "b")}, nil}}, []string{"1 a", "2 b"}},
		{"after a stream that was closed", proto.Uint64(0), []stream{{"0", watch{event(1, "a")}, nil}, {"1", watch{event(2, "b")}, nil}}, []string{"1 a", "2 b"}},
		{"from a bookmark", nil, []stream{{"now", watch{bookmark(40)}, lost}, {"40", watch{event(41, "a")}, nil}}, []string{"41 a"}},
		{"from now if nothing was told", nil, []stream{{"now", nil, lost}, {"now", watch{event(41, "a")}, nil}}, []string{"41 a"}},
		{"with a gap", proto.Uint64(4), []stream{{"4", watch{gap(4, 90), snapshot(99, "a"), snapshot(99, "b"), bookmark(99)}, lost}, {"99", watch{event(100, "a")}, nil}},
			[]string{"gap 4-90", "99 a", "99 b", "100 a"}},
		{"with a snapshot that broke", proto.Uint64(4),
			[]stream{{"4", watch{gap(4, 90), snapshot(99, "a")}, lost}, {"4", watch{gap(4, 91), snapshot(101, "a"), snapshot(101, "b"), event(102, "b")}, lost}, {"102", nil, nil}},
			[]string{"gap 4-90", "99 a", "gap 4-91", "101 a", "101 b", "102 b"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				told, err := follow(t, client.Watch{After: test.after, Filter: "session = s"}, 0, test.streams...)
				if err != nil || !slices.Equal(told, test.want) {
					t.Errorf("told %q, %v\nwant %q", told, err, test.want)
				}
			})
		})
	}
}

func TestWatchEndsOnRefusal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		refused := clienttest.Refusal{Code: codes.InvalidArgument, Reason: pb.ErrorReason_ERROR_REASON_FIELD_INVALID, Message: "filter"}.Err()
		told, err := follow(t, client.Watch{}, 0, stream{"now", nil, refused})
		if client.Reason(err) != pb.ErrorReason_ERROR_REASON_FIELD_INVALID || len(told) > 0 {
			t.Errorf("%q, %v", told, err)
		}
	})
}

func TestWatchEndsByBreak(t *testing.T) {
	bubble(t, func(t *testing.T) {
		told, err := follow(t, client.Watch{}, 1, stream{"now", []*pb.WatchEventsResponse{event(1, "a"), event(2, "b")}, nil})
		if err != nil || len(told) != 1 {
			t.Errorf("%q, %v", told, err)
		}
	})
}

// The caller's cursor stays his.
func TestWatchLeavesTheCursor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		after := uint64(4)
		if _, err := follow(t, client.Watch{After: &after}, 0, stream{"4", []*pb.WatchEventsResponse{event(5, "a")}, nil}); err != nil || after != 4 {
			t.Errorf("cursor %d, %v", after, err)
		}
	})
}

// A watch ends with its context, also while it waits for a daemon.
func TestWatchEndsWithContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		attempts := 0
		d := &clienttest.Daemon{Watch: func(*pb.WatchEventsRequest, grpc.ServerStreamingServer[pb.WatchEventsResponse]) error {
			attempts++
			return status.Error(codes.Unavailable, "away")
		}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for m, err := range connect(t, d).Watch(ctx, client.Watch{}) {
			t.Errorf("%v, %v", m, err)
		}
		if attempts < 10 || attempts > 30 {
			t.Errorf("%d attempts in a minute, want fewer and fewer, and one each 5 s at last", attempts)
		}
	})
}
