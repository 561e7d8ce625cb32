package server

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/storetest"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// scraped is what one scrape gives.
type scraped struct {
	t        *testing.T
	text     string
	families map[string]*dto.MetricFamily
}

func (h *house) scrape() scraped {
	h.t.Helper()
	code, body, header := h.http("GET", "/metrics", "")
	if code != 200 || !strings.HasPrefix(header.Get("Content-Type"), "text/plain") {
		h.t.Fatalf("%d %v %s", code, header, body)
	}
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	return scraped{h.t, body, families}
}

// metric gives the one of a family with these labels, as "key=value"; nil if
// there is none.
func (s scraped) metric(family string, labels ...string) *dto.Metric {
	s.t.Helper()
	f := s.families[family]
	if f == nil {
		s.t.Fatalf("there is no %s", family)
	}
next:
	for _, m := range f.Metric {
		have := map[string]bool{}
		for _, l := range m.Label {
			have[l.GetName()+"="+l.GetValue()] = true
		}
		for _, l := range labels {
			if !have[l] {
				continue next
			}
		}
		return m
	}
	return nil
}

// value gives its number: of a histogram its count.
func (s scraped) value(family string, labels ...string) float64 {
	s.t.Helper()
	m := s.metric(family, labels...)
	switch {
	case m == nil:
		s.t.Fatalf("there is no %s of %q", family, labels)
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Histogram != nil:
		return float64(m.Histogram.GetSampleCount())
	}
	s.t.Fatalf("%s is a %v", family, s.families[family].GetType())
	return 0
}

func (s scraped) is(want float64, family string, labels ...string) {
	s.t.Helper()
	if got := s.value(family, labels...); got != want {
		s.t.Errorf("%s of %q is %v, want %v", family, labels, got, want)
	}
}

