package hosts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/accelfab/accelfab/client"
	"github.com/accelfab/accelfab/device/host"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
	"github.com/accelfab/accelfab/test/daemon"
)

// S12, F13: a daemon that begins before the devices can be reached serves, says within
// its health which part is missing, and has them, without a restart, when they come.
func TestS12DevicesComeAfterTheDaemon(t *testing.T) {
	d := daemon.Start(t, daemon.Config{Node: "n", Args: []string{"--device-hosts", "separate", "--device", one, "--await-devices"}})
	n := &node{t, d, daemon.NewJob(t, d.Dial(), "soft-0", "8", 1<<20)}
	ctx := t.Context()
	n.d.Kill()
	dir := filepath.Join(n.d.Dir, "run", "hosts")
	if _, err := host.EndAll(dir, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // no host can be started
		t.Fatal(err)
	}
	n.d.Start()
	n.again()
	component := func() *pb.Health_Component {
		node, err := n.job.Client.Nodes.GetNode(ctx, &pb.GetNodeRequest{Name: "nodes/local"})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range node.GetHealth().GetComponents() {
			if c.GetName() == "hosts/soft" {
				return c
			}
		}
		return nil
	}
	until(t, "the health says which host is missing", func() bool {
		c := component()
		return c.GetStatus() == pb.Health_STATUS_FAILED && strings.Contains(c.GetMessage(), "device host soft")
	})
	if _, err := n.job.Client.Memory.CreateBuffer(ctx, &pb.CreateBufferRequest{Parent: card, Buffer: &pb.Buffer{Session: n.job.Session.GetName(), SizeBytes: 4096}}); client.Reason(err) != pb.ErrorReason_ERROR_REASON_DEVICE_UNAVAILABLE {
		t.Errorf("a buffer of a device that is not there: %v", err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	until(t, "the host is there", func() bool { return component().GetStatus() == pb.Health_STATUS_OK })
	until(t, "its queue pair is made again", func() bool { return n.qp().GetState() == pb.QueuePair_STATE_INIT })
	if b, err := n.job.Client.Memory.GetBuffer(ctx, &pb.GetBufferRequest{Name: n.job.Buffer.GetName()}); err != nil || b.GetState() != pb.Buffer_STATE_LOST {
		t.Errorf("what the host had is told as %v, %v", b, err)
	}
	if _, err := n.job.Client.Memory.CreateBuffer(ctx, &pb.CreateBufferRequest{Parent: card, Buffer: &pb.Buffer{Session: n.job.Session.GetName(), SizeBytes: 4096}}); err != nil {
		t.Errorf("a buffer of the device that came: %v", err)
	}
}
