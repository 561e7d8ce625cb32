package exports

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
	"github.com/accelfab/accelfab/test/daemon"
)

const (
	card0 = "nodes/local/devices/soft-0"
	card1 = "nodes/local/devices/soft-1"
	// other is a user that is nobody here.
	other = 54321
	// asOther tells this program what to do as that user.
	asOther = "ACCELFAB_TEST_AS_OTHER"
)

func TestMain(m *testing.M) {
	if what := os.Getenv(asOther); what != "" {
		os.Exit(beOther(what))
	}
	status := m.Run()
	daemon.Remove()
	os.Exit(status)
}

// mayDo is what another user prints of a call that was not refused.
const mayDo = "it was not refused"

// beOther makes one call as another user, prints the reason of its refusal or
// mayDo, and is the exit status: 2 if it made none.
func beOther(what string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Dial("")
	if err != nil {
		fmt.Println(err)
		return 2
	}
	defer c.Close()
	switch verb, arg, _ := strings.Cut(what, " "); verb {
	case "fetch":
		var f *os.File
		if f, err = c.FetchDescriptor(ctx, arg); err == nil {
			f.Close()
		}
	case "import":
		err = importAs(ctx, c, "thief", arg)
	default:
		fmt.Println("not asked for anything:", what)
		return 2
	}
	if err == nil {
		fmt.Println(mayDo)
		return 0
	}
	fmt.Println(strings.TrimPrefix(client.Reason(err).String(), "ERROR_REASON_"))
	return 0
}

// importAs makes a session of the caller's own, and in it a region of an upload.
func importAs(ctx context.Context, c *client.Client, id, upload string) error {
	if _, err := c.Sessions.CreateSession(ctx, &pb.CreateSessionRequest{Parent: "nodes/local", SessionId: id, Session: &pb.Session{Ttl: durationpb.New(time.Hour)}}); err != nil {
		return fmt.Errorf("session: %v", err)
	}
	pd, err := c.Memory.CreateProtectionDomain(ctx, &pb.CreateProtectionDomainRequest{Parent: card1, ProtectionDomainId: id,
		ProtectionDomain: &pb.ProtectionDomain{Session: "nodes/local/sessions/" + id}})
	if err != nil {
		return fmt.Errorf("protection domain: %v", err)
	}
	_, err = c.Memory.CreateMemoryRegion(ctx, &pb.CreateMemoryRegionRequest{Parent: card1, MemoryRegionId: id, MemoryRegion: &pb.MemoryRegion{
		ProtectionDomain: pd.Name, ImportSource: &pb.MemoryRegion_ImportSource{UploadId: upload}}})
	return err
}

// node is a daemon with a session that has a buffer and its export on one card,
// and a domain on the other.
type node struct {
	*daemon.Daemon
	*client.Client
	t      *testing.T
	export string
	pd     string
}

func start(t *testing.T, args ...string) *node {
	t.Helper()
	d := daemon.Start(t, daemon.Config{Node: "n1", Args: append([]string{"--device", "soft:hls-2,cards=2,memory=16MiB"}, args...)})
	c, err := client.Dial(d.Target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	n := &node{Daemon: d, Client: c, t: t}
	ctx := t.Context()
	s := must(c.Sessions.CreateSession(ctx, &pb.CreateSessionRequest{Parent: "nodes/local", SessionId: "s", Session: &pb.Session{Ttl: durationpb.New(time.Hour)}}))(t)
	b := must(c.Memory.CreateBuffer(ctx, &pb.CreateBufferRequest{Parent: card0, BufferId: "b", Buffer: &pb.Buffer{Session: s.Name, SizeBytes: 65536}}))(t)
	n.pd = must(c.Memory.CreateProtectionDomain(ctx, &pb.CreateProtectionDomainRequest{Parent: card1, ProtectionDomainId: "p", ProtectionDomain: &pb.ProtectionDomain{Session: s.Name}}))(t).Name
	n.export = must(c.Memory.CreateMemoryExport(ctx, &pb.CreateMemoryExportRequest{Parent: card0, MemoryExportId: "e", MemoryExport: &pb.MemoryExport{Buffer: b.Name}}))(t).Name
	return n
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (n *node) upload() *pb.UploadedDescriptor {
	n.t.Helper()
	f := must(n.FetchDescriptor(n.t.Context(), n.export))(n.t)
	defer f.Close()
	return must(n.UploadDescriptor(n.t.Context(), f))(n.t)
}

func (n *node) region(id, upload string) *pb.MemoryRegion {
	n.t.Helper()
	return must(n.Memory.CreateMemoryRegion(n.t.Context(), &pb.CreateMemoryRegionRequest{Parent: card1, MemoryRegionId: id, MemoryRegion: &pb.MemoryRegion{
		ProtectionDomain: n.pd, ImportSource: &pb.MemoryRegion_ImportSource{UploadId: upload}}}))(n.t)
}

// openTo lets other users reach the sockets, and gives a copy of this program
// that they can run.
func (n *node) openTo() string {
	n.t.Helper()
	if os.Geteuid() != 0 {
		n.t.Skip("needs root, to be another user")
	}
	copied := filepath.Join(n.Dir, "other")
	from := must(os.Open("/proc/self/exe"))(n.t)
	defer from.Close()
	to := must(os.OpenFile(copied, os.O_CREATE|os.O_WRONLY, 0o755))(n.t)
	if _, err := io.Copy(to, from); err != nil {
		n.t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		n.t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{n.Dir: 0o755, copied: 0o755, strings.TrimPrefix(n.Target, "unix://"): 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			n.t.Fatal(err)
		}
	}
	return copied
}

// as runs a call as the other user, who is in these groups too, and gives what it
// printed.
func (n *node) as(program, what string, groups ...uint32) string {
	n.t.Helper()
	cmd := exec.Command(program)
	cmd.Dir = "/"
	cmd.Env = []string{asOther + "=" + what, "ACCELFAB_SERVER=" + n.Target}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: other, Gid: other, Groups: groups}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		n.t.Fatalf("%s: %v\n%s", what, err, out)
	}
	return strings.TrimSpace(string(out))
}

