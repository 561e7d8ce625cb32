package soft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// exportOf makes a buffer of a card and an export of all of it.
func exportOf(t testing.TB, c *card, size uint64) (device.Buffer, device.Export) {
	t.Helper()
	ctx := context.Background()
	b, err := c.Allocate(ctx, device.BufferSpec{UID: newUID(), Size: size})
	if err != nil {
		t.Fatal(err)
	}
	x, err := c.CreateExport(ctx, device.ExportSpec{UID: newUID(), Address: b.Address, Length: size})
	if err != nil {
		t.Fatal(err)
	}
	return b, x
}

func openExport(t testing.TB, c *card, uid device.UID) *os.File {
	t.Helper()
	f, err := c.OpenExport(context.Background(), uid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func (e *end) imports(f *os.File, length uint64) device.Region {
	e.t.Helper()
	r, err := e.card.Import(context.Background(), device.ImportSpec{UID: newUID(), PD: e.pd, Length: length, Access: fullAccess}, f)
	if err != nil {
		e.t.Fatal(err)
	}
	return r
}

func readExport(t testing.TB, c *card, uid device.UID) device.Export {
	t.Helper()
	list, err := c.ListExports(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range list {
		if x.UID == uid {
			return x
		}
	}
	t.Fatalf("export %x is not listed", uid)
	return device.Export{}
}

// awaitExport reads an export until it is as wanted; events tell when to look.
func awaitExport(t testing.TB, c *card, uid device.UID, is func(device.Export) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for !is(readExport(t, c, uid)) {
		select {
		case <-c.Events():
		case <-ctx.Done():
			t.Fatalf("export stays %+v", readExport(t, c, uid))
		}
	}
}

// wire is a far card that is connected to a near one, which imports.
type wire struct{ far, near *end }

func newWire(t testing.TB, far, near *card, size uint64) wire {
	w := wire{newEnd(t, far, scaleOut(t, far), size), newEnd(t, near, scaleOut(t, near), 4096)}
	connect(t, w.far, w.near, ib.MTU4096)
	return w
}

func (w wire) write(r device.Region, n uint32) device.WorkRequest {
	return device.WorkRequest{Opcode: device.WorkWrite, SGL: w.far.sge(0, n), RemoteAddr: r.Address, RKey: r.RKey, Signaled: true}
}

// twoNodes gives the cards of a chassis and one of another.
func twoNodes(t testing.TB, options string) (near []*card, far *card) {
	dir := t.TempDir()
	return openChassis(t, dir, testSpec+options).cards, openChassis(t, dir, "soft:hls-2,cards=1,memory=64MiB,name=far").cards[0]
}

// TestD16TrafficIntoImportedMemory writes from another chassis through one card into
// memory of its neighbour, which sees it, until the export is revoked. All
// descriptors are closed before (case D16).
func TestD16TrafficIntoImportedMemory(t *testing.T) {
	near, far := twoNodes(t, "")
	exporter, importer := near[0], near[1]
	ctx := context.Background()
	const size = 1 << 18
	buf, x := exportOf(t, exporter, size)
	f := openExport(t, exporter, x.UID)
	w := newWire(t, far, importer, size)
	r := w.near.imports(f, size)
	if !r.Imported || r.Revoked || r.Address != buf.Address {
		t.Fatalf("region %+v", r)
	}
	f.Close()
	awaitExport(t, exporter, x.UID, func(x device.Export) bool { return x.Held == 0 && len(x.Attachments) == 1 })

	want := w.far.fill(7)
	w.far.post(w.write(r, size))
	w.far.succeed(1)
	got := make([]byte, size)
	if err := exporter.ReadMemory(ctx, buf.Address, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("the exporter's memory differs (%v)", err)
	}
	if err := exporter.Free(ctx, buf.UID); !errors.Is(err, device.ErrBusy) || !strings.Contains(err.Error(), fmt.Sprintf("exported 1 times, as %x", x.UID)) {
		t.Errorf("free: %v", err)
	}
	if err := exporter.DestroyExport(ctx, x.UID); !errors.Is(err, device.ErrBusy) {
		t.Errorf("destroy while attached: %v", err)
	}
	if err := exporter.RevokeExport(ctx, x.UID); err != nil {
		t.Fatal(err)
	}
	w.far.post(w.write(r, size))
	if wc := w.far.next(1)[0]; wc.Status != ib.RemAccessErr {
		t.Errorf("after the revoke: %+v", wc)
	}
	if list, _ := importer.ListRegions(ctx); !slices.ContainsFunc(list, func(l device.Region) bool { return l.UID == r.UID && l.Revoked }) {
		t.Errorf("regions %+v, want %x revoked", list, r.UID)
	}
	// Local use of it fails too.
	local := newWire(t, importer, far, 4096)
	local.far.post(device.WorkRequest{Opcode: device.WorkSend, SGL: []device.SGE{{Address: r.Address, Length: 64, LKey: r.LKey}}, Signaled: true})
	if wc := local.far.next(1)[0]; wc.Status != ib.LocProtErr {
		t.Errorf("local use after the revoke: %+v", wc)
	}
	if err := errors.Join(exporter.DestroyExport(ctx, x.UID), exporter.Free(ctx, buf.UID)); err != nil {
		t.Error(err)
	}
	if err := importer.DeregisterRegions(ctx, []device.UID{r.UID})[0]; err != nil {
		t.Error(err)
	}
}

// TestD06MoveUnderTraffic moves a buffer back and forth while another node writes to
// it through an importer and reads it back: no access fails and no byte is lost
// (case D06).
func TestD06MoveUnderTraffic(t *testing.T) {
	near, far := twoNodes(t, "")
	exporter, importer := near[0], near[1]
	ctx := context.Background()
	const size = 1 << 18
	buf, x := exportOf(t, exporter, size)
	own, err := exporter.Allocate(ctx, device.BufferSpec{UID: newUID(), Size: size}) // a neighbour
	if err != nil {
		t.Fatal(err)
	}
	mark := bytes.Repeat([]byte{0xee}, size)
	if err := exporter.WriteMemory(ctx, own.Address, mark); err != nil {
		t.Fatal(err)
	}
	w := newWire(t, far, importer, size)
	r := w.near.imports(openExport(t, exporter, x.UID), size)
	before := readExport(t, exporter, x.UID).Segments
	want := w.far.fill(3)
	stop := make(chan struct{})
	var moving sync.WaitGroup
	moving.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if b, err := exporter.MoveBuffer(ctx, buf.UID); err != nil || b != buf {
				t.Errorf("moved to %+v, %v", b, err)
				return
			}
		}
	})
	for range 50 {
		w.far.post(w.write(r, size))
		w.far.succeed(1)
	}
	close(stop)
	moving.Wait()
	got := make([]byte, size)
	if err := exporter.ReadMemory(ctx, buf.Address, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the buffer differs (%v)", err)
	}
	if err := exporter.ReadMemory(ctx, own.Address, got); err != nil || !bytes.Equal(got, mark) {
		t.Errorf("the neighbour changed (%v)", err)
	}
	// Twice is where it was: 256 KiB apart, the neighbour between them.
	at := readExport(t, exporter, x.UID).Segments
	if _, err := exporter.MoveBuffer(ctx, buf.UID); err != nil {
		t.Fatal(err)
	}
	after := readExport(t, exporter, x.UID).Segments
	if at[0].Address != after[0].Address || at[0].Bus == after[0].Bus || before[0].Address != after[0].Address {
		t.Errorf("segments %+v, then %+v, then %+v", before, at, after)
	}
}

