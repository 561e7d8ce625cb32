package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/devicetest"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/storetest"
)

// S06, S07: what a device kept is the record's again, before the first call.
func TestS06AdoptAfterRestart(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		must(w.connect("q", peer))
		before, m := w.getQP("q"), must(w.f.GetMemoryRegion(ctx(), alice, d0+"/memoryRegions/m"))
		w.restart(false)
		after := w.getQP("q")
		if after.UID != before.UID || after.Local.QPN != before.Local.QPN || after.QPState != ib.RTS || *after.Remote != *before.Remote {
			t.Errorf("before %+v\nafter  %+v", before, after)
		}
		if again := must(w.f.GetMemoryRegion(ctx(), alice, d0+"/memoryRegions/m")); again.RKey != m.RKey || again.State != fabric.StateReady {
			t.Errorf("%+v", again)
		}
		if p := must(w.f.ListQueuePairs(ctx(), alice, fabric.List{Parent: d0}, nil)); len(p.Items) != 1 || p.Items[0].QPState != ib.RTS {
			t.Errorf("%+v", p.Items)
		}
	})
}

func TestLostAfterRestart(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		must(w.connect("q", peer))
		before := w.getQP("q")
		w.restart(true)
		b := must(w.f.GetBuffer(ctx(), alice, d0+"/buffers/b"))
		m := must(w.f.GetMemoryRegion(ctx(), alice, d0+"/memoryRegions/m"))
		if b.State != fabric.StateLost || m.State != fabric.StateLost || b.Condition.Reason != fabric.Lost {
			t.Errorf("buffer %s, region %s: want both LOST", b.State, m.State)
		}
		w.onDevice(1, 0, 0, 1) // never made again empty
		q := w.getQP("q")
		if q.QPState != ib.Init || q.Remote != nil || q.Local.QPN == before.Local.QPN || q.UID != before.UID {
			t.Errorf("%+v: want it made again in INIT with another QPN and no peer", q)
		}
		told := map[string]bool{}
		for _, e := range w.events() {
			if e.Reason == fabric.Lost || e.Reason == fabric.CauseReconciled {
				told[e.Resource] = true
			}
		}
		for _, name := range []string{b.Name, m.Name, q.Name} {
			if !told[name] {
				t.Error("no event about", name)
			}
		}
		_, err := w.f.CreateMemoryRegion(ctx(), alice, fabric.CreateMemoryRegion{Create: fabric.Create{Parent: d0}, ProtectionDomain: d0 + "/protectionDomains/p", Buffer: b.Name})
		refused(t, err, fabric.Lost, "buffer")
		refused(t, w.f.ReadBuffer(ctx(), alice, fabric.BufferRange{Buffer: b.Name}, make([]byte, 1)), fabric.Lost, "name")
		must(w.connect("q", peer))
		w.restart(true) // and again
		must(0, w.f.DeleteMemoryRegion(ctx(), alice, fabric.Delete{Name: m.Name}))
		must(0, w.f.DeleteBuffer(ctx(), alice, fabric.Delete{Name: b.Name}))
		must(0, w.f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: "nodes/n1/sessions/s"}}))
		w.onDevice(0, 0, 0, 0)
	})
}

// A state that no steps from RESET lead to is not made again.
func TestALostUDQueuePairThatDrained(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		r := qpRequest("u", d0+"/protectionDomains/p")
		r.Type = ib.UD
		u := must(w.f.CreateQueuePairs(ctx(), alice, "", false, []fabric.CreateQueuePair{r}))[0]
		must(w.f.ModifyQueuePair(ctx(), alice, fabric.ModifyQueuePair{Update: fabric.Update{Name: u.Name}, Target: ib.SQD}))
		w.restart(true)
		if u := w.getQP("u"); u.QPState != ib.Init || u.Target != ib.Init {
			t.Errorf("in %v, asked %v: want INIT", u.QPState, u.Target)
		}
	})
}

func TestResetOfARunningDevice(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		w.cards[0].wipe()
		w.cards[0].hint(device.Event{Kind: device.DeviceChanged})
		synctest.Wait()
		pass(time.Second)
		w.onDevice(1, 0, 0, 1)
		if b := must(w.f.GetBuffer(ctx(), alice, d0+"/buffers/b")); b.State != fabric.StateLost {
			t.Errorf("%+v", b)
		}
	})
}

