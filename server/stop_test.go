package server

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/storetest"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// slowDevice holds reads of its ports until it is let go; a read heeds its
// context only if it was told to.
type slowDevice struct {
	device.Device
	mu      sync.Mutex
	entered chan struct{} // gets a value from each read that is held
	let     chan struct{} // nil: reads are not held
}

func (d *slowDevice) hold() (entered <-chan struct{}, let chan<- struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.entered, d.let = make(chan struct{}, 16), make(chan struct{})
	return d.entered, d.let
}

func (d *slowDevice) Port(ctx context.Context, n int) (device.Port, error) {
	d.mu.Lock()
	entered, let := d.entered, d.let
	d.mu.Unlock()
	if let != nil {
		entered <- struct{}{}
		select {
		case <-let:
		case <-ctx.Done():
			return device.Port{}, ctx.Err()
		}
	}
	return d.Device.Port(ctx, n)
}

func slowHouse(t *testing.T) (*house, *slowDevice) {
	t.Helper()
	slow := &slowDevice{Device: softDevices(t, device.Limits{})[0]}
	return openHouse(t, Options{}, fabric.Config{Devices: []device.Device{slow}, Store: storetest.NewMemory(storetest.Limits{})}), slow
}

func soon() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 30*time.Second)
}

func TestAStopLetsCallsFinish(t *testing.T) {
	h, slow := slowHouse(t)
	entered, let := slow.hold()
	name := dev0 + "/ports/1"
	rpc := make(chan error, 1)
	go func() {
		_, err := h.device.GetPort(context.Background(), &pb.GetPortRequest{Name: name})
		rpc <- err
	}()
	web := make(chan int, 1)
	go func() {
		code, _, _ := h.http("GET", "/v1/"+name, "")
		web <- code
	}()
	<-entered
	<-entered
	ctx, cancel := soon()
	defer cancel()
	stopped := make(chan struct{})
	go func() { h.stop(ctx); close(stopped) }()
	<-h.server.drain.begun.Done()
	if _, err := h.node.GetNode(ctx, &pb.GetNodeRequest{Name: "nodes/local"}); asRefused(err).code != codes.Unavailable {
		t.Errorf("a new call while it stops: %v", err)
	}
	select {
	case <-stopped:
		t.Error("it does not wait")
	default:
	}
	close(let)
	if err := <-rpc; err != nil {
		t.Errorf("the call by gRPC: %v", err)
	}
	if code := <-web; code != 200 {
		t.Errorf("the call by HTTP: %d", code)
	}
	<-stopped
}

func TestAStopCutsWhatDoesNotFinish(t *testing.T) {
	h, slow := slowHouse(t)
	entered, _ := slow.hold() // for ever
	rpc := make(chan error, 1)
	go func() {
		_, err := h.device.GetPort(context.Background(), &pb.GetPortRequest{Name: dev0 + "/ports/1"})
		rpc <- err
	}()
	<-entered
	late, cancel := context.WithCancel(context.Background())
	cancel()
	h.stop(late)
	if err := <-rpc; err == nil {
		t.Error("the call has an answer")
	}
}

func TestAStopEndsStreamsAndWaits(t *testing.T) {
	h := newHouse(t)
	_, pd, _ := h.open("s", dev0)
	port, _ := h.cable(0)
	q := h.queuePair(pd, dev0, "q", port.Name)
	ctx, cancel := soon()
	defer cancel()
	stream := must[grpc.ServerStreamingClient[pb.WatchEventsResponse]](t)(h.event.WatchEvents(ctx, &pb.WatchEventsRequest{Parent: "nodes/local"}))
	if m := must[*pb.WatchEventsResponse](t)(stream.Recv()); m.GetBookmark() == nil {
		t.Errorf("a watch from now begins with %v", m)
	}
	polled := make(chan error, 1)
	began := make(chan struct{})
	go func() {
		close(began)
		_, err := h.transfer.PollCompletions(ctx, &pb.PollCompletionsRequest{Name: q.Name, Wait: durationpb.New(time.Minute)})
		polled <- err
	}()
	<-began
	h.stop(ctx)
	_, err := stream.Recv()
	if got := asRefused(err); got.code != codes.Unavailable || !strings.Contains(got.message, "ending") {
		t.Errorf("the stream ends with %v", err)
	}
	// Depending on who was first it waited, or came too late.
	if err := <-polled; err != nil && asRefused(err).code != codes.Unavailable {
		t.Errorf("the wait ends with %v", err)
	}
}

