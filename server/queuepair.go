package server

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

type queuePairService struct {
	pb.UnimplementedQueuePairServiceServer
	*Server
}

var queuePairFields = fields[fabric.QueuePair]{by: map[string]field[fabric.QueuePair]{
	"session":           resource(func(q *fabric.QueuePair) string { return q.Session }),
	"protection_domain": resource(func(q *fabric.QueuePair) string { return q.ProtectionDomain }),
	"port":              resource(func(q *fabric.QueuePair) string { return q.PortName }),
	"type":              ofEnum(pb.QueuePair_Type(0), func(q *fabric.QueuePair) protoreflect.Enum { return queuePairTypes.proto(q.Type) }),
	"state":             ofEnum(pb.QueuePair_State(0), func(q *fabric.QueuePair) protoreflect.Enum { return queuePairState(q) }),
	"target_state":      ofEnum(pb.QueuePair_State(0), func(q *fabric.QueuePair) protoreflect.Enum { return queuePairStates.proto(q.Target) }),
}, labels: func(q *fabric.QueuePair) map[string]string { return q.Labels }}

// createQueuePair converts one create. field is the path of the request within
// the whole, "requests[3].", or "".
func (s *Server) createQueuePair(v *faults, field string, r *pb.CreateQueuePairRequest) fabric.CreateQueuePair {
	in := r.GetQueuePair()
	at := field + "queue_pair"
	if in == nil {
		v.required(at, "want the queue pair that is asked for")
	}
	ask := fabric.CreateQueuePair{Create: create(r.GetParent(), r.GetQueuePairId(), "", in.GetLabels(), false),
		ProtectionDomain: in.GetProtectionDomain(), Port: s.portNumber(v, at+".port", r.GetParent(), in.GetPort()),
		SendWR: int(in.GetCapacities().GetSendWr()), RecvWR: int(in.GetCapacities().GetRecvWr()), SGE: int(in.GetCapacities().GetSge()),
		Remote: v.endpoint(at+".remote_endpoint", in.GetRemoteEndpoint()), Attributes: v.attributes(at+".attributes", in.GetAttributes())}
	if t := in.GetType(); t != pb.QueuePair_TYPE_UNSPECIFIED {
		var ok bool
		if ask.Type, ok = queuePairTypes.domain(t); !ok {
			v.invalid(at+".type", "%d: want %s", t, queuePairTypes.names())
		}
	}
	if t := in.GetTargetState(); t != pb.QueuePair_STATE_UNSPECIFIED {
		target, ok := queuePairStates.domain(t)
		if !ok {
			v.invalid(at+".target_state", "%v: want STATE_RESET, STATE_INIT, STATE_RTR or STATE_RTS", t)
		}
		ask.Target = &target
	}
	return ask
}

// portNumber gives the number in a port's name; the port must be one of the
// parent's.
func (s *Server) portNumber(v *faults, field, parent, name string) int {
	if name == "" {
		v.required(field, "want "+s.canonical(clip(parent, maxText))+"/ports/{port}")
		return 0
	}
	full := s.canonical(name)
	device, number, _ := strings.Cut(full, "/ports/")
	n, err := strconv.ParseUint(number, 10, 31)
	switch {
	case err != nil, strconv.FormatUint(n, 10) != number, !isName(device, "nodes", "devices"):
		v.invalid(field, "%q: want nodes/{node}/devices/{device}/ports/{port}", clip(name, maxText))
	case device != s.canonical(parent):
		// Of a parent that is not there the domain says so.
		if _, err := s.fabric.GetDevice(context.Background(), fabric.Caller{}, parent); err == nil {
			v.invalid(field, "%q: want a port of %s", clip(name, maxText), s.canonical(parent))
		}
	}
	return int(n)
}

// queuePairPath renames what the domain calls otherwise.
func queuePairPath(path pathFunc) pathFunc {
	return func(index int, field string) string {
		if field == "attributes.remote_access" {
			field = "attributes.access"
		}
		return path(index, field)
	}
}

var (
	createQueuePairPath = queuePairPath(createPath("queue_pair"))
	// A queue pair that exists has its port by its name.
	changeQueuePairPath = queuePairPath(renamed(map[string]string{"port": "name"}))
)

