package hosts

import (
	"context"
	"crypto/sha256"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/client"
	"github.com/accelfab/accelfab/device/host"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
	"github.com/accelfab/accelfab/test/daemon"
)

func TestMain(m *testing.M) {
	status := m.Run()
	daemon.Remove()
	os.Exit(status)
}

const (
	one  = "soft:hls-2,cards=1,memory=64MiB"
	two  = "soft:hls-2,cards=1,memory=64MiB,name=far,host=second"
	card = "nodes/local/devices/soft-0"
	port = card + "/ports/8"
	far  = "nodes/local/devices/far-0"
)

// separate starts a daemon with its devices in hosts.
func separate(t *testing.T, node string, devices ...string) *daemon.Daemon {
	t.Helper()
	args := []string{"--device-hosts", "separate"}
	for _, d := range devices {
		args = append(args, "--device", d)
	}
	return daemon.Start(t, daemon.Config{Node: node, Args: args})
}

// until asks again and again until the answer is yes.
func until(t *testing.T, what string, yes func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !yes() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not so after 60 s", what)
		}
	}
}

// node is a daemon and what a job has on it.
type node struct {
	t   *testing.T
	d   *daemon.Daemon
	job *daemon.Job
}

func newNode(t *testing.T, name string, size uint64, devices ...string) *node {
	t.Helper()
	d := separate(t, name, devices...)
	return &node{t, d, daemon.NewJob(t, d.Dial(), "soft-0", "8", size)}
}

// killDaemon kills the daemon with -9 and starts it again.
func (n *node) killDaemon() {
	n.t.Helper()
	n.d.Kill()
	n.d.Start()
	n.again()
}

// again connects to the daemon that runs now.
func (n *node) again() { n.job.Client = n.d.Dial() }

func (n *node) qp() *pb.QueuePair {
	n.t.Helper()
	q, err := n.job.Client.QueuePairs.GetQueuePair(n.t.Context(), &pb.GetQueuePairRequest{Name: n.job.QP.GetName()})
	if err != nil {
		n.t.Fatal(err)
	}
	return q
}

func (n *node) port() *pb.Port_Counters {
	n.t.Helper()
	p, err := n.job.Client.Devices.GetPort(n.t.Context(), &pb.GetPortRequest{Name: port})
	if err != nil {
		n.t.Fatal(err)
	}
	return p.GetCounters()
}

func (n *node) device(name string) *pb.Device {
	n.t.Helper()
	d, err := n.job.Client.Devices.GetDevice(n.t.Context(), &pb.GetDeviceRequest{Name: name})
	if err != nil {
		n.t.Fatal(err)
	}
	return d
}

func (n *node) sum(size uint64) [32]byte {
	n.t.Helper()
	b, err := n.job.Client.Download(n.t.Context(), n.job.Buffer.GetName(), int(size))
	if err != nil {
		n.t.Fatal(err)
	}
	return sha256.Sum256(b)
}

func write(id uint64, from, to *node, length uint32) *pb.WorkRequest {
	return &pb.WorkRequest{WrId: id, Opcode: pb.WorkRequest_OPCODE_RDMA_WRITE, Sges: from.job.SGE(0, length),
		RemoteAddress: to.job.Region.GetIova(), Rkey: to.job.Region.GetRkey(), Signaled: true}
}

func end(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatalf("signal %v to process %d: %v", signal, pid, err)
	}
}

