package fabric_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/fabric"
)

// L05: what comes late for an object that is gone does not touch another that has
// its name now.
func TestL05LateCallsForAnOldObject(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.session("s", alice)
		create := fabric.CreateBuffer{Create: fabric.Create{Parent: d0, ID: "b", RequestID: "first"}, Session: sessionS, Size: 4096}
		old := must(w.f.CreateBuffer(ctx(), alice, create))
		if err := w.f.DeleteBuffer(ctx(), alice, fabric.Delete{Name: old.Name}); err != nil {
			t.Fatal(err)
		}
		again := create
		again.RequestID, again.Size = "second", 8192
		now := must(w.f.CreateBuffer(ctx(), alice, again))
		if now.UID == old.UID {
			t.Fatal("two objects have one uid")
		}
		refused(t, w.f.DeleteBuffer(ctx(), alice, fabric.Delete{Name: old.Name, ETag: old.ETag()}), fabric.ETagMismatch, "etag")
		_, err := w.f.CreateBuffer(ctx(), alice, create)
		refused(t, err, fabric.Tombstoned, "")
		w.restart(false)
		_, err = w.f.CreateBuffer(ctx(), alice, create)
		refused(t, err, fabric.Tombstoned, "")
		if got := must(w.f.GetBuffer(ctx(), alice, now.Name)); got.UID != now.UID || got.Size != 8192 || got.State != fabric.StateReady {
			t.Errorf("%+v", got)
		}
	})
}

// L13: a session of which no process is known ends by its record alone.
func TestL13ASessionOfNoKnownProcess(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		nobody := fabric.Caller{Identity: "anonymous"}
		s := must(w.f.CreateSession(ctx(), nobody, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "s"}, TTL: 5 * time.Second}))
		must(w.f.CreateBuffer(ctx(), nobody, fabric.CreateBuffer{Create: fabric.Create{Parent: d0, ID: "b"}, Session: s.Name, Size: 4096}))
		w.restart(false)
		pass(6 * time.Second)
		w.onDevice(0, 0, 0, 0)
		_, err := w.f.GetSession(ctx(), nobody, s.Name)
		refused(t, err, fabric.NotFound, "name")
	})
}

// L20: the daemon ends between what the device has forgotten and what the store
// still knows. After it both have forgotten, and the name is free.
func TestL20EndedInTheMiddleOfADelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		store := &sick{Store: w.mem}
		w.f = must(fabric.Open(ctx(), w.config(store)))
		defer w.close()
		w.full()
		w.cards[0].fail("DestroyQueuePairs", errors.New("not yet"))
		f := w.f
		done := make(chan error, 1)
		go func() { done <- f.DeleteQueuePairs(ctx(), alice, false, []fabric.Delete{{Name: d0 + "/queuePairs/q"}}) }()
		synctest.Wait() // it is recorded that it is to go
		store.is.Store(true)
		w.cards[0].fail("DestroyQueuePairs", nil)
		pass(time.Minute)
		w.onDevice(1, 1, 1, 0) // the device has forgotten, and the store could not
		w.restart(false)
		<-done
		synctest.Wait()
		_, err := w.f.GetQueuePair(ctx(), alice, d0+"/queuePairs/q")
		refused(t, err, fabric.NotFound, "name")
		w.onDevice(1, 1, 1, 0)
		w.qp("q", d0+"/protectionDomains/p")
	})
}

// S08: what is allocated is neither lost nor doubled by restarts.
func TestS08RestartsLeakNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		before := must(w.f.GetDevice(ctx(), root, d0)).Usage
		qp := w.getQP("q")
		for range 100 {
			w.restart(false)
		}
		if now := must(w.f.GetDevice(ctx(), root, d0)).Usage; now != before {
			t.Errorf("in use are %+v, before %+v", now, before)
		}
		if got := w.getQP("q"); got.Local.QPN != qp.Local.QPN {
			t.Errorf("QPN %v, before %v", got.Local.QPN, qp.Local.QPN)
		}
		w.onDevice(1, 1, 1, 1)
	})
}

