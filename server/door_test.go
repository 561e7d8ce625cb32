package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/storetest"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

func TestListenTakesLoopbackAlone(t *testing.T) {
	for _, addr := range []string{"tcp://127.0.0.1:0", "127.0.0.1:0", "tcp://localhost:0", "tcp://127.3.2.1:0"} {
		l, err := Listen(addr)
		if err != nil {
			t.Errorf("%s: %v", addr, err)
			continue
		}
		if err := checkDoor(l); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
		l.Close()
	}
	for addr, want := range map[string]string{
		"tcp://0.0.0.0:0":                    "only loopback addresses",
		"tcp://:0":                           "want localhost or a loopback address",
		"tcp://[::]:0":                       "only loopback addresses",
		"tcp://192.0.2.1:0":                  "only loopback addresses",
		"tcp://[::ffff:1.2.3.4]:0":           "only loopback addresses",
		"tcp://example.org:0":                "want localhost or a loopback address",
		"tcp://127.0.0.1":                    "want unix:///path or tcp://host:port",
		"http://127.0.0.1:0":                 "want unix:///path or tcp://host:port",
		"unix://relative":                    "want an absolute path",
		"unix://" + strings.Repeat("/x", 60): "at most 107",
		"unix:///no/such/dir/s":              "no such file",
		"":                                   "want unix:///path or tcp://host:port",
	} {
		l, err := Listen(addr)
		if err == nil {
			l.Close()
			t.Errorf("%s is listened on", addr)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", addr, err, want)
		}
	}
}

func TestServeRefusesADoorThatIsHeardElsewhere(t *testing.T) {
	h := newHouse(t)
	wide, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{Fabric: h.fabric})
	if err := s.Serve([]net.Listener{wide}, nil); !errors.Is(err, errWide) {
		t.Errorf("Serve: %v", err)
	}
	if _, err := wide.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is left open: %v", err)
	}
	if err := s.Serve(nil, nil); err == nil {
		t.Error("Serve can be called twice")
	}
}

func TestAStaleSocketIsReplacedAndALiveOneIsNot(t *testing.T) {
	dir, err := os.MkdirTemp("", "door")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	live, err := Listen("unix://" + path)
	if err != nil {
		t.Fatalf("a socket that nobody listens on: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != socketMode {
		t.Errorf("the socket's mode is %v, %v", info.Mode(), err)
	}
	if _, err := Listen("unix://" + path); err == nil || !strings.Contains(err.Error(), "another process listens") {
		t.Errorf("a second daemon: %v", err)
	}
	live.Close()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket's file is left: %v", err)
	}
	if err := os.WriteFile(path, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen("unix://" + path); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file: %v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "data" {
		t.Errorf("the file is gone: %v", err)
	}
}

func TestRepliesTellWhoAnswers(t *testing.T) {
	h := newHouse(t)
	node := h.fabric.Node()
	check := func(md metadata.MD) {
		t.Helper()
		for key, want := range map[string]string{headerNode: "nodes/n", headerInstance: node.InstanceID, headerVersion: "v0.0.0-test"} {
			if got := md.Get(key); len(got) != 1 || got[0] != want {
				t.Errorf("%s is %q, want %q", key, got, want)
			}
		}
	}
	var md metadata.MD
	if _, err := h.node.GetNode(context.Background(), &pb.GetNodeRequest{Name: "nodes/local"}, grpc.Header(&md)); err != nil {
		t.Fatal(err)
	}
	check(md)
	md = nil
	if _, err := h.node.GetNode(context.Background(), &pb.GetNodeRequest{}, grpc.Header(&md)); err == nil {
		t.Fatal("a node without a name")
	}
	check(md)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream := must[grpc.ServerStreamingClient[pb.WatchEventsResponse]](t)(h.event.WatchEvents(ctx, &pb.WatchEventsRequest{Parent: "nodes/local"}))
	check(must[metadata.MD](t)(stream.Header()))
}

func TestACallForAnotherInstanceIsRefused(t *testing.T) {
	h := newHouse(t)
	instance := h.fabric.Node().InstanceID
	with := func(v string) context.Context {
		return metadata.AppendToOutgoingContext(context.Background(), headerInstance, v)
	}
	if _, err := h.node.GetNode(with(instance), &pb.GetNodeRequest{Name: "nodes/local"}); err != nil {
		t.Errorf("the right instance: %v", err)
	}
	_, err := h.session.CreateSession(with("before"), &pb.CreateSessionRequest{Parent: "nodes/local", Session: &pb.Session{}})
	got := asRefused(err)
	if got.code != codes.FailedPrecondition || got.info.Reason != "INSTANCE_MISMATCH" || got.info.Metadata["asked"] != "before" || got.info.Metadata["present"] != instance {
		t.Errorf("got %v %v", err, got.info)
	}
	stream, err := h.event.WatchEvents(with("before"), &pb.WatchEventsRequest{Parent: "nodes/local"})
	if err == nil {
		_, err = stream.Recv()
	}
	if got := asRefused(err); got.info.Reason != "INSTANCE_MISMATCH" {
		t.Errorf("a stream: %v", err)
	}
}

func TestHealthAndReflection(t *testing.T) {
	h := newHouse(t)
	ctx := context.Background()
	health := healthpb.NewHealthClient(h.conn)
	all := must[*healthpb.HealthListResponse](t)(health.List(ctx, &healthpb.HealthListRequest{}))
	for _, f := range contract {
		name := string(f.Services().Get(0).FullName())
		if all.Statuses[name].GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("%s is %v", name, all.Statuses[name])
		}
	}
	if got := must[*healthpb.HealthCheckResponse](t)(health.Check(ctx, &healthpb.HealthCheckRequest{})); got.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("the whole is %v", got)
	}
	if _, err := health.Check(ctx, &healthpb.HealthCheckRequest{Service: "nobody"}); asRefused(err).code != codes.NotFound {
		t.Errorf("an unknown service: %v", err)
	}
	watch, err := health.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got := must[*healthpb.HealthCheckResponse](t)(watch.Recv()); got.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("watched: %v", got)
	}
	stream, err := reflectionpb.NewServerReflectionClient(h.conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	reply, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(reply.GetListServicesResponse().GetService()); n < len(contract)+2 {
		t.Errorf("reflection lists %d services", n)
	}
	stream.CloseSend()
	if _, err := stream.Recv(); err != io.EOF {
		t.Errorf("the stream ends with %v", err)
	}
}