// A user who is in a group that may fetch, among many others, may.
func TestASupplementaryGroupMayFetch(t *testing.T) {
	n := start(t)
	program := n.openTo()
	const group = 70000
	var groups []uint32
	for g := range uint32(100) {
		groups = append(groups, group-50+g)
	}
	e := must(n.Memory.CreateMemoryExport(t.Context(), &pb.CreateMemoryExportRequest{Parent: card0, MemoryExport: &pb.MemoryExport{Buffer: card0 + "/buffers/b",
		Fetchers: []*pb.MemoryExport_Fetcher{{Who: &pb.MemoryExport_Fetcher_Gid{Gid: group}}}}}))(t).Name
	if got := n.as(program, "fetch "+e, groups...); got != mayDo {
		t.Errorf("fetch by a user who is in the group: %s", got)
	}
	if got := n.as(program, "fetch "+e, groups[:50]...); got != "PERMISSION_DENIED" {
		t.Errorf("fetch by a user who is not: %s", got)
	}
}

// Another user cannot fetch a descriptor, and a stolen upload id is of no use to
// him. The owner reads both in the journal.
func TestAnotherUserIsRefused(t *testing.T) {
	n := start(t)
	program := n.openTo()
	if got := n.as(program, "fetch "+n.export); got != "PERMISSION_DENIED" {
		t.Errorf("fetch by another user: %s", got)
	}
	up := n.upload()
	if got := n.as(program, "import "+up.GetUploadId()); got != "PERMISSION_DENIED" {
		t.Errorf("import of a stolen upload id: %s", got)
	}
	n.region("mine", up.GetUploadId()) // it was not used up by the thief
	for _, want := range []string{"fetch of the descriptor refused to uid:54321, pid ", "use of an upload id that is another's refused to uid:54321, pid "} {
		n.await(want)
	}
}

// await waits until the journal has an event about the export with a text.
func (n *node) await(text string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	watch := must(n.Events.WatchEvents(ctx, &pb.WatchEventsRequest{Parent: "nodes/local", After: new(uint64)}))(n.t)
	for {
		r, err := watch.Recv()
		if err != nil {
			n.t.Fatalf("the journal has no %q: %v", text, err)
		}
		if e := r.GetEvent(); e.GetResource() == n.export && strings.Contains(e.GetMessage(), text) {
			return
		}
	}
}

// A descriptor passes through three processes, none of which can do anything
// else with it, and is known again when it comes back.
func TestADescriptorThroughThreeProcesses(t *testing.T) {
	n := start(t)
	accelfab := daemon.Binary(t, "accelfab")
	cmd := exec.Command(accelfab, "export", "fetch", "soft-0/e", "--", "sh", "-c",
		`exec 3>&3; if cat /proc/self/fd/3 2>/dev/null; then exit 9; fi; exec sh -c 'exec "$0" mr create soft-1 --id far --pd soft-1/p --import-fd 3 --offset 4KiB -o json' "$0"`, accelfab)
	cmd.Env = append(os.Environ(), "ACCELFAB_SERVER="+n.Target)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	m := must(n.Memory.GetMemoryRegion(t.Context(), &pb.GetMemoryRegionRequest{Name: card1 + "/memoryRegions/far"}))(t)
	if m.GetImportSource().GetMemoryExport() != n.export || m.GetImportSource().GetOffsetBytes() != 4096 || m.GetLengthBytes() != 65536-4096 {
		t.Errorf("the region is %v", m)
	}
	// The exit status is the program's.
	cmd = exec.Command(accelfab, "export", "fetch", "soft-0/e", "--", "sh", "-c", "exit 7")
	cmd.Env = append(os.Environ(), "ACCELFAB_SERVER="+n.Target)
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("exit status %d, %v: want the program's 7", cmd.ProcessState.ExitCode(), err)
	}
}