// TestOwnRegionsFollow moves a buffer while another node reads and writes it by the
// card's own region.
func TestOwnRegionsFollow(t *testing.T) {
	near, far := twoNodes(t, "")
	ctx := context.Background()
	const size = 1 << 18
	w := wire{newEnd(t, far, scaleOut(t, far), size), newEnd(t, near[0], scaleOut(t, near[0]), size)}
	connect(t, w.far, w.near, ib.MTU4096)
	list, err := near[0].ListBuffers(ctx)
	if err != nil || len(list) != 1 {
		t.Fatalf("buffers %+v, %v", list, err)
	}
	for round := range 20 {
		want := w.far.fill(uint64(round))
		w.far.post(w.write(w.near.region, size), w.write(w.near.region, size))
		if _, err := near[0].MoveBuffer(ctx, list[0].UID); err != nil {
			t.Fatal(err)
		}
		w.far.succeed(2)
		if !bytes.Equal(w.near.bytes(), want) {
			t.Fatalf("round %d: what was written is not there", round)
		}
	}
}

func TestMoveLeavesZeros(t *testing.T) {
	c := openChassis(t, t.TempDir(), "soft:hls-2,cards=1,memory=64KiB").cards[0]
	ctx := context.Background()
	var uids []device.UID
	for range 4 {
		b, err := c.Allocate(ctx, device.BufferSpec{UID: newUID(), Size: 16384})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.WriteMemory(ctx, b.Address, bytes.Repeat([]byte{byte(len(uids) + 1)}, 16384)); err != nil {
			t.Fatal(err)
		}
		uids = append(uids, b.UID)
	}
	_, err := c.MoveBuffer(ctx, uids[3])
	if limit := (*device.LimitError)(nil); !errors.As(err, &limit) || limit.Kind != "memory_bytes" {
		t.Errorf("move in a full memory: %v", err)
	}
	if _, err := c.MoveBuffer(ctx, newUID()); !errors.Is(err, device.ErrNotFound) {
		t.Errorf("move of no buffer: %v", err)
	}
	// Holes of 16 KiB that a move joins to one of 32.
	for _, i := range []int{0, 2} {
		if err := c.Free(ctx, uids[i]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Allocate(ctx, device.BufferSpec{UID: newUID(), Size: 32768}); !errors.Is(err, device.ErrExhausted) {
		t.Fatalf("memory in pieces: %v", err)
	}
	if _, err := c.MoveBuffer(ctx, uids[1]); err != nil {
		t.Fatal(err)
	}
	big, err := c.Allocate(ctx, device.BufferSpec{UID: newUID(), Size: 32768})
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 32768)
	if err := c.ReadMemory(ctx, big.Address, p); err != nil || !bytes.Equal(p, make([]byte, 32768)) {
		t.Errorf("what was moved away from does not read as zeros (%v)", err)
	}
	for i, uid := range uids {
		if i%2 == 0 {
			continue
		}
		list, _ := c.ListBuffers(ctx)
		at := slices.IndexFunc(list, func(b device.Buffer) bool { return b.UID == uid })
		if err := c.ReadMemory(ctx, list[at].Address, p[:16384]); err != nil || !bytes.Equal(p[:16384], bytes.Repeat([]byte{byte(i + 1)}, 16384)) {
			t.Errorf("buffer %d changed (%v)", i, err)
		}
	}
}

// openNIC makes a NIC that is closed with the test.
func openNIC(t testing.TB, dir, spec string) *card {
	t.Helper()
	cfg, err := ParseNIC(spec)
	if err != nil {
		t.Fatal(err)
	}
	cfg.LockDir = dir
	ch, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ch.Close() })
	return ch.cards[0]
}

