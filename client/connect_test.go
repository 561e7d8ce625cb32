package client_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/client"
	"github.com/accelfab/accelfab/client/clienttest"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// node is a daemon with one queue pair.
type node struct {
	*clienttest.Daemon
	qp      *pb.QueuePair
	connect error // refuses a connect
	lost    error // loses the reply of a connect that was done
	modify  error // refuses a modify
}

func newNode(name, gid string, qpn uint32) *node {
	n := &node{qp: &pb.QueuePair{Name: name, State: pb.QueuePair_STATE_INIT, LocalEndpoint: &pb.QueuePair_Endpoint{Gid: gid, Qpn: qpn, Psn: 7}}}
	n.Daemon = &clienttest.Daemon{Answer: func(_ context.Context, method string, req proto.Message) (proto.Message, error) {
		switch r := req.(type) {
		case *pb.GetQueuePairRequest:
			return proto.Clone(n.qp), nil
		case *pb.ConnectQueuePairRequest:
			if n.connect != nil {
				return nil, n.connect
			}
			n.qp.State, n.qp.RemoteEndpoint = pb.QueuePair_STATE_RTS, r.GetRemoteEndpoint()
			return proto.Clone(n.qp), n.lost
		case *pb.ModifyQueuePairRequest:
			if n.modify != nil {
				return nil, n.modify
			}
			n.qp.State, n.qp.RemoteEndpoint = r.GetTargetState(), nil
			return proto.Clone(n.qp), nil
		}
		return nil, fmt.Errorf("%s is not of this test", method)
	}}
	return n
}

const (
	qpA = "nodes/a/devices/soft-0/queuePairs/q1"
	qpB = "nodes/b/devices/soft-3/queuePairs/q2"
)

// pair connects two nodes, after change if it is not nil.
func pair(t *testing.T, change func(a, b *node)) (a, b *node, err error) {
	t.Helper()
	a, b = newNode(qpA, "::ffff:127.64.0.1", 0x11), newNode(qpB, "::ffff:127.64.0.2", 0x22)
	if change != nil {
		change(a, b)
	}
	attributes := &pb.QueuePair_Attributes{RetryCount: proto.Uint32(3)}
	gotA, gotB, err := client.ConnectPair(t.Context(), client.End{Client: connect(t, a.Daemon), Name: qpA, Attributes: attributes},
		client.End{Client: connect(t, b.Daemon), Name: qpB})
	if err == nil && (!proto.Equal(gotA, a.qp) || !proto.Equal(gotB, b.qp)) {
		t.Errorf("answered\n%v\n%v\nand there is\n%v\n%v", gotA, gotB, a.qp, b.qp)
	}
	if err != nil && (gotA != nil || gotB != nil) {
		t.Errorf("queue pairs with an error: %v %v", gotA, gotB)
	}
	return a, b, err
}

func TestConnectPair(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b, err := pair(t, nil)
		if err != nil {
			t.Fatal(err)
		}
		if a.qp.State != pb.QueuePair_STATE_RTS || b.qp.State != pb.QueuePair_STATE_RTS {
			t.Errorf("states %v and %v", a.qp.State, b.qp.State)
		}
		if !proto.Equal(a.qp.RemoteEndpoint, b.qp.LocalEndpoint) || !proto.Equal(b.qp.RemoteEndpoint, a.qp.LocalEndpoint) {
			t.Errorf("endpoints: %v\n%v", a.qp, b.qp)
		}
		callsA, callsB := a.Calls(), b.Calls()
		if got := callsA[1].Request.(*pb.ConnectQueuePairRequest).GetAttributes().GetRetryCount(); got != 3 {
			t.Errorf("retry count %d, want the 3 of this end", got)
		}
		if got := callsB[1].Request.(*pb.ConnectQueuePairRequest).GetAttributes(); got != nil {
			t.Errorf("attributes %v, want none at this end", got)
		}
	})
}

func refusal(reason pb.ErrorReason) error {
	return clienttest.Refusal{Code: codes.FailedPrecondition, Reason: reason, Message: "no cable leads there"}.Err()
}

// Case L16: a queue pair whose peer refuses is not left connected, and the error
// says in which phase.
func TestConnectPairSecondEndRefusedL16(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b, err := pair(t, func(_, b *node) { b.connect = refusal(pb.ErrorReason_ERROR_REASON_PATH_NOT_CABLED) })
		if err == nil || !strings.Contains(err.Error(), "phase connect, "+qpB) {
			t.Fatalf("error %v, want phase connect and %s", err, qpB)
		}
		if got := client.Reason(err); got != pb.ErrorReason_ERROR_REASON_PATH_NOT_CABLED {
			t.Errorf("reason %v", got)
		}
		if a.qp.State != pb.QueuePair_STATE_INIT || a.qp.RemoteEndpoint != nil {
			t.Errorf("the first end is left as %v", a.qp)
		}
		if got := methods(b.Calls()); !slices.Equal(got, []string{"GetQueuePair", "ConnectQueuePair"}) {
			t.Errorf("the end that refused was asked %v", got)
		}
	})
}

// If the first end cannot be taken back, the error says that too.
func TestConnectPairUndoFailsL16(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, _, err := pair(t, func(a, b *node) {
			b.connect = refusal(pb.ErrorReason_ERROR_REASON_PATH_NOT_CABLED)
			a.modify = clienttest.Refusal{Code: codes.Unavailable, Reason: pb.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE, Message: "the disk is full"}.Err()
		})
		text := client.Explain(err)
		for _, want := range []string{"phase connect, " + qpB, "no cable leads there; phase undo, " + qpA, "the disk is full"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s\nlacks %q", text, want)
			}
		}
		if got := client.Reason(err); got != pb.ErrorReason_ERROR_REASON_PATH_NOT_CABLED {
			t.Errorf("reason %v, want that of the connect", got)
		}
	})
}

func TestConnectPairFirstEndRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b, err := pair(t, func(a, _ *node) { a.connect = refusal(pb.ErrorReason_ERROR_REASON_PKEY_MISMATCH) })
		if err == nil || !strings.Contains(err.Error(), "phase connect, "+qpA) || client.Reason(err) != pb.ErrorReason_ERROR_REASON_PKEY_MISMATCH {
			t.Fatalf("error %v", err)
		}
		if got := slices.Concat(methods(a.Calls()), methods(b.Calls())); !slices.Equal(got, []string{"GetQueuePair", "ConnectQueuePair", "GetQueuePair"}) {
			t.Errorf("calls %v, want nothing after the refusal", got)
		}
	})
}

// An end whose answer is lost may be connected: it is taken back as well.
func TestConnectPairAnswerLost(t *testing.T) {
	for _, lost := range []string{"first", "second"} {
		t.Run(lost, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				a, b, err := pair(t, func(a, b *node) {
					end := map[string]*node{"first": a, "second": b}[lost]
					end.lost = status.Error(codes.Internal, "stream ended")
				})
				if err == nil || !strings.Contains(err.Error(), "stream ended") {
					t.Fatalf("error %v", err)
				}
				if a.qp.State != pb.QueuePair_STATE_INIT || b.qp.State != pb.QueuePair_STATE_INIT {
					t.Errorf("left in %v and %v", a.qp.State, b.qp.State)
				}
			})
		})
	}
}

// The first end is taken back also when the caller has given up.
func TestConnectPairCancelled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		a, b := newNode(qpA, "::ffff:127.64.0.1", 0x11), newNode(qpB, "::ffff:127.64.0.2", 0x22)
		answer := b.Answer
		b.Answer = func(call context.Context, method string, req proto.Message) (proto.Message, error) {
			if method == "ConnectQueuePair" {
				cancel()
				<-call.Done()
				return nil, call.Err()
			}
			return answer(call, method, req)
		}
		_, _, err := client.ConnectPair(ctx, client.End{Client: connect(t, a.Daemon), Name: qpA}, client.End{Client: connect(t, b.Daemon), Name: qpB})
		if status.Code(err) != codes.Canceled || a.qp.State != pb.QueuePair_STATE_INIT {
			t.Errorf("%v, and the first end is in %v", err, a.qp.State)
		}
	})
}

// Case Q02: ends whose default GIDs are of different families are refused before
// anything is changed, with both GIDs.
func TestConnectPairFamiliesDifferQ02(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b, err := pair(t, func(_, b *node) { b.qp.LocalEndpoint.Gid = "fe80::1" })
		if err == nil {
			t.Fatal("connected")
		}
		for _, want := range []string{"phase check", qpA, "::ffff:127.64.0.1 (IPv4)", qpB, "fe80::1 (IPv6)", "gid_index"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v\nlacks %q", err, want)
			}
		}
		if got := slices.Concat(methods(a.Calls()), methods(b.Calls())); !slices.Equal(got, []string{"GetQueuePair", "GetQueuePair"}) {
			t.Errorf("calls %v, want reads alone", got)
		}
	})
}

// Two of different types would take each other's packets for none of theirs.
func TestConnectPairTypesDiffer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b, err := pair(t, func(_, b *node) { b.qp.Type = pb.QueuePair_TYPE_UC })
		if err == nil || !strings.Contains(err.Error(), "phase check: "+qpA) || !strings.Contains(err.Error(), "TYPE_UC") {
			t.Errorf("error %v", err)
		}
		if got := slices.Concat(methods(a.Calls()), methods(b.Calls())); !slices.Equal(got, []string{"GetQueuePair", "GetQueuePair"}) {
			t.Errorf("calls %v, want reads alone", got)
		}
	})
}

func TestConnectPairWithoutNumber(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, _, err := pair(t, func(_, b *node) { b.qp.State, b.qp.LocalEndpoint = pb.QueuePair_STATE_PENDING, nil })
		if err == nil || !strings.Contains(err.Error(), "phase check, "+qpB) || !strings.Contains(err.Error(), "PENDING") {
			t.Errorf("error %v", err)
		}
	})
}

// What was connected before the call is not torn down by its failure.
func TestConnectPairConnectedBefore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, _, err := pair(t, func(a, b *node) {
			a.qp.State, a.qp.RemoteEndpoint = pb.QueuePair_STATE_RTS, b.qp.LocalEndpoint
			b.connect = refusal(pb.ErrorReason_ERROR_REASON_STATE_INVALID)
		})
		if client.Reason(err) != pb.ErrorReason_ERROR_REASON_STATE_INVALID {
			t.Fatalf("error %v", err)
		}
		if a.qp.State != pb.QueuePair_STATE_RTS || slices.Contains(methods(a.Calls()), "ModifyQueuePair") {
			t.Errorf("the connected end is now in %v", a.qp.State)
		}
	})
}

// An attribute that changes the endpoint, after the other end was told of it,
// would connect two that cannot hear each other.
func TestConnectPairEndpointAttributes(t *testing.T) {
	for name, attributes := range map[string]*pb.QueuePair_Attributes{"psn": {Psn: proto.Uint32(0)}, "gid_index": {GidIndex: proto.Uint32(1)}} {
		for _, ends := range [][2]client.End{{{Name: qpA, Attributes: attributes}, {Name: qpB}}, {{Name: qpA}, {Name: qpB, Attributes: attributes}}} {
			_, _, err := client.ConnectPair(t.Context(), ends[0], ends[1]) // without a client: nobody is asked
			if err == nil || !strings.Contains(err.Error(), "phase check") || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: error %v", name, err)
			}
		}
	}
}