func TestAStopWaitsForNobodyWhoSaysNothing(t *testing.T) {
	h := newHouse(t)
	// A connection on which no HTTP/2 preface comes.
	conn, err := net.Dial("tcp", h.tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	late, cancel := context.WithCancel(context.Background())
	cancel()
	h.stop(late)
}

// Case R09 in little: streams that are opened and left leave nothing behind.
func TestStreamsThatAreLeftLeaveNothing(t *testing.T) {
	h := newHouse(t)
	for range 200 {
		ctx, cancel := context.WithCancel(context.Background())
		stream := must[grpc.ServerStreamingClient[pb.WatchEventsResponse]](t)(h.event.WatchEvents(ctx, &pb.WatchEventsRequest{Parent: "nodes/local"}))
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		cancel()
		for {
			if _, err := stream.Recv(); err != nil {
				break
			}
		}
	}
	// checkGoroutines sees the rest; that all calls have left shows here.
	ctx, cancel := soon()
	defer cancel()
	h.stop(ctx)
	if n := h.server.drain.calls; n != 0 {
		t.Errorf("%d calls have not left", n)
	}
}

func TestACursorThatIsGone(t *testing.T) {
	h := openHouse(t, Options{}, fabric.Config{Devices: softDevices(t, device.Limits{}), Store: storetest.NewMemory(storetest.Limits{JournalEvents: 4})})
	for range 5 {
		must[*pb.Session](t)(h.session.CreateSession(context.Background(), &pb.CreateSessionRequest{Parent: "nodes/n", SessionId: "s", Session: &pb.Session{}}))
		if _, err := h.session.DeleteSession(context.Background(), &pb.DeleteSessionRequest{Name: "nodes/n/sessions/s"}); err != nil {
			t.Fatal(err)
		}
	}
	h.open("last", dev0)
	ctx, cancel := soon()
	defer cancel()
	_, err := h.event.ListEvents(ctx, &pb.ListEventsRequest{Parent: "nodes/local", After: 1})
	if got := asRefused(err); got.code != codes.OutOfRange || got.info.Reason != "CURSOR_EXPIRED" || got.info.Metadata["oldest"] == "" {
		t.Errorf("got %v %v", err, got.info)
	}
	after := uint64(1)
	stream := must[grpc.ServerStreamingClient[pb.WatchEventsResponse]](t)(h.event.WatchEvents(ctx, &pb.WatchEventsRequest{Parent: "nodes/local", After: &after}))
	gap := must[*pb.WatchEventsResponse](t)(stream.Recv()).GetGap()
	if gap.GetAfter() != 1 || gap.GetOldest() == 0 {
		t.Errorf("the gap is %v", gap)
	}
	seen := map[string]bool{}
	for {
		m := must[*pb.WatchEventsResponse](t)(stream.Recv())
		if m.GetBookmark() != nil {
			break
		}
		if e := m.GetEvent(); e.Type == pb.Event_TYPE_SNAPSHOT {
			seen[e.Resource] = true
		}
	}
	for _, want := range []string{"nodes/n/sessions/last", dev0 + "/protectionDomains/last", dev0 + "/buffers/last"} {
		if !seen[want] {
			t.Errorf("the snapshot is without %s: %v", want, seen)
		}
	}
}