// TestTrafficGoesOnWithoutADaemon kills the daemons of both ends, one after the
// other and at once, while one writes to the other. Nothing is lost, nothing is
// sent twice, and all that there was is the new daemon's (cases S06, S07, L12).
func TestTrafficGoesOnWithoutADaemon(t *testing.T) {
	const size = 1 << 20
	a, b := newNode(t, "a", size, one), newNode(t, "b", size, one)
	ctx := t.Context()
	// Without a timer (0): an end that is slow, as the machine is busy, is not
	// taken for a packet that was lost. One that was makes the peer ask for it again.
	patient := &pb.QueuePair_Attributes{Timeout: proto.Uint32(0)}
	var err error
	a.job.QP, b.job.QP, err = client.ConnectPair(ctx, client.End{Client: a.job.Client, Name: a.job.QP.GetName(), Attributes: patient},
		client.End{Client: b.job.Client, Name: b.job.QP.GetName(), Attributes: patient})
	if err != nil {
		t.Fatal(err)
	}
	payload := make([]byte, size)
	for i := range payload {
		payload[i] = byte(i * i >> 7)
	}
	if err := a.job.Client.Upload(ctx, a.job.Buffer.GetName(), payload); err != nil {
		t.Fatal(err)
	}
	before := [2]*pb.Port_Counters{a.port(), b.port()}
	qps := [2]*pb.QueuePair{a.qp(), b.qp()}
	hosts := [2]host.Runtime{a.d.Host("soft"), b.d.Host("soft")}

	id, writes := uint64(0), 0
	post := func(n int) {
		t.Helper()
		var work []*pb.WorkRequest
		for range n {
			id++
			work = append(work, write(id, a, b, size))
		}
		a.job.Post(ctx, work...)
		writes += n
	}
	read := uint64(0)
	wait := func(n int) {
		t.Helper()
		for _, c := range a.job.Wait(ctx, n) {
			if read++; c.GetStatus() != pb.CompletionStatus_COMPLETION_STATUS_SUCCESS || c.GetWrId() != read || c.GetSequence() != read {
				t.Fatalf("completion %d: %v", read, c)
			}
		}
	}
	// The end that is written to has no daemon.
	post(64)
	b.d.Kill()
	wait(64)
	post(64)
	wait(64)
	b.d.Start()
	b.again()
	// The end that writes has none: the work that it posted is done, and its
	// completions wait for the next daemon.
	post(64)
	a.killDaemon()
	wait(64)
	// Some of them were in the hands of the daemon and not of its caller.
	post(64)
	got, err := a.job.Client.Transfers.PollCompletions(ctx, &pb.PollCompletionsRequest{Name: a.job.QP.GetName(), After: read, Wait: durationpb.New(30 * time.Second)})
	if err != nil || len(got.GetCompletions()) == 0 {
		t.Fatalf("%v, %v", got, err)
	}
	a.d.Kill()
	b.d.Kill()
	a.d.Start()
	b.d.Start()
	a.again()
	b.again()
	wait(64)

	for i, n := range []*node{a, b} {
		q := n.qp()
		if q.GetState() != pb.QueuePair_STATE_RTS || q.GetLocalEndpoint().GetQpn() != qps[i].GetLocalEndpoint().GetQpn() || q.GetUid() != qps[i].GetUid() {
			t.Errorf("node %d: queue pair %v, was %v", i, q, qps[i])
		}
		if now := n.d.Host("soft"); now.Instance != hosts[i].Instance || now.PID != hosts[i].PID {
			t.Errorf("node %d: another host than before: %+v", i, now.Process)
		}
		c := n.port()
		t.Logf("node %d: %d packets sent, %d retransmissions, %d out of sequence", i, c.GetXmitPackets()-before[i].GetXmitPackets(),
			c.GetRetransmits()-before[i].GetRetransmits(), c.GetOutOfSequence()-before[i].GetOutOfSequence())
		if c.GetRetransmits() != before[i].GetRetransmits() {
			t.Errorf("node %d: %d packets were sent again", i, c.GetRetransmits()-before[i].GetRetransmits())
		}
	}
	if got := b.sum(size); got != sha256.Sum256(payload) {
		t.Error("the bytes at the other end are not those that were written")
	}
	if a.port().GetXmitPackets() == before[0].GetXmitPackets() || writes != 256 {
		t.Error("nothing was sent: nothing was tested")
	}
	for _, n := range []*node{a, b} {
		if _, err := n.job.Client.Sessions.DeleteSession(ctx, &pb.DeleteSessionRequest{Name: n.job.Session.GetName()}); err != nil {
			t.Error(err)
		}
		if u := n.device(card).GetUsage(); u.GetQueuePairs()+u.GetBuffers()+u.GetMemoryRegions()+u.GetProtectionDomains() != 0 {
			t.Errorf("left: %v", u)
		}
	}
}

