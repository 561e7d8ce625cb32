// Package client is the Go SDK of accelfab. A Client is one connection to one
// daemon with the generated service clients as its fields: calls are made on
// those, with the messages of the contract. What the package adds is what every
// caller would write again: request ids that make creates safe to repeat,
// refusals in one line with the reason to switch on, connecting two queue pairs,
// fetching and uploading descriptors of exports,
// moving contents in and out of buffers, waiting for completions, keeping a
// session alive, and a watch that goes on where it stopped.
//
// A Client may be used by many goroutines. It keeps no state of its own beside
// the connection and the generations that Fence was told: what was made belongs to
// a session on the daemon and outlives the Client.
package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// Client is a connection to one daemon.
type Client struct {
	Nodes      pb.NodeServiceClient
	Devices    pb.DeviceServiceClient
	Sessions   pb.SessionServiceClient
	Memory     pb.MemoryServiceClient
	QueuePairs pb.QueuePairServiceClient
	Transfers  pb.TransferServiceClient
	Events     pb.EventServiceClient

	// DescriptorSocket is the path of the daemon's descriptor socket. Empty: it
	// is found by the daemon's own socket, or asked of the daemon.
	DescriptorSocket string

	target string
	conn   *grpc.ClientConn
	fences fences
}

// Dial prepares a connection to a daemon: "unix:///path", "host:port" or
// "tcp://host:port", or "" for DefaultTarget. The connection is made when it is
// first needed; Dial itself fails only for a target that makes no sense.
// Further options are for gRPC. The caller closes the Client.
func Dial(target string, options ...grpc.DialOption) (*Client, error) {
	if target == "" {
		target = DefaultTarget()
	}
	address, err := address(target)
	if err != nil {
		return nil, err
	}
	c := &Client{target: target}
	options = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(serviceConfig()),
		grpc.WithChainUnaryInterceptor(plainStatus, giveRequestID, c.fences.unary),
		grpc.WithChainStreamInterceptor(c.fences.stream),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	}, options...)
	conn, err := grpc.NewClient(address, options...)
	if err != nil {
		return nil, fmt.Errorf("server %q: %w", target, err)
	}
	c.conn = conn
	c.Nodes = pb.NewNodeServiceClient(conn)
	c.Devices = pb.NewDeviceServiceClient(conn)
	c.Sessions = pb.NewSessionServiceClient(conn)
	c.Memory = pb.NewMemoryServiceClient(conn)
	c.QueuePairs = pb.NewQueuePairServiceClient(conn)
	c.Transfers = pb.NewTransferServiceClient(conn)
	c.Events = pb.NewEventServiceClient(conn)
	return c, nil
}

// Close ends the connection. Calls under way fail.
func (c *Client) Close() error { return c.conn.Close() }

// giveRequestID puts a request id into every change that takes one and has
// none, so that a call can be repeated, by gRPC or by the caller, and is done
// once.
func giveRequestID(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if m, ok := req.(proto.Message); ok {
		r := m.ProtoReflect()
		if f := r.Descriptor().Fields().ByName("request_id"); f != nil && r.Get(f).String() == "" {
			m = proto.Clone(m)
			m.ProtoReflect().Set(f, protoreflect.ValueOfString(rand.Text()))
			req = m
		}
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// plainStatus gives the daemon's own words of a call that was repeated in vain,
// without those that gRPC puts around them.
func plainStatus(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	if s, ok := statusOf(err); ok {
		return s.Err()
	}
	return err
}

// serviceConfig lets gRPC repeat a call that found the daemon away, for every
// method whose repetition does no harm: all but PostWork.
func serviceConfig() string {
	var names []string
	for _, file := range []protoreflect.FileDescriptor{
		pb.File_accelfab_v1_node_proto, pb.File_accelfab_v1_device_proto, pb.File_accelfab_v1_session_proto,
		pb.File_accelfab_v1_memory_proto, pb.File_accelfab_v1_queue_pair_proto, pb.File_accelfab_v1_transfer_proto,
		pb.File_accelfab_v1_event_proto,
	} {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				if method := service.Methods().Get(j); method.Name() != "PostWork" && !method.IsStreamingServer() {
					names = append(names, fmt.Sprintf(`{"service":%q,"method":%q}`, service.FullName(), method.Name()))
				}
			}
		}
	}
	return `{"methodConfig":[{"name":[` + strings.Join(names, ",") + `],"retryPolicy":{"maxAttempts":4,` +
		`"initialBackoff":"0.05s","maxBackoff":"1s","backoffMultiplier":3,"retryableStatusCodes":["UNAVAILABLE"]}}]}`
}