// stuckStore refuses commits while it is stuck.
type stuckStore struct {
	fabric.Store
	after atomic.Int64 // commits that still succeed; negative: all
}

func (s *stuckStore) Commit(ctx context.Context, c fabric.Change) (uint64, error) {
	if s.after.Load() == 0 {
		return 0, fabric.ErrStoreFailed
	}
	s.after.Add(-1)
	return s.Store.Commit(ctx, c)
}

// While the store cannot be written what makes changes does not serve, and
// what reads does.
func TestHealthFollowsTheStore(t *testing.T) {
	store := &stuckStore{Store: storetest.NewMemory(storetest.Limits{})}
	store.after.Store(-1)
	h := openHouse(t, Options{}, fabric.Config{Devices: softDevices(t, device.Limits{}), Store: store})
	ctx := context.Background()
	_, _, b := h.open("s", dev0)
	health := healthpb.NewHealthClient(h.conn)
	watch, err := health.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if got := must[*healthpb.HealthCheckResponse](t)(watch.Recv()); got.Status != want {
			t.Errorf("the whole is %v, want %v", got.Status, want)
		}
	}
	expect(healthpb.HealthCheckResponse_SERVING)
	store.after.Store(1) // the intent to delete is recorded, that it is done is not
	deleted := make(chan error, 1)
	go func() {
		_, err := h.memory.DeleteBuffer(ctx, &pb.DeleteBufferRequest{Name: b.Name})
		deleted <- err
	}()
	expect(healthpb.HealthCheckResponse_NOT_SERVING)
	if got := must[*healthpb.HealthCheckResponse](t)(health.Check(ctx, &healthpb.HealthCheckRequest{Service: "accelfab.v1.NodeService"})); got.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("reading is %v", got.Status)
	}
	node := must[*pb.Node](t)(h.node.GetNode(ctx, &pb.GetNodeRequest{Name: "nodes/local"}))
	if node.State != pb.Node_STATE_DEGRADED || node.Health.Problems[0].Reason != "STORE_UNAVAILABLE" {
		t.Errorf("the node is %v, %v", node.State, node.Health)
	}
	_, err = h.session.CreateSession(ctx, &pb.CreateSessionRequest{Parent: "nodes/local", Session: &pb.Session{}})
	if got := asRefused(err); got.code != codes.Unavailable || got.info.Reason != "STORE_UNAVAILABLE" {
		t.Errorf("a create: %v", err)
	} else if _, ok := detailOf[*errdetails.RetryInfo](got); !ok {
		t.Error("nothing tells when to try again")
	}
	store.after.Store(-1)
	if err := <-deleted; err != nil {
		t.Errorf("the delete that waited: %v", err)
	}
	expect(healthpb.HealthCheckResponse_SERVING)
}

// as is the context of a call by c.
func as(c fabric.Caller) context.Context {
	return peer.NewContext(context.Background(), &peer.Peer{AuthInfo: callerInfo{caller: c}})
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestAPanicEndsOneCall(t *testing.T) {
	s := &Server{log: quiet(), drain: newDrain(), timeout: time.Minute}
	s.metrics = newMetrics(s)
	_, err := s.unary(as(fabric.Caller{Identity: "uid:1"}), nil, &grpc.UnaryServerInfo{FullMethod: "/a/B"}, func(context.Context, any) (any, error) { panic("a bug") })
	if got := asRefused(err); got.code != codes.Internal || got.info.Reason != "INTERNAL" || strings.Contains(got.message, "a bug") {
		t.Errorf("got %v", err)
	}
	if s.Panics() != 1 {
		t.Errorf("%d panics are counted", s.Panics())
	}
	s.drain.start()
	<-s.drain.idle // the call has left
}

func TestACallWithoutADeadlineGetsOne(t *testing.T) {
	s := &Server{log: quiet(), drain: newDrain(), timeout: 7 * time.Second}
	s.metrics = newMetrics(s)
	left := func(ctx context.Context, req any) (left time.Duration) {
		t.Helper()
		_, err := s.unary(ctx, req, &grpc.UnaryServerInfo{}, func(ctx context.Context, _ any) (any, error) {
			d, ok := ctx.Deadline()
			if !ok {
				t.Error("there is none")
			}
			left = time.Until(d).Round(time.Second)
			return nil, nil
		})
		if err != nil {
			t.Error(err)
		}
		return left
	}
	me := as(fabric.Caller{Identity: "uid:1"})
	if got := left(me, nil); got != 7*time.Second {
		t.Errorf("%v", got)
	}
	own, cancel := context.WithTimeout(me, time.Hour)
	defer cancel()
	if got := left(own, nil); got != time.Hour {
		t.Errorf("the caller's own became %v", got)
	}
	if _, err := s.unary(context.Background(), nil, &grpc.UnaryServerInfo{}, nil); asRefused(err).code != codes.Unauthenticated {
		t.Errorf("a call of nobody: %v", err)
	}
}
