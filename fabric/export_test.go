package fabric_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/fabric"
)

const (
	exportE = d0 + "/memoryExports/e"
	regionI = d1 + "/memoryRegions/i"
)

// export makes a buffer of alice's on d0 and an export of it.
func (w *world) export(fetchers ...fabric.Fetcher) fabric.MemoryExport {
	w.t.Helper()
	w.session("s", alice)
	w.buffer("b", "nodes/n1/sessions/s", 3*4096)
	return w.exportOf("e", fetchers...)
}

func (w *world) exportOf(id string, fetchers ...fabric.Fetcher) fabric.MemoryExport {
	w.t.Helper()
	e, err := w.f.CreateMemoryExport(ctx(), alice, fabric.CreateMemoryExport{Create: fabric.Create{Parent: d0, ID: id}, Buffer: d0 + "/buffers/b", Fetchers: fetchers})
	return must(e, err)
}

func (w *world) getExport() fabric.MemoryExport {
	w.t.Helper()
	e, err := w.f.GetMemoryExport(ctx(), alice, exportE)
	return must(e, err)
}

func (w *world) getRegion(c fabric.Caller) fabric.MemoryRegion {
	w.t.Helper()
	m, err := w.f.GetMemoryRegion(ctx(), c, regionI)
	return must(m, err)
}

func (w *world) fetch(c fabric.Caller) *os.File {
	w.t.Helper()
	f, err := w.f.FetchDescriptor(ctx(), c, exportE)
	return must(f, err)
}

// upload fetches as alice, and uploads as c.
func (w *world) upload(c fabric.Caller) (fabric.Upload, *os.File) {
	w.t.Helper()
	f := w.fetch(alice)
	u, err := w.f.UploadDescriptor(ctx(), c, f)
	return must(u, err), f
}

// importing is a request of c for a region on d1, in a session of its own.
func (w *world) importing(c fabric.Caller, upload string) fabric.CreateMemoryRegion {
	w.t.Helper()
	id := "i" + strings.TrimPrefix(c.Identity, "uid:")
	s := w.session(id, c)
	pd, err := w.f.CreateProtectionDomain(ctx(), c, fabric.CreateProtectionDomain{Create: fabric.Create{Parent: d1, ID: id}, Session: s.Name})
	return fabric.CreateMemoryRegion{Create: fabric.Create{Parent: d1, ID: "i"}, ProtectionDomain: must(pd, err).Name, Access: ib.LocalWrite,
		Import: &fabric.CreateImport{Upload: upload, Offset: 4096, Length: 4096}}
}

// imported is an export of alice's and bob's region of a part of it.
func (w *world) imported() fabric.MemoryRegion {
	w.t.Helper()
	w.export()
	u, _ := w.upload(bob)
	m, err := w.f.CreateMemoryRegion(ctx(), bob, w.importing(bob, u.ID))
	return must(m, err)
}

func isClosed(f *os.File) bool { return errors.Is(f.Close(), os.ErrClosed) }

// told says whether the journal has an event about a resource.
func (w *world) told(t *testing.T, resource, actor string, reason fabric.Reason, message string) {
	t.Helper()
	var about []string
	for _, e := range w.events() {
		if e.Resource == resource {
			if e.Actor == actor && e.Reason == reason && strings.Contains(e.Message, message) {
				return
			}
			about = append(about, e.Actor+" "+string(e.Reason)+" "+e.Before+" -> "+e.After+": "+e.Message)
		}
	}
	t.Errorf("no event of %s about %s, %s, %q; there are:\n%s", actor, resource, reason, message, strings.Join(about, "\n"))
}

