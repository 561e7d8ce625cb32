package soft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/accelfab/accelfab/device"
)

// onDescriptor calls do with the number of a descriptor.
func onDescriptor(t testing.TB, f *os.File, do func(fd int) error) error {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var op error
	if err := raw.Control(func(fd uintptr) { op = do(int(fd)) }); err != nil {
		t.Fatal(err)
	}
	return op
}

func tokenOf(t testing.TB) (*card, device.Export, *os.File) {
	c := openChassis(t, t.TempDir(), "soft:hls-2,cards=1,memory=1MiB").cards[0]
	_, x := exportOf(t, c, 8192)
	return c, x, openExport(t, c, x.UID)
}

// TestD16ATokenIsGoodForNothingElse tries what a holder might (case D16).
func TestD16ATokenIsGoodForNothingElse(t *testing.T) {
	c, x, f := tokenOf(t)
	for what, want := range map[string]struct {
		do  func(fd int) error
		err error
	}{
		"mmap": {func(fd int) error {
			_, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
			return err
		}, unix.ENODEV},
		"open by /proc": {func(fd int) error {
			_, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR, 0)
			return err
		}, unix.ENXIO},
		"read": {func(fd int) error {
			_, err := unix.Read(fd, make([]byte, 16))
			return err
		}, unix.EAGAIN},
		"pread": {func(fd int) error {
			_, err := unix.Pread(fd, make([]byte, 16), 0)
			return err
		}, unix.ESPIPE},
		"write": {func(fd int) error {
			_, err := unix.SendmsgN(fd, []byte("to nobody"), nil, nil, unix.MSG_NOSIGNAL)
			return err
		}, unix.EPIPE},
		"descriptor": {func(fd int) error {
			_, err := unix.SendmsgN(fd, []byte("x"), unix.UnixRights(fd), nil, unix.MSG_NOSIGNAL)
			return err
		}, unix.EPIPE},
		"listen":   {func(fd int) error { return unix.Listen(fd, 1) }, unix.EINVAL},
		"truncate": {func(fd int) error { return unix.Ftruncate(fd, 0) }, unix.EINVAL},
	} {
		if err := onDescriptor(t, f, want.do); !errors.Is(err, want.err) {
			t.Errorf("%s: %v, want %v", what, err, want.err)
		}
	}
	if flags := 0; onDescriptor(t, f, func(fd int) (err error) { flags, err = unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); return err }) != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Error("the descriptor would go to every program that is started")
	}
	if uid, err := c.FindExport(context.Background(), f); err != nil || uid != x.UID {
		t.Errorf("after all that: %x, %v", uid, err)
	}
}

