package wire

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device/ib"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
	"github.com/accelfab/accelfab/test/capture"
	"github.com/accelfab/accelfab/test/daemon"
)

func TestMain(m *testing.M) {
	status := m.Run()
	daemon.Remove()
	os.Exit(status)
}

// command runs a program that must succeed.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, errs.String())
	}
	return string(out)
}

// namespaces makes two, with a veth pair between them on which nothing merges
// or cuts packets for the sender. The ends have the addresses 10.91.0.1 and .2,
// and fd91::1 and ::2.
func namespaces(t *testing.T, mtu int) (a, b string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	for _, tool := range []string{"ip", "ethtool", "tcpdump", "tshark"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s; tools/deps.sh installs it", tool)
		}
	}
	id := fmt.Sprintf("afw%d%02d", os.Getpid(), rand.IntN(100))
	names := [2]string{id + "a", id + "b"}
	hardware := [2]string{"02:00:00:00:91:01", "02:00:00:00:91:02"}
	for i, ns := range names {
		command(t, "ip", "netns", "add", ns)
		t.Cleanup(func() { exec.Command("ip", "netns", "del", ns).Run() })
		command(t, "ip", "-n", ns, "link", "set", "lo", "up")
		// Without, a new IPv6 address is looked for on the link for a second or two
		// and answers nobody.
		command(t, "ip", "netns", "exec", ns, "sh", "-c", "for f in all default; do echo 0 > /proc/sys/net/ipv6/conf/$f/accept_dad; done")
		if i == 1 {
			command(t, "ip", "link", "add", "v0", "address", hardware[0], "netns", names[0], "type", "veth", "peer", "name", "v0", "address", hardware[1], "netns", names[1])
		}
	}
	for i, ns := range names {
		command(t, "ip", "-n", ns, "addr", "add", fmt.Sprintf("10.91.0.%d/24", i+1), "dev", "v0")
		command(t, "ip", "-n", ns, "addr", "add", fmt.Sprintf("fd91::%d/64", i+1), "dev", "v0")
		command(t, "ip", "-n", ns, "link", "set", "v0", "mtu", fmt.Sprint(mtu), "up")
		command(t, "ip", "netns", "exec", ns, "ethtool", "-K", "v0", "tx-udp-segmentation", "off", "gro", "off", "tx", "off")
	}
	deadline := time.Now().Add(30 * time.Second)
	for i, ns := range names {
		// Who asks a neighbour that is not quite there asks again after a second.
		command(t, "ip", "-n", ns, "neigh", "add", fmt.Sprintf("fd91::%d", 2-i), "lladdr", hardware[1-i], "dev", "v0")
		for command(t, "ip", "-n", ns, "addr", "show", "dev", "v0", "tentative") != "" {
			if time.Now().After(deadline) {
				t.Fatal("the addresses do not become ready")
			}
		}
	}
	return names[0], names[1]
}

func TestWiresharkReadsWhatTwoNodesSay(t *testing.T) {
	for _, c := range []struct {
		family, a, b string
		mtu, path    int
	}{
		{"IPv4", "10.91.0.1", "10.91.0.2", 1500, 1024},
		{"IPv4", "10.91.0.1", "10.91.0.2", 4400, 4096},
		{"IPv6", "fd91::1", "fd91::2", 1500, 1024},
		{"IPv6", "fd91::/64", "fd91::/64", 4400, 4096},
	} {
		t.Run(fmt.Sprintf("%s MTU %d", c.family, c.path), func(t *testing.T) { speak(t, c.a, c.b, c.mtu, uint32(c.path)) })
	}
}

