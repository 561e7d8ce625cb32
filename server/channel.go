package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/fabric"
)

// channel is a gRPC connection inside the process: calls on it go through the
// interceptors to the services as calls from outside do, without a socket or
// encoding. It has unary calls and server streams, which is what HTTP can ask
// for. The caller is the one in the context (callerKey); of the metadata only
// beliefs go along. It is our own because the library for it, grpchan,
// links golang/protobuf and protoreflect v1 beside the present ones.
type channel struct {
	server   *Server
	services map[string]registered
}

type registered struct {
	desc *grpc.ServiceDesc
	impl any
}

// RegisterService implements grpc.ServiceRegistrar.
func (c *channel) RegisterService(desc *grpc.ServiceDesc, impl any) {
	c.services[desc.ServiceName] = registered{desc, impl}
}

// inside is the server's side of a call's context. It ends with the client's
// and has none of its values.
func inside(client context.Context, method string) context.Context {
	ctx := context.Context(bare{client})
	if c, ok := client.Value(callerKey{}).(fabric.Caller); ok {
		ctx = peer.NewContext(ctx, &peer.Peer{AuthInfo: callerInfo{caller: c}})
	}
	if md, ok := metadata.FromOutgoingContext(client); ok {
		in := metadata.MD{}
		for _, h := range beliefs {
			if v := md.Get(h); len(v) > 0 {
				in[h] = v
			}
		}
		ctx = metadata.NewIncomingContext(ctx, in)
	}
	return grpc.NewContextWithServerTransportStream(ctx, transport(method))
}

// bare is a context without values.
type bare struct{ context.Context }

func (bare) Value(any) any { return nil }

// transport is the place of a call's headers, which the HTTP door sets itself.
type transport string

func (t transport) Method() string             { return string(t) }
func (transport) SetHeader(metadata.MD) error  { return nil }
func (transport) SendHeader(metadata.MD) error { return nil }
func (transport) SetTrailer(metadata.MD) error { return nil }

// find resolves "/service/method".
func (c *channel) find(method string) (registered, string, error) {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	r, ok := c.services[service]
	if !ok {
		return r, "", status.Errorf(codes.Unimplemented, "unknown service %s", service)
	}
	return r, name, nil
}

// Invoke implements grpc.ClientConnInterface.
func (c *channel) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	r, name, err := c.find(method)
	if err != nil {
		return err
	}
	for i := range r.desc.Methods {
		if r.desc.Methods[i].MethodName != name {
			continue
		}
		out, err := r.desc.Methods[i].Handler(r.impl, inside(ctx, method), func(in any) error { return pass(in, args) }, c.server.unary)
		if err != nil {
			return err
		}
		return pass(reply, out)
	}
	return status.Errorf(codes.Unimplemented, "unknown method %s", method)
}

// pass copies a message to the other side: neither shares what the other may
// change.
func pass(to, from any) error {
	dst, ok := to.(proto.Message)
	src, is := from.(proto.Message)
	if !ok || !is {
		return status.Errorf(codes.Internal, "cannot pass %T to %T", from, to)
	}
	proto.Merge(dst, src)
	return nil
}

// NewStream implements grpc.ClientConnInterface.
func (c *channel) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	r, name, err := c.find(method)
	if err != nil {
		return nil, err
	}
	for i := range r.desc.Streams {
		if d := &r.desc.Streams[i]; d.StreamName == name && d.ServerStreams && !d.ClientStreams {
			s := &streamEnds{ctx: ctx, inside: inside(ctx, method), messages: make(chan any), done: make(chan struct{})}
			s.run = func() error {
				info := &grpc.StreamServerInfo{FullMethod: method, IsServerStream: true}
				return c.server.stream(r.impl, serverEnd{s}, info, d.Handler)
			}
			return clientEnd{s}, nil
		}
	}
	return nil, status.Errorf(codes.Unimplemented, "unknown stream %s", method)
}

// streamEnds is a server stream: one request, messages back, an error or nil
// at the end.
type streamEnds struct {
	ctx, inside context.Context
	run         func() error
	request     any
	messages    chan any
	done        chan struct{} // closed when run has returned
	err         error         // of run
}

type clientEnd struct{ *streamEnds }

func (s clientEnd) Context() context.Context     { return s.ctx }
func (s clientEnd) Header() (metadata.MD, error) { return nil, nil }
func (s clientEnd) Trailer() metadata.MD         { return nil }
func (s clientEnd) SendMsg(m any) error          { s.request = m; return nil }

// CloseSend begins the call: its one request is complete.
func (s clientEnd) CloseSend() error {
	if s.request == nil {
		return errors.New("no request was sent")
	}
	go func() {
		defer close(s.done)
		s.err = s.run()
	}()
	return nil
}

func (s clientEnd) RecvMsg(m any) error {
	select {
	case got := <-s.messages:
		return pass(m, got)
	case <-s.done:
		if s.err != nil {
			return s.err
		}
		return io.EOF
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	}
}

type serverEnd struct{ *streamEnds }

func (s serverEnd) Context() context.Context     { return s.inside }
func (s serverEnd) SetHeader(metadata.MD) error  { return nil }
func (s serverEnd) SendHeader(metadata.MD) error { return nil }
func (s serverEnd) SetTrailer(metadata.MD)       {}
func (s serverEnd) RecvMsg(m any) error          { return pass(m, s.request) }

// SendMsg waits until the client has taken the message: a slow reader slows
// its stream, and nothing piles up.
func (s serverEnd) SendMsg(m any) error {
	select {
	case s.messages <- m:
		return nil
	case <-s.ctx.Done():
		return fmt.Errorf("the reader is gone: %w", s.ctx.Err())
	}
}