// TestAKilledHostTakesItsOwnDevicesAlone kills one of two hosts of a node.
func TestAKilledHostTakesItsOwnDevicesAlone(t *testing.T) {
	n := newNode(t, "n", 1<<20, one, two)
	ctx := t.Context()
	other := daemon.NewJob(t, n.job.Client, "far-0", "8", 1<<20)
	old := n.d.Host("soft")
	qpn := n.job.QP.GetLocalEndpoint().GetQpn()
	end(t, old.PID, syscall.SIGKILL)
	until(t, "another host serves", func() bool {
		r, err := host.ReadRuntime(filepath.Join(n.d.Dir, "run", "hosts", "soft.sock"))
		return err == nil && r.Instance != old.Instance
	})
	until(t, "the buffer is LOST", func() bool {
		b, err := n.job.Client.Memory.GetBuffer(ctx, &pb.GetBufferRequest{Name: n.job.Buffer.GetName()})
		return err == nil && b.GetState() == pb.Buffer_STATE_LOST
	})
	until(t, "the queue pair is made again", func() bool {
		q := n.qp()
		return q.GetState() == pb.QueuePair_STATE_INIT && q.GetLocalEndpoint().GetQpn() != 0 && q.GetLocalEndpoint().GetQpn() != qpn
	})
	until(t, "the device is READY", func() bool { return n.device(card).GetState() == pb.Device_STATE_READY })
	told := 0
	until(t, "an event tells what was lost", func() bool { // outcomes are recorded after they are seen
		events, err := n.job.Client.Events.ListEvents(ctx, &pb.ListEventsRequest{Parent: "nodes/local", PageSize: 1000})
		if err != nil {
			t.Fatal(err)
		}
		told = 0
		for _, e := range events.GetEvents() {
			if strings.HasSuffix(e.GetResource(), "/devices/soft-0") && strings.Contains(e.GetMessage(), "1 memory region, 1 buffer: LOST") {
				told++
			}
			if strings.Contains(e.GetResource(), "far-0") && e.GetReason() == "LOST" {
				t.Errorf("the other host's device: %v", e)
			}
		}
		return told > 0
	})
	if told != 1 {
		t.Errorf("%d events tell what was lost, want 1", told)
	}
	b, err := n.job.Client.Memory.GetBuffer(ctx, &pb.GetBufferRequest{Name: other.Buffer.GetName()})
	if err != nil || b.GetState() != pb.Buffer_STATE_READY {
		t.Errorf("the other host's buffer: %v, %v", b, err)
	}
}

