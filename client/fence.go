package client

import (
	"context"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// generationHeader tells the daemon which generation of a session a caller believes
// in.
const generationHeader = "accelfab-session-generation"

// fences are what the calls of a Client say about generations.
type fences struct {
	mu   sync.RWMutex
	held map[string]string // header values by the sessions' names
}

// Fence lets all calls of the Client from now on say that they are made in the
// belief that the session has this generation: what CreateSession or ResumeSession
// gave. Once another program has taken the session over, calls about it and about
// what it owns are refused with GENERATION_STALE. At most 64 sessions; Unfence
// takes one back.
func (c *Client) Fence(session *pb.Session) {
	c.fences.mu.Lock()
	defer c.fences.mu.Unlock()
	if c.fences.held == nil {
		c.fences.held = map[string]string{}
	}
	c.fences.held[session.GetName()] = session.GetName() + "=" + strconv.FormatUint(session.GetGeneration(), 10)
}

// Unfence ends what Fence began, for the session of this name.
func (c *Client) Unfence(name string) {
	c.fences.mu.Lock()
	defer c.fences.mu.Unlock()
	delete(c.fences.held, name)
}

func (f *fences) context(ctx context.Context) context.Context {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, value := range f.held {
		ctx = metadata.AppendToOutgoingContext(ctx, generationHeader, value)
	}
	return ctx
}

func (f *fences) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(f.context(ctx), method, req, reply, cc, opts...)
}

func (f *fences) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return open(f.context(ctx), desc, cc, method, opts...)
}