// TestD04AcceleratorMemoryByANIC takes the whole path: another node writes through a NIC into memory of
// an accelerator beside it.
func TestD04AcceleratorMemoryByANIC(t *testing.T) {
	dir := t.TempDir()
	exporter := openChassis(t, dir, "soft:hls-2,cards=1,memory=1MiB").cards[0]
	far := openChassis(t, dir, "soft:hls-2,cards=1,memory=1MiB,name=far").cards[0]
	nic := openNIC(t, dir, "soft-nic:mlx,import=pinned,memory=1MiB")
	ctx := context.Background()
	info := nic.Info()
	if info.ID != "mlx" || info.Driver != "soft-nic" || info.Ports != 2 || info.Limits.ExportPage != 0 || info.Topology != "" ||
		!slices.Contains(info.Capabilities, device.CapImport) || slices.Contains(info.Capabilities, device.CapMoveNotify) ||
		slices.Contains(info.Capabilities, device.CapExport) || slices.Contains(info.Capabilities, device.CapMove) {
		t.Errorf("info %+v", info)
	}
	for n := range 2 {
		if p, err := nic.Port(ctx, n); err != nil || p.Class != device.PortScaleOut || p.State != device.PortActive || p.IBPort != uint32(n+1) {
			t.Errorf("port %+v, %v", p, err)
		}
	}
	const size = 1 << 16
	buf, x := exportOf(t, exporter, size)
	for port := range 2 { // whichever port is used (case D04)
		w := wire{newEnd(t, far, scaleOut(t, far), size), newEnd(t, nic, port, 4096)}
		connect(t, w.far, w.near, ib.MTU4096)
		r := w.near.imports(openExport(t, exporter, x.UID), size)
		want := w.far.fill(uint64(port))
		w.far.post(w.write(r, size))
		w.far.succeed(1)
		got := make([]byte, size)
		if err := exporter.ReadMemory(ctx, buf.Address, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("through port %d: the accelerator's memory differs (%v)", port, err)
		}
		if err := nic.SetPort(ctx, port, false); err != nil { // the other must do
			t.Fatal(err)
		}
	}
	if _, err := exporter.MoveBuffer(ctx, buf.UID); !errors.Is(err, device.ErrBusy) || !strings.Contains(err.Error(), `pinned by ["mlx"]`) {
		t.Errorf("a move of pinned memory: %v", err)
	}
	for call, err := range map[string]error{
		"CreateExport": func() error {
			_, err := nic.CreateExport(ctx, device.ExportSpec{UID: newUID(), Length: 4096})
			return err
		}(),
		"MoveBuffer": func() error { _, err := nic.MoveBuffer(ctx, newUID()); return err }(),
	} {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s of a NIC: %v", call, err)
		}
	}
}

