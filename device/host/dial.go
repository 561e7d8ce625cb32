package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/accelfab/accelfab/device"
	pb "github.com/accelfab/accelfab/proto/accelfab/device/v1"
)

// Times of the connection to a host.
const (
	greetLimit = 5 * time.Second        // for a host to greet
	startLimit = 30 * time.Second       // for a host that was started to serve
	startTick  = 5 * time.Millisecond   // between looks at one that starts
	unitLimit  = 5 * time.Second        // for a service manager to start its host again
	pingPeriod = 2 * time.Second        // between two questions whether the host is there
	pingLimit  = 8 * time.Second        // for the answer; then it hangs
	firstPause = 100 * time.Millisecond // before the second attempt to reach or start a host
	mostPause  = 10 * time.Second       // between attempts
	// callLimit bounds every call that has no earlier deadline.
	callLimit = 30 * time.Second
)

// Config says which host to reach.
type Config struct {
	Socket  string // DIR/NAME.sock
	Spec    string // what the host must have been started for; "" takes any
	Version string // of this program
	BootID  string // of the machine
	// Start starts a host at Socket and returns once the process runs. It is
	// called when nobody serves, at first and after each death, for ever, with a
	// pause that grows to 10 s. nil: somebody else starts hosts, and they are
	// waited for.
	Start func() (Started, error)
	// Instead says how a host that must not be used is ended, for people.
	Instead string
	Logger  *slog.Logger // nil: none
}

// Started is a host that was started.
type Started struct {
	Ended <-chan error // gives its end, with what it said last
	Kill  func()       // ends one that does not come to serve, if it has not ended yet
}

// Errors of hosts that must not be used.
var (
	ErrSpec = errors.New("the device host was started for something else")
	ErrBoot = errors.New("the device host is of another boot of the machine")
)

// link is the connection to one host, over its deaths.
type link struct {
	Config
	speaks  protocols
	remotes map[string]*remote
	order   []*remote
	ctx     context.Context // ends when all devices were closed
	cancel  context.CancelFunc
	done    chan struct{} // closed when run has returned
	open    atomic.Int32  // devices that are not closed

	mu   sync.Mutex
	now  *session // nil while the host is away
	away string   // why
}

// session is the connection to one run of a host.
type session struct {
	conn     *grpc.ClientConn
	instance string
	pid      int
	events   grpc.ServerStreamingClient[pb.WatchEventsResponse]
	why      atomic.Pointer[string] // set before it is closed on purpose
	cancel   context.CancelFunc     // of events

	host     pb.DeviceHostServiceClient
	device   pb.DeviceServiceClient
	memory   pb.MemoryServiceClient
	exports  pb.ExportServiceClient
	pairs    pb.QueuePairServiceClient
	work     pb.WorkServiceClient
	greeting *pb.HelloResponse
}

// end closes a session; calls that wait fail with the reason.
func (s *session) end(why string) {
	s.why.CompareAndSwap(nil, &why)
	s.cancel()
	s.conn.Close()
}

// Dial reaches a host, or has it started, and gives a device.Device for each of
// its devices. They stay while hosts come and go: what is asked of one whose host
// is away fails with device.ErrUnavailable. Closing all of them ends the
// connection, and leaves the host and its devices as they are. They implement
// device.NumberedWork.
//
// A host that is there but does not answer is waited for in the background if it
// has told before what its devices are. errors.Is finds ErrSpec, ErrBoot,
// ErrVersion and ErrStranger for a host that must not be used.
func Dial(ctx context.Context, c Config) ([]device.Device, error) {
	return dial(ctx, c, current)
}