func TestAnExportAndWhoHoldsIt(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		e := w.export()
		if e.State != fabric.StateActive || e.Length != 3*4096 || len(e.Segments) != 1 || e.Orphan != "" && e.Orphan != fabric.OrphanUnfetched {
			t.Fatalf("%+v", e)
		}
		u, file := w.upload(bob)
		if u.Export != exportE || u.Length != e.Length || len(u.ID) != 32 {
			t.Fatalf("%+v", u)
		}
		r := w.importing(bob, u.ID)
		m := must(w.f.CreateMemoryRegion(ctx(), bob, r))
		if m.State != fabric.StateReady || m.Import == nil || m.Import.Export != exportE || m.Import.Path != "a test" || m.Length != 4096 || m.Buffer != "" || m.RKey == 0 {
			t.Fatalf("%+v, %+v", m, m.Import)
		}
		if !isClosed(file) {
			t.Error("the descriptor is still open")
		}
		e = w.getExport()
		if len(e.Attachments) != 1 || e.Attachments[0].Region != m.Name || e.Attachments[0].Device != d1 || e.Attachments[0].Offset != 4096 || e.Fetches != 1 || e.Held != 1 || e.Orphan != "" {
			t.Fatalf("%+v", e)
		}
		if b := must(w.f.GetBuffer(ctx(), alice, d0+"/buffers/b")); b.MemoryExports != 1 {
			t.Errorf("%+v", b)
		}
		err := refused(t, w.f.DeleteBuffer(ctx(), alice, fabric.Delete{Name: d0 + "/buffers/b"}), fabric.InUse, "")
		if len(err.Shortage.Holders) != 1 || err.Shortage.Holders[0].Name != exportE {
			t.Errorf("free of an exported buffer: %v", err)
		}
		err = refused(t, w.f.DeleteMemoryExport(ctx(), alice, fabric.Delete{Name: exportE}), fabric.InUse, "")
		if len(err.Shortage.Holders) != 1 || err.Shortage.Holders[0].Name != m.Name {
			t.Errorf("delete of an attached export: %v", err)
		}
		if err := w.f.DeleteMemoryRegion(ctx(), bob, fabric.Delete{Name: m.Name}); err != nil {
			t.Fatal(err)
		}
		if err := w.f.DeleteMemoryExport(ctx(), alice, fabric.Delete{Name: exportE}); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		w.told(t, exportE, "uid:1000", fabric.CauseRequested, "descriptor fetched by uid:1000, pid 4711")
		w.told(t, exportE, "uid:2000", fabric.CauseRequested, "imported: bytes 4096 to 8191 by "+m.Name)
	})
}

func TestRevoke(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.imported()
		waiting, file := w.upload(bob)
		for range 2 { // the second changes nothing
			e := must(w.f.RevokeMemoryExport(ctx(), alice, fabric.Update{Name: exportE}))
			if e.State != fabric.StateRevoked || e.Condition.Reason != fabric.ExportRevoked || len(e.Attachments) != 0 {
				t.Fatalf("%+v", e)
			}
		}
		if m := w.getRegion(bob); m.State != fabric.StateLost || m.Condition.Reason != fabric.ExportRevoked || !strings.Contains(m.Condition.Message, exportE) {
			t.Errorf("%+v", m)
		}
		if !isClosed(file) {
			t.Error("the descriptor that waited to be used is still open")
		}
		r := w.importing(root, waiting.ID)
		r.ID = "late"
		_, err := w.f.CreateMemoryRegion(ctx(), root, r)
		refused(t, err, fabric.NotFound, "import_source.upload_id")
		_, err = w.f.FetchDescriptor(ctx(), alice, exportE)
		refused(t, err, fabric.ExportRevoked, "")
		pass(time.Second)
		w.told(t, exportE, "uid:1000", fabric.CauseRequested, "")
		w.told(t, regionI, "system", fabric.ExportRevoked, "")
		// Also over a restart, whether or not the device has kept it.
		for _, lose := range []bool{false, true} {
			w.restart(lose)
			if e := w.getExport(); e.State != fabric.StateRevoked || e.Condition.Reconciling {
				t.Errorf("lose %v: %+v", lose, e)
			}
			if m := w.getRegion(bob); m.State != fabric.StateLost {
				t.Errorf("lose %v: %+v", lose, m)
			}
		}
		if err := w.f.DeleteMemoryExport(ctx(), alice, fabric.Delete{Name: exportE}); err != nil {
			t.Error(err)
		}
	})
}