// TestAHostThatHangs stops one of two hosts (case X07).
func TestAHostThatHangs(t *testing.T) {
	n := newNode(t, "n", 1<<20, one, two)
	hung := n.d.Host("soft")
	end(t, hung.PID, syscall.SIGSTOP)
	defer syscall.Kill(hung.PID, syscall.SIGCONT)
	// A call of it ends at its deadline.
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	_, err := n.job.Client.Devices.GetPort(ctx, &pb.GetPortRequest{Name: port})
	cancel()
	if err == nil {
		t.Fatal("a host that is stopped has answered")
	}
	// Calls of the other device, and of what the daemon knows, are answered.
	quick := func(what string, call func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := call(ctx); err != nil {
			t.Errorf("%s beside a host that hangs: %v", what, err)
		}
	}
	elsewhere := func() {
		quick("port", func(ctx context.Context) error {
			_, err := n.job.Client.Devices.GetPort(ctx, &pb.GetPortRequest{Name: far + "/ports/8"})
			return err
		})
		quick("create", func(ctx context.Context) error {
			_, err := n.job.Client.Sessions.CreateSession(ctx, &pb.CreateSessionRequest{Parent: "nodes/local", Session: &pb.Session{Devices: []string{far}, Mode: pb.Session_MODE_SHARED, Ttl: durationpb.New(time.Minute)}})
			return err
		})
		quick("buffer", func(ctx context.Context) error { // of the device that hangs, as the daemon knows it
			_, err := n.job.Client.Memory.GetBuffer(ctx, &pb.GetBufferRequest{Name: n.job.Buffer.GetName()})
			return err
		})
	}
	elsewhere()
	until(t, "the device is UNAVAILABLE", func() bool { return n.device(card).GetState() == pb.Device_STATE_UNAVAILABLE })
	elsewhere()
	if h := n.device(card).GetHealth(); h.GetStatus() != pb.Health_STATUS_FAILED {
		t.Errorf("health of the device: %v, want FAILED", h)
	}
	if h := n.device(far).GetHealth(); h.GetStatus() == pb.Health_STATUS_FAILED {
		t.Errorf("health of the other device: %v", h)
	}
	quick("metrics", func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.d.HTTP+"/metrics", nil)
		if err != nil {
			return err
		}
		got, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		defer got.Body.Close()
		if _, err := io.Copy(io.Discard, got.Body); err != nil || got.StatusCode != http.StatusOK {
			t.Errorf("metrics beside a host that hangs: %s, %v", got.Status, err)
		}
		return nil
	})
	// From then on it is said at once.
	quick("refusal", func(ctx context.Context) error {
		_, err := n.job.Client.Devices.GetPort(ctx, &pb.GetPortRequest{Name: port})
		if client.Reason(err) != pb.ErrorReason_ERROR_REASON_DEVICE_UNAVAILABLE {
			t.Errorf("port of a device that hangs: %v, want DEVICE_UNAVAILABLE", err)
		}
		return nil
	})
	// A daemon that starts meanwhile serves what is not hung.
	n.killDaemon()
	elsewhere()
	end(t, hung.PID, syscall.SIGCONT)
	until(t, "the device is READY", func() bool { return n.device(card).GetState() == pb.Device_STATE_READY })
	if now := n.d.Host("soft"); now.Instance != hung.Instance {
		t.Error("the host that hung was replaced, and what it had is lost")
	}
	b, err := n.job.Client.Memory.GetBuffer(t.Context(), &pb.GetBufferRequest{Name: n.job.Buffer.GetName()})
	if err != nil || b.GetState() != pb.Buffer_STATE_READY || n.qp().GetState() != pb.QueuePair_STATE_INIT {
		t.Errorf("after the hang: %v, %v; %v", b, err, n.qp())
	}
}

// TestSignalsToldApart: SIGTERM leaves hosts, SIGINT and stop-hosts end them.
func TestSignalsToldApart(t *testing.T) {
	d := separate(t, "n", one)
	first := d.Host("soft")
	if err := d.Stop(); err != nil {
		t.Fatal(err)
	}
	if !first.Running() {
		t.Fatal("SIGTERM to the daemon has ended its host")
	}
	d.Start()
	if now := d.Host("soft"); now.Instance != first.Instance {
		t.Fatal("the next daemon has another host")
	}
	refused, err := exec.Command(daemon.Binary(t, "accelfabd"), "stop-hosts", "--run-dir", filepath.Join(d.Dir, "run")).CombinedOutput()
	if err == nil || !strings.Contains(string(refused), "another accelfabd") || !first.Running() {
		t.Errorf("stop-hosts beside a daemon: %v, %s", err, refused)
	}
	if err := d.Interrupt(); err != nil {
		t.Fatal(err)
	}
	if first.Running() {
		t.Error("SIGINT to the daemon has left its host")
	}
	d.Start()
	second := d.Host("soft")
	d.Kill()
	out, err := exec.Command(daemon.Binary(t, "accelfabd"), "stop-hosts", "--run-dir", filepath.Join(d.Dir, "run")).CombinedOutput()
	if err != nil || second.Running() {
		t.Errorf("stop-hosts: %v, %s", err, out)
	}
	for _, name := range []string{"soft.sock", "soft.fds", "soft.json"} {
		if _, err := os.Lstat(filepath.Join(d.Dir, "run", "hosts", name)); err == nil {
			t.Errorf("%s is left", name)
		}
	}
}

