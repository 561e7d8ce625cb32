package server

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

type sessionService struct {
	pb.UnimplementedSessionServiceServer
	*Server
}

// defaultTTL is what the contract gives a session that does not say.
const defaultTTL = time.Minute

var sessionFields = fields[fabric.Session]{by: map[string]field[fabric.Session]{
	"owner.identity": text(func(s *fabric.Session) string { return s.Owner.Identity }),
	"owner.uid":      text(func(s *fabric.Session) string { return strconv.FormatUint(uint64(s.Owner.UID), 10) }),
	"devices":        {get: func(s *fabric.Session) []string { return s.Devices }, name: true},
	"partition":      resource(func(s *fabric.Session) string { return defaultPartition(s.Name) }),
	"mode":           ofEnum(pb.Session_Mode(0), func(s *fabric.Session) protoreflect.Enum { return sessionModes.proto(s.Exclusive) }),
	"state":          ofEnum(pb.Session_State(0), func(s *fabric.Session) protoreflect.Enum { return sessionStates.proto(s.State) }),
}, labels: func(s *fabric.Session) map[string]string { return s.Labels }}

func (s sessionService) CreateSession(ctx context.Context, r *pb.CreateSessionRequest) (*pb.Session, error) {
	var v faults
	in := r.GetSession()
	if in == nil {
		v.required("session", "want the session that is asked for; {} asks for all defaults")
	}
	ask := fabric.CreateSession{Create: create(r.Parent, r.SessionId, r.RequestId, in.GetLabels(), r.ValidateOnly),
		Devices: in.GetDevices(), TTL: v.duration("session.ttl", in.GetTtl()), Process: processOf(in.GetProcess())}
	if in.GetDrainTimeout() != nil {
		d := v.duration("session.drain_timeout", in.GetDrainTimeout())
		ask.Drain = &d
	}
	if in.GetTtl() != nil && ask.TTL == 0 && !v.has("session.ttl") {
		v.invalid("session.ttl", "0s: want 1 s to 24 h")
	}
	if in.GetMode() != pb.Session_MODE_UNSPECIFIED {
		var ok bool
		if ask.Exclusive, ok = sessionModes.domain(in.GetMode()); !ok {
			v.invalid("session.mode", "%d: want %s", in.GetMode(), sessionModes.names())
		}
	}
	if err := s.checkPartition(&v, in.GetPartition()); err != nil {
		return nil, err
	}
	out, err := attempt(v, createPath("session"), &ask.ValidateOnly, func() (fabric.Session, error) {
		return s.fabric.CreateSession(ctx, caller(ctx), ask)
	})
	if err != nil {
		return nil, err
	}
	return sessionToProto(&out), nil
}

// checkPartition checks a partition that a session asks for: so far a node has
// the default one.
func (s *Server) checkPartition(v *faults, name string) error {
	name = s.canonical(name)
	switch {
	case name == "" || name == defaultPartition(s.node):
	case !isName(name, "nodes", "partitions"):
		v.invalid("session.partition", "%q: want nodes/{node}/partitions/{partition}", clip(name, maxText))
	default:
		return &fabric.Error{Name: clip(name, maxText), Field: "session.partition", Reason: fabric.NotFound,
			Message: "there is no such partition; leave it empty for " + defaultPartition(s.node)}
	}
	return nil
}

func (s sessionService) GetSession(ctx context.Context, r *pb.GetSessionRequest) (*pb.Session, error) {
	out, err := s.fabric.GetSession(ctx, caller(ctx), r.Name)
	if err != nil {
		return nil, err
	}
	return sessionToProto(&out), nil
}

func (s sessionService) ListSessions(ctx context.Context, r *pb.ListSessionsRequest) (*pb.ListSessionsResponse, error) {
	items, next, err := list(s.Server, r, sessionFields, func(l fabric.List, match func(*fabric.Session) bool) (fabric.Page[fabric.Session], error) {
		return s.fabric.ListSessions(ctx, caller(ctx), l, match)
	}, sessionToProto)
	if err != nil {
		return nil, err
	}
	return &pb.ListSessionsResponse{Sessions: items, NextPageToken: next}, nil
}