// A revocation that was recorded is done, whoever still waits for it, also by
// the daemon that comes after.
func TestARevocationIsDoneInTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.imported()
		w.cards[0].fail("RevokeExport", errIO)
		_, err := w.f.RevokeMemoryExport(ctx(), alice, fabric.Update{Name: exportE})
		refused(t, err, fabric.Timeout, "")
		if e := w.getExport(); e.State != fabric.StateRevoking || !e.Condition.Reconciling {
			t.Errorf("%+v", e)
		}
		_, err = w.f.FetchDescriptor(ctx(), alice, exportE)
		refused(t, err, fabric.ExportRevoked, "")
		w.restart(false)
		w.cards[0].fail("RevokeExport", nil)
		pass(time.Minute)
		if e := w.getExport(); e.State != fabric.StateRevoked {
			t.Errorf("%+v", e)
		}
		if m := w.getRegion(bob); m.State != fabric.StateLost || m.Condition.Reason != fabric.ExportRevoked {
			t.Errorf("%+v", m)
		}
	})
}

func TestAMappableExportCannotBeRevoked(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.cards[0].mappable = true
		if e := w.export(); !e.Mappable {
			t.Fatalf("%+v", e)
		}
		_, err := w.f.RevokeMemoryExport(ctx(), alice, fabric.Update{Name: exportE})
		refused(t, err, fabric.Unsupported, "")
		if e := w.getExport(); e.State != fabric.StateActive {
			t.Errorf("%+v", e)
		}
	})
}

// D16: the export lives as long as its session, whoever holds a descriptor; then
// what was made of it is cut off, also in other sessions.
func TestD16TheEndOfTheSessionRevokes(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.imported()
		if err := w.f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: "nodes/n1/sessions/s"}}); err != nil {
			t.Fatal(err)
		}
		if m := w.getRegion(bob); m.State != fabric.StateLost || m.Condition.Reason != fabric.ExportRevoked {
			t.Errorf("%+v", m)
		}
		if err := w.f.DeleteMemoryRegion(ctx(), bob, fabric.Delete{Name: regionI}); err != nil {
			t.Error(err)
		}
	})
}

func TestExportsOverARestart(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.imported()
		w.restart(false)
		if e := w.getExport(); e.State != fabric.StateActive || len(e.Attachments) != 1 {
			t.Errorf("kept: %+v", e)
		}
		if m := w.getRegion(bob); m.State != fabric.StateReady || m.Import == nil || m.Import.Export != exportE {
			t.Errorf("kept: %+v", m)
		}
		w.restart(true)
		if e := w.getExport(); e.State != fabric.StateLost || e.Condition.Reason != fabric.Lost || len(e.Segments) != 0 {
			t.Errorf("lost: %+v", e)
		}
		if m := w.getRegion(bob); m.State != fabric.StateLost {
			t.Errorf("lost: %+v", m)
		}
		_, err := w.f.FetchDescriptor(ctx(), alice, exportE)
		refused(t, err, fabric.Lost, "")
		if err := w.f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: "nodes/n1/sessions/s"}}); err != nil {
			t.Error(err)
		}
	})
}

func TestWhoMayFetch(t *testing.T) {
	uid, gid := uint32(2000), uint32(77)
	carol := fabric.Caller{Identity: "uid:3000", UID: 3000, GID: 77, PID: 1, HasPeer: true}
	dave := fabric.Caller{Identity: "uid:4000", UID: 4000, GID: 4000, Groups: []uint32{5, 77}, PID: 1, HasPeer: true}
	for what, row := range map[string]struct {
		fetchers []fabric.Fetcher
		may      map[string]bool
	}{
		"nobody":  {nil, map[string]bool{"uid:1000": true}},
		"a uid":   {[]fabric.Fetcher{{UID: &uid}}, map[string]bool{"uid:1000": true, "uid:2000": true}},
		"a gid":   {[]fabric.Fetcher{{GID: &gid}}, map[string]bool{"uid:1000": true, "uid:3000": true, "uid:4000": true}},
		"session": {[]fabric.Fetcher{{Session: "nodes/local/sessions/carol"}}, map[string]bool{"uid:1000": true, "uid:3000": true}},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.session("carol", carol)
				w.export(row.fetchers...)
				for _, c := range []fabric.Caller{alice, bob, carol, dave, root, {Identity: "anonymous"}} {
					f, err := w.f.FetchDescriptor(ctx(), c, exportE)
					if row.may[c.Identity] {
						must(f, err).Close()
						continue
					}
					refused(t, err, fabric.PermissionDenied, "")
					pass(time.Second)
					w.told(t, exportE, c.Identity, fabric.PermissionDenied, "fetch of the descriptor refused")
				}
				if what != "session" {
					return
				}
				// Another session of that name, later, is another's.
				if err := w.f.CloseSession(ctx(), carol, fabric.CloseSession{Delete: fabric.Delete{Name: "nodes/n1/sessions/carol"}}); err != nil {
					t.Fatal(err)
				}
				w.session("carol", bob)
				_, err := w.f.FetchDescriptor(ctx(), bob, exportE)
				refused(t, err, fabric.PermissionDenied, "")
			})
		})
	}
}

