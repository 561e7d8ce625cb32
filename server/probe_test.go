package server

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/storetest"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// probe wants an answer of a path, and a part of its text.
func (h *house) probe(path string, code int, text string) {
	h.t.Helper()
	got, body, header := h.http("GET", path, "")
	if got != code || !strings.Contains(body, text) || header.Get("Cache-Control") != "no-store" {
		h.t.Errorf("%s: %d %q, %v; want %d %q", path, got, body, header, code, text)
	}
}

func TestProbes(t *testing.T) {
	h := newHouse(t)
	h.probe("/healthz", 200, "alive")
	h.probe("/readyz", 200, "ready")
	if code, body, _ := h.http("HEAD", "/readyz", ""); code != 200 || body != "" {
		t.Errorf("HEAD: %d %q", code, body)
	}
	for _, method := range []string{"POST", "PUT", "DELETE"} {
		if code, _, _ := h.http(method, "/healthz", ""); code < 400 {
			t.Errorf("%s: %d", method, code)
		}
	}
	if code, _, _ := h.http("GET", "/readyz", "", func(r *http.Request) { r.Host = "evil.example" }); code != 403 {
		t.Errorf("by another name: %d", code)
	}
	fault := func(component string, s fabric.HealthStatus, r fabric.Reason) {
		h.fabric.SetFault(component, "test", fabric.Fault{Status: s, Reason: r, Message: "a secret of the disk"})
	}
	const d0, d1 = "devices/soft-0", "devices/soft-1"
	fault(d0, fabric.HealthFailed, fabric.Timeout) // one of two
	h.probe("/readyz", 200, "ready")
	fault(d1, fabric.HealthFailed, fabric.DeviceUnavailable)
	h.probe("/readyz", 503, "the node is FAILED\n"+d0+": FAILED TIMEOUT\n"+d1+": FAILED DEVICE_UNAVAILABLE\n")
	h.probe("/healthz", 200, "alive") // to start it again mends no device
	h.fabric.ClearFault(d0, "test")
	h.fabric.ClearFault(d1, "test")
	fault(fabric.ComponentStore, fabric.HealthDegraded, fabric.ReasonRecordSetAside)
	h.probe("/readyz", 200, "ready")
	fault(fabric.ComponentStore, fabric.HealthDegraded, fabric.StoreUnavailable)
	h.probe("/readyz", 503, "store: DEGRADED STORE_UNAVAILABLE")
	if _, body, _ := h.http("GET", "/readyz", ""); strings.Contains(body, "secret") {
		t.Errorf("tells more than what is not well: %q", body)
	}
	h.fabric.ClearFault(fabric.ComponentStore, "test")
	h.probe("/readyz", 200, "ready")
	for _, c := range "abcdefghijklmnopqrstuvwxyz" {
		fault("hosts/"+string(c), fabric.HealthDegraded, fabric.Internal)
	}
	fault(d0, fabric.HealthFailed, fabric.Timeout)
	fault(d1, fabric.HealthFailed, fabric.Timeout)
	h.probe("/readyz", 503, "more")
	if _, body, _ := h.http("GET", "/readyz", ""); strings.Count(body, "\n") > 22 {
		t.Errorf("a long answer: %q", body)
	}
}

// A daemon that does not get on is not alive, whatever else it answers.
func TestProbeOfADaemonThatHangs(t *testing.T) {
	hold := make(chan struct{})
	store := &heldStore{Store: storetest.NewMemory(storetest.Limits{}), hold: hold, held: make(chan struct{})}
	h := openHouse(t, Options{}, fabric.Config{Devices: softDevices(t, device.Limits{}), Store: store})
	h.probe("/healthz", 200, "alive")
	store.on.Store(true)
	h.fabric.SetFault(fabric.ComponentStore, "test", fabric.Fault{Status: fabric.HealthDegraded, Reason: fabric.Internal, Message: "of which an event is recorded"})
	<-store.held
	h.probe("/healthz", 503, "does not answer")
	store.on.Store(false)
	close(hold)
	h.probe("/healthz", 200, "alive")
}

