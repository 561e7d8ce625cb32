package host

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/accelfab/accelfab/device"
	pb "github.com/accelfab/accelfab/proto/accelfab/device/v1"
)

// Served is what a host serves.
type Served struct {
	Devices []device.Device // each Info().ID once; the caller's to close
	Spec    string          // what they were made of: a daemon that wants something else is told so
	Version string          // of the program
	BootID  string          // of the machine
	// Linger is how long the host stays without a daemon; 0 means for ever.
	Linger  time.Duration
	Managed bool // by a service manager, which starts it again
	// Serving is called once the sockets answer; it may be nil.
	Serving func()
	Logger  *slog.Logger // nil: none
}

// ErrAlone is what Serve returns when no daemon was there for the linger time.
var ErrAlone = errors.New("no daemon was there for the linger time")

// server is one run of a host.
type server struct {
	Served
	speaks   protocols
	instance string
	devices  map[string]*offered
	waiting  *waiting
	done     <-chan struct{} // closed when the host ends

	calls calls

	mu       sync.Mutex
	watchers map[*watcher]struct{}
	alone    *time.Timer // ends the host; nil for never
}

// offered is one device of a host.
type offered struct {
	device.Device
	logs logs
}

// Serve serves devices until ctx ends, and then returns nil, or until no daemon
// was there for the linger time, and then returns ErrAlone. It closes the sockets.
// A device that is closed answers device.ErrClosed from then on.
func Serve(ctx context.Context, at *Sockets, what Served) error {
	return serve(ctx, at, what, current)
}

func serve(ctx context.Context, at *Sockets, what Served, speaks protocols) error {
	defer at.Close()
	if what.Logger == nil {
		what.Logger = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &server{Served: what, speaks: speaks, devices: map[string]*offered{}, waiting: newWaiting(what.Logger), done: ctx.Done(), watchers: map[*watcher]struct{}{}}
	var random [16]byte
	rand.Read(random[:]) // never fails (crypto/rand)
	s.instance = hex.EncodeToString(random[:])
	for _, d := range what.Devices {
		id := d.Info().ID
		if s.devices[id] != nil {
			return fmt.Errorf("two devices have the id %q", id)
		}
		s.devices[id] = &offered{Device: d}
	}
	me, err := Self()
	if err != nil {
		return err
	}
	run := Runtime{Process: me, Instance: s.instance, Spec: what.Spec, Version: what.Version, Managed: what.Managed}
	for _, d := range what.Devices {
		run.Devices = append(run.Devices, d.Info())
	}
	if err := run.write(at.path); err != nil {
		return err
	}
	defer os.Remove(beside(at.path, ".json"))
	if what.Linger > 0 {
		s.alone = time.AfterFunc(what.Linger, func() { cancel(ErrAlone) })
		defer s.alone.Stop()
	}

	g := grpc.NewServer(grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream),
		grpc.MaxRecvMsgSize(maxMessage), grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window))
	pb.RegisterDeviceHostServiceServer(g, greeter{server: s})
	pb.RegisterDeviceServiceServer(g, deviceService{server: s})
	pb.RegisterMemoryServiceServer(g, memoryService{server: s})
	pb.RegisterExportServiceServer(g, exportService{server: s})
	pb.RegisterQueuePairServiceServer(g, queuePairService{server: s})
	pb.RegisterWorkServiceServer(g, workService{server: s})

	var wg sync.WaitGroup
	failed := make(chan error, 1)
	for id, d := range s.devices {
		wg.Go(func() { s.pass(ctx, id, d) })
	}
	wg.Go(func() { s.waiting.serve(at.descriptors) })
	wg.Go(func() {
		failed <- g.Serve(guarded{at.calls, func(err error) { what.Logger.Warn("connection refused", "error", err) }})
	})
	if what.Serving != nil {
		what.Serving()
	}
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	cancel(nil)
	g.Stop()
	at.descriptors.Close()
	wg.Wait()
	s.waiting.close()
	if err == nil && errors.Is(context.Cause(ctx), ErrAlone) {
		err = fmt.Errorf("%w of %v", ErrAlone, what.Linger)
	}
	return err
}

// Bounds of messages.
const (
	maxMessage = 4 << 20 // bytes
	maxBatch   = 1024    // entries of a batch or a part of a list
	maxChunk   = 1 << 20 // bytes of memory in a message
	window     = 2 << 20 // bytes under way
)

// settleLimit is how long a daemon waits for the calls of the one before; it is
// less than greetLimit.
const settleLimit = 2 * time.Second

// refuse makes a status of an error of a device, that has all of it.
func refuse(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	st, failed := status.New(codes.Unknown, err.Error()).WithDetails(encodeError(err))
	if failed != nil {
		return err
	}
	return st.Err()
}

