package soft

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/accelfab/accelfab/device"
)

// TestRealDMABufs opens a card whose exports are real dma-bufs. Where the kernel
// makes none, that is refused in words and nothing is left; test/dmabuf runs this
// where it does.
func TestRealDMABufs(t *testing.T) {
	dir := t.TempDir()
	const spec = "soft:hls-2,cards=2,memory=1MiB,dmabuf=udmabuf"
	if _, err := os.Stat(udmabufDevice); err != nil {
		cfg, err := ParseSpec(spec)
		if err != nil {
			t.Fatal(err)
		}
		cfg.LockDir = dir
		before := descriptors(t)
		_, err = Open(cfg)
		if err == nil || !strings.Contains(err.Error(), "modprobe udmabuf") || !errors.Is(err, os.ErrNotExist) {
			t.Errorf("without %s: %v", udmabufDevice, err)
		}
		if after := descriptors(t); len(after) > len(before) {
			t.Errorf("open are %v, before %v", after, before)
		}
		return
	}
	cards := openChassis(t, dir, spec).cards
	exporter, importer := cards[0], cards[1]
	ctx := context.Background()
	if !slices.Contains(exporter.info.Capabilities, device.CapMappable) {
		t.Errorf("capabilities %v", exporter.info.Capabilities)
	}
	const size = 16384
	buf, x := exportOf(t, exporter, size)
	read := func() device.Export {
		list, err := exporter.ListExports(ctx)
		if err != nil || len(list) != 1 {
			t.Fatalf("%v, %v", list, err)
		}
		return list[0]
	}
	if !x.Mappable || read().Held != 0 {
		t.Errorf("export %+v", read())
	}
	f, g := openExport(t, exporter, x.UID), openExport(t, exporter, x.UID)
	if e := read(); e.Held != 2 || e.Opened != 2 {
		t.Errorf("export %+v", e)
	}
	data, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(data)
	want := bytes.Repeat([]byte("card"), size/4)
	if err := exporter.WriteMemory(ctx, buf.Address, want); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(data, want) {
		t.Error("the mapping does not show what the card wrote")
	}
	if uid, err := exporter.FindExport(ctx, g); err != nil || uid != x.UID {
		t.Errorf("found %v, %v", uid, err)
	}
	if _, err := importer.FindExport(ctx, g); !errors.Is(err, device.ErrNotFound) {
		t.Errorf("found by another card: %v", err)
	}
	region, err := importer.Import(ctx, device.ImportSpec{UID: newUID(), PD: importer.domain(t), Length: size}, g)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exporter.MoveBuffer(ctx, buf.UID); !errors.Is(err, device.ErrBusy) {
		t.Errorf("move: %v", err)
	}
	if err := exporter.DestroyExport(ctx, x.UID); !errors.Is(err, device.ErrBusy) {
		t.Errorf("destroy of what is attached: %v", err)
	}
	// What can be revoked is: the importer, not the mapping.
	if err := exporter.RevokeExport(ctx, x.UID); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("revoke: %v", err)
	}
	if e := read(); e.Revoked || len(e.Attachments) != 0 {
		t.Errorf("export %+v", e)
	}
	if err := errors.Join(importer.DeregisterRegions(ctx, []device.UID{region.UID})...); err != nil {
		t.Error(err)
	}
	if err := exporter.DestroyExport(ctx, x.UID); err != nil {
		t.Error(err)
	}
	if _, err := exporter.FindExport(ctx, g); !errors.Is(err, device.ErrNotFound) {
		t.Errorf("found after it was destroyed: %v", err)
	}
	if err := exporter.Free(ctx, buf.UID); err != nil {
		t.Error(err)
	}
	next, err := exporter.Allocate(ctx, device.BufferSpec{UID: newUID(), Size: size})
	if err != nil {
		t.Fatal(err)
	}
	if err := exporter.WriteMemory(ctx, next.Address, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(data, want) {
		t.Error("the mapping shows what came after its buffer was freed")
	}
}