func TestUploadsAreForOneUse(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.export()
		u, file := w.upload(bob)
		thief := w.importing(alice, u.ID)
		_, err := w.f.CreateMemoryRegion(ctx(), alice, thief)
		refused(t, err, fabric.PermissionDenied, "import_source.upload_id")
		r := w.importing(bob, u.ID)
		check := r
		check.ValidateOnly = true
		must(w.f.CreateMemoryRegion(ctx(), bob, check)) // takes nothing
		must(w.f.CreateMemoryRegion(ctx(), bob, r))
		r.ID = "again"
		_, err = w.f.CreateMemoryRegion(ctx(), bob, r)
		refused(t, err, fabric.NotFound, "import_source.upload_id")
		if !isClosed(file) {
			t.Error("the used descriptor is still open")
		}
		pass(time.Second)
		w.told(t, exportE, "uid:1000", fabric.PermissionDenied, "use of an upload id that is another's refused")

		late, file := w.upload(bob)
		pass(31 * time.Second)
		if !isClosed(file) {
			t.Error("the descriptor of an upload that ended is still open")
		}
		r.Import.Upload = late.ID
		_, err = w.f.CreateMemoryRegion(ctx(), bob, r)
		refused(t, err, fabric.NotFound, "import_source.upload_id")

		var files []*os.File
		for range 64 {
			_, f := w.upload(bob)
			files = append(files, f)
		}
		f := w.fetch(alice)
		_, err = w.f.UploadDescriptor(ctx(), bob, f)
		refused(t, err, fabric.Exhausted, "")
		if !isClosed(f) {
			t.Error("the refused descriptor is still open")
		}
		_, own := w.upload(alice) // another's uploads are in nobody's way
		w.close()
		for _, f := range append(files, own) {
			if !isClosed(f) {
				t.Fatal("a descriptor is open after the end")
			}
		}
	})
}

func TestOnlyDescriptorsOfExportsAreUploaded(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.export()
		f := must(os.Open(os.DevNull))
		_, err := w.f.UploadDescriptor(ctx(), alice, f)
		refused(t, err, fabric.NotAnExport, "descriptor")
		if !isClosed(f) {
			t.Error("the refused descriptor is still open")
		}
		f = w.fetch(alice)
		w.restart(true) // of an export that is gone
		_, err = w.f.UploadDescriptor(ctx(), alice, f)
		refused(t, err, fabric.NotAnExport, "descriptor")
	})
}

// D01, D09, D10: each reason of an importer comes through, with who could, and
// leaves nothing but its event.
func TestD01D09D10AnImporterThatCannot(t *testing.T) {
	for _, reason := range []device.AttachReason{device.NoImport, device.NoPeerToPeer, device.NotReachable, device.NotInAperture, device.SegmentTooLong} {
		t.Run(string(reason), func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.export()
				w.cards[1].fail("Import", &device.AttachError{Reason: reason, Problem: "it is a test", Alternatives: []string{"d0"}})
				u, file := w.upload(bob)
				_, err := w.f.CreateMemoryRegion(ctx(), bob, w.importing(bob, u.ID))
				e := refused(t, err, fabric.Reason(reason), "")
				if e.Details["exporter"] != d0 || e.Details["importer"] != d1 || e.Details["alternatives"] != d0 || !strings.Contains(e.Message, "it is a test") {
					t.Errorf("%v: %v", e, e.Details)
				}
				_, err = w.f.GetMemoryRegion(ctx(), bob, regionI)
				refused(t, err, fabric.NotFound, "name")
				pass(time.Second)
				w.told(t, regionI, "system", fabric.Reason(reason), "it is a test") // D10: with what is in the way
				if !isClosed(file) {
					t.Error("the descriptor is still open")
				}
			})
		})
	}
}