// S01: after a reboot nothing is made again; what there was can be closed.
func TestS01RebootLosesSessions(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		w.boot = "boot-2"
		w.restart(true)
		s := must(w.f.GetSession(ctx(), alice, "nodes/n1/sessions/s"))
		if q := w.getQP("q"); s.State != fabric.StateLost || q.State != fabric.StateLost {
			t.Errorf("session %s, queue pair %s: want LOST", s.State, q.State)
		}
		w.onDevice(0, 0, 0, 0)
		_, err := w.f.CreateProtectionDomain(ctx(), alice, fabric.CreateProtectionDomain{Create: fabric.Create{Parent: d0}, Session: s.Name})
		refused(t, err, fabric.Lost, "session")
		must(0, w.f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: s.Name}}))
		if p := must(w.f.ListQueuePairs(ctx(), root, fabric.List{Parent: "nodes/n1/devices/-"}, nil)); len(p.Items) != 0 {
			t.Errorf("%+v", p.Items)
		}
	})
}

func TestOrphansAreReclaimed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		w.cards[0].CreateProtectionDomains(ctx(), []device.UID{{1}})
		w.cards[0].CreateQueuePairs(ctx(), []device.QueuePairSpec{{UID: device.UID{2}, PD: 99, Type: ib.RC}})
		w.onDevice(2, 1, 1, 2)
		w.restart(false)
		w.onDevice(1, 1, 1, 1)
		synctest.Wait()
		if !slices.ContainsFunc(w.events(), func(e fabric.Event) bool { return e.Reason == fabric.CauseOrphan && e.Resource == d0 }) {
			t.Error("no event tells of it")
		}
	})
}

func TestUnreadableRecordIsSetAside(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		w.close()
		w.mem = w.mem.Reopen()
		var id uint64
		must(w.mem.Load(ctx(), func(r fabric.Record) error {
			if r.Name == d0+"/buffers/b" {
				id = r.ID
			}
			return nil
		}))
		must(w.mem.Commit(ctx(), fabric.Change{Put: []fabric.Record{{ID: id, Name: d0 + "/buffers/b", Value: []byte("rubbish")}}}))
		w.open()
		if n := w.f.Node(); len(n.Health.Problems) != 2 { // the buffer, and the region on it
			t.Errorf("%+v", n.Health.Problems)
		}
		if q := w.getQP("q"); q.State != fabric.StateReady {
			t.Errorf("the rest does not serve: %+v", q)
		}
		if len(w.mem.Quarantined()) != 2 {
			t.Errorf("%v", w.mem.Quarantined())
		}
	})
}

// damagedStore tells of damage that its open found.
type damagedStore struct{ fabric.Store }

func (s damagedStore) Load(ctx context.Context, fn func(fabric.Record) error) (fabric.LoadResult, error) {
	res, err := s.Store.Load(ctx, fn)
	res.Damage = "records 7 to 9 are lost"
	return res, err
}

func TestDamageOfTheStoreIsToldAndTheRestServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.open()
		w.full()
		w.close()
		f, err := fabric.Open(ctx(), w.config(damagedStore{w.mem.Reopen()}))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if n := f.Node(); len(n.Health.Problems) != 1 || !strings.Contains(n.Health.Problems[0].Message, "records 7 to 9 are lost") {
			t.Errorf("%+v", n.Health.Problems)
		}
		if _, err := f.GetSession(ctx(), alice, "nodes/n1/sessions/s"); err != nil {
			t.Error(err)
		}
	})
}

func TestStoreOfAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.open()
		w.close()
		cfg := w.config(w.mem.Reopen())
		cfg.NodeID = "n2"
		_, err := fabric.Open(ctx(), cfg)
		refused(t, err, fabric.FieldInvalid, "node_id")
	})
}

func TestDeviceThatCannotBeListed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		w.close()
		w.cards[0].fail("List", errIO)
		w.open()
		if n := w.f.Node(); len(n.Health.Problems) != 1 || n.Health.Problems[0].Resource != d0 || n.Health.Problems[0].Reason != fabric.DeviceUnavailable {
			t.Errorf("%+v", n.Health.Problems)
		}
		_, err := w.f.CreateBuffer(ctx(), alice, fabric.CreateBuffer{Create: fabric.Create{Parent: d0}, Session: "nodes/n1/sessions/s", Size: 1})
		refused(t, err, fabric.DeviceUnavailable, "")
		must(w.f.CreateBuffer(ctx(), alice, fabric.CreateBuffer{Create: fabric.Create{Parent: d1}, Session: "nodes/n1/sessions/s", Size: 1}))
		w.cards[0].fail("List", nil)
		pass(time.Minute)
		if n := w.f.Node(); len(n.Health.Problems) != 0 {
			t.Errorf("%+v", n.Health.Problems)
		}
		if q := w.getQP("q"); q.State != fabric.StateReady {
			t.Errorf("%+v", q)
		}
	})
}

