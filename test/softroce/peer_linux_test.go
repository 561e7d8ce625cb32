package softroce

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelfab/accelfab/test/daemon"
)

// The two ends of the bridge. The link-local addresses are what Linux makes of
// the hardware addresses.
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
	netns   string
	pid     int // of qemu
	end     context.CancelFunc
	exited  chan struct{}
	console console
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

// boot starts the machine and waits until it answers.
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
		return nil, fmt.Sprintf("machine/build.sh built no machine: %v\n%s", err, stderr.String()), nil
	}
	dir := strings.TrimSpace(string(out))

	removeLeftovers()
	p = &peer{netns: fmt.Sprintf("%s%d-%d", netnsPrefix, os.Getpid(), rand.IntN(1000)), exited: make(chan struct{})}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if err := run("ip", "netns", "add", p.netns); err != nil {
		return nil, "", err
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
			return nil, "", err
		}
	}
	// What leaves the bridge is what would be on a wire.
	if err := run("ip", "netns", "exec", p.netns, "ethtool", "-K", "br0", "tx-udp-segmentation", "off"); err != nil {
		return nil, "", err
	}
	return p, "", p.startMachine(dir)
}

func (p *peer) startMachine(dir string) error {
	ctx, end := context.WithCancel(context.Background())
	p.end = end
	cmd := exec.CommandContext(ctx, "ip", "netns", "exec", p.netns, "qemu-system-x86_64",
		"-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1", "-m", "256",
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio",
		"-kernel", dir+"/vmlinuz", "-initrd", dir+"/initrd",
		"-append", fmt.Sprintf("console=ttyS0 quiet panic=-1 mitigations=off address=%s/24 address6=%s/64 mtu=%d", peerAddress, peerAddress6, largeMTU),
		"-netdev", "tap,id=n0,ifname=tap0,script=no,downscript=no", "-device", "virtio-net-pci,romfile=,netdev=n0,mac="+peerMAC)
	cmd.Stdout, cmd.Stderr = &p.console, &p.console
	// The machine ends with the thread that started it, also when this process is
	// killed; so the thread must live as long.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		close(p.exited)
		return err
	}
	p.pid = cmd.Process.Pid
	limit, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !p.console.says("ready") {
		select {
		case <-tick.C:
		case <-p.exited:
			return fmt.Errorf("the machine ended before it was ready:\n%s", &p.console)
		case <-limit.Done():
			return fmt.Errorf("the machine is not ready after %v:\n%s", bootLimit, &p.console)
		}
	}
	return nil
}

// close ends the machine and removes its namespace.
func (p *peer) close() {
	if p.end != nil {
		p.end()
		<-p.exited
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

// shell runs a script in the machine and gives what it wrote and its status.
func (p *peer) shell(t *testing.T, script string) (out string, status int) {
	t.Helper()
	c := p.command(t, script)
	return c.finish(t)
}

// command is a script that runs in the machine. Writes go to its standard input.
type command struct {
	net.Conn
	lines *bufio.Reader
}

// command starts a script in the machine.
func (p *peer) command(t *testing.T, script string) *command {
	t.Helper()
	conn, err := p.dial(peerAddress + ":9999")
	if err != nil {
		t.Fatalf("the machine does not answer: %v\n%s", err, &p.console)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(commandLimit))
	if _, err := fmt.Fprintln(conn, base64.StdEncoding.EncodeToString([]byte(script))); err != nil {
		t.Fatal(err)
	}
	return &command{conn, bufio.NewReader(conn)}
}

var statusLine = regexp.MustCompile(`(?m)^status (\d+)\n\z`)

// finish waits until the script ends.
func (c *command) finish(t *testing.T) (out string, status int) {
	t.Helper()
	b, err := io.ReadAll(c.lines)
	c.Close()
	at := statusLine.FindSubmatchIndex(b)
	if at == nil {
		t.Fatalf("the machine broke off: %v\n%s", err, b)
	}
	status, _ = strconv.Atoi(string(b[at[2]:at[3]]))
	return string(b[:at[0]]), status
}

// dial connects from within the namespace.
func (p *peer) dial(address string) (conn net.Conn, err error) {
	p.inside(func() { conn, err = net.DialTimeout("tcp", address, 10*time.Second) })
	return conn, err
}

// listen listens within the namespace.
func (p *peer) listen(address string) (l net.Listener, err error) {
	p.inside(func() { l, err = net.Listen("tcp", address) })
	return l, err
}

// inside calls f on a thread of the namespace. A socket belongs to the namespace
// in which it was made.
func (p *peer) inside(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		ns, err := os.Open("/var/run/netns/" + p.netns)
		if err != nil {
			panic(err)
		}
		defer ns.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			panic(err)
		}
		f()
	}()
	<-done
}

const netnsPrefix = "afroce"

// removeLeftovers ends what tests that were killed have left: what runs in
// namespaces whose names say that their maker is no more.
func removeLeftovers() {
	entries, _ := os.ReadDir("/var/run/netns")
	for _, e := range entries {
		maker, _, _ := strings.Cut(strings.TrimPrefix(e.Name(), netnsPrefix), "-")
		pid, err := strconv.Atoi(maker)
		if err != nil || !strings.HasPrefix(e.Name(), netnsPrefix) || syscall.Kill(pid, 0) != syscall.ESRCH {
			continue
		}
		out, _ := exec.Command("ip", "netns", "pids", e.Name()).Output()
		for _, field := range strings.Fields(string(out)) {
			if pid, err := strconv.Atoi(field); err == nil {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		run("ip", "netns", "del", e.Name())
	}
}

// run runs a program that says nothing if it succeeds.
func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// console holds what the machine has written on its console.
type console struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b.Write(p)
}

func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b.String()
}

// says reports whether a line is on the console.
func (c *console) says(line string) bool {
	return strings.Contains("\n"+strings.ReplaceAll(c.String(), "\r", ""), "\n"+line+"\n")
}