func TestAnExportEndsWithItsTTL(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.session("s", alice)
		w.buffer("b", "nodes/n1/sessions/s", 8192)
		e := must(w.f.CreateMemoryExport(ctx(), alice, fabric.CreateMemoryExport{Create: fabric.Create{Parent: d0, ID: "e"}, Buffer: d0 + "/buffers/b", TTL: 5 * time.Minute}))
		if e.Expires.IsZero() {
			t.Errorf("%+v", e)
		}
		pass(4 * time.Minute)
		w.restart(false) // grants one full ttl
		pass(4 * time.Minute)
		if e := w.getExport(); e.State != fabric.StateActive {
			t.Fatalf("%+v", e)
		}
		pass(time.Minute + 2*time.Second)
		if e := w.getExport(); e.State != fabric.StateRevoked || !strings.Contains(e.Condition.Message, "ttl") {
			t.Fatalf("%+v", e)
		}
		w.told(t, exportE, "system", fabric.CauseExpired, "")
	})
}

func TestOrphansOfExports(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.export()
		if e := w.getExport(); e.Orphan != fabric.OrphanUnfetched {
			t.Errorf("%+v", e)
		}
		f := w.fetch(alice)
		pass(50 * time.Minute)
		if _, err := w.f.KeepAlive(ctx(), alice, fabric.KeepAlive{Name: "nodes/n1/sessions/s"}); err != nil {
			t.Fatal(err)
		}
		pass(50 * time.Minute)
		e := w.getExport()
		if e.Orphan != "" || e.State != fabric.StateActive {
			t.Fatalf("held for an hour: %+v", e)
		}
		f.Close()
		w.cards[0].closed(e.UID)
		pass(2 * time.Second)
		if e := w.getExport(); e.Orphan != fabric.OrphanAbandoned || e.OrphanSince.IsZero() {
			t.Fatalf("%+v", e)
		}
		if _, err := w.f.KeepAlive(ctx(), alice, fabric.KeepAlive{Name: "nodes/n1/sessions/s"}); err != nil {
			t.Fatal(err)
		}
		pass(59 * time.Minute)
		if e := w.getExport(); e.State != fabric.StateActive {
			t.Fatalf("before the grace has ended: %+v", e)
		}
		if _, err := w.f.KeepAlive(ctx(), alice, fabric.KeepAlive{Name: "nodes/n1/sessions/s"}); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Minute)
		_, err := w.f.GetMemoryExport(ctx(), alice, exportE)
		refused(t, err, fabric.NotFound, "name")
		pass(time.Second)
		w.told(t, exportE, "system", fabric.CauseOrphan, "")
	})
}

// D08: an offset into the export and an address agree, whatever is given.
func TestD08OffsetsAndAddresses(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		base := w.export().Segments[0].Address
		r := w.importing(bob, "")
		for i, row := range []struct {
			offset, iova, want uint64 // want 0: refused
		}{
			{0, 0, base}, {4096, 0, base + 4096}, {5000, 0, base + 5000},
			{0, 0x10000, 0x10000}, {5000, 0x10000 + 5000%4096, 0x10000 + 5000%4096},
			{5000, 0x10000, 0}, {0, 1, 0}, {4096, 1<<64 - 4096, 0},
		} {
			u, _ := w.upload(bob)
			r.ID = string(rune('a' + i))
			r.Import = &fabric.CreateImport{Upload: u.ID, Offset: row.offset, IOVA: row.iova}
			m, err := w.f.CreateMemoryRegion(ctx(), bob, r)
			if row.want == 0 {
				refused(t, err, fabric.FieldInvalid, "import_source.iova")
				continue
			}
			if m = must(m, err); m.IOVA != row.want || m.Length != 3*4096-row.offset || m.Import.Offset != row.offset {
				t.Errorf("offset %d, iova %#x: %+v", row.offset, row.iova, m)
			}
		}
	})
}

