package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/fabric"
)

// Many callers do everything at once, on names that they share, while devices
// fail now and then and sessions end under their feet. In the end nothing is
// left over anywhere. Run with -race.
func TestHammer(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		pd := func(i int) string { return fmt.Sprintf("%s/protectionDomains/p%d", d0, i) }
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(g), 1))
				for i := range 150 {
					n := rng.IntN(3)
					s := fmt.Sprintf("nodes/n1/sessions/s%d", n)
					c, cancel := context.WithTimeout(context.Background(), time.Duration(1+rng.IntN(40))*time.Millisecond)
					cr := fabric.Create{Parent: d0, ID: fmt.Sprintf("x%d", rng.IntN(12))}
					if rng.IntN(2) == 0 {
						cr.RequestID = fmt.Sprintf("r%d-%d", g, i/2)
					}
					var err error
					switch rng.IntN(12) {
					case 0, 1:
						_, err = w.f.CreateSession(c, alice, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: fmt.Sprintf("s%d", n)}, TTL: time.Second})
					case 2, 3:
						cr.ID = fmt.Sprintf("p%d", n)
						_, err = w.f.CreateProtectionDomain(c, alice, fabric.CreateProtectionDomain{Create: cr, Session: s})
					case 4:
						_, err = w.f.CreateBuffer(c, alice, fabric.CreateBuffer{Create: cr, Session: s, Size: 4096})
					case 5:
						_, err = w.f.CreateMemoryRegion(c, alice, fabric.CreateMemoryRegion{Create: cr, ProtectionDomain: pd(n), Buffer: d0 + "/buffers/" + cr.ID})
					case 6, 7:
						rs := []fabric.CreateQueuePair{qpRequest(cr.ID, pd(n)), qpRequest("", pd(n)), qpRequest("", pd(n))}
						_, err = w.f.CreateQueuePairs(c, alice, cr.RequestID, false, rs)
					case 8:
						_, err = w.f.ConnectQueuePairs(c, alice, false, []fabric.ConnectQueuePair{{Update: fabric.Update{Name: d0 + "/queuePairs/" + cr.ID}, Remote: peer}})
					case 9:
						_, err = w.f.ModifyQueuePair(c, alice, fabric.ModifyQueuePair{Update: fabric.Update{Name: d0 + "/queuePairs/" + cr.ID}, Target: ib.QPState(rng.IntN(7))})
					case 10:
						err = w.f.DeleteQueuePairs(c, alice, false, []fabric.Delete{{Name: d0 + "/queuePairs/" + cr.ID}})
						if rng.IntN(4) == 0 {
							err = w.f.CloseSession(c, alice, fabric.CloseSession{Delete: fabric.Delete{Name: s}})
						}
					case 11:
						method := []string{"DestroyQueuePairs", "CreateQueuePairs", "Free", "RegisterRegions"}[rng.IntN(4)]
						w.cards[0].fail(method, errIO)
						<-time.After(time.Millisecond)
						w.cards[0].fail(method, nil)
						_, err = w.f.ListQueuePairs(c, alice, fabric.List{Parent: d0, PageSize: 3}, nil)
					}
					cancel()
					var e *fabric.Error
					if err != nil && (!errors.As(err, &e) || e.Reason == fabric.Internal || e.Reason == fabric.StoreUnavailable) {
						t.Errorf("%v", err)
					}
				}
			})
		}
		wg.Wait()
		pass(time.Minute) // every lease ends
		w.onDevice(0, 0, 0, 0)
		for _, parent := range []string{"nodes/n1"} {
			if p := must(w.f.ListSessions(ctx(), root, fabric.List{Parent: parent}, nil)); len(p.Items) != 0 {
				t.Errorf("%+v", p.Items)
			}
		}
		d := must(w.f.GetDevice(ctx(), root, d0))
		if d.Usage != (fabric.Usage{}) || len(d.Holders) != 0 {
			t.Errorf("usage %+v, holders %+v: want none", d.Usage, d.Holders)
		}
		synctest.Wait()
		w.restart(false)
		w.onDevice(0, 0, 0, 0)
	})
}