func TestMetricsAreWellMade(t *testing.T) {
	h := newHouse(t)
	h.open("s", dev0)
	stream, err := h.event.WatchEvents(context.Background(), &pb.WatchEventsRequest{Parent: "nodes/local"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	s := h.scrape()
	problems, err := promlint.New(strings.NewReader(s.text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "accelfab_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	own := 0
	for name, f := range s.families {
		if f.GetHelp() == "" {
			t.Errorf("%s has no help", name)
		}
		if strings.HasPrefix(name, "accelfab_") {
			own++
		}
	}
	for _, name := range []string{"process_open_fds", "process_resident_memory_bytes", "go_goroutines", "go_memstats_heap_alloc_bytes"} {
		if s.value(name) <= 0 {
			t.Errorf("%s is %v", name, s.value(name))
		}
	}
	if n := len(portTraffic) + 19 + 5; own != n-1 { // the histogram of streams that ended has none yet
		t.Errorf("%d metrics of accelfab, want %d", own, n-1)
	}
	s.is(1, "accelfab_rpc_open_streams", "method=EventService/WatchEvents")
	s.is(1, "accelfab_rpc_in_progress") // the stream
}

// A scenario whose numbers are known.
func TestMetricsAreRight(t *testing.T) {
	store := &stuckStore{Store: storetest.NewMemory(storetest.Limits{})}
	store.after.Store(-1)
	h := openHouse(t, Options{}, fabric.Config{Devices: softDevices(t, device.Limits{}), Store: store})
	ctx := context.Background()
	first := h.scrape()
	first.is(0, "accelfab_sessions", "state=ACTIVE")
	first.is(0, "accelfab_objects", "kind=buffers", "state=READY")
	first.is(1, "accelfab_build_info", "version=v0.0.0-test")
	first.is(1, "accelfab_node_status", "status=OK")
	first.is(0, "accelfab_node_status", "status=FAILED")
	first.is(1<<20, "accelfab_device_memory_bytes", "device=soft-0")
	first.is(0, "accelfab_device_memory_used_bytes", "device=soft-0")

	_, pd, b := h.open("s", dev0)
	size := float64(b.SizeBytes)
	q := h.queuePair(pd, dev0, "q", h.activePort(dev0))
	for range 3 {
		if _, err := h.memory.GetBuffer(ctx, &pb.GetBufferRequest{Name: dev0 + "/buffers/none"}); err == nil {
			t.Fatal("it is there")
		}
	}
	if code, _, _ := h.http("GET", "/v1/"+b.Name, ""); code != 403 { // who calls by TCP is anonymous
		t.Fatal(code)
	}
	s := h.scrape()
	s.is(1, "accelfab_sessions", "state=ACTIVE")
	s.is(1, "accelfab_objects", "kind=buffers", "state=READY")
	s.is(1, "accelfab_objects", "kind=queuePairs", "state=INIT")
	s.is(0, "accelfab_objects", "kind=queuePairs", "state=ERR")
	s.is(1, "accelfab_device_objects", "device=soft-0", "kind=queuePairs")
	s.is(0, "accelfab_device_objects", "device=soft-1", "kind=queuePairs")
	s.is(size, "accelfab_device_memory_used_bytes", "device=soft-0")
	s.is(0, "accelfab_device_memory_used_bytes", "device=soft-1")
	s.is(1, "accelfab_rpc_duration_seconds", "method=SessionService/CreateSession", "code=OK")
	s.is(3, "accelfab_rpc_duration_seconds", "method=MemoryService/GetBuffer", "code=NotFound")
	s.is(1, "accelfab_rpc_duration_seconds", "method=MemoryService/GetBuffer", "code=PermissionDenied") // by REST
	if sum := s.metric("accelfab_rpc_duration_seconds", "method=MemoryService/GetBuffer", "code=NotFound").Histogram.GetSampleSum(); sum <= 0 || sum > 60 {
		t.Errorf("three calls took %v s", sum)
	}
	s.is(1, "accelfab_component_status", "component=devices/soft-0", "status=OK")
	if since := s.value("accelfab_component_since_timestamp_seconds", "component=store"); since < 1.7e9 || since > 1e10 {
		t.Errorf("since %v", since)
	}
	events := must[*pb.ListEventsResponse](t)(h.event.ListEvents(ctx, &pb.ListEventsRequest{Parent: "nodes/local", PageSize: 1000})).Events
	s.is(float64(events[len(events)-1].Cursor), "accelfab_journal_revision")
	commits := s.value("accelfab_store_commit_duration_seconds")
	if grown := commits - first.value("accelfab_store_commit_duration_seconds"); grown < 4 {
		t.Errorf("%v commits for a session, a domain, a buffer and a queue pair", grown)
	}
	if hist := s.metric("accelfab_store_commit_duration_seconds").Histogram; hist.Bucket[len(hist.Bucket)-1].GetCumulativeCount() != hist.GetSampleCount() {
		t.Errorf("commits of a store in memory that took longer than any bound: %v", hist)
	}
	s.is(0, "accelfab_store_commit_failures_total")
	s.is(1, "accelfab_port_active", "device=soft-0", "port="+portOf(q))
	if s.value("accelfab_port_speed_bytes_per_second", "device=soft-0", "port="+portOf(q)) < 1e9 {
		t.Error("a slow port")
	}
	s.is(0, "accelfab_port_events_total", "device=soft-0", "port="+portOf(q), "event=icrc_errors")

	store.after.Store(0)
	if _, err := h.session.CreateSession(ctx, &pb.CreateSessionRequest{Parent: "nodes/local", Session: &pb.Session{}}); err == nil {
		t.Error("a session without a store")
	}
	store.after.Store(-1)
	s = h.scrape()
	// The fault itself is an entry that is tried until it can be recorded.
	if n := s.value("accelfab_store_commit_failures_total"); n < 1 || n > 100 {
		t.Errorf("%v commits failed", n)
	}
	if n := s.value("accelfab_store_commit_duration_seconds") - commits; n < 0 || n > 4 {
		t.Errorf("%v commits succeeded meanwhile", n)
	}
	s.is(1, "accelfab_rpc_duration_seconds", "method=SessionService/CreateSession", "code=Unavailable")
	h.fabric.SetFault("devices/soft-1", "test", fabric.Fault{Status: fabric.HealthFailed, Reason: fabric.Timeout, Message: "it hangs"})
	s = h.scrape()
	s.is(1, "accelfab_component_status", "component=devices/soft-1", "status=FAILED")
	s.is(0, "accelfab_component_status", "component=devices/soft-1", "status=OK")
	s.is(1, "accelfab_node_status", "status=DEGRADED")
	h.fabric.ClearFault("devices/soft-1", "test")
}

// activePort gives a port of a device that carries data.
func (h *house) activePort(dev string) string {
	h.t.Helper()
	ports := must[*pb.ListPortsResponse](h.t)(h.device.ListPorts(context.Background(), &pb.ListPortsRequest{Parent: dev}))
	for _, p := range ports.Ports {
		if p.State == pb.Port_STATE_ACTIVE {
			return p.Name
		}
	}
	h.t.Fatal("no port is active")
	return ""
}

func portOf(q *pb.QueuePair) string { return q.Port[strings.LastIndexByte(q.Port, '/')+1:] }

// Nothing that a caller chooses becomes a label, and the rest is as much as the
// node has.
func TestMetricsAreBounded(t *testing.T) {
	h := newHouse(t)
	ctx := context.Background()
	const secret = "a-name-of-a-callers-own"
	must[*pb.Session](t)(h.session.CreateSession(ctx, &pb.CreateSessionRequest{Parent: "nodes/local", SessionId: secret, Session: &pb.Session{Labels: map[string]string{"job": secret}}}))
	for i := range 50 {
		_ = h.conn.Invoke(ctx, fmt.Sprintf("/accelfab.v1.MemoryService/%s%d", secret, i), &pb.GetNodeRequest{}, &pb.Node{})
		_ = h.conn.Invoke(ctx, fmt.Sprintf("/%s%d/Get", secret, i), &pb.GetNodeRequest{}, &pb.Node{})
		h.http("GET", fmt.Sprintf("/v1/nodes/local/%s%d", secret, i), "")
	}
	s := h.scrape()
	if strings.Contains(s.text, secret) {
		t.Error("a name that a caller chose is told")
	}
	series := 0
	for name, f := range s.families {
		if strings.HasPrefix(name, "accelfab_rpc") {
			series += len(f.Metric)
		}
	}
	if series > 10 {
		t.Errorf("%d series of calls after calls of one method that is there", series)
	}
}

// What took long is counted in all buckets above.
func TestMetricsOfCommits(t *testing.T) {
	ms := time.Millisecond
	n := &nodeMetrics{stats: fabric.Stats{Commits: fabric.Durations{Count: 10, Sum: 500 * ms, Bounds: []time.Duration{ms, 10 * ms, 100 * ms}, Buckets: []uint64{1, 2, 4}}, Refused: 3}}
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(n)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		switch f.GetName() {
		case "accelfab_store_commit_duration_seconds":
			h := f.Metric[0].Histogram
			var got []string
			for _, b := range h.Bucket {
				got = append(got, fmt.Sprintf("%d <= %v", b.GetCumulativeCount(), b.GetUpperBound()))
			}
			if want := "[1 <= 0.001 3 <= 0.01 7 <= 0.1]"; fmt.Sprint(got) != want || h.GetSampleCount() != 10 || h.GetSampleSum() != 0.5 {
				t.Errorf("%v %v, want %s", got, h, want)
			}
		case "accelfab_store_commit_failures_total":
			if got := f.Metric[0].Counter.GetValue(); got != 3 {
				t.Errorf("%v commits were refused", got)
			}
		}
	}
}

// Every counter of a port is told once.
func TestMetricsTellEveryPortCounter(t *testing.T) {
	fields := reflect.TypeFor[device.PortCounters]()
	told := map[int]string{}
	tell := func(name string, count func(*device.PortCounters) uint64) {
		for i := range fields.NumField() {
			var c device.PortCounters
			reflect.ValueOf(&c).Elem().Field(i).SetUint(1)
			if count(&c) == 1 {
				if told[i] != "" {
					t.Errorf("%s is told by %s and by %s", fields.Field(i).Name, told[i], name)
				}
				told[i] = name
			}
		}
	}
	api := (&pb.Port_Counters{}).ProtoReflect().Descriptor().Fields()
	for _, c := range portTraffic {
		tell(c.desc.String(), c.count)
	}
	for _, e := range portEventNames {
		tell(e.name, e.count)
		if api.ByTextName(e.name) == nil {
			t.Errorf("%s is no counter of the API", e.name)
		}
	}
	for i := range fields.NumField() {
		if told[i] == "" {
			t.Errorf("%s is not told", fields.Field(i).Name)
		}
	}
}

// deafDevice does not answer for its ports, whatever its context says.
type deafDevice struct {
	device.Device
	deaf atomic.Bool
	hold chan struct{}
}

func (d *deafDevice) Port(ctx context.Context, n int) (device.Port, error) {
	if d.deaf.Load() {
		<-d.hold
	}
	return d.Device.Port(ctx, n)
}

// A device that hangs costs a scrape its ports alone.
func TestMetricsOfADeviceThatHangs(t *testing.T) {
	devices := softDevices(t, device.Limits{})
	d := &deafDevice{Device: devices[0], hold: make(chan struct{})}
	h := openHouse(t, Options{}, fabric.Config{Devices: []device.Device{d, devices[1]}, Store: storetest.NewMemory(storetest.Limits{})})
	d.deaf.Store(true)
	defer close(d.hold)
	for range 2 {
		s := h.scrape()
		if s.metric("accelfab_port_active", "device=soft-0") != nil {
			t.Error("ports of a device that does not answer")
		}
		if s.metric("accelfab_port_active", "device=soft-1") == nil {
			t.Error("no ports of the other")
		}
	}
}

// X06: a scrape does not wait for slow devices. It tells what they said last, and how
// old that is, until they answer.
func TestX06MetricsOfSlowDevices(t *testing.T) {
	devices := softDevices(t, device.Limits{})
	slow := &deafDevice{Device: devices[0], hold: make(chan struct{})}
	h := openHouse(t, Options{}, fabric.Config{Devices: []device.Device{slow, devices[1]}, Store: storetest.NewMemory(storetest.Limits{})})
	age := func(s scraped, device string) float64 {
		return s.value("accelfab_device_ports_age_seconds", "device="+device)
	}
	first := h.scrape()
	active := first.value("accelfab_port_active", "device=soft-0")
	slow.deaf.Store(true)
	second, third := h.scrape(), h.scrape()
	for _, s := range []scraped{second, third} {
		s.is(active, "accelfab_port_active", "device=soft-0")
		if age(s, "soft-0") <= age(s, "soft-1") {
			t.Errorf("the reading of a device that did not answer is %v s old, of one that did %v s", age(s, "soft-0"), age(s, "soft-1"))
		}
	}
	if age(third, "soft-0") <= age(second, "soft-0") {
		t.Errorf("what is not read again does not get older: %v s, then %v s", age(second, "soft-0"), age(third, "soft-0"))
	}
	slow.deaf.Store(false)
	close(slow.hold)
	// What was under way ends now, and is what a scrape tells then.
	deadline, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for age(h.scrape(), "soft-0") >= age(third, "soft-0") {
		if deadline.Err() != nil {
			t.Fatal("a device that answers again is still told as it was")
		}
	}
}