func (s *server) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	defer s.calls.begin()()
	out, err := next(ctx, req)
	return out, refuse(err)
}

func (s *server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if info.FullMethod != pb.DeviceHostService_WatchEvents_FullMethodName {
		defer s.calls.begin()()
	}
	return refuse(next(srv, stream))
}

// calls counts those that are under way, whoever asked.
type calls struct {
	mu   sync.Mutex
	now  int
	idle chan struct{} // closed when there is none; nil while nobody waits for that
}

// begin counts one. What it returns ends it.
func (c *calls) begin() func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now++
	return c.end
}

func (c *calls) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now--; c.now == 0 && c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
}

// settle waits until none is under way, or ctx is done.
func (c *calls) settle(ctx context.Context) bool {
	c.mu.Lock()
	if c.now == 0 {
		c.mu.Unlock()
		return true
	}
	if c.idle == nil {
		c.idle = make(chan struct{})
	}
	idle := c.idle
	c.mu.Unlock()
	select {
	case <-idle:
		return true
	case <-ctx.Done():
		return false
	}
}

// device finds one by its id.
func (s *server) device(id string) (*offered, error) {
	if d := s.devices[id]; d != nil {
		return d, nil
	}
	return nil, status.Errorf(codes.NotFound, "this host has no device %q", id)
}

// greeter serves the greeting and the hints.
type greeter struct {
	pb.UnimplementedDeviceHostServiceServer
	*server
}

func (g greeter) Hello(_ context.Context, r *pb.HelloRequest) (*pb.HelloResponse, error) {
	// Refused or not, the daemon learns who is here: it decides too.
	out := &pb.HelloResponse{ProtocolMin: g.speaks.min, ProtocolMax: g.speaks.max, Version: g.Version, BootId: g.BootID, InstanceId: g.instance,
		Pid: int32(os.Getpid()), Spec: g.Spec}
	for _, d := range g.Served.Devices {
		out.Devices = append(out.Devices, infoProto(d.Info()))
	}
	return out, nil
}

// watcher is a daemon that is there.
type watcher struct {
	events chan *pb.WatchEventsResponse
}

func (g greeter) WatchEvents(_ *pb.WatchEventsRequest, stream grpc.ServerStreamingServer[pb.WatchEventsResponse]) error {
	w := &watcher{events: make(chan *pb.WatchEventsResponse, 256)}
	// What the daemon before has asked is over before this one looks: else it would
	// find things made, or gone, behind its back. What hangs is not waited for.
	settle, cancel := context.WithTimeout(stream.Context(), settleLimit)
	settled := g.calls.settle(settle)
	cancel()
	if !settled {
		g.Logger.Warn("calls of a daemon before are still under way", "waited", settleLimit)
	}
	g.attach(w)
	defer g.detach(w)
	if err := stream.Send(&pb.WatchEventsResponse{Port: -1}); err != nil {
		return err
	}
	for {
		select {
		case e := <-w.events:
			if err := stream.Send(e); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-g.done:
			return status.Error(codes.Unavailable, "the device host ends")
		}
	}
}

func (s *server) attach(w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers[w] = struct{}{}
	if s.alone != nil {
		s.alone.Stop()
	}
	s.Logger.Info("a daemon is here")
}

func (s *server) detach(w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watchers, w)
	if len(s.watchers) > 0 {
		return
	}
	if s.alone == nil {
		s.Logger.Info("the daemon is gone; devices go on")
		return
	}
	s.alone.Reset(s.Linger)
	s.Logger.Info("the daemon is gone; devices go on", "until", time.Now().Add(s.Linger).Format(time.RFC3339))
}

// pass hands the hints of a device to the daemons that are there. One that is
// slow misses some, but is told to look at the whole device then.
func (s *server) pass(ctx context.Context, id string, d device.Device) {
	for {
		var e device.Event
		var ok bool
		select {
		case e, ok = <-d.Events():
		case <-ctx.Done():
			return
		}
		if !ok { // it was closed: its answers say so
			e = device.Event{Kind: device.DeviceChanged, Port: -1}
		}
		out := &pb.WatchEventsResponse{Device: id, Kind: uint32(e.Kind), Port: int32(e.Port)}
		if e.Kind == device.QueuePairChanged {
			out.QueuePair = e.QP[:]
		}
		s.mu.Lock()
		for w := range s.watchers {
			w.pass(out)
		}
		s.mu.Unlock()
		if !ok {
			return
		}
	}
}

// pass never waits. The last places are for one hint of each device that stands
// for all it has missed.
func (w *watcher) pass(e *pb.WatchEventsResponse) {
	if len(w.events) >= cap(w.events)-64 {
		e = &pb.WatchEventsResponse{Device: e.Device, Kind: uint32(device.DeviceChanged), Port: -1}
	}
	select {
	case w.events <- e:
	default:
	}
}