func (s queuePairService) CreateQueuePair(ctx context.Context, r *pb.CreateQueuePairRequest) (*pb.QueuePair, error) {
	var v faults
	ask := s.createQueuePair(&v, "", r)
	validate := r.ValidateOnly
	out, err := attempt(v, createQueuePairPath, &validate, func() ([]fabric.QueuePair, error) {
		return s.fabric.CreateQueuePairs(ctx, caller(ctx), r.RequestId, validate, []fabric.CreateQueuePair{ask})
	})
	if err != nil {
		return nil, err
	}
	return queuePairToProto(&out[0]), nil
}

func (s queuePairService) BatchCreateQueuePairs(ctx context.Context, r *pb.BatchCreateQueuePairsRequest) (*pb.BatchCreateQueuePairsResponse, error) {
	var v faults
	asks := make([]fabric.CreateQueuePair, len(r.Requests))
	for i, one := range r.Requests {
		at := fmt.Sprintf("requests[%d].", i)
		if one.GetParent() != "" && s.canonical(one.GetParent()) != s.canonical(r.Parent) {
			v.invalid(at+"parent", "%q: want none, or that of the batch", clip(one.GetParent(), maxText))
		}
		if one.GetRequestId() != "" {
			v.invalid(at+"request_id", "the batch has one for all")
		}
		if one.GetValidateOnly() {
			v.invalid(at+"validate_only", "the batch has one for all")
		}
		one.Parent = r.Parent
		asks[i] = s.createQueuePair(&v, at, one)
	}
	validate := r.ValidateOnly
	out, err := attempt(v, batchPath(createQueuePairPath), &validate, func() ([]fabric.QueuePair, error) {
		return s.fabric.CreateQueuePairs(ctx, caller(ctx), r.RequestId, validate, asks)
	})
	if err != nil {
		return nil, err
	}
	return &pb.BatchCreateQueuePairsResponse{QueuePairs: queuePairsToProto(out)}, nil
}

func queuePairsToProto(qs []fabric.QueuePair) []*pb.QueuePair {
	out := make([]*pb.QueuePair, len(qs))
	for i := range qs {
		out[i] = queuePairToProto(&qs[i])
	}
	return out
}

func (s queuePairService) GetQueuePair(ctx context.Context, r *pb.GetQueuePairRequest) (*pb.QueuePair, error) {
	out, err := s.fabric.GetQueuePair(ctx, caller(ctx), r.Name)
	if err != nil {
		return nil, err
	}
	return queuePairToProto(&out), nil
}

func (s queuePairService) ListQueuePairs(ctx context.Context, r *pb.ListQueuePairsRequest) (*pb.ListQueuePairsResponse, error) {
	items, next, err := list(s.Server, r, queuePairFields, func(l fabric.List, match func(*fabric.QueuePair) bool) (fabric.Page[fabric.QueuePair], error) {
		return s.fabric.ListQueuePairs(ctx, caller(ctx), l, match)
	}, queuePairToProto)
	if err != nil {
		return nil, err
	}
	return &pb.ListQueuePairsResponse{QueuePairs: items, NextPageToken: next}, nil
}

// connectQueuePair converts one connect.
func connectQueuePair(v *faults, field string, r *pb.ConnectQueuePairRequest) fabric.ConnectQueuePair {
	ask := fabric.ConnectQueuePair{Update: fabric.Update{Name: r.GetName(), ETag: r.GetEtag()},
		Attributes: v.attributes(field+"attributes", r.GetAttributes())}
	if remote := v.endpoint(field+"remote_endpoint", r.GetRemoteEndpoint()); remote != nil {
		ask.Remote = *remote
	} else {
		v.required(field+"remote_endpoint", "want the peer's local_endpoint")
	}
	return ask
}

func (s queuePairService) ConnectQueuePair(ctx context.Context, r *pb.ConnectQueuePairRequest) (*pb.QueuePair, error) {
	var v faults
	ask := connectQueuePair(&v, "", r)
	validate := r.ValidateOnly
	out, err := attempt(v, changeQueuePairPath, &validate, func() ([]fabric.QueuePair, error) {
		return s.fabric.ConnectQueuePairs(ctx, caller(ctx), validate, []fabric.ConnectQueuePair{ask})
	})
	if err != nil {
		return nil, err
	}
	return queuePairToProto(&out[0]), nil
}

// maxBatch is the most that one batch may hold.
const maxBatch = 1000

