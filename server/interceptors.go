package server

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// Metadata of replies, and of requests the second and the last.
const (
	headerNode       = "accelfab-node"
	headerInstance   = "accelfab-instance"
	headerVersion    = "accelfab-version"
	headerGeneration = "accelfab-session-generation" // NAME=N, repeatable
)

// beliefs is the metadata by which a caller says what it believes in, and all that
// is heard of a request.
var beliefs = []string{headerInstance, headerGeneration}

// maxGenerations bounds how many sessions one call names the generations of.
const maxGenerations = 64

// unary is what every unary call goes through, by gRPC as by HTTP.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
	began := time.Now()
	_ = grpc.SetHeader(ctx, s.header) // fails only after the reply
	c, err := s.admit(ctx)
	if err == nil {
		defer s.drain.leave()
		ctx, cancel := s.withDeadline(context.WithValue(ctx, admitted{}, c), req)
		reply, err = s.guard(info.FullMethod, func() (any, error) { return handler(ctx, req) })
		cancel()
	}
	err = s.answer(ctx, info.FullMethod, c, began, err)
	s.metrics.unary(info.FullMethod, status.Code(err), time.Since(began))
	return reply, err
}

// stream is what every streaming call goes through. A drain ends it.
func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	began := time.Now()
	ended := s.metrics.stream(info.FullMethod)
	ctx := ss.Context()
	_ = ss.SetHeader(s.header)
	c, err := s.admit(ctx)
	if err == nil {
		defer s.drain.leave()
		own, cancel := s.untilDrain(context.WithValue(ctx, admitted{}, c))
		_, err = s.guard(info.FullMethod, func() (any, error) { return nil, handler(srv, stream{ss, own}) })
		if ctx.Err() == nil && own.Err() != nil {
			err = ending()
		}
		cancel()
	}
	err = s.answer(ctx, info.FullMethod, c, began, err)
	ended(status.Code(err))
	return err
}

// stream is a ServerStream with a context of its own.
type stream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s stream) Context() context.Context { return s.ctx }

// ending is the answer of a daemon that ends.
func ending() error {
	return &fabric.Error{Reason: fabric.DeviceUnavailable, Message: "the daemon is ending; call again when it serves", RetryAfter: time.Second}
}

// admit lets a call in, which is to leave s.drain, or refuses it.
func (s *Server) admit(ctx context.Context) (fabric.Caller, error) {
	c, ok := callerOf(ctx)
	if !ok {
		return c, &fabric.Error{Reason: unauthenticated, Message: "cannot tell who calls; connect by the unix socket or loopback TCP"}
	}
	for _, asked := range metadata.ValueFromIncomingContext(ctx, headerInstance) {
		if asked != s.instance {
			return c, &fabric.Error{Name: s.node, Reason: fabric.InstanceMismatch,
				Message: "the daemon has started again since, or is another; read what you hold and go on with its present instance",
				Details: map[string]string{"asked": asked, "present": s.instance}}
		}
	}
	var err error
	if c.Generations, err = s.generations(metadata.ValueFromIncomingContext(ctx, headerGeneration)); err != nil {
		return c, err
	}
	if !s.drain.enter() {
		return c, ending()
	}
	return c, nil
}

// generations reads which generations of sessions a caller believes in.
func (s *Server) generations(values []string) (fabric.Generations, error) {
	if len(values) == 0 {
		return nil, nil
	}
	var v faults
	if len(values) > maxGenerations {
		v.invalid(headerGeneration, "%d sessions: want at most %d", len(values), maxGenerations)
		return nil, v.err()
	}
	all := fabric.Generations{}
	for _, value := range values {
		name, text, _ := strings.Cut(value, "=")
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil || n == 0 || !isName(name, "nodes", "sessions") {
			v.invalid(headerGeneration, "%q: want nodes/{node}/sessions/{session}=N, N the session's generation", clip(value, maxText))
			continue
		}
		all[s.canonical(name)] = n
	}
	return all, v.err()
}

// withDeadline gives a call an end that has none. A wait for completions takes
// what it asks for besides.
func (s *Server) withDeadline(ctx context.Context, req any) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	timeout := s.timeout
	if poll, ok := req.(*pb.PollCompletionsRequest); ok {
		timeout += min(max(poll.GetWait().AsDuration(), 0), time.Minute)
	}
	return context.WithTimeout(ctx, timeout)
}

// guard turns a panic into an error: one bad call does not end the daemon.
func (s *Server) guard(method string, call func() (any, error)) (reply any, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.panics.Add(1)
			s.log.Error("panic in a call", "method", method, "panic", p, "stack", string(debug.Stack()))
			reply, err = nil, &fabric.Error{Reason: fabric.Internal, Message: "a fault of accelfab; its log has more under this time", Err: fmt.Errorf("panic: %v", p)}
		}
	}()
	return call()
}

// answer notes how a call ended and gives what goes over the wire. Contents of
// requests are never logged: they hold keys.
func (s *Server) answer(ctx context.Context, method string, c fabric.Caller, began time.Time, err error) error {
	st := refusal(err)
	level := slog.LevelDebug
	switch {
	case st.Code() == codes.Internal:
		level = slog.LevelError
	case st.Code() == codes.Unknown:
		level = slog.LevelWarn
	}
	if s.log.Enabled(ctx, level) {
		attrs := []slog.Attr{slog.String("method", method), slog.String("identity", c.Identity), slog.Int("pid", int(c.PID)),
			slog.String("code", st.Code().String()), slog.Duration("took", time.Since(began))}
		if err != nil {
			attrs = append(attrs, slog.String("error", clip(err.Error(), maxMessage)))
		}
		s.log.LogAttrs(ctx, level, "call", attrs...)
	}
	return st.Err()
}