// script does one of everything, each create with a request id, and stops at
// the first error. It says how far it came.
func script(f *fabric.Fabric, acked func(step string)) error {
	create := func(id string) fabric.Create { return fabric.Create{Parent: d0, ID: id, RequestID: "req-" + id} }
	s, pd := "nodes/n1/sessions/s", d0+"/protectionDomains/p"
	steps := []struct {
		name string
		do   func(context.Context) error
	}{
		{"session", func(c context.Context) error {
			_, err := f.CreateSession(c, alice, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "s", RequestID: "req-s"}, TTL: time.Hour})
			return err
		}},
		{"pd", func(c context.Context) error {
			_, err := f.CreateProtectionDomain(c, alice, fabric.CreateProtectionDomain{Create: create("p"), Session: s})
			return err
		}},
		{"buffer", func(c context.Context) error {
			_, err := f.CreateBuffer(c, alice, fabric.CreateBuffer{Create: create("b"), Session: s, Size: 4096})
			return err
		}},
		{"region", func(c context.Context) error {
			_, err := f.CreateMemoryRegion(c, alice, fabric.CreateMemoryRegion{Create: create("m"), ProtectionDomain: pd, Buffer: d0 + "/buffers/b"})
			return err
		}},
		{"export", func(c context.Context) error {
			_, err := f.CreateMemoryExport(c, alice, fabric.CreateMemoryExport{Create: create("e"), Buffer: d0 + "/buffers/b"})
			return err
		}},
		{"import", func(c context.Context) error {
			file, err := f.FetchDescriptor(c, alice, d0+"/memoryExports/e")
			if errors.Is(err, fabric.ExportRevoked) {
				return nil // this is done again
			}
			if err != nil {
				return err
			}
			u, err := f.UploadDescriptor(c, alice, file)
			if err != nil {
				return err
			}
			_, err = f.CreateMemoryRegion(c, alice, fabric.CreateMemoryRegion{Create: fabric.Create{Parent: d0}, ProtectionDomain: pd, Import: &fabric.CreateImport{Upload: u.ID}})
			return err
		}},
		{"revoke", func(c context.Context) error {
			_, err := f.RevokeMemoryExport(c, alice, fabric.Update{Name: d0 + "/memoryExports/e"})
			return err
		}},
		{"queue pairs", func(c context.Context) error {
			rs := []fabric.CreateQueuePair{qpRequest("q0", pd), qpRequest("q1", pd), qpRequest("q2", pd)}
			_, err := f.CreateQueuePairs(c, alice, "req-q", false, rs)
			return err
		}},
		{"connect", func(c context.Context) error {
			_, err := f.ConnectQueuePairs(c, alice, false, []fabric.ConnectQueuePair{{Update: fabric.Update{Name: d0 + "/queuePairs/q0"}, Remote: peer}})
			return err
		}},
		{"delete", func(c context.Context) error {
			return f.DeleteQueuePairs(c, alice, false, []fabric.Delete{{Name: d0 + "/queuePairs/q2"}})
		}},
		{"close", func(c context.Context) error {
			return f.CloseSession(c, alice, fabric.CloseSession{Delete: fabric.Delete{Name: s}})
		}},
	}
	for _, st := range steps {
		c, cancel := context.WithTimeout(context.Background(), time.Second)
		err := st.do(c)
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", st.name, err)
		}
		acked(st.name)
	}
	return nil
}

// TestCrashAtEveryCall ends the daemon at each call of the store, and at each
// call of the device, in turn; then it opens again and compares. Whatever was
// acknowledged is there; the device has what the records say and nothing else;
// and the whole can be done again with the same request ids.
func TestCrashAtEveryCall(t *testing.T) {
	type crash struct {
		name  string
		build func(w *world, n int) (fabric.Config, func() bool)
	}
	onStore := func(s storetest.Strike) crash {
		return crash{"store " + s.String(), func(w *world, n int) (fabric.Config, func() bool) {
			st := storetest.NewFailing(w.mem, n, s)
			return w.config(st), st.Struck
		}}
	}
	onDevice := func(s devicetest.Strike) crash {
		return crash{"device " + s.String(), func(w *world, n int) (fabric.Config, func() bool) {
			cfg := w.config(w.mem)
			d := devicetest.NewFailing(cfg.Devices[0], "", n, s)
			cfg.Devices[0] = d
			return cfg, d.Struck
		}}
	}
	for _, cr := range []crash{onStore(storetest.CrashBefore), onStore(storetest.CrashAfter), onDevice(devicetest.CrashBefore), onDevice(devicetest.CrashAfter),
		onStore(storetest.Refuse), onDevice(devicetest.Refuse)} {
		t.Run(cr.name, func(t *testing.T) {
			n, struck := 0, true
			for struck {
				n++
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					cfg, hit := cr.build(w, n)
					acked := map[string]bool{}
					f, err := fabric.Open(ctx(), cfg)
					if err == nil {
						err = script(f, func(s string) { acked[s] = true })
						f.Close()
					} else {
						for _, d := range w.devs {
							d.Close()
						}
					}
					struck = hit()
					if !struck && err != nil {
						t.Fatal("without a fault:", err)
					}
					w.open()
					defer w.close()
					w.check(n, acked)
				})
			}
			if n < 10 {
				t.Errorf("only %d calls were struck", n)
			}
		})
	}
}