// kill -9 of a daemon whose software cards go with it: what held memory is LOST
// and says so, what was revoked stays so, and an upload is gone.
func TestExportsOverAKill(t *testing.T) {
	n := start(t, "--device-hosts", "inside")
	ctx := t.Context()
	n.region("m", n.upload().GetUploadId())
	revoked := must(n.Memory.CreateMemoryExport(ctx, &pb.CreateMemoryExportRequest{Parent: card0, MemoryExportId: "r", MemoryExport: &pb.MemoryExport{Buffer: card0 + "/buffers/b"}}))(t).Name
	must(n.Memory.RevokeMemoryExport(ctx, &pb.RevokeMemoryExportRequest{Name: revoked}))(t)
	held := must(n.FetchDescriptor(ctx, n.export))(t)
	defer held.Close()
	waiting := n.upload()
	n.Kill()
	n.Start()
	e := must(n.Memory.GetMemoryExport(ctx, &pb.GetMemoryExportRequest{Name: n.export}))(t)
	if e.State != pb.MemoryExport_STATE_LOST || e.Reason != "LOST" || e.Message == "" {
		t.Errorf("the export is %v", e)
	}
	if e := must(n.Memory.GetMemoryExport(ctx, &pb.GetMemoryExportRequest{Name: revoked}))(t); e.State != pb.MemoryExport_STATE_REVOKED {
		t.Errorf("the revoked export is %v", e)
	}
	m := must(n.Memory.GetMemoryRegion(ctx, &pb.GetMemoryRegionRequest{Name: card1 + "/memoryRegions/m"}))(t)
	if m.State != pb.MemoryRegion_STATE_LOST || !strings.Contains(m.Message, "descriptor") || m.GetImportSource().GetMemoryExport() != n.export {
		t.Errorf("the region is %v", m)
	}
	if _, err := n.UploadDescriptor(ctx, held); client.Reason(err) != pb.ErrorReason_ERROR_REASON_NOT_AN_EXPORT {
		t.Errorf("a descriptor of before: %v", err)
	}
	if _, err := n.FetchDescriptor(ctx, n.export); client.Reason(err) != pb.ErrorReason_ERROR_REASON_LOST {
		t.Errorf("fetch of a lost export: %v", err)
	}
	_, err := n.Memory.CreateMemoryRegion(ctx, &pb.CreateMemoryRegionRequest{Parent: card1, MemoryRegion: &pb.MemoryRegion{ProtectionDomain: n.pd,
		ImportSource: &pb.MemoryRegion_ImportSource{UploadId: waiting.GetUploadId()}}})
	if client.Reason(err) != pb.ErrorReason_ERROR_REASON_NOT_FOUND {
		t.Errorf("an upload of before: %v", err)
	}
	must(n.Sessions.DeleteSession(ctx, &pb.DeleteSessionRequest{Name: "nodes/local/sessions/s"}))(t)
}

// A descriptor that another daemon of the machine gave out is of no use here, and says
// so, nor is one of a daemon that died in the middle of a call without a word.
func TestADescriptorOfAnotherDaemon(t *testing.T) {
	a, b := start(t), start(t)
	ctx := t.Context()
	f := must(a.FetchDescriptor(ctx, a.export))(t)
	defer f.Close()
	if _, err := b.UploadDescriptor(ctx, f); client.Reason(err) != pb.ErrorReason_ERROR_REASON_NOT_AN_EXPORT {
		t.Errorf("it was taken: %v", err)
	}
	must(a.UploadDescriptor(ctx, f))(t)
	a.Kill()
	if _, err := a.UploadDescriptor(ctx, f); status.Code(err) != codes.Unavailable {
		t.Errorf("of a daemon that is gone: %v, code %v", err, status.Code(err))
	}
	a.Start()
}

// descriptors lists what the daemon has open.
func (n *node) descriptors() []string {
	n.t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", n.Daemon.PID())
	var list []string
	for _, e := range must(os.ReadDir(dir))(n.t) {
		to, _ := os.Readlink(filepath.Join(dir, e.Name()))
		list = append(list, e.Name()+" "+to)
	}
	slices.Sort(list)
	return list
}