// S09: one create repeated makes one object.
func TestS09ARepeatedCreateMakesOne(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.session("s", alice)
		w.pd("p", sessionS)
		qps := map[ib.QPN]bool{}
		for i := range 50 {
			if i == 25 {
				w.restart(false)
			}
			r := qpRequest("q", d0+"/protectionDomains/p")
			qps[must(w.f.CreateQueuePairs(ctx(), alice, "once", false, []fabric.CreateQueuePair{r}))[0].Local.QPN] = true
		}
		if len(qps) != 1 {
			t.Errorf("%d QPNs were given", len(qps))
		}
		w.onDevice(1, 0, 0, 1)
	})
}

// S10, L10: what is as asked already is not changed again.
func TestS10TheSameAgainIsNoChange(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		for what, do := range map[string]func() error{
			"connect": func() error { _, err := w.connect("q", peer); return err },
			"port": func() error {
				_, err := w.f.SetPort(ctx(), root, fabric.SetPort{Update: fabric.Update{Name: d0 + "/ports/1"}, Up: true})
				return err
			},
			"session": func() error {
				_, err := w.f.UpdateSession(ctx(), alice, fabric.UpdateSession{Update: fabric.Update{Name: sessionS}, TTL: 2 * time.Hour, SetLabels: true, Labels: map[string]string{"job": "1"}})
				return err
			},
		} {
			if err := do(); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			synctest.Wait()
			before := len(w.events())
			for range 10 {
				if err := do(); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
			}
			synctest.Wait()
			if n := len(w.events()) - before; n != 0 {
				t.Errorf("%s: %d changes by the same again", what, n)
			}
		}
	})
}

// S11: the first answer after a restart counts what is in use.
func TestS11CapacityInTheFirstAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		for i := range 5 {
			w.buffer(fmt.Sprintf("more%d", i), sessionS, 4096)
		}
		before := must(w.f.GetDevice(ctx(), root, d0))
		w.restart(false)
		now := must(w.f.GetDevice(ctx(), root, d0))
		if now.Usage != before.Usage || now.Usage.Buffers != 6 || len(now.Holders) != 1 {
			t.Errorf("%+v held by %+v, before %+v", now.Usage, now.Holders, before.Usage)
		}
	})
}

// X04: what fails for ever is told a few times, not for ever.
func TestX04AFaultForEverIsToldAFewTimes(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		w.cards[0].fail("DestroyQueuePairs", errors.New("for ever"))
		f := w.f
		done := make(chan error, 1)
		go func() {
			done <- f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: sessionS}})
		}()
		for range 60 {
			pass(time.Minute)
		}
		<-done
		n := 0
		for _, e := range w.events() {
			if strings.Contains(e.Message, "for ever") {
				n++
			}
		}
		if n == 0 || n > 20 {
			t.Errorf("the journal tells it %d times in an hour", n)
		}
		w.cards[0].fail("DestroyQueuePairs", nil)
		pass(5 * time.Minute)
		w.onDevice(0, 0, 0, 0)
	})
}

// S02: devices that call themselves otherwise after a restart keep their objects,
// and nothing is done on the wrong one.
func TestS02RenumberedDevicesKeepTheirObjects(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for i, c := range w.cards {
			c.info.Serial = fmt.Sprint("serial", i)
		}
		w.restart(false)
		w.full() // on d0
		qpn := w.getQP("q").Local.QPN
		a, b := w.cards[0].info.ID, w.cards[1].info.ID
		w.cards[0].info.ID, w.cards[1].info.ID = b, a
		w.restart(false)
		w.onDevice(1, 1, 1, 1) // of the card that was d0
		if q := w.getQP("q"); q.State != fabric.StateReady || q.Local.QPN != qpn {
			t.Errorf("%+v", q)
		}
		if b := must(w.f.GetBuffer(ctx(), alice, d0+"/buffers/b")); b.State != fabric.StateReady {
			t.Errorf("%+v", b)
		}
		w.told(t, "nodes/n1", "system", fabric.CauseDevice, "the device that calls itself d1 is d0")
		// Another card in the place of the first is another device.
		w.cards[0].info.Serial = "another"
		w.restart(true)
		if d := must(w.f.GetDevice(ctx(), root, "nodes/n1/devices/d1-2")); d.Info.Serial != "another" || d.Usage != (fabric.Usage{}) {
			t.Errorf("%+v", d)
		}
		if b := must(w.f.GetBuffer(ctx(), alice, d0+"/buffers/b")); b.Session != sessionS {
			t.Errorf("%+v", b)
		}
	})
}
