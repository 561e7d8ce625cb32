package soft

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

func wantAttach(t *testing.T, err error, reason device.AttachReason, problem string, alternatives ...string) {
	t.Helper()
	var a *device.AttachError
	if !errors.As(err, &a) || !errors.Is(err, device.ErrAttach) || a.Reason != reason || !strings.Contains(a.Problem, problem) {
		t.Errorf("error %v, want %s with %q", err, reason, problem)
		return
	}
	slices.Sort(a.Alternatives)
	if !slices.Equal(a.Alternatives, alternatives) {
		t.Errorf("%v: alternatives %q, want %q", err, a.Alternatives, alternatives)
	}
}

func (c *card) domain(t testing.TB) device.PD {
	t.Helper()
	r := c.CreateProtectionDomains(context.Background(), []device.UID{newUID()})[0]
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	return r.PD
}

// peerMap is a port map of two cards that says what is in the way.
const peerMap = `
name: two
cards:
  - {card: 0, ports: 1:0 SO}
  - {card: 1, ports: 0:0 SO}
peerAccess:
  - {importer: far-nic, exporter: "0", obstacle: "IOMMU of root port 0000:00:01.0 has no mapping"}
  - {importer: near-nic, exporter: "0", path: PCIe switch 03:00.0}
`

// TestD01D09D10D11WhoCannotAttachIsTold holds refusals of every kind, each with the devices
// that could do it (cases D01, D09, D10, D11).
func TestD01D09D10D11WhoCannotAttachIsTold(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "two.yaml")
	if err := os.WriteFile(path, []byte(peerMap), 0o600); err != nil {
		t.Fatal(err)
	}
	chassis := openChassis(t, dir, "soft:"+path+",name=acc,memory=1MiB,bar=64KiB").cards
	exporter := chassis[0]
	ctx := context.Background()
	_, inside := exportOf(t, exporter, 1<<15)
	outside, half := exportOf(t, exporter, 1<<16)
	if got := exporter.cut(half.UID); got != 1<<15 {
		t.Errorf("%d bytes of an export that leaves the aperture are on the bus", got)
	}
	f, g := openExport(t, exporter, inside.UID), openExport(t, exporter, half.UID)
	try := func(c *card, f *os.File, offset, length uint64) error {
		_, err := c.Import(ctx, device.ImportSpec{UID: newUID(), PD: c.domain(t), Offset: offset, Length: length}, f)
		return err
	}
	access := func(c *card) device.PeerAccess {
		a, err := c.PeerAccess(ctx, exporter.info.ID)
		if err != nil || a.Importer != c.info.ID || a.Exporter != exporter.info.ID {
			t.Errorf("%+v, %v", a, err)
		}
		return a
	}
	near := openNIC(t, dir, "soft-nic:near-nic")
	far := openNIC(t, dir, "soft-nic:far-nic")
	host := openNIC(t, dir, "soft-nic:host-nic,p2p=off")
	plain := openNIC(t, dir, "soft-nic:plain-nic,import=none")
	small := openNIC(t, dir, "soft-nic:small-nic,segment=4KiB")

	others := func(but ...string) []string {
		return slices.DeleteFunc([]string{"acc-1", "near-nic", "small-nic"}, func(id string) bool { return slices.Contains(but, id) })
	}
	for _, c := range []*card{near, chassis[1], exporter, small} { // also of its own
		if err := try(c, f, 0, 1<<15); err != nil {
			t.Errorf("%s: %v", c.info.ID, err)
		}
	}
	wantAttach(t, try(host, f, 0, 1), device.NoPeerToPeer, "host-nic reaches host memory alone", others()...)
	wantAttach(t, try(plain, f, 0, 1), device.NoImport, "plain-nic imports no memory", others()...)
	wantAttach(t, try(far, f, 0, 1), device.NotReachable,
		"far-nic ("+far.info.PCIAddress+") does not reach memory of acc-0 (0000:10:00.0): IOMMU of root port 0000:00:01.0 has no mapping", others()...)
	// The half in the aperture can be attached, the whole cannot, by nobody.
	if err := try(near, g, 0, 1<<15); err != nil {
		t.Error(err)
	}
	wantAttach(t, try(near, g, 0, 1<<15+1), device.NotInAperture, "first 65536 bytes")
	wantAttach(t, try(near, g, 1<<15, 1), device.NotInAperture, "move the buffer")
	// It is attached where it is and could not follow out of the aperture.
	if _, err := exporter.MoveBuffer(ctx, outside.UID); !errors.Is(err, device.ErrBusy) || !strings.Contains(err.Error(), "outside of the aperture") {
		t.Errorf("move out of the aperture: %v", err)
	}
	if _, err := exporter.ListExports(ctx); err != nil {
		t.Errorf("the exporter after all refusals: %v", err)
	}

	for _, c := range []struct {
		*card
		path, obstacle string
	}{
		{near, "PCIe switch 03:00.0", ""}, {chassis[1], "same chassis", ""}, {small, "same node", ""}, {exporter, "same device", ""},
		{far, "", "IOMMU of root port"}, {host, "same node", "reaches host memory alone"}, {plain, "same node", "imports no memory"},
	} {
		if a := access(c.card); a.Reachable != (c.obstacle == "") || a.Path != c.path || !strings.Contains(a.Obstacle, c.obstacle) {
			t.Errorf("%s: %+v, want path %q, obstacle %q", c.info.ID, a, c.path, c.obstacle)
		}
	}
	if a, err := exporter.PeerAccess(ctx, "near-nic"); err != nil || a.Reachable || a.Obstacle != "near-nic has no memory to reach" {
		t.Errorf("memory of a NIC: %+v, %v", a, err)
	}
	if _, err := near.PeerAccess(ctx, "acc-7"); !errors.Is(err, device.ErrNotFound) {
		t.Errorf("no such device: %v", err)
	}
}