// TestWhatIsNoToken offers descriptors of other things.
func TestWhatIsNoToken(t *testing.T) {
	c, _, _ := tokenOf(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	memfd, err := unix.MemfdCreate("mine", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	udpFile, err := udp.File()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	pd := c.CreateProtectionDomains(ctx, []device.UID{newUID()})[0].PD
	for what, f := range map[string]*os.File{
		"a socket of one's own": os.NewFile(uintptr(pair[0]), "own"), "its other end": os.NewFile(uintptr(pair[1]), "other"),
		"a memory file": os.NewFile(uintptr(memfd), "memfd"), "a UDP socket": udpFile, "a file": file,
	} {
		if _, err := c.FindExport(ctx, f); !errors.Is(err, device.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := c.Import(ctx, device.ImportSpec{UID: newUID(), PD: pd, Length: 1}, f); !errors.Is(err, device.ErrNotFound) {
			t.Errorf("%s: import: %v", what, err)
		}
		f.Close()
		if _, err := c.FindExport(ctx, f); err == nil {
			t.Errorf("%s, closed: no error", what)
		}
	}
	if list, _ := c.ListRegions(ctx); len(list) != 0 {
		t.Errorf("regions %+v", list)
	}
	other := openChassis(t, t.TempDir(), "soft:hls-2,cards=1,memory=1MiB,name=other").cards[0]
	_, x := exportOf(t, other, 4096)
	if _, err := c.FindExport(ctx, openExport(t, other, x.UID)); !errors.Is(err, device.ErrNotFound) {
		t.Errorf("an export of another card: %v", err)
	}
}

// relayVariable is set in the processes that TestATokenIsKnownAgain starts: a
// character for each hop that is left.
const relayVariable = "ACCELFAB_RELAY"

func TestMain(m *testing.M) {
	hops := os.Getenv(relayVariable)
	if hops == "" {
		os.Exit(m.Run())
	}
	if err := relay(hops); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// relay hands descriptor 3 to the next process, and in the last one sends it
// back by descriptor 4.
func relay(hops string) error {
	if len(hops) == 1 {
		return unix.Sendmsg(4, []byte("x"), unix.UnixRights(3), nil, 0)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), relayVariable+"="+hops[1:])
	cmd.ExtraFiles = []*os.File{os.NewFile(3, "token"), os.NewFile(4, "back")}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func TestATokenIsKnownAgain(t *testing.T) {
	c, x, f := tokenOf(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	here, there := os.NewFile(uintptr(pair[0]), "here"), os.NewFile(uintptr(pair[1]), "there")
	defer here.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), relayVariable+"=...")
	cmd.ExtraFiles = []*os.File{f, there}
	out, err := cmd.CombinedOutput()
	there.Close()
	f.Close() // the one that travels is left
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		t.Fatalf("%d messages, %v", len(messages), err)
	}
	rights, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(rights) != 1 {
		t.Fatalf("descriptors %v, %v", rights, err)
	}
	ctx := context.Background()
	travelled := os.NewFile(uintptr(rights[0]), "travelled")
	if uid, err := c.FindExport(ctx, travelled); err != nil || uid != x.UID {
		t.Errorf("after three processes: %x, %v", uid, err)
	}
	copied, err := unix.FcntlInt(uintptr(rights[0]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	travelled.Close()
	duplicate := os.NewFile(uintptr(copied), "duplicate")
	if uid, err := c.FindExport(ctx, duplicate); err != nil || uid != x.UID {
		t.Errorf("a duplicate: %x, %v", uid, err)
	}
	if got := readExport(t, c, x.UID); got.Opened != 1 || got.Held != 1 {
		t.Errorf("export %+v, want one descriptor held", got)
	}
	duplicate.Close()
	awaitExport(t, c, x.UID, func(x device.Export) bool { return x.Held == 0 })
}

// TestShutdownIsAClose: a holder who shuts the socket down has let go of it.
func TestShutdownIsAClose(t *testing.T) {
	c, x, f := tokenOf(t)
	if err := onDescriptor(t, f, func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RDWR) }); err != nil {
		t.Fatal(err)
	}
	awaitExport(t, c, x.UID, func(x device.Export) bool { return x.Held == 0 })
	if _, err := c.FindExport(context.Background(), f); !errors.Is(err, device.ErrNotFound) {
		t.Errorf("error %v", err)
	}
}

func TestDescriptorsOfAnExportAreBounded(t *testing.T) {
	c, x, _ := tokenOf(t)
	for range maxHeld - 1 {
		openExport(t, c, x.UID)
	}
	_, err := c.OpenExport(context.Background(), x.UID)
	if limit := (*device.LimitError)(nil); !errors.As(err, &limit) || limit.Kind != "export_descriptors" {
		t.Errorf("one more than %d: %v", maxHeld, err)
	}
	if err := c.DestroyExport(context.Background(), x.UID); err != nil {
		t.Fatal(err)
	}
	// And all of the process together.
	_, y := exportOf(t, c, 4096)
	most := localBus.keeper.most
	defer func() { localBus.keeper.most = most }()
	localBus.keeper.most = 2
	openExport(t, c, y.UID)
	openExport(t, c, y.UID)
	if _, err := c.OpenExport(context.Background(), y.UID); !errors.Is(err, device.ErrExhausted) {
		t.Errorf("one more than 2: %v", err)
	}
}

// TestACookieIsNotEnough: all that the kernel says must agree.
func TestACookieIsNotEnough(t *testing.T) {
	_, x, f := tokenOf(t)
	m, err := readMark(f)
	if err != nil {
		t.Fatal(err)
	}
	if m.cookie == 0 || m.netns == 0 || m.domain != unix.AF_UNIX || m.kind != unix.SOCK_SEQPACKET || m.pid != int32(os.Getpid()) || m.uid != uint32(os.Getuid()) {
		t.Errorf("mark %+v", m)
	}
	localBus.mu.Lock()
	defer localBus.mu.Unlock()
	if e, err := localBus.exportOf(m); err != nil || e.UID != x.UID {
		t.Fatalf("export %+v, %v", e, err)
	}
	for what, change := range map[string]func(*mark){
		"cookie": func(m *mark) { m.cookie++ }, "network namespace": func(m *mark) { m.netns++ }, "kind": func(m *mark) { m.kind = unix.SOCK_STREAM },
		"domain": func(m *mark) { m.domain = unix.AF_INET }, "process": func(m *mark) { m.pid++ }, "uid": func(m *mark) { m.uid++ }, "gid": func(m *mark) { m.gid++ },
	} {
		other := m
		change(&other)
		if _, err := localBus.exportOf(other); !errors.Is(err, device.ErrNotFound) {
			t.Errorf("another %s: %v", what, err)
		}
	}
}

// TestNothingIsLeftOfExports closes chassis in the middle of everything: the bus of
// the process is empty afterwards, and who still holds a descriptor holds nothing.
func TestNothingIsLeftOfExports(t *testing.T) {
	before := descriptors(t)
	for range 3 {
		exporter := openChassis(t, t.TempDir(), "soft:hls-2,cards=2,memory=1MiB")
		importer := openNIC(t, t.TempDir(), "soft-nic")
		ctx := context.Background()
		var held []*os.File
		e := newEnd(t, importer, 0, 4096)
		var r device.Region
		for range 5 {
			_, x := exportOf(t, exporter.cards[0], 8192)
			f, err := exporter.cards[0].OpenExport(ctx, x.UID)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, f)
			r = e.imports(f, 4096)
		}
		if err := exporter.Close(); err != nil {
			t.Fatal(err)
		}
		list, err := importer.ListRegions(ctx)
		if err != nil || len(list) != 6 {
			t.Fatalf("regions %+v, %v", list, err)
		}
		for _, l := range list {
			if l.Revoked != l.Imported {
				t.Errorf("the exporter was closed: region %+v", l)
			}
		}
		if err := importer.DeregisterRegions(ctx, []device.UID{r.UID})[0]; err != nil {
			t.Errorf("a revoked region: %v", err)
		}
		if _, err := importer.Import(ctx, device.ImportSpec{UID: newUID(), PD: e.pd, Length: 1}, held[0]); !errors.Is(err, device.ErrNotFound) {
			t.Errorf("import from a closed device: %v", err)
		}
		if err := importer.chassis.Close(); err != nil {
			t.Fatal(err)
		}
		for _, f := range held {
			f.Close()
		}
	}
	if localBus.slots != nil || localBus.tokens != nil || localBus.keeper != nil {
		t.Errorf("left on the bus: %+v", localBus.slots)
	}
	if after := descriptors(t); !slices.Equal(after, before) {
		t.Errorf("descriptors %v, before %v", after, before)
	}
	if s := stacks(); strings.Contains(s, "openKeeper") {
		t.Errorf("the keeper still runs:\n%s", s)
	}
}

func stacks() string {
	var b bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&b, 2)
	return b.String()
}
