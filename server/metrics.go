package server

import (
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/codes"
)

// pathMetrics gives counts of the daemon in Prometheus' text form.
const pathMetrics = "/metrics"

// metrics is what is counted as it happens. What can be read when somebody asks
// is in nodeMetrics. Labels are bounded: methods and codes of the contract,
// components, devices and ports of the node, kinds and states; never names of
// objects, identities or anything that a caller chooses.
type metrics struct {
	registry *prometheus.Registry
	calls    *prometheus.HistogramVec
	open     *prometheus.GaugeVec
	ended    *prometheus.CounterVec
	scrape   chan struct{} // holds a token while one is answered
	ports    portReader
}

// callBounds reach from a read to a call that waits for its deadline, seconds.
var callBounds = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

func newMetrics(s *Server) *metrics {
	m := &metrics{
		registry: prometheus.NewPedanticRegistry(),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "accelfab_rpc_duration_seconds", Buckets: callBounds,
			Help: "How long unary calls took, by gRPC and by REST; what waits, such as PollCompletions, with its wait."}, []string{"method", "code"}),
		open:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "accelfab_rpc_open_streams", Help: "Streams that are open."}, []string{"method"}),
		ended:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "accelfab_rpc_streams_total", Help: "Streams that have ended."}, []string{"method", "code"}),
		scrape: make(chan struct{}, 1),
		ports:  portReader{reading: map[string]chan struct{}{}, last: map[string]portReading{}},
	}
	m.registry.MustRegister(m.calls, m.open, m.ended,
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "accelfab_rpc_panics_total", Help: "Calls that ended by a fault of accelfab."},
			func() float64 { return float64(s.Panics()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "accelfab_rpc_in_progress", Help: "Calls and streams in progress."},
			func() float64 { return float64(s.drain.count()) }),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// methodLabel is a method without the package and the first slash. It is one of
// the services: others do not come so far.
func methodLabel(full string) string {
	if i := strings.LastIndexByte(full, '.'); i >= 0 {
		return full[i+1:]
	}
	return strings.TrimPrefix(full, "/")
}

// unary counts a call.
func (m *metrics) unary(method string, code codes.Code, took time.Duration) {
	m.calls.WithLabelValues(methodLabel(method), code.String()).Observe(took.Seconds())
}

// stream counts a stream. The function counts its end.
func (m *metrics) stream(method string) (ended func(codes.Code)) {
	label := methodLabel(method)
	m.open.WithLabelValues(label).Inc()
	return func(code codes.Code) {
		m.open.WithLabelValues(label).Dec()
		m.ended.WithLabelValues(label, code.String()).Inc()
	}
}

// answerMetrics answers a scrape. Who may reach the HTTP door may read it.
func (s *Server) answerMetrics(w http.ResponseWriter, r *http.Request) {
	select { // one after the other: each has a cost
	case s.metrics.scrape <- struct{}{}:
		defer func() { <-s.metrics.scrape }()
	case <-r.Context().Done():
		return
	case <-s.drain.begun.Done():
		answerProbe(w, http.StatusServiceUnavailable, "the daemon is ending")
		return
	}
	now := prometheus.NewPedanticRegistry()
	now.MustRegister(s.readNode(r.Context()))
	promhttp.HandlerFor(prometheus.Gatherers{s.metrics.registry, now}, promhttp.HandlerOpts{
		ErrorLog:      slog.NewLogLogger(s.log.Handler(), slog.LevelError),
		ErrorHandling: promhttp.HTTPErrorOnError,
	}).ServeHTTP(w, r)
}