// check compares records, device and what was acknowledged after a crash.
func (w *world) check(n int, acked map[string]bool) {
	w.t.Helper()
	synctest.Wait()
	there := func(err error) bool {
		if err != nil && !errors.Is(err, fabric.NotFound) {
			w.t.Fatalf("crash at %d: %v", n, err)
		}
		return err == nil
	}
	s, err := w.f.GetSession(ctx(), alice, "nodes/n1/sessions/s")
	if s.State == fabric.StateClosing {
		w.t.Fatalf("crash at %d: the session was closing and nothing goes on with it: %+v", n, s)
	}
	if got := there(err); acked["close"] && got || acked["session"] && !acked["close"] && !acked["delete"] && !got {
		w.t.Fatalf("crash at %d, acknowledged %v: session there: %v", n, acked, got)
	}
	ending := acked["delete"] // the close was under way: it may or may not be done
	if acked["queue pairs"] && !ending {
		for i := range 2 {
			_, err := w.f.GetQueuePair(ctx(), alice, fmt.Sprintf("%s/queuePairs/q%d", d0, i))
			if !there(err) {
				w.t.Fatalf("crash at %d: q%d was acknowledged and is gone", n, i)
			}
		}
	}
	if acked["revoke"] && !ending {
		if e := must(w.f.GetMemoryExport(ctx(), alice, d0+"/memoryExports/e")); e.State != fabric.StateRevoked {
			w.t.Fatalf("crash at %d: e was revoked and is %v", n, e.State)
		}
		all := fabric.List{Parent: d0}
		for _, m := range must(w.f.ListMemoryRegions(ctx(), alice, all, nil)).Items {
			if m.Import != nil && m.State == fabric.StateReady {
				w.t.Fatalf("crash at %d: %s is READY and its export revoked", n, m.Name)
			}
		}
	}
	if acked["connect"] && !ending {
		if q := w.getQP("q0"); q.QPState != ib.RTS {
			w.t.Fatalf("crash at %d: q0 was connected and is in %v", n, q.QPState)
		}
	}
	if _, err := w.f.GetQueuePair(ctx(), alice, d0+"/queuePairs/q2"); acked["delete"] && there(err) {
		w.t.Fatalf("crash at %d: q2 was deleted and is there", n)
	}
	w.agree(n)
	// Once more, with the same request ids.
	err = script(w.f, func(string) {})
	var e *fabric.Error
	if errors.As(err, &e) && (e.Reason == fabric.Tombstoned || e.Reason == fabric.NotFound || e.Reason == fabric.Lost) {
		// What was deleted stays deleted, and what is lost stays lost.
		if e.Reason == fabric.Lost {
			must(0, w.f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: "nodes/n1/sessions/s"}}))
		}
		err = nil
	}
	if err != nil {
		w.t.Fatalf("crash at %d, acknowledged %v: done again: %v", n, acked, err)
	}
	synctest.Wait()
	w.agree(n)
}

// agree wants the device to have just what the records say.
func (w *world) agree(n int) {
	w.t.Helper()
	all := fabric.List{Parent: d0}
	pds := must(w.f.ListProtectionDomains(ctx(), root, all, func(p *fabric.ProtectionDomain) bool { return p.State == fabric.StateReady }))
	bufs := must(w.f.ListBuffers(ctx(), root, all, func(p *fabric.Buffer) bool { return p.State == fabric.StateReady }))
	regions := must(w.f.ListMemoryRegions(ctx(), root, all, func(p *fabric.MemoryRegion) bool {
		// A region whose export was revoked is on the device until it is deleted.
		return p.State == fabric.StateReady || p.Condition.Reason == fabric.ExportRevoked
	}))
	qps := must(w.f.ListQueuePairs(ctx(), root, all, func(p *fabric.QueuePair) bool { return p.State == fabric.StateReady }))
	exports := must(w.f.ListMemoryExports(ctx(), root, all, nil))
	if have := must(w.cards[0].ListExports(ctx())); len(have) > len(exports.Items) {
		w.t.Fatalf("crash at %d: the device has %d exports, there are records of %d", n, len(have), len(exports.Items))
	}
	a, b, c, d := w.cards[0].count()
	if a != len(pds.Items) || b != len(bufs.Items) || c != len(regions.Items) || d != len(qps.Items) {
		w.t.Fatalf("crash at %d: device %d %d %d %d, records %d %d %d %d", n, a, b, c, d, len(pds.Items), len(bufs.Items), len(regions.Items), len(qps.Items))
	}
}
