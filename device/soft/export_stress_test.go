package soft

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// TestExportsAllAtOnce has callers do what they like to two cards and a NIC at the
// same time, under traffic. It ends, nothing panics, no answer is of an unknown
// kind, and the counts agree when all is quiet.
func TestExportsAllAtOnce(t *testing.T) {
	near, far := twoNodes(t, "")
	nic := openNIC(t, t.TempDir(), "soft-nic")
	importers := []*card{near[0], near[1], nic}
	exporter := near[0]
	ctx := context.Background()

	// Objects by a few names, so that callers meet.
	const names = 6
	var buffers, exports, regions [names]device.UID
	for i := range names {
		buffers[i], exports[i], regions[i] = newUID(), newUID(), newUID()
	}
	address := func(uid device.UID) uint64 {
		list, err := exporter.ListBuffers(ctx)
		if err != nil {
			t.Error(err)
		}
		for _, b := range list {
			if b.UID == uid {
				return b.Address
			}
		}
		return 0
	}
	// The NIC's queue pairs are in the domain that its imports are in.
	domain := nic.CreateProtectionDomains(ctx, []device.UID{regions[0]})[0].PD
	connection := func() wire {
		w := wire{newEnd(t, far, scaleOut(t, far), 1<<16), &end{card: nic, t: t, gid: 1, pd: domain}}
		r := nic.CreateQueuePairs(ctx, []device.QueuePairSpec{{UID: newUID(), PD: domain, Type: ib.RC,
			Steps: []device.Transition{device.ToInit{PKey: ib.DefaultPKey, Access: fullAccess}}}})[0]
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		w.near.qp = r.QueuePair
		connect(t, w.far, w.near, ib.MTU4096)
		return w
	}
	traffic, written := connection(), 0
	known := []error{device.ErrNotFound, device.ErrBusy, device.ErrExists, device.ErrRevoked, device.ErrInvalid, device.ErrExhausted}
	var callers sync.WaitGroup
	for caller := range 6 {
		rng := rand.New(rand.NewPCG(uint64(caller), 1))
		callers.Go(func() {
			var held []*os.File
			defer func() {
				for _, f := range held {
					f.Close()
				}
			}()
			for range 3000 {
				i, j := rng.IntN(names), rng.IntN(names)
				importer := importers[rng.IntN(len(importers))]
				var err error
				switch op := rng.IntN(24); {
				case op < 3:
					_, err = exporter.Allocate(ctx, device.BufferSpec{UID: buffers[i], Size: 1 << 16})
				case op < 6:
					_, err = exporter.CreateExport(ctx, device.ExportSpec{UID: exports[i], Address: address(buffers[i]), Length: 1 << 16})
				case op < 9:
					var f *os.File
					if f, err = exporter.OpenExport(ctx, exports[i]); err == nil {
						held = append(held, f)
					}
				case op < 14 && len(held) > 0:
					pd := importer.CreateProtectionDomains(ctx, []device.UID{regions[0]})[0]
					if err = pd.Err; err == nil {
						_, err = importer.Import(ctx, device.ImportSpec{UID: regions[j], PD: pd.PD, Length: 1 << 16, Access: fullAccess}, held[rng.IntN(len(held))])
					}
				case op < 16 && len(held) > 0:
					held[0].Close()
					held = held[1:]
				case op < 18:
					err = importer.DeregisterRegions(ctx, []device.UID{regions[j]})[0]
				case op == 18:
					err = exporter.RevokeExport(ctx, exports[i])
				case op == 19:
					err = exporter.DestroyExport(ctx, exports[i])
				case op == 20:
					err = exporter.Free(ctx, buffers[i])
				case op == 21:
					_, err = exporter.MoveBuffer(ctx, buffers[i])
				case op == 22 && rng.IntN(10) == 0:
					err = importers[rng.IntN(2)].Reset(ctx) // the NIC has a connection to keep
				default:
					_, err = exporter.ListExports(ctx)
				}
				is := err == nil
				for _, k := range known {
					is = is || errors.Is(err, k)
				}
				if !is {
					t.Errorf("error %v", err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { callers.Wait(); close(done) }()
	for busy := true; busy; { // writes to whatever of it is imported at the time
		select {
		case <-done:
			busy = false
		default:
		}
		list, err := nic.ListRegions(ctx)
		if err != nil {
			t.Error(err)
		}
		for _, r := range list {
			traffic.far.post(traffic.write(r, 1<<16))
			if wc := traffic.far.next(1)[0]; wc.Status != ib.Success {
				traffic = connection()
			} else {
				written++
			}
		}
	}
	t.Logf("%d writes went through", written)
	if written == 0 {
		t.Error("nothing went through")
	}

	for _, uid := range exports {
		if err := exporter.RevokeExport(ctx, uid); err != nil && !errors.Is(err, device.ErrNotFound) {
			t.Error(err)
		}
		if err := exporter.DestroyExport(ctx, uid); err != nil && !errors.Is(err, device.ErrNotFound) {
			t.Error(err)
		}
	}
	localBus.mu.Lock()
	defer localBus.mu.Unlock()
	if len(exporter.exports)+len(localBus.tokens) > 0 {
		t.Errorf("%d exports and %d tokens are left", len(exporter.exports), len(localBus.tokens))
	}
	for _, c := range importers {
		if len(c.attached) > 0 {
			t.Errorf("%s is attached to %d exports", c.info.ID, len(c.attached))
		}
	}
	for _, b := range exporter.memory.byUID {
		if len(b.exports) > 0 {
			t.Errorf("buffer %+v says it is exported", b)
		}
	}
}