// checkBatch checks a batch of existing queue pairs: its size, its parent, and
// that all are below it.
func checkBatch[R interface{ GetName() string }](ctx context.Context, s *Server, v *faults, parent string, requests []R) error {
	if _, err := s.fabric.GetDevice(ctx, caller(ctx), parent); err != nil {
		return inContract(err, renamed(map[string]string{"name": "parent"}))
	}
	if n := len(requests); n < 1 || n > maxBatch {
		v.invalid("requests", "%d requests: want 1 to %d", n, maxBatch)
		return v.err()
	}
	for i, r := range requests {
		if name := r.GetName(); name != "" && !strings.HasPrefix(s.canonical(name), s.canonical(parent)+"/queuePairs/") {
			v.invalid(fmt.Sprintf("requests[%d].name", i), "%q: want a queue pair of %s", clip(name, maxText), s.canonical(parent))
		}
	}
	return nil
}

func (s queuePairService) BatchConnectQueuePairs(ctx context.Context, r *pb.BatchConnectQueuePairsRequest) (*pb.BatchConnectQueuePairsResponse, error) {
	var v faults
	asks := make([]fabric.ConnectQueuePair, len(r.Requests))
	for i, one := range r.Requests {
		at := fmt.Sprintf("requests[%d].", i)
		if one.GetValidateOnly() {
			v.invalid(at+"validate_only", "the batch has one for all")
		}
		asks[i] = connectQueuePair(&v, at, one)
	}
	if err := checkBatch(ctx, s.Server, &v, r.Parent, r.Requests); err != nil {
		return nil, err
	}
	validate := r.ValidateOnly
	out, err := attempt(v, batchPath(changeQueuePairPath), &validate, func() ([]fabric.QueuePair, error) {
		return s.fabric.ConnectQueuePairs(ctx, caller(ctx), validate, asks)
	})
	if err != nil {
		return nil, err
	}
	return &pb.BatchConnectQueuePairsResponse{QueuePairs: queuePairsToProto(out)}, nil
}

func (s queuePairService) ModifyQueuePair(ctx context.Context, r *pb.ModifyQueuePairRequest) (*pb.QueuePair, error) {
	var v faults
	ask := fabric.ModifyQueuePair{Update: fabric.Update{Name: r.Name, ETag: r.Etag, ValidateOnly: r.ValidateOnly},
		Remote: v.endpoint("remote_endpoint", r.RemoteEndpoint), Attributes: v.attributes("attributes", r.Attributes)}
	var ok bool
	switch ask.Target, ok = queuePairStates.domain(r.TargetState); {
	case r.TargetState == pb.QueuePair_STATE_UNSPECIFIED:
		v.required("target_state", "want STATE_RESET, STATE_INIT, STATE_RTR, STATE_RTS, STATE_SQD or STATE_ERR")
	case !ok:
		v.invalid("target_state", "%v: want STATE_RESET, STATE_INIT, STATE_RTR, STATE_RTS, STATE_SQD or STATE_ERR", r.TargetState)
	}
	out, err := attempt(v, changeQueuePairPath, &ask.ValidateOnly, func() (fabric.QueuePair, error) {
		return s.fabric.ModifyQueuePair(ctx, caller(ctx), ask)
	})
	if err != nil {
		return nil, err
	}
	return queuePairToProto(&out), nil
}

func (s queuePairService) DeleteQueuePair(ctx context.Context, r *pb.DeleteQueuePairRequest) (*emptypb.Empty, error) {
	return empty(s.fabric.DeleteQueuePairs(ctx, caller(ctx), r.ValidateOnly, []fabric.Delete{{Name: r.Name, ETag: r.Etag}}))
}

func (s queuePairService) BatchDeleteQueuePairs(ctx context.Context, r *pb.BatchDeleteQueuePairsRequest) (*emptypb.Empty, error) {
	var v faults
	asks := make([]fabric.Delete, len(r.Requests))
	for i, one := range r.Requests {
		if one.GetValidateOnly() {
			v.invalid(fmt.Sprintf("requests[%d].validate_only", i), "the batch has one for all")
		}
		asks[i] = fabric.Delete{Name: one.GetName(), ETag: one.GetEtag()}
	}
	if err := checkBatch(ctx, s.Server, &v, r.Parent, r.Requests); err != nil {
		return nil, err
	}
	validate := r.ValidateOnly
	return attempt(v, batchPath(asIs), &validate, func() (*emptypb.Empty, error) {
		return empty(s.fabric.DeleteQueuePairs(ctx, caller(ctx), validate, asks))
	})
}