func dial(ctx context.Context, c Config, speaks protocols) ([]device.Device, error) {
	if err := CheckSocket(c.Socket); err != nil {
		return nil, err
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	l := &link{Config: c, speaks: speaks, remotes: map[string]*remote{}, done: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	infos, first, err := l.first(ctx)
	if err != nil {
		l.cancel()
		return nil, err
	}
	var out []device.Device
	for _, info := range infos {
		r := newRemote(l, info)
		l.remotes[info.ID] = r
		l.order = append(l.order, r)
		out = append(out, r)
	}
	l.open.Store(int32(len(out)))
	if len(out) == 0 {
		l.cancel()
		if first != nil {
			first.end("it has no devices")
		}
		return nil, fmt.Errorf("the device host at %s has no devices", c.Socket)
	}
	l.now = first
	go l.run(first)
	return out, nil
}

// first reaches the host for the first time. It gives no session for a host that
// hangs.
func (l *link) first(ctx context.Context) ([]device.Info, *session, error) {
	s, err := l.reach(ctx)
	if err == nil {
		return mapped(s.greeting.GetDevices(), infoOf), s, nil
	}
	if !errors.Is(err, errHangs) {
		return nil, nil, err
	}
	r, unknown := ReadRuntime(l.Socket)
	if unknown != nil || !r.Running() || l.Spec != "" && r.Spec != l.Spec || len(r.Devices) == 0 {
		return nil, nil, err
	}
	l.away = fmt.Sprintf("the device host, process %d, does not answer", r.PID)
	l.Logger.Warn("device host does not answer; it is waited for", "socket", l.Socket, "pid", r.PID)
	return r.Devices, nil, nil
}

// What reach finds besides.
var (
	errNobody = errors.New("no device host serves there")
	errHangs  = errors.New("the device host does not answer")
)

// reach connects to the host, and has it started if nobody serves. A host that
// was of a service manager is waited for a while: the manager starts it again.
func (l *link) reach(ctx context.Context) (*session, error) {
	s, err := l.connect(ctx)
	if l.Start == nil || !errors.Is(err, errNobody) {
		return s, err
	}
	if r, err := ReadRuntime(l.Socket); err == nil && r.Managed && r.Boot == l.BootID {
		if s, err := l.await(ctx, unitLimit, nil); !errors.Is(err, errNobody) {
			return s, err
		}
	}
	started, err := l.Start()
	if err != nil {
		return nil, fmt.Errorf("start a device host: %w", err)
	}
	s, err = l.await(ctx, startLimit, started.Ended)
	if err != nil {
		started.Kill() // nobody would look after it
	}
	return s, err
}

// await waits until somebody serves. errors.Is finds errNobody if the time is
// over.
func (l *link) await(ctx context.Context, limit time.Duration, ended <-chan error) (*session, error) {
	late := time.NewTimer(limit)
	defer late.Stop()
	tick := time.NewTicker(startTick)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			// Unless another one was faster.
			if s, err := l.connect(ctx); !errors.Is(err, errNobody) {
				return s, err
			}
			return nil, fmt.Errorf("the device host ended before it served: %w", err)
		case <-late.C:
			return nil, fmt.Errorf("%w, after %v", errNobody, limit)
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
		if s, err := l.connect(ctx); !errors.Is(err, errNobody) {
			return s, err
		}
	}
}

// over is the error of a context that has ended, or is about to: deadlines of
// sockets pass on their own.
func over(ctx context.Context) error {
	if end, ok := ctx.Deadline(); ok && ctx.Err() == nil && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// connect makes a session with whoever serves, after a look at who that is.
func (l *link) connect(ctx context.Context) (*session, error) {
	greet, cancel := context.WithTimeout(ctx, greetLimit)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(greet, "unix", l.Socket)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, errNobody
	case err != nil && over(ctx) != nil:
		return nil, over(ctx)
	case errors.Is(err, syscall.EAGAIN), err != nil && over(greet) != nil: // nobody accepts
		return nil, fmt.Errorf("%s: %w", l.Socket, errHangs)
	case err != nil:
		return nil, err
	}
	if err := checkPeer(c.(*net.UnixConn)); err != nil {
		c.Close()
		return nil, fmt.Errorf("%s: %w", l.Socket, err)
	}
	// One connection a session: a new one may lead to another host.
	var used atomic.Bool
	conn, err := grpc.NewClient("passthrough:///device-host", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, errors.New("the connection to the device host ended")
			}
			return c, nil
		}), grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window), grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		c.Close()
		return nil, err
	}
	s := &session{conn: conn, host: pb.NewDeviceHostServiceClient(conn), device: pb.NewDeviceServiceClient(conn), memory: pb.NewMemoryServiceClient(conn),
		exports: pb.NewExportServiceClient(conn), pairs: pb.NewQueuePairServiceClient(conn), work: pb.NewWorkServiceClient(conn)}
	var watch context.Context
	watch, s.cancel = context.WithCancel(l.ctx)
	if err := l.greet(greet, watch, s); err != nil {
		s.end("refused")
		if !used.Load() {
			c.Close()
		}
		switch {
		case over(ctx) != nil:
			err = over(ctx)
		case over(greet) != nil:
			err = fmt.Errorf("%s: %w", l.Socket, errHangs)
		}
		return nil, err
	}
	return s, nil
}

