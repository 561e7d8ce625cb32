// Package server is the doors of the daemon: gRPC services over unix sockets
// and loopback TCP, the same services as REST over HTTP, and the socket on which
// descriptors of exports come and go.
//
// It converts between the contract (proto/accelfab/v1) and the domain (package
// fabric), and says who calls; it decides nothing else. A request comes in by
// a listener, whose connection tells the caller's identity; interceptors check
// the instance it is meant for, give it a deadline and a place among the calls
// that a stop waits for; a service turns it into the domain's values, naming
// what cannot be said in them; the domain answers or refuses; and one table
// (errors.go) turns a refusal into a status with its details.
//
// HTTP calls go the same way through a channel inside the process, with the
// HTTP connection's identity: interceptors, streams and refusals are the same.
// A stream is lines of JSON, {"result": ...} each. The last line of one that
// the server ends is {"error": ...}; without it the connection broke.
//
// Beside the contract the HTTP door has /openapi.json, /healthz and /readyz for
// probes, and /metrics for Prometheus.
//
// # Limits
//
// Only loopback addresses are listened on: there is no TLS yet. A request and
// an HTTP body have at most 4 MiB. A reply of a list stays below 3 MiB by
// giving fewer items. A refusal lists faults up to some 2.5 KiB, since errors
// travel in headers.
package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// Options are what New needs. Only Fabric must be set.
type Options struct {
	// Fabric answers all calls. It outlives the server: close it after Stop and
	// Serve have returned.
	Fabric *fabric.Fabric
	// Logger takes a line a call at debug level, and faults of the server's
	// own. nil means none.
	Logger *slog.Logger
	// CallTimeout is how long a call may take whose caller gave no deadline;
	// 0 means 30 s. Streams have no end.
	CallTimeout time.Duration
}

// Server serves one node.
type Server struct {
	fabric   *fabric.Fabric
	log      *slog.Logger
	timeout  time.Duration
	node     string     // its resource name
	uid      device.UID // of the node
	instance string
	header   metadata.MD // of every reply
	drain    *drain
	metrics  *metrics
	panics   atomic.Uint64
	grpc     *grpc.Server
	http     *http.Server
	served   atomic.Bool

	descriptors descriptors
}

// maxRequest and maxHeaders bound a request.
const (
	maxRequest = 4 << 20 // bytes
	maxHeaders = 64 << 10
)

// New makes a server, which serves nothing until Serve. It panics without a
// Fabric.
func New(o Options) *Server {
	n := o.Fabric.Node()
	s := &Server{fabric: o.Fabric, log: o.Logger, timeout: o.CallTimeout, node: n.Name, uid: n.UID, instance: n.InstanceID,
		header: metadata.Pairs(headerNode, n.Name, headerInstance, n.InstanceID, headerVersion, n.Version), drain: newDrain()}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.timeout == 0 {
		s.timeout = 30 * time.Second
	}
	s.metrics = newMetrics(s)
	s.grpc = grpc.NewServer(
		grpc.Creds(peerCredentials{}),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(8192), // of a connection
		grpc.ConnectionTimeout(10*time.Second),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 20 * time.Second}),
		// Measured: workers that stay save the growth of a new stack a call.
		grpc.NumStreamWorkers(uint32(4*runtime.GOMAXPROCS(0))),
	)
	s.register(s.grpc)
	healthpb.RegisterHealthServer(s.grpc, healthService{Server: s})
	reflection.Register(s.grpc)
	s.http = newHTTPServer(s.gateway(), s.log)
	return s
}

// register offers the services of the contract.
func (s *Server) register(r grpc.ServiceRegistrar) {
	pb.RegisterNodeServiceServer(r, nodeService{Server: s})
	pb.RegisterDeviceServiceServer(r, deviceService{Server: s})
	pb.RegisterSessionServiceServer(r, sessionService{Server: s})
	pb.RegisterMemoryServiceServer(r, memoryService{Server: s})
	pb.RegisterQueuePairServiceServer(r, queuePairService{Server: s})
	pb.RegisterEventServiceServer(r, eventService{Server: s})
	pb.RegisterTransferServiceServer(r, transferService{Server: s})
}

// Panics counts the calls that have panicked since New.
func (s *Server) Panics() uint64 { return s.panics.Load() }

// Serve serves gRPC on rpc and HTTP on web (nil for none), and closes these
// listeners. It returns nil once Stop has stopped it, or the error of a
// listener that failed or may not be served. Serve can be called once.
func (s *Server) Serve(rpc []net.Listener, web net.Listener) error {
	doors := rpc
	if web != nil {
		doors = append(rpc[:len(rpc):len(rpc)], web)
	}
	var errs []error
	switch {
	case s.served.Swap(true):
		errs = append(errs, errors.New("server: Serve was called before"))
	case len(doors) == 0:
		errs = append(errs, errors.New("server: no listener"))
	}
	for _, l := range doors {
		if err := checkDoor(l); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		for _, l := range doors {
			l.Close()
		}
		return errors.Join(errs...)
	}
	failed := make(chan error, len(doors))
	for _, l := range rpc {
		go func() {
			err := s.grpc.Serve(l)
			if errors.Is(err, grpc.ErrServerStopped) {
				err = nil
			}
			failed <- err
		}()
	}
	if web != nil {
		go func() {
			err := s.http.Serve(web)
			if errors.Is(err, http.ErrServerClosed) {
				err = nil
			}
			failed <- err
		}()
	}
	for range doors {
		if err := <-failed; err != nil {
			errs = append(errs, err)
			s.cut() // without one of its doors it does not serve
		}
	}
	return errors.Join(errs...)
}

// Stop stops serving: streams and waits for completions are ended, other calls
// in progress are finished, and what is left when ctx is done is cut. It
// returns when no call is left, or some time after ctx if one does not heed
// its own context: closing the devices ends that.
func (s *Server) Stop(ctx context.Context) {
	s.drain.start()
	s.descriptors.stop()
	var wg sync.WaitGroup
	wg.Go(func() {
		stop := context.AfterFunc(ctx, s.grpc.Stop)
		defer stop()
		s.grpc.GracefulStop()
	})
	wg.Go(func() {
		if s.http.Shutdown(ctx) != nil {
			s.http.Close()
		}
	})
	wg.Wait()
	select {
	case <-s.drain.idle:
		return
	case <-ctx.Done():
	}
	select {
	case <-s.drain.idle:
	case <-time.After(cutTime):
		s.log.Warn("a call does not heed its context")
	}
}

// cutTime is what calls have to end once they were cut.
const cutTime = 2 * time.Second

// cut ends everything at once.
func (s *Server) cut() {
	s.drain.start()
	s.descriptors.stop()
	s.grpc.Stop()
	s.http.Close()
}
