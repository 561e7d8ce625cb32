package fabric_test

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/boltstore"
	"github.com/accelfab/accelfab/fabric/storetest"
)

// benchNode opens a node on a fake card with a session and a domain.
func benchNode(b *testing.B, store fabric.Store) *fabric.Fabric {
	b.Helper()
	c := newCard("d0", 0)
	c.info.Limits.QueuePairs = 1 << 24
	f, err := fabric.Open(context.Background(), fabric.Config{NodeID: "n1", BootID: "b", Store: store, Devices: []device.Device{c.open()}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	must(f.CreateSession(ctx(), alice, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "s"}, TTL: time.Hour}))
	must(f.CreateProtectionDomain(ctx(), alice, fabric.CreateProtectionDomain{Create: fabric.Create{Parent: d0, ID: "p"}, Session: "nodes/n1/sessions/s"}))
	return f
}

// nilStore acknowledges at once: what is left is the fabric's own cost.
type nilStore struct{ *storetest.Memory }

func (nilStore) Commit(_ context.Context, c fabric.Change) (uint64, error) { return 1, nil }

func stores(b *testing.B) map[string]func() fabric.Store {
	return map[string]func() fabric.Store{
		"none": func() fabric.Store { return nilStore{storetest.NewMemory(storetest.Limits{})} },
		"bolt": func() fabric.Store {
			s, err := boltstore.Open(filepath.Join(b.TempDir(), "store"), boltstore.Options{})
			if err != nil {
				b.Fatal(err)
			}
			return s
		},
	}
}

func BenchmarkCreateQueuePair(b *testing.B) {
	for name, open := range stores(b) {
		for _, callers := range []int{1, 64, 1024} {
			b.Run(fmt.Sprintf("store=%s/callers=%d", name, callers), func(b *testing.B) {
				f := benchNode(b, open())
				b.SetParallelism(max(1, callers/runtime.GOMAXPROCS(0)))
				if callers == 1 {
					for b.Loop() {
						must(f.CreateQueuePairs(ctx(), alice, "", false, []fabric.CreateQueuePair{qpRequest("", d0+"/protectionDomains/p")}))
					}
					return
				}
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						must(f.CreateQueuePairs(ctx(), alice, "", false, []fabric.CreateQueuePair{qpRequest("", d0+"/protectionDomains/p")}))
					}
				})
			})
		}
	}
}

// BenchmarkCreateBatch makes 1,000 queue pairs an operation, and says what
// one costs in time and in memory that stays.
func BenchmarkCreateBatch(b *testing.B) {
	for name, open := range stores(b) {
		b.Run("store="+name, func(b *testing.B) {
			f := benchNode(b, open())
			rs := make([]fabric.CreateQueuePair, 1000)
			for i := range rs {
				rs[i] = qpRequest("", d0+"/protectionDomains/p")
			}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for b.Loop() {
				must(f.CreateQueuePairs(ctx(), alice, "", false, rs))
			}
			b.StopTimer()
			runtime.GC()
			runtime.ReadMemStats(&after)
			n := float64(b.N * len(rs))
			b.ReportMetric(n/b.Elapsed().Seconds(), "qp/s")
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "heap-B/qp")
			runtime.KeepAlive(f)
		})
	}
}
