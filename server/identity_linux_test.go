package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

func me() string { return fmt.Sprintf("uid:%d", os.Geteuid()) }

func TestOnAUnixSocketTheKernelSaysWhoCalls(t *testing.T) {
	h := newHouse(t)
	// What a caller says about itself is not heard.
	ctx := metadata.AppendToOutgoingContext(context.Background(), "accelfab-identity", "uid:12345", "authorization", "uid:12345", "x-forwarded-for", "10.1.1.1")
	s := must[*pb.Session](t)(h.session.CreateSession(ctx, &pb.CreateSessionRequest{Parent: "nodes/local", Session: &pb.Session{Owner: &pb.Session_Owner{Identity: "root"}}}))
	if s.Owner.Identity != me() || s.Owner.Pid != int32(os.Getpid()) || int(s.Owner.Uid) != os.Geteuid() || int(s.Owner.Gid) != os.Getegid() {
		t.Errorf("the owner is %v", s.Owner)
	}
}

func TestAnonymousCallersAreATenantOfTheirOwn(t *testing.T) {
	h := newHouse(t)
	ctx := context.Background()
	mine, pd, _ := h.open("mine", dev0)
	anon := h.dial(h.tcp)
	theirs := must[*pb.Session](t)(anon.session.CreateSession(ctx, &pb.CreateSessionRequest{Parent: "nodes/local", SessionId: "theirs", Session: &pb.Session{}}))
	if theirs.Owner.Identity != "anonymous" || theirs.Owner.Pid != 0 {
		t.Errorf("the owner is %v", theirs.Owner)
	}
	list := must[*pb.ListSessionsResponse](t)(anon.session.ListSessions(ctx, &pb.ListSessionsRequest{Parent: "nodes/local"}))
	if len(list.Sessions) != 1 || list.Sessions[0].Name != theirs.Name {
		t.Errorf("an anonymous caller sees %v", list.Sessions)
	}
	all := must[*pb.ListSessionsResponse](t)(h.session.ListSessions(ctx, &pb.ListSessionsRequest{Parent: "nodes/local"}))
	if len(all.Sessions) != 2 {
		t.Errorf("the operator sees %v", all.Sessions)
	}
	port, _ := h.cable(0)
	for what, call := range map[string]func() error{
		"read a session": func() error {
			_, err := anon.session.GetSession(ctx, &pb.GetSessionRequest{Name: mine.Name})
			return err
		},
		"close a session": func() error {
			_, err := anon.session.DeleteSession(ctx, &pb.DeleteSessionRequest{Name: mine.Name})
			return err
		},
		"build on it": func() error {
			_, err := anon.memory.CreateProtectionDomain(ctx, &pb.CreateProtectionDomainRequest{Parent: dev0, ProtectionDomain: &pb.ProtectionDomain{Session: mine.Name}})
			return err
		},
		"delete a domain": func() error {
			_, err := anon.memory.DeleteProtectionDomain(ctx, &pb.DeleteProtectionDomainRequest{Name: pd.Name})
			return err
		},
		"read a buffer": func() error {
			_, err := anon.transfer.ReadBuffer(ctx, &pb.ReadBufferRequest{Name: dev0 + "/buffers/mine"})
			return err
		},
		"disable a port": func() error {
			_, err := anon.device.UpdatePort(ctx, &pb.UpdatePortRequest{Port: &pb.Port{Name: port.Name, AdminState: pb.Port_ADMIN_STATE_DISABLED}})
			return err
		},
	} {
		got := asRefused(call())
		if got.code != codes.PermissionDenied || got.info.Reason != "PERMISSION_DENIED" || got.info.Metadata["identity"] != "anonymous" {
			t.Errorf("%s: %v %v", what, got.code, got.info)
		}
	}
	events := must[*pb.ListEventsResponse](t)(anon.event.ListEvents(ctx, &pb.ListEventsRequest{Parent: "nodes/local"}))
	for _, e := range events.Events {
		if e.Session == mine.Name {
			t.Errorf("an anonymous caller reads %v", e)
		}
	}
}

