package fabric_test

import (
	"runtime"
	"testing"

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
