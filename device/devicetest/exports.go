package devicetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// Peers are an exporter and an importer of one node, which may be the same device,
// and a device from whose port packets reach that of the importer, but not by way
// of the exporter. The exporter's memory is reachable for the importer. They are
// empty and close with the test.
type Peers struct {
	Exporter, Importer, Remote device.Device
	PortImporter, PortRemote   int
}

// RunExports holds an exporter and an importer against the rules of
// device.Exports, device.Imports and device.Maintenance. Each call of open gives
// new devices. What the devices have no capability for is not asked of them.
func RunExports(t *testing.T, open func(t *testing.T) Peers) {
	cases := []struct {
		name string
		run  func(*testing.T, *peers)
	}{
		{"exports", testExports},
		{"exports of what is not right (case D03)", testBadExports},
		{"descriptors are counted", testDescriptors},
		{"imports", testImports},
		{"imports of what is not right (cases D08, D13)", testBadImports},
		{"bytes go through the attachment", testThrough},
		{"what is imported ends in any order", testEveryOrder},
		{"revoked in use", testRevokedInUse},
		{"the exporter is reset in use", testExporterReset},
		{"the importer is reset in use", testImporterReset},
		{"moved in use (case D06)", testMovedInUse},
		{"the exporter is closed in use", testExporterClosed},
		{"the importer is closed in use", testImporterClosed},
		{"no descriptor is left over", testDescriptorsFlat},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(t, newPeers(t, open(t))) })
	}
}

// peers is what a test has on the three devices.
type peers struct {
	Peers
	exporter, importer, remote *end
}

func newPeers(t *testing.T, p Peers) *peers {
	return &peers{p, newEnd(t, p.Exporter, 0), newEnd(t, p.Importer, p.PortImporter), newEnd(t, p.Remote, p.PortRemote)}
}

// page is the granularity of exports.
func (p *peers) page() uint64 { return p.Exporter.Info().Limits.ExportPage }

// export makes a buffer of some pages and an export of all of it.
func (e *end) export(pages uint64) (device.Buffer, device.Export) {
	e.t.Helper()
	b := e.buffer(pages * e.dev.Info().Limits.ExportPage)
	x, err := e.dev.CreateExport(e.t.Context(), device.ExportSpec{UID: NewUID(), Address: b.Address, Length: b.Size})
	if err != nil {
		e.t.Fatal(err)
	}
	return b, x
}

// open gives a descriptor that is closed with the test, if not before.
func (e *end) open(x device.Export) *os.File {
	e.t.Helper()
	f, err := e.dev.OpenExport(e.t.Context(), x.UID)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { f.Close() })
	return f
}

func (e *end) importOf(f *os.File, offset, length uint64) device.Region {
	e.t.Helper()
	r, err := e.dev.Import(e.t.Context(), device.ImportSpec{UID: NewUID(), PD: e.pd, Offset: offset, Length: length, Access: everyAccess}, f)
	if err != nil {
		e.t.Fatal(err)
	}
	return r
}

// exportNow reads an export; ok is false if there is none.
func (e *end) exportNow(uid device.UID) (x device.Export, ok bool) {
	e.t.Helper()
	list, err := e.dev.ListExports(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(x device.Export) bool { return x.UID == uid })
	if i < 0 {
		return x, false
	}
	return list[i], true
}

// await waits until is holds; events of the device say when to look.
func (e *end) await(what string, is func() bool) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), 30*time.Second)
	defer cancel()
	for !is() {
		select {
		case <-e.dev.Events():
		case <-ctx.Done():
			e.t.Fatalf("%s: it never comes", what)
		}
	}
}

func (e *end) deregister(r device.Region) error {
	return e.dev.DeregisterRegions(e.t.Context(), []device.UID{r.UID})[0]
}

