package server

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/soft"
	"github.com/accelfab/accelfab/device/topology"
	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/storetest"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// house is a node that serves: two cards of a software HLS-2 with 1 MiB of
// memory each, a store in memory, real listeners.
type house struct {
	t      *testing.T
	server *Server
	fabric *fabric.Fabric
	unix   string // address of the unix socket, for gRPC
	tcp    string // address of loopback TCP, for gRPC
	web    string // host and port of HTTP
	stop   func(context.Context)
	*clients
}

// clients are the services as a caller sees them.
type clients struct {
	node     pb.NodeServiceClient
	device   pb.DeviceServiceClient
	session  pb.SessionServiceClient
	memory   pb.MemoryServiceClient
	qp       pb.QueuePairServiceClient
	event    pb.EventServiceClient
	transfer pb.TransferServiceClient
	conn     *grpc.ClientConn
}

func newClients(conn *grpc.ClientConn) *clients {
	return &clients{pb.NewNodeServiceClient(conn), pb.NewDeviceServiceClient(conn), pb.NewSessionServiceClient(conn),
		pb.NewMemoryServiceClient(conn), pb.NewQueuePairServiceClient(conn), pb.NewEventServiceClient(conn), pb.NewTransferServiceClient(conn), conn}
}

// checkGoroutines fails the test if goroutines of this module are left when it
// is over.
func checkGoroutines(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		deadline := time.Now().Add(20 * time.Second)
		for {
			buf := make([]byte, 1<<20)
			var left []string
			for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
				if strings.Contains(g, "accelfab/") && !strings.Contains(g, "testing.(*T).Run(") && !strings.Contains(g, "checkGoroutines") {
					left = append(left, g)
				}
			}
			if len(left) == 0 {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("%d goroutines are left:\n%s", len(left), strings.Join(left, "\n\n"))
				return
			}
			runtime.Gosched()
		}
	})
}

func softDevices(t *testing.T, limits device.Limits) []device.Device {
	t.Helper()
	checkGoroutines(t) // after the chassis was closed
	m, err := topology.Lookup("hls-2")
	if err != nil {
		t.Fatal(err)
	}
	chassis, err := soft.Open(soft.Config{Map: m, NodeID: "n", Cards: 2, MemoryBytes: 1 << 20, LockDir: t.TempDir(), Limits: limits, Rest: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { chassis.Close() })
	return chassis.Devices()
}

func newHouse(t *testing.T) *house {
	t.Helper()
	return openHouse(t, Options{}, fabric.Config{Devices: softDevices(t, device.Limits{}), Store: storetest.NewMemory(storetest.Limits{})})
}

func openHouse(t *testing.T, o Options, cfg fabric.Config) *house {
	t.Helper()
	return openHouseAt(t, o, cfg, "127.0.0.1:0")
}

// openHouseAt has its HTTP door at an address in which DIR stands for a folder
// of its own.
func openHouseAt(t *testing.T, o Options, cfg fabric.Config, webAddr string) *house {
	t.Helper()
	cfg.NodeID, cfg.BootID, cfg.Version = "n", "boot", "v0.0.0-test"
	cfg.ClockSynchronized = func() (bool, error) { return true, nil }
	fab, err := fabric.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	o.Fabric = fab
	h := &house{t: t, fabric: fab, server: New(o)}
	dir, err := os.MkdirTemp("", "door") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h.unix = "unix://" + filepath.Join(dir, "s")
	listen := func(addr string) net.Listener {
		l, err := Listen(addr)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	local, tcp, web := listen(h.unix), listen("tcp://127.0.0.1:0"), listen(strings.ReplaceAll(webAddr, "DIR", dir))
	h.tcp, h.web = tcp.Addr().String(), web.Addr().String()
	served := make(chan error, 1)
	go func() { served <- h.server.Serve([]net.Listener{local, tcp}, web) }()
	var once sync.Once
	h.stop = func(ctx context.Context) {
		once.Do(func() {
			h.server.Stop(ctx)
			if err := <-served; err != nil {
				t.Errorf("Serve: %v", err)
			}
			if err := fab.Close(); err != nil {
				t.Errorf("close the fabric: %v", err)
			}
		})
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		h.stop(ctx)
	})
	h.clients = h.dial(h.unix)
	return h
}

// dial connects to a door.
func (h *house) dial(addr string) *clients {
	h.t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { conn.Close() })
	return newClients(conn)
}

// must gives the result of a call that has to succeed.
func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// refused is a refusal as a client sees it.
type refused struct {
	code    codes.Code
	message string
	info    *errdetails.ErrorInfo
	fields  []string // of BadRequest
	details []any
}

func asRefused(err error) refused {
	st := status.Convert(err)
	r := refused{code: st.Code(), message: st.Message(), info: &errdetails.ErrorInfo{}, details: st.Details()}
	for _, d := range r.details {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			r.info = d
		case *errdetails.BadRequest:
			for _, v := range d.FieldViolations {
				r.fields = append(r.fields, v.Field)
			}
		}
	}
	return r
}

func detailOf[T any](r refused) (T, bool) {
	for _, d := range r.details {
		if v, ok := d.(T); ok {
			return v, true
		}
	}
	var none T
	return none, false
}

// http makes an HTTP request and gives status, body and headers.
func (h *house) http(method, path, body string, change ...func(*http.Request)) (int, string, http.Header) {
	h.t.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	host := h.web
	if strings.HasPrefix(host, "/") {
		host = "node.example" // a unix socket has no name
	}
	r, err := http.NewRequest(method, "http://"+host+path, in)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, c := range change {
		c(r)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		if strings.HasPrefix(h.web, "/") {
			return new(net.Dialer).DialContext(ctx, "unix", h.web)
		}
		return new(net.Dialer).DialContext(ctx, "tcp", h.web)
	}}}
	reply, err := client.Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	defer reply.Body.Close()
	b, err := io.ReadAll(reply.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return reply.StatusCode, string(b), reply.Header
}
