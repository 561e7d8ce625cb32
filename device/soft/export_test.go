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

// TestTrafficIntoImportedMemory writes from another chassis through one card into
// memory of its neighbour, which sees it, until the export is revoked. All
// descriptors are closed before (case D16).
func TestTrafficIntoImportedMemory(t *testing.T) {
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

// TestMoveUnderTraffic moves a buffer back and forth while another node writes to
// it through an importer and reads it back: no access fails and no byte is lost
// (case D06).
func TestMoveUnderTraffic(t *testing.T) {
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