func testExports(t *testing.T, p *peers) {
	ctx := t.Context()
	e := p.exporter
	if info := p.Exporter.Info(); p.page() == 0 || !has(p.Exporter, device.CapExport) {
		t.Fatalf("no exporter: %+v", info)
	}
	b := e.buffer(4 * p.page())
	spec := device.ExportSpec{UID: NewUID(), Address: b.Address + p.page(), Length: 2 * p.page()}
	first, err := p.Exporter.CreateExport(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	if first.UID != spec.UID || first.Address != spec.Address || first.Length != spec.Length || first.Revoked || first.Held != 0 || first.Opened != 0 || len(first.Attachments) != 0 {
		t.Errorf("export %+v", first)
	}
	at := spec.Address
	for _, s := range first.Segments {
		if s.Address != at || s.Length == 0 || s.Bus == 0 {
			t.Errorf("segments %+v", first.Segments)
		}
		at += s.Length
	}
	if at != spec.Address+spec.Length {
		t.Errorf("segments %+v are not all of it", first.Segments)
	}
	again, err := p.Exporter.CreateExport(ctx, spec)
	if err != nil || !reflect.DeepEqual(again, first) {
		t.Errorf("the same again: %+v, %v", again, err)
	}
	other := spec
	other.Length = p.page()
	_, err = p.Exporter.CreateExport(ctx, other)
	wantError(t, err, device.ErrExists)
	other.UID = NewUID() // a second export of the same bytes
	if _, err = p.Exporter.CreateExport(ctx, other); err != nil {
		t.Fatal(err)
	}
	wantError(t, p.Exporter.Free(ctx, b.UID), device.ErrBusy)
	for _, uid := range []device.UID{spec.UID, other.UID} {
		wantError(t, p.Exporter.DestroyExport(ctx, uid), nil)
		wantError(t, p.Exporter.DestroyExport(ctx, uid), device.ErrNotFound)
		wantError(t, p.Exporter.RevokeExport(ctx, uid), device.ErrNotFound)
		_, err := p.Exporter.OpenExport(ctx, uid)
		wantError(t, err, device.ErrNotFound)
	}
	if list, err := p.Exporter.ListExports(ctx); err != nil || len(list) != 0 {
		t.Errorf("left: %+v, %v", list, err)
	}
	wantError(t, p.Exporter.Free(ctx, b.UID), nil)
}

func testBadExports(t *testing.T, p *peers) {
	page := p.page()
	b := p.exporter.buffer(4 * page)
	for _, c := range []struct {
		address, length uint64
		field           string
	}{
		{b.Address, 0, "length"},
		{b.Address, page / 2, "length"},
		{b.Address, page + 1, "length"},
		{b.Address + 1, page, "address"},
		{b.Address, 5 * page, "length"},
		{b.Address + 3*page, 2 * page, "length"},
		{b.Address, -page, "length"},
		{-page, page, "length"}, // its end is beyond all addresses
		{-(2 * page), page, "address"},
		{0, page, "address"},
	} {
		_, err := p.Exporter.CreateExport(t.Context(), device.ExportSpec{UID: NewUID(), Address: c.address, Length: c.length})
		t.Run(fmt.Sprintf("%#x, %#x", c.address-b.Address, c.length), func(t *testing.T) { wantField(t, err, c.field) })
	}
	if list, err := p.Exporter.ListExports(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("left: %+v, %v", list, err)
	}
	wantError(t, p.Exporter.Free(t.Context(), b.UID), nil)
}

func testDescriptors(t *testing.T, p *peers) {
	ctx := t.Context()
	_, x := p.exporter.export(2)
	_, y := p.exporter.export(1)
	fx, fx2, fy := p.exporter.open(x), p.exporter.open(x), p.exporter.open(y)
	for _, c := range []struct {
		f    *os.File
		want device.UID
	}{{fx, x.UID}, {fx2, x.UID}, {fy, y.UID}} {
		if uid, err := p.Exporter.FindExport(ctx, c.f); err != nil || uid != c.want {
			t.Errorf("found %x, %v; want %x", uid, err, c.want)
		}
	}
	pipe, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer end.Close()
	_, err = p.Exporter.FindExport(ctx, pipe)
	wantError(t, err, device.ErrNotFound)
	_, err = p.Importer.Import(ctx, device.ImportSpec{UID: NewUID(), PD: p.importer.pd, Length: 1}, pipe)
	wantError(t, err, device.ErrNotFound)

	now, _ := p.exporter.exportNow(x.UID)
	if now.Opened != 2 || now.Held != 2 {
		t.Errorf("two are open: %+v", now)
	}
	fx.Close()
	p.exporter.await("the close of one of two", func() bool { now, _ := p.exporter.exportNow(x.UID); return now.Held == 1 })
	fx2.Close()
	p.exporter.await("the close of the last", func() bool { now, _ := p.exporter.exportNow(x.UID); return now.Held == 0 })
	if now, _ := p.exporter.exportNow(x.UID); now.Opened != 2 {
		t.Errorf("export %+v", now)
	}
	// An export that is not there any more has no descriptors.
	wantError(t, p.Exporter.DestroyExport(ctx, y.UID), nil)
	_, err = p.Exporter.FindExport(ctx, fy)
	wantError(t, err, device.ErrNotFound)
	_, err = p.Importer.Import(ctx, device.ImportSpec{UID: NewUID(), PD: p.importer.pd, Length: 1}, fy)
	wantError(t, err, device.ErrNotFound)
	// One that is revoked has, but they are good for nothing.
	fx = p.exporter.open(x)
	wantError(t, p.Exporter.RevokeExport(ctx, x.UID), nil)
	wantError(t, p.Exporter.RevokeExport(ctx, x.UID), nil)
	_, err = p.Importer.Import(ctx, device.ImportSpec{UID: NewUID(), PD: p.importer.pd, Length: 1}, fx)
	wantError(t, err, device.ErrRevoked)
	_, err = p.Exporter.OpenExport(ctx, x.UID)
	wantError(t, err, device.ErrRevoked)
	if now, ok := p.exporter.exportNow(x.UID); !ok || !now.Revoked {
		t.Errorf("export %+v", now)
	}
}

func testImports(t *testing.T, p *peers) {
	ctx := t.Context()
	if access, err := p.Importer.PeerAccess(ctx, p.Exporter.Info().ID); err != nil || !access.Reachable || access.Path == "" || access.Obstacle != "" {
		t.Fatalf("peer access %+v, %v", access, err)
	}
	_, err := p.Importer.PeerAccess(ctx, "no-such-device")
	wantError(t, err, device.ErrNotFound)

	b, x := p.exporter.export(4)
	f := p.exporter.open(x)
	page := p.page()
	spec := device.ImportSpec{UID: NewUID(), PD: p.importer.pd, Offset: page, Length: page + 5, Access: everyAccess}
	first, err := p.Importer.Import(ctx, spec, f)
	if err != nil {
		t.Fatal(err)
	}
	if first.UID != spec.UID || first.PD != spec.PD || first.Address != b.Address+page || first.Length != spec.Length || first.Access != spec.Access ||
		!first.Imported || first.Revoked || first.LKey == 0 || first.RKey == 0 {
		t.Errorf("region %+v", first)
	}
	again, err := p.Importer.Import(ctx, spec, f)
	if err != nil || again != first {
		t.Errorf("the same again: %+v, %v", again, err)
	}
	other := spec
	other.Length--
	_, err = p.Importer.Import(ctx, other, f)
	wantError(t, err, device.ErrExists)
	own := p.importer.region(p.importer.buffer(page), 0)
	other.UID = own.UID
	_, err = p.Importer.Import(ctx, other, f)
	wantError(t, err, device.ErrExists)
	wantError(t, p.Importer.RegisterRegions(ctx, []device.RegionSpec{{UID: first.UID, PD: first.PD, Address: first.Address, Length: first.Length, Access: first.Access}})[0].Err, device.ErrExists)

	// Two of one export are two.
	second := p.importer.importOf(f, 2*page, 7)
	now, _ := p.exporter.exportNow(x.UID)
	if len(now.Attachments) != 2 {
		t.Fatalf("attachments %+v", now.Attachments)
	}
	for i, want := range []device.Attachment{
		{Region: first.UID, Offset: page, Length: page + 5}, {Region: second.UID, Offset: 2 * page, Length: 7},
	} {
		got := now.Attachments[i]
		want.Importer, want.Dynamic, want.Since = p.Importer.Info().ID, has(p.Importer, device.CapMoveNotify), got.Since
		if got != want || got.Since.IsZero() {
			t.Errorf("attachment %+v, want %+v", got, want)
		}
	}
	list, err := p.Importer.ListRegions(ctx)
	if err != nil || !slices.Contains(list, first) || !slices.Contains(list, second) || !slices.Contains(list, own) || len(list) != 3 {
		t.Errorf("regions %+v, %v", list, err)
	}
	wantError(t, p.Importer.DestroyProtectionDomains(ctx, p.importer.domainUID(spec.PD))[0], device.ErrBusy)
	wantError(t, p.Exporter.DestroyExport(ctx, x.UID), device.ErrBusy)
	wantError(t, p.importer.deregister(first), nil)
	wantError(t, p.importer.deregister(first), device.ErrNotFound)
	wantError(t, p.Exporter.DestroyExport(ctx, x.UID), device.ErrBusy)
	wantError(t, p.importer.deregister(second), nil)
	wantError(t, p.Exporter.DestroyExport(ctx, x.UID), nil)
	wantError(t, p.Exporter.Free(ctx, b.UID), nil)
}

// domainUID finds the identity of a domain by its handle.
func (e *end) domainUID(pd device.PD) (uids []device.UID) {
	e.t.Helper()
	list, err := e.dev.ListProtectionDomains(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	for _, d := range list {
		if d.PD == pd {
			uids = append(uids, d.UID)
		}
	}
	return uids
}

func testBadImports(t *testing.T, p *peers) {
	_, x := p.exporter.export(4)
	f := p.exporter.open(x)
	page := p.page()
	good := device.ImportSpec{PD: p.importer.pd, Offset: page, Length: page, IOVA: 16 * page, Access: everyAccess}
	for _, c := range []struct {
		field  string
		change func(*device.ImportSpec)
	}{
		{"length", func(s *device.ImportSpec) { s.Length = 0 }},
		{"length", func(s *device.ImportSpec) { s.Length = 3*page + 1 }},
		{"length", func(s *device.ImportSpec) { s.Length = -page }},
		{"offset", func(s *device.ImportSpec) { s.Offset = 4 * page }},
		{"offset", func(s *device.ImportSpec) { s.Offset = -page }},
		{"iova", func(s *device.ImportSpec) { s.IOVA++ }},
		{"iova", func(s *device.ImportSpec) { s.Offset++ }},
		{"iova", func(s *device.ImportSpec) { s.IOVA, s.Length = -page, 2*page }},
		{"access", func(s *device.ImportSpec) { s.Access = ib.RemoteWrite }},
		{"protection_domain", func(s *device.ImportSpec) { s.PD += 12345 }},
	} {
		bad := good
		bad.UID = NewUID()
		c.change(&bad)
		_, err := p.Importer.Import(t.Context(), bad, f)
		wantField(t, err, c.field)
	}
	if now, _ := p.exporter.exportNow(x.UID); len(now.Attachments) != 0 {
		t.Errorf("left: %+v", now)
	}
	good.UID = NewUID()
	if r, err := p.Importer.Import(t.Context(), good, f); err != nil || r.Address != good.IOVA {
		t.Errorf("region %+v, %v", r, err)
	}
}

// testEveryOrder ends what there is of an import in all orders.
func testEveryOrder(t *testing.T, p *peers) {
	ctx := t.Context()
	steps := []string{"close", "detach", "revoke", "destroy"}
	for _, order := range permutations(steps) {
		b, x := p.exporter.export(1)
		f := p.exporter.open(x)
		r := p.importer.importOf(f, 0, p.page())
		attached, destroyed := true, false
		for _, step := range order {
			var err, want error
			switch step {
			case "close":
				err = f.Close()
			case "detach":
				err, attached = p.importer.deregister(r), false
			case "revoke":
				err, attached = p.Exporter.RevokeExport(ctx, x.UID), false
				if destroyed {
					want = device.ErrNotFound
				}
			case "destroy":
				if err = p.Exporter.DestroyExport(ctx, x.UID); attached {
					want = device.ErrBusy
				}
				destroyed = !attached
			}
			if !errors.Is(err, want) {
				t.Fatalf("%v: %s: %v, want %v", order, step, err, want)
			}
		}
		if !destroyed {
			wantError(t, p.Exporter.DestroyExport(ctx, x.UID), nil)
		}
		if err := p.Exporter.Free(ctx, b.UID); err != nil {
			t.Fatalf("%v: %v", order, err)
		}
	}
	exports, err := p.Exporter.ListExports(ctx)
	regions, err2 := p.Importer.ListRegions(ctx)
	if len(exports)+len(regions) != 0 || err != nil || err2 != nil {
		t.Errorf("left: %+v, %+v, %v, %v", exports, regions, err, err2)
	}
}

func permutations(list []string) (all [][]string) {
	if len(list) <= 1 {
		return [][]string{list}
	}
	for i := range list {
		rest := append(slices.Clone(list[:i]), list[i+1:]...)
		for _, p := range permutations(rest) {
			all = append(all, append([]string{list[i]}, p...))
		}
	}
	return all
}

// testDescriptorsFlat does the whole thing again and again.
func testDescriptorsFlat(t *testing.T, p *peers) {
	rounds := 10_000
	if testing.Short() {
		rounds = 500
	}
	ctx := t.Context()
	b := p.exporter.buffer(p.page())
	round := func() {
		x, err := p.Exporter.CreateExport(ctx, device.ExportSpec{UID: NewUID(), Address: b.Address, Length: b.Size})
		if err != nil {
			t.Fatal(err)
		}
		f, err := p.Exporter.OpenExport(ctx, x.UID)
		if err != nil {
			t.Fatal(err)
		}
		r := p.importer.importOf(f, 0, b.Size)
		if err := errors.Join(p.importer.deregister(r), f.Close(), p.Exporter.DestroyExport(ctx, x.UID)); err != nil {
			t.Fatal(err)
		}
	}
	round()
	before := openDescriptors(t)
	for range rounds {
		round()
	}
	if after := openDescriptors(t); after != before {
		t.Errorf("%d descriptors after %d rounds, %d before", after, rounds, before)
	}
	wantError(t, p.Exporter.Free(ctx, b.UID), nil)
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err) // not on Linux
	}
	return len(list)
}