func (s sessionService) UpdateSession(ctx context.Context, r *pb.UpdateSessionRequest) (*pb.Session, error) {
	var v faults
	in := r.GetSession()
	if in == nil {
		v.required("session", "want the session's name and the fields to change")
	}
	ask := fabric.UpdateSession{Update: fabric.Update{Name: in.GetName(), ETag: in.GetEtag(), ValidateOnly: r.ValidateOnly}}
	change := v.mask(r.GetUpdateMask().GetPaths(), in.ProtoReflect(), []string{"labels", "ttl"}, []string{"partition", "devices", "mode", "process", "drain_timeout"})
	if change["labels"] {
		ask.Labels, ask.SetLabels = in.GetLabels(), true
	}
	if change["ttl"] {
		ask.TTL = v.duration("session.ttl", in.GetTtl())
		switch {
		case in.GetTtl() == nil:
			ask.TTL = defaultTTL
		case ask.TTL == 0 && !v.has("session.ttl"):
			v.invalid("session.ttl", "0s: want 1 s to 24 h")
		}
	}
	out, err := attempt(v, updatePath("session"), &ask.ValidateOnly, func() (fabric.Session, error) {
		c := caller(ctx)
		if change["partition"] || change["devices"] || change["mode"] || change["process"] || change["drain_timeout"] {
			now, err := s.fabric.GetSession(ctx, c, ask.Name)
			if err == nil {
				err = s.sameFixed(change, in, sessionToProto(&now))
			}
			if err != nil {
				return now, err
			}
		}
		return s.fabric.UpdateSession(ctx, c, ask)
	})
	if err != nil {
		return nil, err
	}
	return sessionToProto(&out), nil
}

// sameFixed refuses an update that would change what is fixed for the life of
// a session. A caller who gives back what it has read changes nothing.
func (s *Server) sameFixed(change map[string]bool, in, now *pb.Session) error {
	var v faults
	const fixed = "is fixed for the life of a session; open another one"
	if change["partition"] && s.canonical(in.Partition) != now.Partition {
		v.invalid("partition", fixed)
	}
	if change["mode"] && in.Mode != now.Mode {
		v.invalid("mode", fixed)
	}
	if change["process"] && in.GetProcess().GetPid() != now.GetProcess().GetPid() {
		v.invalid("process", "is fixed until the session is resumed")
	}
	if change["drain_timeout"] && in.GetDrainTimeout().AsDuration() != now.GetDrainTimeout().AsDuration() {
		v.invalid("drain_timeout", fixed)
	}
	asked := slices.Clone(in.Devices)
	for i := range asked {
		asked[i] = s.canonical(asked[i])
	}
	slices.Sort(asked)
	if change["devices"] && !slices.Equal(asked, slices.Sorted(slices.Values(now.Devices))) {
		v.invalid("devices", fixed)
	}
	return v.err()
}

func (s sessionService) KeepAliveSession(ctx context.Context, r *pb.KeepAliveSessionRequest) (*pb.Session, error) {
	out, err := s.fabric.KeepAlive(ctx, caller(ctx), fabric.KeepAlive{Name: r.Name, Generation: r.Generation, ValidateOnly: r.ValidateOnly})
	if err != nil {
		return nil, err
	}
	return sessionToProto(&out), nil
}

func (s sessionService) DeleteSession(ctx context.Context, r *pb.DeleteSessionRequest) (*emptypb.Empty, error) {
	return empty(s.fabric.CloseSession(ctx, caller(ctx), fabric.CloseSession{Delete: fabric.Delete{Name: r.Name, ETag: r.Etag, ValidateOnly: r.ValidateOnly}}))
}

// KeepAliveSessions answers each keep-alive in its order. A refusal is an answer.
func (s sessionService) KeepAliveSessions(stream grpc.BidiStreamingServer[pb.KeepAliveSessionsRequest, pb.KeepAliveSessionsResponse]) error {
	ctx := stream.Context()
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		reply := &pb.KeepAliveSessionsResponse{Name: r.GetName()}
		out, err := s.fabric.KeepAlive(ctx, caller(ctx), fabric.KeepAlive{Name: r.GetName(), Generation: r.GetGeneration()})
		if err != nil {
			reply.Result = &pb.KeepAliveSessionsResponse_Error{Error: refusal(err).Proto()}
		} else {
			reply.Result = &pb.KeepAliveSessionsResponse_ExpireTime{ExpireTime: timeOf(out.ExpireTime)}
		}
		if err := stream.Send(reply); err != nil {
			return err
		}
	}
}

func (s sessionService) ResumeSession(ctx context.Context, r *pb.ResumeSessionRequest) (*pb.Session, error) {
	out, err := s.fabric.ResumeSession(ctx, caller(ctx), fabric.ResumeSession{
		Update:     fabric.Update{Name: r.Name, ETag: r.Etag, ValidateOnly: r.ValidateOnly},
		Generation: r.Generation, Process: processOf(r.GetProcess())})
	if err != nil {
		return nil, err
	}
	return sessionToProto(&out), nil
}

func (s sessionService) ReleaseSession(ctx context.Context, r *pb.ReleaseSessionRequest) (*emptypb.Empty, error) {
	return empty(s.fabric.ReleaseSession(ctx, caller(ctx), fabric.ReleaseSession{
		Delete: fabric.Delete{Name: r.Name, ETag: r.Etag, ValidateOnly: r.ValidateOnly}, Why: r.GetReason()}))
}