// D11: the importer answers, for the device it is asked about.
func TestD11TheImporterSaysWhomItReaches(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.cards[1].walled = true
		a := must(w.f.CheckPeerAccess(ctx(), bob, d0, d1))
		if a.Reachable || a.Obstacle != "root port 00:01.0" || a.Exporter != d0 || a.Importer != d1 {
			t.Errorf("%+v", a)
		}
		if a := must(w.f.CheckPeerAccess(ctx(), bob, d1, d1)); !a.Reachable { // proves nothing for others
			t.Errorf("%+v", a)
		}
		if a := must(w.f.CheckPeerAccess(ctx(), bob, d1, d0)); !a.Reachable || a.Path != "a test" {
			t.Errorf("%+v", a)
		}
		_, err := w.f.CheckPeerAccess(ctx(), bob, d0, "nodes/n1/devices/none")
		refused(t, err, fabric.NotFound, "importer")
	})
}

// D02, D15: what is another partition's, which is another identity's for now, is
// refused at every step, and each identity sees its own alone.
func TestD02D15NothingWithoutTheRight(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.export()
		_, err := w.f.CreateMemoryExport(ctx(), bob, fabric.CreateMemoryExport{Create: fabric.Create{Parent: d0}, Buffer: d0 + "/buffers/b"})
		refused(t, err, fabric.PermissionDenied, "")
		_, err = w.f.GetMemoryExport(ctx(), bob, exportE)
		refused(t, err, fabric.PermissionDenied, "")
		_, err = w.f.RevokeMemoryExport(ctx(), bob, fabric.Update{Name: exportE})
		refused(t, err, fabric.PermissionDenied, "")
		_, err = w.f.FetchDescriptor(ctx(), bob, exportE)
		refused(t, err, fabric.PermissionDenied, "")
		list := fabric.List{Parent: "nodes/n1/devices/-"}
		if p := must(w.f.ListMemoryExports(ctx(), bob, list, nil)); len(p.Items) != 0 {
			t.Errorf("bob sees %+v", p.Items)
		}
		if p := must(w.f.ListMemoryExports(ctx(), alice, list, nil)); len(p.Items) != 1 || p.Items[0].Name != exportE {
			t.Errorf("alice sees %+v", p.Items)
		}
	})
}

func TestMoveAndReset(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.cards[1].pins = true
		w.imported()
		move := fabric.Update{Name: d0 + "/buffers/b"}
		_, err := w.f.MoveBuffer(ctx(), alice, move)
		refused(t, err, fabric.PermissionDenied, "")
		must(w.f.MoveBuffer(ctx(), root, move))
		w.cards[0].fail("MoveBuffer", device.ErrBusy)
		_, err = w.f.MoveBuffer(ctx(), root, move)
		if e := refused(t, err, fabric.InUse, ""); e.Details["pinned"] != regionI || len(e.Shortage.Holders) != 1 {
			t.Errorf("%v: %v", e, e.Details)
		}
		w.cards[0].fail("MoveBuffer", errHolds)
		_, err = w.f.MoveBuffer(ctx(), root, move) // ctx has no deadline
		if e := refused(t, err, fabric.Timeout, ""); !strings.Contains(e.Message, "within 30s and is where it was") {
			t.Errorf("%v", e)
		}
		_, err = w.f.ResetDevice(ctx(), alice, fabric.Update{Name: d0})
		refused(t, err, fabric.PermissionDenied, "")
		must(w.f.ResetDevice(ctx(), root, fabric.Update{Name: d0}))
		if e := w.getExport(); e.State != fabric.StateLost {
			t.Errorf("%+v", e)
		}
		if m := w.getRegion(bob); m.State != fabric.StateLost || m.Condition.Reason != fabric.ExportRevoked {
			t.Errorf("%+v", m)
		}
		pass(time.Millisecond) // the journal follows
		w.told(t, d0, "uid:0", fabric.CauseRequested, "reset")
	})
}
