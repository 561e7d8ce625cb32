package fabric_test

import (
	"runtime"
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/fabric"
)

// A fetch that the device takes its time for reads nothing of a record that is
// revoked and deleted meanwhile: the race detector would tell.
func TestAFetchBesideARevocation(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.cards[0].opening = make(chan struct{})
		w.export()
		for range 20 {
			errs := make(chan error, 4)
			for range cap(errs) {
				go func() {
					file, err := w.f.FetchDescriptor(ctx(), alice, exportE)
					if err == nil {
						file.Close()
					}
					errs <- err
				}()
			}
			runtime.Gosched() // some of them reach the device before, some find it revoked
			must(w.f.RevokeMemoryExport(ctx(), alice, fabric.Update{Name: exportE}))
			close(w.cards[0].opening)
			for range cap(errs) {
				refused(t, <-errs, fabric.ExportRevoked, "")
			}
			if err := w.f.DeleteMemoryExport(ctx(), alice, fabric.Delete{Name: exportE}); err != nil {
				t.Fatal(err)
			}
			w.cards[0].opening = make(chan struct{})
			w.exportOf("e")
		}
		close(w.cards[0].opening)
	})
}

// What a device says of an address is about the buffer that it lost: the caller
// gave none.
func TestAnExportOfABufferThatTheDeviceLost(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.session("s", alice)
		w.buffer("b", "nodes/n1/sessions/s", 4096)
		w.cards[0].fail("CreateExport", &device.FieldError{Field: "address", Problem: "it is in no buffer"})
		_, err := w.f.CreateMemoryExport(ctx(), alice, fabric.CreateMemoryExport{Create: fabric.Create{Parent: d0, ID: "e"}, Buffer: d0 + "/buffers/b"})
		if e := refused(t, err, fabric.Lost, ""); len(e.Violations) != 0 {
			t.Errorf("%+v", e.Violations)
		}
	})
}