// The gateway never turns a caller into the daemon.
func TestHTTPCarriesItsOwnCaller(t *testing.T) {
	h := newHouse(t)
	code, body, _ := h.http("POST", "/v1/nodes/local/sessions?session_id=web", "{}")
	if code != 200 || !strings.Contains(body, `"anonymous"`) {
		t.Errorf("HTTP over TCP: %d %s", code, body)
	}
	h.open("mine", dev0)
	if code, body, _ := h.http("GET", "/v1/nodes/local/sessions/mine", ""); code != 403 || !strings.Contains(body, "PERMISSION_DENIED") {
		t.Errorf("another's session: %d %s", code, body)
	}
}

const asOther = "ACCELFAB_TEST_AS_OTHER"

// TestAnotherUserIsATenant runs itself as another user, who calls.
func TestAnotherUserIsATenant(t *testing.T) {
	if addr := os.Getenv(asOther); addr != "" {
		callAsOther(t, addr)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}
	h := newHouse(t)
	h.open("mine", dev0)
	path := strings.TrimPrefix(h.unix, "unix://")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	// Where another user can reach it.
	program := filepath.Join(filepath.Dir(path), "test")
	for _, err := range []error{os.WriteFile(program, self, 0o755), os.Chmod(filepath.Dir(path), 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	run := func() (string, error) {
		cmd := exec.Command(program, "-test.run=^TestAnotherUserIsATenant$", "-test.v")
		cmd.Dir = "/"
		cmd.Env = []string{asOther + "=" + h.unix, "TMPDIR=/tmp"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321, NoSetGroups: true}}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run(); err == nil || !strings.Contains(out, "permission denied") {
		t.Errorf("a user outside of the socket's group comes in: %v\n%s", err, out)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if out, err := run(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func callAsOther(t *testing.T, addr string) {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := newClients(conn)
	ctx := context.Background()
	s, err := c.session.CreateSession(ctx, &pb.CreateSessionRequest{Parent: "nodes/local", Session: &pb.Session{}})
	if err != nil {
		t.Fatal(err)
	}
	if s.Owner.Identity != "uid:54321" || s.Owner.Gid != 54321 || s.Owner.Pid != int32(os.Getpid()) {
		t.Errorf("the owner is %v", s.Owner)
	}
	_, err = c.session.GetSession(ctx, &pb.GetSessionRequest{Name: "nodes/local/sessions/mine"})
	if got := asRefused(err); got.info.Reason != "PERMISSION_DENIED" || got.info.Metadata["identity"] != "uid:54321" {
		t.Errorf("the daemon's session: %v", err)
	}
	_, err = c.device.UpdatePort(ctx, &pb.UpdatePortRequest{Port: &pb.Port{Name: dev0 + "/ports/0", AdminState: pb.Port_ADMIN_STATE_DISABLED}})
	if got := asRefused(err); got.info.Reason != "PERMISSION_DENIED" {
		t.Errorf("an operator's right: %v", err)
	}
	if _, err := c.session.DeleteSession(ctx, &pb.DeleteSessionRequest{Name: s.Name}); err != nil {
		t.Error(err)
	}
}

// Who comes by TCP is known as no process, and can name none.
func TestOnlyProcessesOfThisMachine(t *testing.T) {
	h := newHouse(t)
	ctx := context.Background()
	ask := &pb.CreateSessionRequest{Parent: "nodes/local", Session: &pb.Session{Process: &pb.Session_Process{}}}
	_, err := h.dial(h.tcp).session.CreateSession(ctx, ask)
	if got := asRefused(err); got.info.Reason != "FIELD_INVALID" || !strings.Contains(got.message, "unix socket") {
		t.Errorf("by TCP: %v %s", got.info, got.message)
	}
	s := must[*pb.Session](t)(h.session.CreateSession(ctx, ask))
	if int(s.GetProcess().GetPid()) != os.Getpid() || s.GetProcess().GetCommand() == "" || s.GetOwner().GetCommand() == "" {
		t.Errorf("%v", s)
	}
}

// A peer that went before anybody looked is known as gone: another process may have
// its id by now.
func TestAPeerThatIsGone(t *testing.T) {
	if path := os.Getenv("ACCELFAB_TEST_CONNECT"); path != "" { // the peer itself
		if _, err := net.Dial("unix", path); err != nil {
			panic(err)
		}
		os.Exit(0)
	}
	path := filepath.Join(t.TempDir(), "s")
	l := must[net.Listener](t)(net.Listen("unix", path))
	defer l.Close()
	peer := exec.Command(os.Args[0], "-test.run=^TestAPeerThatIsGone$")
	peer.Env = append(os.Environ(), "ACCELFAB_TEST_CONNECT="+path)
	if out, err := peer.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	conn := must[net.Conn](t)(l.Accept())
	defer conn.Close()
	if c := must[fabric.Caller](t)(identify(conn)); c.PID != int32(peer.Process.Pid) || c.Began != gone {
		t.Errorf("%+v", c)
	}
	mine := must[net.Conn](t)(net.Dial("unix", path))
	defer mine.Close()
	conn = must[net.Conn](t)(l.Accept())
	defer conn.Close()
	began := must[uint64](t)(fabric.ProcessBegan(int32(os.Getpid())))
	if c := must[fabric.Caller](t)(identify(conn)); c.Began != began || began == 0 {
		t.Errorf("%+v, began %d", c, began)
	}
}

// A call that says which generation it believes in is fenced, by gRPC and by REST.
func TestGenerationsInMetadata(t *testing.T) {
	h := newHouse(t)
	s, _, _ := h.open("s", dev0)
	is := fmt.Sprint(s.Generation)
	believe := func(values ...string) context.Context {
		ctx := context.Background()
		for _, v := range values {
			ctx = metadata.AppendToOutgoingContext(ctx, headerGeneration, v)
		}
		return ctx
	}
	get := func(ctx context.Context) error {
		_, err := h.session.GetSession(ctx, &pb.GetSessionRequest{Name: s.Name})
		return err
	}
	for _, value := range []string{"nodes/n/sessions/s=" + is, "nodes/local/sessions/s=" + is, "nodes/n/sessions/other=7"} {
		if err := get(believe(value)); err != nil {
			t.Errorf("%s: %v", value, err)
		}
	}
	for _, value := range []string{"", "s=1", "nodes/n/sessions/s", "nodes/n/sessions/s=0", "nodes/n/sessions/s=x", "nodes/n/devices/d=1"} {
		if got := asRefused(get(believe(value))); got.info.Reason != "FIELD_INVALID" {
			t.Errorf("%q: %v %s", value, got.info, got.message)
		}
	}
	if got := asRefused(get(believe(make([]string, maxGenerations+1)...))); got.info.Reason != "FIELD_INVALID" {
		t.Errorf("too many: %v %s", got.info, got.message)
	}
	if got := asRefused(get(believe("nodes/n/sessions/other=7", "nodes/n/sessions/s=999999"))); got.info.Reason != "GENERATION_STALE" || got.info.Metadata["present"] != is {
		t.Errorf("stale: %v", got.info)
	}
	h.http(http.MethodPost, "/v1/nodes/n/sessions?session_id=web", "{}")
	code, body, _ := h.http(http.MethodGet, "/v1/nodes/n/sessions/web", "", func(r *http.Request) {
		r.Header.Set("Grpc-Metadata-"+headerGeneration, "nodes/n/sessions/web=999999")
	})
	if code != http.StatusBadRequest || !strings.Contains(body, "GENERATION_STALE") {
		t.Errorf("by REST: %d %s", code, body)
	}
}

// Keep-alives on one stream are answered in their order; a refusal ends nothing.
func TestKeepAlivesOnAStream(t *testing.T) {
	h := newHouse(t)
	a, _, _ := h.open("a", dev0)
	stream := must[pb.SessionService_KeepAliveSessionsClient](t)(h.session.KeepAliveSessions(context.Background()))
	names := []string{a.Name, "nodes/n/sessions/nobody", a.Name}
	for _, name := range names {
		if err := stream.Send(&pb.KeepAliveSessionsRequest{Name: name, Generation: a.Generation}); err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range names {
		r := must[*pb.KeepAliveSessionsResponse](t)(stream.Recv())
		if r.Name != name || (r.GetError() != nil) != (i == 1) || i != 1 && !r.GetExpireTime().AsTime().After(a.ExpireTime.AsTime()) {
			t.Errorf("%d: %v", i, r)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
	must[*pb.Session](t)(h.session.GetSession(context.Background(), &pb.GetSessionRequest{Name: a.Name}))
}