// run runs a second daemon beside one, which must refuse.
func refusedDaemon(t *testing.T, d *daemon.Daemon, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	dir := t.TempDir()
	args = append([]string{"--node-id", "n", "--state-dir", dir, "--run-dir", filepath.Join(d.Dir, "run"), "--http", "off",
		"--listen", "tcp://127.0.0.1:0", "--device-hosts", "separate"}, args...)
	out, err := exec.CommandContext(ctx, daemon.Binary(t, "accelfabd"), args...).CombinedOutput()
	if err == nil || ctx.Err() != nil {
		t.Fatalf("it was not refused: %v\n%s", err, out)
	}
	return string(out)
}

func TestTwoDaemonsOfOneRunDirectory(t *testing.T) {
	n := newNode(t, "n", 1<<20, one)
	said := refusedDaemon(t, n.d, "--device", one)
	if !strings.Contains(said, "another accelfabd (process ") {
		t.Errorf("it says %s", said)
	}
	if q := n.qp(); q.GetState() != pb.QueuePair_STATE_INIT {
		t.Errorf("the first daemon's queue pair: %v", q)
	}
}

func TestAHostOfAnotherSpec(t *testing.T) {
	d := separate(t, "n", one)
	old := d.Host("soft")
	d.Kill()
	said := refusedDaemon(t, d, "--device", "soft:hls-2,cards=2,memory=64MiB")
	for _, part := range []string{"started for something else", "cards=1", "cards=2", "accelfabd stop-hosts --run-dir " + filepath.Join(d.Dir, "run")} {
		if !strings.Contains(said, part) {
			t.Errorf("it says %s, without %q", said, part)
		}
	}
	if !old.Running() {
		t.Error("the host was ended")
	}
}

// TestFilesOfADeadHost: sockets that a dead host left are in nobody's way.
func TestFilesOfADeadHost(t *testing.T) {
	d := separate(t, "n", one)
	old := d.Host("soft")
	d.Kill()
	end(t, old.PID, syscall.SIGKILL)
	until(t, "the host is gone", func() bool { return !old.Running() })
	if _, err := os.Lstat(filepath.Join(d.Dir, "run", "hosts", "soft.sock")); err != nil {
		t.Fatal("a killed host leaves no socket: nothing is tested")
	}
	d.Start()
	if now := d.Host("soft"); now.Instance == old.Instance || !now.Running() {
		t.Errorf("%+v", now.Process)
	}
}

// TestALonelyHostEnds: a host whose daemon stays away ends, and says so.
func TestALonelyHostEnds(t *testing.T) {
	d := daemon.Start(t, daemon.Config{Node: "n", Args: []string{"--device-hosts", "separate", "--device", one, "--host-linger", "200ms"}})
	h := d.Host("soft")
	d.Kill()
	until(t, "the host has ended", func() bool { return !h.Running() })
	log, err := os.ReadFile(filepath.Join(d.Dir, "run", "hosts", "soft.log"))
	if err != nil || !strings.Contains(string(log), "no daemon was there for the linger time of 200ms") {
		t.Errorf("%v: its log says\n%s", err, log)
	}
}

// TestADaemonThatDoesNotComeToServeLeavesNoHost: its door is taken.
func TestADaemonThatDoesNotComeToServeLeavesNoHost(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir, err := os.MkdirTemp("", "afd-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, daemon.Binary(t, "accelfabd"), "--node-id", "n", "--state-dir", dir+"/state", "--run-dir", dir+"/run", "--http", "off",
		"--listen", "tcp://"+l.Addr().String(), "--device", one).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "address already in use") {
		t.Fatalf("%v: %s", err, out)
	}
	if files, err := filepath.Glob(dir + "/run/hosts/*"); err != nil || len(files) == 0 {
		t.Errorf("%q, %v: there was no host: nothing is tested", files, err)
	}
	for _, name := range []string{"soft.sock", "soft.json"} {
		if _, err := os.Lstat(filepath.Join(dir, "run", "hosts", name)); err == nil {
			t.Errorf("%s is left, and its host", name)
		}
	}
	if ended, err := host.EndAll(dir+"/run/hosts", 10*time.Second); len(ended) > 0 || err != nil {
		t.Errorf("hosts were left: %v, %v", ended, err)
	}
}
