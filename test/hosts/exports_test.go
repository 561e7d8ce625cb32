package hosts

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
	"github.com/accelfab/accelfab/test/daemon"
)

// TestExportsSurviveTheDaemon: an export, a region made of it on another device
// and the descriptor in a caller's hands outlive the daemon that gave them.
func TestExportsSurviveTheDaemon(t *testing.T) {
	n := newNode(t, "n", 1<<20, one, "soft-nic")
	ctx := t.Context()
	export, err := n.job.Client.Memory.CreateMemoryExport(ctx, &pb.CreateMemoryExportRequest{Parent: card, MemoryExport: &pb.MemoryExport{
		Buffer: n.job.Buffer.GetName(), LengthBytes: 1 << 20, Ttl: durationpb.New(3600e9)}})
	if err != nil {
		t.Fatal(err)
	}
	held, err := n.job.Client.FetchDescriptor(ctx, export.GetName())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	nic := daemon.NewJob(t, n.job.Client, "soft-nic", "0", 1<<20)
	importAs := func(c *client.Client) (*pb.MemoryRegion, error) {
		up, err := c.UploadDescriptor(ctx, held)
		if err != nil {
			return nil, err
		}
		return c.Memory.CreateMemoryRegion(ctx, &pb.CreateMemoryRegionRequest{Parent: "nodes/local/devices/soft-nic", MemoryRegion: &pb.MemoryRegion{
			ProtectionDomain: nic.PD.GetName(), ImportSource: &pb.MemoryRegion_ImportSource{UploadId: up.GetUploadId()},
			Access: []pb.MemoryRegion_Access{pb.MemoryRegion_ACCESS_LOCAL_WRITE, pb.MemoryRegion_ACCESS_REMOTE_READ}}})
	}
	region, err := importAs(n.job.Client)
	if err != nil {
		t.Fatal(err)
	}
	// One more is revoked before, and an upload waits.
	gone, err := n.job.Client.Memory.CreateMemoryExport(ctx, &pb.CreateMemoryExportRequest{Parent: card, MemoryExport: &pb.MemoryExport{Buffer: n.job.Buffer.GetName()}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.job.Client.Memory.RevokeMemoryExport(ctx, &pb.RevokeMemoryExportRequest{Name: gone.GetName()}); err != nil {
		t.Fatal(err)
	}
	waiting, err := n.job.Client.UploadDescriptor(ctx, held)
	if err != nil {
		t.Fatal(err)
	}
	n.killDaemon()
	if x, err := n.job.Client.Memory.GetMemoryExport(ctx, &pb.GetMemoryExportRequest{Name: gone.GetName()}); err != nil || x.GetState() != pb.MemoryExport_STATE_REVOKED {
		t.Errorf("the revoked export: %v, %v", x, err)
	}
	if _, err := n.job.Client.FetchDescriptor(ctx, gone.GetName()); client.Reason(err) != pb.ErrorReason_ERROR_REASON_EXPORT_REVOKED {
		t.Errorf("fetch of the revoked export: %v", err)
	}
	if _, err := n.job.Client.Memory.CreateMemoryRegion(ctx, &pb.CreateMemoryRegionRequest{Parent: "nodes/local/devices/soft-nic", MemoryRegion: &pb.MemoryRegion{
		ProtectionDomain: nic.PD.GetName(), ImportSource: &pb.MemoryRegion_ImportSource{UploadId: waiting.GetUploadId()}}}); client.Reason(err) != pb.ErrorReason_ERROR_REASON_NOT_FOUND {
		t.Errorf("the upload that waited: %v", err)
	}
	x, err := n.job.Client.Memory.GetMemoryExport(ctx, &pb.GetMemoryExportRequest{Name: export.GetName()})
	if err != nil || x.GetState() != pb.MemoryExport_STATE_ACTIVE || x.GetUid() != export.GetUid() {
		t.Errorf("export %v, %v", x, err)
	}
	m, err := n.job.Client.Memory.GetMemoryRegion(ctx, &pb.GetMemoryRegionRequest{Name: region.GetName()})
	if err != nil || m.GetState() != pb.MemoryRegion_STATE_READY || m.GetRkey() != region.GetRkey() {
		t.Errorf("region %v, %v", m, err)
	}
	// The descriptor that was given out before stands for it still.
	if _, err := importAs(n.job.Client); err != nil {
		t.Errorf("the descriptor of before the kill: %v", err)
	}
	if _, err := n.job.Client.Memory.RevokeMemoryExport(ctx, &pb.RevokeMemoryExportRequest{Name: export.GetName()}); err != nil {
		t.Fatal(err)
	}
	if m, err = n.job.Client.Memory.GetMemoryRegion(ctx, &pb.GetMemoryRegionRequest{Name: region.GetName()}); err != nil || m.GetState() == pb.MemoryRegion_STATE_READY {
		t.Errorf("after the revocation: %v, %v", m, err)
	}
}

// TestHostsDoNotShareABus: devices of two hosts reach no memory of each other,
// and the refusal says so.
func TestHostsDoNotShareABus(t *testing.T) {
	n := newNode(t, "n", 1<<20, one, two)
	ctx := t.Context()
	pa, err := n.job.Client.Nodes.CheckPeerAccess(ctx, &pb.CheckPeerAccessRequest{Name: "nodes/local", Exporter: card, Importer: far})
	if err != nil || pa.GetReachable() || pa.GetObstacle() == "" {
		t.Errorf("%v, %v", pa, err)
	}
	export, err := n.job.Client.Memory.CreateMemoryExport(ctx, &pb.CreateMemoryExportRequest{Parent: card, MemoryExport: &pb.MemoryExport{
		Buffer: n.job.Buffer.GetName(), LengthBytes: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	f, err := n.job.Client.FetchDescriptor(ctx, export.GetName())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	up, err := n.job.Client.UploadDescriptor(ctx, f)
	if err != nil {
		t.Fatal(err)
	}
	other := daemon.NewJob(t, n.job.Client, "far-0", "8", 1<<20)
	_, err = n.job.Client.Memory.CreateMemoryRegion(ctx, &pb.CreateMemoryRegionRequest{Parent: far, MemoryRegion: &pb.MemoryRegion{
		ProtectionDomain: other.PD.GetName(), ImportSource: &pb.MemoryRegion_ImportSource{UploadId: up.GetUploadId()},
		Access: []pb.MemoryRegion_Access{pb.MemoryRegion_ACCESS_REMOTE_READ}}})
	if client.Reason(err) != pb.ErrorReason_ERROR_REASON_PATH_NOT_REACHABLE || !strings.Contains(err.Error(), "not on the same bus") {
		t.Errorf("import from another host: %v", err)
	}
}

func descriptors(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// anonymous gives the resident memory of a process that is no file's, in KiB.
func anonymous(t *testing.T, pid int) (kib int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if n, err := fmt.Sscanf(line, "RssAnon: %d kB", &kib); n == 1 && err == nil {
			return kib
		}
	}
	t.Fatal("no RssAnon in /proc/PID/status")
	return 0
}

// TestCallsLeaveNothingBehind: rounds of everything that crosses the sockets, with
// as many descriptors in both processes after as before, and no more memory.
func TestCallsLeaveNothingBehind(t *testing.T) {
	n := newNode(t, "n", 1<<20, one)
	ctx, c := t.Context(), n.job.Client
	export, err := c.Memory.CreateMemoryExport(ctx, &pb.CreateMemoryExportRequest{Parent: card, MemoryExport: &pb.MemoryExport{
		Buffer: n.job.Buffer.GetName(), LengthBytes: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	round := func() {
		for range 8 {
			if _, err := c.Devices.GetPort(ctx, &pb.GetPortRequest{Name: port}); err != nil {
				t.Fatal(err)
			}
		}
		f, err := c.FetchDescriptor(ctx, export.GetName())
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		up, err := c.UploadDescriptor(ctx, f)
		if err != nil {
			t.Fatal(err)
		}
		m, err := c.Memory.CreateMemoryRegion(ctx, &pb.CreateMemoryRegionRequest{Parent: card, MemoryRegion: &pb.MemoryRegion{
			ProtectionDomain: n.job.PD.GetName(), ImportSource: &pb.MemoryRegion_ImportSource{UploadId: up.GetUploadId()},
			Access: []pb.MemoryRegion_Access{pb.MemoryRegion_ACCESS_REMOTE_READ}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Memory.DeleteMemoryRegion(ctx, &pb.DeleteMemoryRegionRequest{Name: m.GetName()}); err != nil {
			t.Fatal(err)
		}
	}
	pids := [2]int{n.d.PID(), n.d.Host("soft").PID}
	for range 300 { // until the heaps have their size
		round()
	}
	var before, memory [2]int
	for i, pid := range pids {
		before[i], memory[i] = descriptors(t, pid), anonymous(t, pid)
	}
	for range 1000 { // 10,000 calls of the host and more
		round()
	}
	const most = 16 << 10 // KiB, of what the collector leaves for later
	for i, pid := range pids {
		after := anonymous(t, pid)
		t.Logf("process %d: %d KiB, %d before", i, after, memory[i])
		if i == 1 && after > memory[i]+most {
			t.Errorf("the host has %d KiB, and had %d before", after, memory[i])
		}
	}
	for i, pid := range pids {
		until(t, fmt.Sprintf("process %d of %d has %d descriptors", i, pid, before[i]), func() bool { return descriptors(t, pid) <= before[i] })
	}
}