func TestHealthOfComponents(t *testing.T) {
	h := newHouse(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // what is not told would be waited for
	defer cancel()
	health := healthpb.NewHealthClient(h.conn)
	const dev = "devices/soft-0"
	all := must[*healthpb.HealthListResponse](t)(health.List(ctx, &healthpb.HealthListRequest{})).Statuses
	for name, want := range map[string]healthpb.HealthCheckResponse_ServingStatus{
		"store": healthpb.HealthCheckResponse_SERVING, dev: healthpb.HealthCheckResponse_SERVING,
		dev + "/ports": healthpb.HealthCheckResponse_SERVING, "cluster": healthpb.HealthCheckResponse_SERVICE_UNKNOWN,
	} {
		if got := all[name].GetStatus(); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if _, err := health.Check(ctx, &healthpb.HealthCheckRequest{Service: "cluster"}); asRefused(err).code != codes.NotFound {
		t.Errorf("what is not applicable: %v", err)
	}
	watch, err := health.Watch(ctx, &healthpb.HealthCheckRequest{Service: dev})
	if err != nil {
		t.Fatal(err)
	}
	set := func(s fabric.HealthStatus) {
		h.fabric.SetFault(dev, "test", fabric.Fault{Status: s, Reason: fabric.Timeout, Message: "it hangs"})
	}
	expect := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if got := must[*healthpb.HealthCheckResponse](t)(watch.Recv()); got.Status != want {
			t.Errorf("it is %v, want %v", got.Status, want)
		}
	}
	expect(healthpb.HealthCheckResponse_SERVING)
	set(fabric.HealthDegraded) // serves
	set(fabric.HealthFailed)
	expect(healthpb.HealthCheckResponse_NOT_SERVING)
	node := must[*pb.Node](t)(h.node.GetNode(ctx, &pb.GetNodeRequest{Name: "nodes/local"}))
	if n := node.Health; n.Status != pb.Health_STATUS_DEGRADED || node.State != pb.Node_STATE_DEGRADED || node.Reason != "TIMEOUT" ||
		len(n.Problems) != 1 || n.Problems[0].Component != dev || n.Problems[0].Resource != "nodes/n/"+dev {
		t.Errorf("the node is %v", node)
	}
	d := must[*pb.Device](t)(h.device.GetDevice(ctx, &pb.GetDeviceRequest{Name: "nodes/n/" + dev}))
	if c := d.Health.Components; d.Health.Status != pb.Health_STATUS_FAILED || len(c) != 2 || c[0].Name != dev || c[0].Status != pb.Health_STATUS_FAILED ||
		c[0].Reason != "TIMEOUT" || c[0].Message != "it hangs" || !c[0].StartTime.IsValid() {
		t.Errorf("the device is %v", d.Health)
	}
	set(fabric.HealthUnknown)
	expect(healthpb.HealthCheckResponse_UNKNOWN)
	h.fabric.ClearFault(dev, "test")
	expect(healthpb.HealthCheckResponse_SERVING)
	nobody, err := health.Watch(ctx, &healthpb.HealthCheckRequest{Service: "devices/nobody"})
	if err != nil {
		t.Fatal(err)
	}
	if got := must[*healthpb.HealthCheckResponse](t)(nobody.Recv()); got.Status != healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		t.Errorf("what is not there is %v", got.Status)
	}
	h.fabric.SetFault("devices/nobody", "test", fabric.Fault{Status: fabric.HealthFailed, Reason: fabric.Timeout, Message: "it came"})
	if got := must[*healthpb.HealthCheckResponse](t)(nobody.Recv()); got.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("what came is %v", got.Status)
	}
}

// heldStore is a store whose commits wait once it is on.
type heldStore struct {
	fabric.Store
	on   atomic.Bool
	hold chan struct{} // commits go on when it is closed
	held chan struct{} // closed when the first one waits
	once sync.Once
}

func (s *heldStore) Commit(ctx context.Context, c fabric.Change) (uint64, error) {
	if s.on.Load() {
		s.once.Do(func() { close(s.held) })
		<-s.hold
	}
	return s.Store.Commit(ctx, c)
}