// cut sums the segments of an export.
func (c *card) cut(uid device.UID) (n uint64) {
	localBus.mu.Lock()
	defer localBus.mu.Unlock()
	for _, s := range c.exports[uid].read().Segments {
		n += s.Length
	}
	return n
}

// TestOtherNodesAreNotReached: what one process holds may be of several nodes.
func TestOtherNodesAreNotReached(t *testing.T) {
	cfg, err := ParseNIC("soft-nic")
	if err != nil {
		t.Fatal(err)
	}
	cfg.LockDir, cfg.NodeID = t.TempDir(), "other"
	ch, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer ch.Close()
	c, _, f := tokenOf(t)
	_, err = ch.cards[0].Import(context.Background(), device.ImportSpec{UID: newUID(), PD: ch.cards[0].domain(t), Length: 1}, f)
	wantAttach(t, err, device.NotReachable, "another node")
	if _, err := ch.cards[0].PeerAccess(context.Background(), c.info.ID); !errors.Is(err, device.ErrNotFound) {
		t.Errorf("peer access: %v", err)
	}
}

// TestSegments splits the scatter list by the largest piece of who is attached.
func TestSegments(t *testing.T) {
	dir := t.TempDir()
	exporter := openChassis(t, dir, "soft:hls-2,cards=1,memory=1MiB").cards[0]
	small := openNIC(t, dir, "soft-nic:small,segment=8KiB")
	ctx := context.Background()
	buf, x := exportOf(t, exporter, 20480)
	if len(x.Segments) != 1 || x.Segments[0].Address != buf.Address || x.Segments[0].Length != 20480 || x.Segments[0].Bus == 0 {
		t.Errorf("segments %+v", x.Segments)
	}
	if _, err := small.Import(ctx, device.ImportSpec{UID: newUID(), PD: small.domain(t), Offset: 4100, Length: 100, IOVA: 4}, openExport(t, exporter, x.UID)); err != nil {
		t.Fatal(err)
	}
	got := readExport(t, exporter, x.UID)
	at := uint64(0)
	for i, s := range got.Segments {
		if s.Address != buf.Address+at || s.Bus != x.Segments[0].Bus+at || s.Length != min(8192, 20480-at) {
			t.Errorf("segment %d: %+v", i, s)
		}
		at += s.Length
	}
	if at != 20480 || len(got.Attachments) != 1 {
		t.Errorf("export %+v", got)
	}
	if a := got.Attachments[0]; a.Importer != "small" || a.Offset != 4100 || a.Length != 100 || !a.Dynamic || a.Since.IsZero() {
		t.Errorf("attachment %+v", a)
	}
	// More pieces than an importer takes.
	big := openChassis(t, dir, "soft:hls-2,cards=1,memory=1GiB,name=big").cards[0]
	_, whole := exportOf(t, big, 512<<20)
	tiny := openNIC(t, dir, "soft-nic:tiny,segment=4KiB")
	_, err := tiny.Import(ctx, device.ImportSpec{UID: newUID(), PD: tiny.domain(t), Length: 512 << 20}, openExport(t, big, whole.UID))
	wantAttach(t, err, device.SegmentTooLong, "131072 pieces", "small", "soft-0")
}

// TestD08D13Windows imports windows of one export (case D08): each reaches its own bytes
// and nothing outside (case D13).
func TestD08D13Windows(t *testing.T) {
	near, far := twoNodes(t, "")
	exporter, importer := near[0], near[1]
	ctx := context.Background()
	const size = 16384
	buf, x := exportOf(t, exporter, size)
	f := openExport(t, exporter, x.UID)
	w := newWire(t, far, importer, size)
	want := make([]byte, size)
	for i, offset := range []uint64{0, 4096, 4097, 10_000} {
		for _, iova := range []uint64{0, 7<<20 + offset%4096} {
			spec := device.ImportSpec{UID: newUID(), PD: w.near.pd, Offset: offset, Length: 1000, IOVA: iova, Access: fullAccess}
			r, err := importer.Import(ctx, spec, f)
			if err != nil {
				t.Fatal(err)
			}
			if iova == 0 {
				iova = buf.Address + offset
			}
			if r.Address != iova || r.Length != 1000 {
				t.Errorf("region %+v, want it at %#x", r, iova)
			}
			copy(want[offset:], w.far.fill(uint64(i))[:1000])
			w.far.post(w.write(r, 1000))
			w.far.succeed(1)
			// One byte before and one behind.
			for _, at := range []uint64{iova - 1, iova + 1} {
				edge := newWire(t, far, importer, size)
				spec.UID, spec.PD = newUID(), edge.near.pd
				r, err := importer.Import(ctx, spec, f)
				if err != nil {
					t.Fatal(err)
				}
				wr := edge.write(r, 1000)
				wr.RemoteAddr = at
				edge.far.post(wr)
				if wc := edge.far.next(1)[0]; wc.Status != ib.RemAccessErr {
					t.Errorf("1000 bytes at %#x of a region at %#x: %+v", at, iova, wc)
				}
			}
		}
	}
	got := make([]byte, size)
	if err := exporter.ReadMemory(ctx, buf.Address, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the buffer differs (%v)", err)
	}
}
