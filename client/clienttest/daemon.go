// Package clienttest gives a daemon made of two functions, for tests of the
// client and of what is built on it. It speaks gRPC and knows nothing of devices.
package clienttest

import (
	"context"
	"net"
	"path"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// Daemon answers all services. Its fields are set before it serves.
type Daemon struct {
	// Answer is given every unary call: the method's name, such as GetNode, and
	// the request. nil answers UNIMPLEMENTED.
	Answer func(ctx context.Context, method string, req proto.Message) (proto.Message, error)
	// Watch is given every call of WatchEvents and serves its stream.
	Watch func(req *pb.WatchEventsRequest, stream grpc.ServerStreamingServer[pb.WatchEventsResponse]) error

	mu    sync.Mutex
	calls []Call
}

// Call is one unary call that came.
type Call struct {
	Method  string
	Request proto.Message
}

// Calls gives the unary calls that came since it was asked last, in order.
func (d *Daemon) Calls() []Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	calls := d.calls
	d.calls = nil
	return calls
}

// Serve serves on a listener and gives the server, which the caller stops; that
// closes the listener.
func (d *Daemon) Serve(l net.Listener) *grpc.Server {
	s := grpc.NewServer(grpc.UnaryInterceptor(d.unary))
	pb.RegisterNodeServiceServer(s, pb.UnimplementedNodeServiceServer{})
	pb.RegisterDeviceServiceServer(s, pb.UnimplementedDeviceServiceServer{})
	pb.RegisterSessionServiceServer(s, pb.UnimplementedSessionServiceServer{})
	pb.RegisterMemoryServiceServer(s, pb.UnimplementedMemoryServiceServer{})
	pb.RegisterQueuePairServiceServer(s, pb.UnimplementedQueuePairServiceServer{})
	pb.RegisterTransferServiceServer(s, pb.UnimplementedTransferServiceServer{})
	pb.RegisterEventServiceServer(s, events{watch: d.Watch})
	go s.Serve(l)
	return s
}

// Start serves on a unix socket until the test ends and gives its target.
func (d *Daemon) Start(t testing.TB) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "d")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Serve(l).Stop)
	return "unix://" + socket
}

func (d *Daemon) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	m := req.(proto.Message)
	method := path.Base(info.FullMethod)
	d.mu.Lock()
	d.calls = append(d.calls, Call{method, proto.Clone(m)})
	d.mu.Unlock()
	if d.Answer == nil {
		return handler(ctx, req)
	}
	reply, err := d.Answer(ctx, method, m)
	if err != nil {
		return nil, err
	}
	return reply, nil
}

type events struct {
	pb.UnimplementedEventServiceServer
	watch func(*pb.WatchEventsRequest, grpc.ServerStreamingServer[pb.WatchEventsResponse]) error
}

func (e events) WatchEvents(req *pb.WatchEventsRequest, stream grpc.ServerStreamingServer[pb.WatchEventsResponse]) error {
	if e.watch == nil {
		return status.Error(codes.Unimplemented, "no watch in this test")
	}
	return e.watch(req, stream)
}