// speak lets two nodes exchange messages of many shapes and checks what was on
// the wire.
func speak(t *testing.T, addrA, addrB string, mtu int, path uint32) {
	nsA, nsB := namespaces(t, mtu)
	a := daemon.Start(t, daemon.Config{Node: "a", Netns: nsA, Args: []string{"--device", "soft:hls-2,cards=1,memory=16MiB", "--soft-network", addrA}})
	b := daemon.Start(t, daemon.Config{Node: "b", Netns: nsB, Args: []string{"--device", "soft:hls-2,cards=1,memory=16MiB", "--soft-network", addrB}})
	const size = 1 << 20
	src := daemon.NewJob(t, a.Dial(), "soft-0", "8", size)
	dst := daemon.NewJob(t, b.Dial(), "soft-0", "8", size)
	file := filepath.Join(t.TempDir(), "wire.pcap")
	if keep := os.Getenv("ACCELFAB_KEEP_PCAP"); keep != "" {
		file = fmt.Sprintf("%s-%d.pcap", keep, path)
	}
	stop := capture.Start(t, nsB, "v0", file)
	daemon.Connect(t, src, dst)
	if got := src.QP.GetAttributes().GetPathMtuBytes(); got != path {
		t.Errorf("path MTU %d over an interface of %d, want %d", got, mtu, path)
	}

	ctx := t.Context()
	// The same bytes each time, and none is zero: Wireshark takes a payload whose
	// third and fourth byte are zero, as those of a short message's pad are, for
	// an Ethernet type and what follows, which other bytes may make malformed.
	random := rand.New(rand.NewPCG(1, 1))
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(0xa0 + random.IntN(0x50))
	}
	if err := src.Client.Upload(ctx, src.Buffer.GetName(), data); err != nil {
		t.Fatal(err)
	}
	// WRITE of many lengths into ranges that follow each other.
	offset, work := uint64(0), []*pb.WorkRequest{}
	for i, n := range []uint32{1, 2, 3, 4, 8, path - 1, path, path + 1, 10000, 262144} {
		work = append(work, &pb.WorkRequest{WrId: uint64(i), Opcode: pb.WorkRequest_OPCODE_RDMA_WRITE, Sges: src.SGE(offset, n),
			RemoteAddress: dst.Region.GetIova() + offset, Rkey: dst.Region.GetRkey(), Signaled: true})
		offset += uint64(n)
	}
	src.Post(ctx, work...)
	src.WaitSuccess(ctx, len(work))
	got, err := dst.Client.Download(ctx, dst.Buffer.GetName(), int(offset))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, data[:offset]) {
		t.Error("the other node has other bytes than were written")
	}
	// SEND, with a receive that is posted only after it was refused for a while.
	src.Post(ctx, &pb.WorkRequest{WrId: 1, Opcode: pb.WorkRequest_OPCODE_SEND, Sges: src.SGE(0, 3*path+1), Signaled: true})
	dst.Post(ctx, &pb.WorkRequest{WrId: 2, Opcode: pb.WorkRequest_OPCODE_RECV, Sges: dst.SGE(0, 4*path)})
	src.WaitSuccess(ctx, 1)
	dst.WaitSuccess(ctx, 1)
	// READ back into another place.
	src.Post(ctx, &pb.WorkRequest{WrId: 3, Opcode: pb.WorkRequest_OPCODE_RDMA_READ, Sges: src.SGE(size/2, 100_001),
		RemoteAddress: dst.Region.GetIova(), Rkey: dst.Region.GetRkey(), Signaled: true})
	src.WaitSuccess(ctx, 1)
	// A wrong key, which ends the connection with a NAK.
	src.Post(ctx, &pb.WorkRequest{WrId: 4, Opcode: pb.WorkRequest_OPCODE_RDMA_WRITE, Sges: src.SGE(0, 64),
		RemoteAddress: dst.Region.GetIova(), Rkey: dst.Region.GetRkey() ^ 1, Signaled: true})
	if c := src.Wait(ctx, 1)[0]; c.GetStatus() != pb.CompletionStatus_COMPLETION_STATUS_REM_ACCESS_ERR {
		t.Errorf("a wrong R_Key ended with %v, want REM_ACCESS_ERR", c.GetStatus())
	}
	stop()

	checkOpcodes(t, capture.CheckICRC(t, file))
	capture.CheckTshark(t, file)
}

// checkOpcodes wants every shape of packet in the capture.
func checkOpcodes(t *testing.T, seen map[capture.Kind]int) {
	t.Helper()
	count := map[ib.Opcode]int{}
	for kind, n := range seen {
		count[kind.Opcode] += n
	}
	for _, op := range []ib.Opcode{
		ib.RCSendFirst, ib.RCSendMiddle, ib.RCSendLast, ib.RCRDMAWriteFirst, ib.RCRDMAWriteMiddle, ib.RCRDMAWriteLast, ib.RCRDMAWriteOnly,
		ib.RCRDMAReadRequest, ib.RCRDMAReadResponseFirst, ib.RCRDMAReadResponseMiddle, ib.RCRDMAReadResponseLast, ib.RCAcknowledge,
	} {
		if count[op] == 0 {
			t.Errorf("no %v in the capture", op)
		}
	}
	t.Logf("packets by opcode: %v", count)
}