// greet learns who serves, and whether to use it.
func (l *link) greet(ctx, watch context.Context, s *session) error {
	hello, err := s.host.Hello(ctx, &pb.HelloRequest{ProtocolMin: l.speaks.min, ProtocolMax: l.speaks.max, Version: l.Version})
	if status.Code(err) == codes.Unavailable { // it dies, or ends: its sockets are still there
		return fmt.Errorf("%w: %s: the greeting failed: %w", errNobody, l.Socket, err)
	}
	if err != nil {
		return fmt.Errorf("%s: the greeting failed: %w", l.Socket, err)
	}
	s.greeting, s.instance, s.pid = hello, hello.GetInstanceId(), int(hello.GetPid())
	wrong := func(err error) error {
		if l.Instead != "" {
			err = fmt.Errorf("%w; %s", err, l.Instead)
		}
		return fmt.Errorf("device host of process %d at %s: %w", s.pid, l.Socket, err)
	}
	if _, err := agree(l.speaks, l.Version, protocols{hello.GetProtocolMin(), hello.GetProtocolMax()}, hello.GetVersion()); err != nil {
		return wrong(err)
	}
	if hello.GetBootId() != l.BootID {
		return wrong(fmt.Errorf("%w: %s, this is %s", ErrBoot, hello.GetBootId(), l.BootID))
	}
	if l.Spec != "" && hello.GetSpec() != l.Spec {
		return wrong(fmt.Errorf("%w: it has %s, and %s is wanted", ErrSpec, hello.GetSpec(), l.Spec))
	}
	if s.events, err = s.host.WatchEvents(watch, &pb.WatchEventsRequest{}); err != nil {
		return err
	}
	// The stream outlives the greeting, but its first message is part of it.
	stop := context.AfterFunc(ctx, s.cancel)
	_, err = s.events.Recv()
	if !stop() && err == nil {
		err = ctx.Err()
	}
	return err
}

// run keeps the connection until all devices are closed.
func (l *link) run(s *session) {
	defer close(l.done)
	for pause := firstPause; ; {
		if s != nil {
			began := time.Now()
			l.serve(s)
			if l.ctx.Err() != nil {
				return
			}
			if time.Since(began) > mostPause {
				pause = firstPause
			}
		}
		var err error
		if s, err = l.reach(l.ctx); err == nil {
			l.come(s)
			continue
		}
		if l.ctx.Err() != nil {
			return
		}
		if l.setAway(err.Error()) {
			l.Logger.Warn("device host not reached; tried again for ever", "socket", l.Socket, "error", err)
		}
		select {
		case <-time.After(pause):
		case <-l.ctx.Done():
			return
		}
		pause = min(2*pause, mostPause)
	}
}

// come makes a session the present one.
func (l *link) come(s *session) {
	l.mu.Lock()
	l.now, l.away = s, ""
	l.mu.Unlock()
	l.Logger.Info("device host is there", "socket", l.Socket, "pid", s.pid, "instance", s.instance)
	l.changed()
}

// setAway notes why there is no host. It reports whether that is new.
func (l *link) setAway(why string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.away
	l.now, l.away = nil, why
	return why != before
}

// changed makes everybody look at all devices.
func (l *link) changed() {
	for _, r := range l.order {
		r.events.post(device.Event{Kind: device.DeviceChanged, Port: -1})
	}
}

// serve hands hints on and looks whether the host answers, until it does not.
func (l *link) serve(s *session) {
	var wg sync.WaitGroup
	defer wg.Wait()
	stop, cancel := context.WithCancel(l.ctx)
	defer cancel()
	wg.Go(func() { l.watch(stop, s) })
	why := "the device host ended"
	for {
		e, err := s.events.Recv()
		if err != nil {
			break
		}
		if r := l.remotes[e.GetDevice()]; r != nil {
			r.events.post(device.Event{Kind: device.EventKind(e.GetKind()), Port: int(e.GetPort()), QP: uidOf(e.GetQueuePair())})
		}
	}
	if p := s.why.Load(); p != nil {
		why = *p
	}
	why = fmt.Sprintf("%s (process %d)", why, s.pid)
	l.setAway(why)
	s.end(why)
	if l.ctx.Err() == nil {
		l.Logger.Warn("device host is away", "socket", l.Socket, "pid", s.pid, "why", why)
		l.changed()
	}
}

// watch asks again and again whether the host is there. One that hangs is given
// up: calls that wait for it end.
func (l *link) watch(ctx context.Context, s *session) {
	tick := time.NewTicker(pingPeriod)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		ping, cancel := context.WithTimeout(ctx, pingLimit)
		_, err := s.host.Hello(ping, &pb.HelloRequest{ProtocolMin: l.speaks.min, ProtocolMax: l.speaks.max, Version: l.Version})
		hangs := err != nil && ping.Err() != nil && ctx.Err() == nil
		cancel()
		if hangs {
			s.end(fmt.Sprintf("the device host has not answered for %v", pingLimit))
		}
		if err != nil {
			return
		}
	}
}

// closed notes that one device was closed.
func (l *link) closed() {
	if l.open.Add(-1) > 0 {
		return
	}
	l.cancel()
	<-l.done
	l.mu.Lock()
	s := l.now
	l.now, l.away = nil, "closed"
	l.mu.Unlock()
	if s != nil {
		s.end("closed")
	}
}
