package softroce

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/accelfab/accelfab/test/daemon"
	"github.com/accelfab/accelfab/test/machine"
)

// The two ends of the bridge.
const (
	ourAddress, ourAddress6   = "10.77.0.1", "fd77::1"
	peerAddress, peerAddress6 = "10.77.0.11", "fd77::11"
	peerMAC                   = "52:54:00:77:00:11"
	largeMTU, ethernetMTU     = 4400, 1500 // path MTU 4096 and 1024
)

// Limits on a machine that is busy with other things.
const (
	bootLimit    = 3 * time.Minute
	commandLimit = 2 * time.Minute
)

// peer is the machine with Soft-RoCE and the namespace in which it is.
type peer struct {
	*machine.Machine // nil if it has not started
	netns            string
}

var (
	once    sync.Once
	shared  *peer
	skip    string // why there is no peer, if this machine cannot have one
	bootErr error
)

func TestMain(m *testing.M) {
	status := m.Run()
	if shared != nil {
		shared.close()
	}
	daemon.Remove()
	if err := writeTable(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// thePeer gives the machine that all tests share, with an MTU on the bridge.
func thePeer(t *testing.T, mtu int) *peer {
	t.Helper()
	once.Do(func() { shared, skip, bootErr = boot() })
	switch {
	case skip != "":
		t.Skip(skip)
	case bootErr != nil:
		t.Fatal(bootErr)
	}
	shared.setMTU(t, mtu)
	return shared
}

// boot starts the machine and waits until it answers. What it gives is to be
// closed also with an error.
func boot() (p *peer, skip string, err error) {
	if os.Getuid() != 0 {
		return nil, "needs root, to make network namespaces", nil
	}
	for _, tool := range []string{"qemu-system-x86_64", "ip", "ethtool", "tcpdump", "tshark", "gcc", "cpio", "depmod", "ibv_rc_pingpong", "rping"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, "needs " + tool + "; tools/deps.sh installs it", nil
		}
	}
	var stderr strings.Builder
	cmd := exec.Command("machine/build.sh")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, "", fmt.Errorf("machine/build.sh built no machine: %w\n%s", err, stderr.String())
	}
	dir := strings.TrimSpace(string(out))

	removeLeftovers()
	p = &peer{netns: fmt.Sprintf("%s%d-%d", netnsPrefix, os.Getpid(), rand.IntN(1000))}
	if err := run("ip", "netns", "add", p.netns); err != nil {
		return p, "", err
	}
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "br0", "type", "bridge", "stp_state", "0", "forward_delay", "0", "mcast_snooping", "0"},
		{"tuntap", "add", "tap0", "mode", "tap"},
		// An emulated processor is slow: room for a UC message of 1 MiB in small packets.
		{"link", "set", "tap0", "mtu", strconv.Itoa(largeMTU), "txqueuelen", "4000", "master", "br0", "up"},
		{"addr", "add", ourAddress + "/24", "dev", "br0"},
		{"addr", "add", ourAddress6 + "/64", "dev", "br0", "nodad"},
		{"link", "set", "br0", "mtu", strconv.Itoa(largeMTU), "up"},
	} {
		if err := run("ip", append([]string{"-n", p.netns}, args...)...); err != nil {
			return p, "", err
		}
	}
	// What leaves the bridge is what would be on a wire.
	if err := run("ip", "netns", "exec", p.netns, "ethtool", "-K", "br0", "tx-udp-segmentation", "off"); err != nil {
		return p, "", err
	}
	return p, "", p.startMachine(dir)
}

func (p *peer) startMachine(dir string) (err error) {
	p.Machine, err = machine.Start(machine.Config{
		Kernel: dir + "/vmlinuz", Initrd: dir + "/initrd", MemoryMiB: 256, Netns: p.netns,
		Append: fmt.Sprintf("address=%s/24 address6=%s/64 mtu=%d", peerAddress, peerAddress6, largeMTU),
		Args:   []string{"-netdev", "tap,id=n0,ifname=tap0,script=no,downscript=no", "-device", "virtio-net-pci,romfile=,netdev=n0,mac=" + peerMAC},
	})
	if err != nil {
		return err
	}
	return p.Await("ready", bootLimit)
}

// close ends the machine and removes its namespace.
func (p *peer) close() {
	if p.Machine != nil {
		p.Close()
	}
	run("ip", "netns", "del", p.netns)
}

// setMTU changes the MTU of the bridge and both its ends. rxe takes the path MTU
// of an interface when it is put on it.
func (p *peer) setMTU(t *testing.T, mtu int) {
	t.Helper()
	out, status := p.shell(t, fmt.Sprintf(`
		[ "$(cat /sys/class/net/eth0/mtu)" = %[1]d ] && exit
		rdma link delete rxe0 && ip link set eth0 mtu %[1]d && rdma link add rxe0 type rxe netdev eth0`, mtu))
	if status != 0 {
		t.Fatalf("MTU of the peer: status %d\n%s", status, out)
	}
	for _, link := range []string{"tap0", "br0"} {
		if err := run("ip", "-n", p.netns, "link", "set", link, "mtu", strconv.Itoa(mtu)); err != nil {
			t.Fatal(err)
		}
	}
}