func TestParseNIC(t *testing.T) {
	for spec, want := range map[string]string{
		"soft-nic":                   "",
		"soft-nic:a,p2p=off":         "",
		"soft-nic,segment=64KiB":     "",
		"soft-nic:":                  "a software NIC is written as",
		"soft-nic:A":                 "lower-case letters",
		"soft-nic,ports=0":           "a number from 1 to 8",
		"soft-nic,ports=1,ports=2":   "ports is given twice",
		"soft-nic,import=some":       "dynamic, pinned or none",
		"soft-nic,p2p=maybe":         "on or off",
		"soft-nic,segment=100":       "a multiple of 4096",
		"soft-nic,bar=1MiB":          `unknown option "bar"`,
		"soft-nic,memory=1":          "from 4096",
		"soft-nicer":                 "a software NIC is written as",
		"soft-nic,network=127.0.0.1": "",
	} {
		if _, err := ParseNIC(spec); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", spec, err, want)
		}
	}
	for spec, want := range map[string]string{
		"soft:hls-2,bar=1":                          "at least 4096",
		"soft:hls-2,bar=64MiB,import=none,p2p=on":   "",
		"soft:hls-2,import=dynamic,segment=2097152": "",
	} {
		if _, err := ParseSpec(spec); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", spec, err, want)
		}
	}
}

// TestMoveCopiesNoHoles moves a buffer of 64 MiB of which one page was written.
func TestMoveCopiesNoHoles(t *testing.T) {
	c := openChassis(t, t.TempDir(), "soft:hls-2,cards=1,memory=256MiB").cards[0]
	ctx := context.Background()
	b, err := c.Allocate(ctx, device.BufferSpec{UID: newUID(), Size: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	want, got := []byte("in the middle of nothing"), make([]byte, 24)
	if err := c.WriteMemory(ctx, b.Address+32<<20, want); err != nil {
		t.Fatal(err)
	}
	before := allocated(t, c.memory.file)
	for range 3 {
		if _, err := c.MoveBuffer(ctx, b.UID); err != nil {
			t.Fatal(err)
		}
		if err := c.ReadMemory(ctx, b.Address+32<<20, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("it reads %q, %v", got, err)
		}
		if n := allocated(t, c.memory.file); n != before {
			t.Errorf("%d bytes are allocated, %d before", n, before)
		}
	}
}

// BenchmarkExportRound exports a page, gives a descriptor out, imports it into a
// NIC and ends it all.
func BenchmarkExportRound(b *testing.B) {
	dir := b.TempDir()
	exporter := openChassis(b, dir, "soft:hls-2,cards=1,memory=1MiB").cards[0]
	cfg, err := ParseNIC("soft-nic")
	if err != nil {
		b.Fatal(err)
	}
	cfg.LockDir, cfg.Rest = dir, time.Millisecond
	ch, err := Open(cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer ch.Close()
	nic := ch.cards[0]
	pd := nic.domain(b)
	ctx := context.Background()
	buf, err := exporter.Allocate(ctx, device.BufferSpec{UID: newUID(), Size: 4096})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		x, err := exporter.CreateExport(ctx, device.ExportSpec{UID: newUID(), Address: buf.Address, Length: 4096})
		if err != nil {
			b.Fatal(err)
		}
		f, err := exporter.OpenExport(ctx, x.UID)
		if err != nil {
			b.Fatal(err)
		}
		r, err := nic.Import(ctx, device.ImportSpec{UID: newUID(), PD: pd, Length: 4096, Access: fullAccess}, f)
		if err != nil {
			b.Fatal(err)
		}
		if err := errors.Join(nic.DeregisterRegions(ctx, []device.UID{r.UID})[0], f.Close(), exporter.DestroyExport(ctx, x.UID)); err != nil {
			b.Fatal(err)
		}
	}
}
