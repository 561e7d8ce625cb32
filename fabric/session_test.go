package fabric_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelfab/accelfab/fabric"
)

func TestSessionExpires(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		s := must(w.f.CreateSession(ctx(), alice, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "s"}, TTL: 5 * time.Second}))
		w.pd("p", s.Name)
		w.buffer("b", s.Name, 4096)
		w.region("m", d0+"/protectionDomains/p", d0+"/buffers/b")
		w.qp("q", d0+"/protectionDomains/p")
		for range 4 { // it lives while it is kept alive
			pass(4 * time.Second)
			must(w.f.KeepAlive(ctx(), alice, fabric.KeepAlive{Name: s.Name, Generation: s.Generation}))
		}
		w.onDevice(1, 1, 1, 1)
		_, err := w.f.KeepAlive(ctx(), alice, fabric.KeepAlive{Name: s.Name, Generation: s.Generation + 1})
		refused(t, err, fabric.GenerationStale, "generation")
		pass(5*time.Second + time.Millisecond)
		w.onDevice(0, 0, 0, 0)
		_, err = w.f.GetSession(ctx(), alice, s.Name)
		refused(t, err, fabric.NotFound, "")
		var closing bool
		for _, e := range w.events() {
			closing = closing || e.Resource == s.Name && e.Reason == fabric.CauseExpired && e.After == "CLOSING" && e.Actor == "system"
		}
		if !closing {
			t.Error("no event says that it expired")
		}
	})
}

func TestRestartGrantsOneTTL(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		s := must(w.f.CreateSession(ctx(), alice, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "s"}, TTL: 5 * time.Second}))
		pass(4 * time.Second)
		w.restart(false)
		pass(4 * time.Second)
		got := must(w.f.GetSession(ctx(), alice, s.Name))
		if got.State != fabric.StateActive || got.UID != s.UID {
			t.Errorf("%+v", got)
		}
		pass(2 * time.Second)
		_, err := w.f.GetSession(ctx(), alice, s.Name)
		refused(t, err, fabric.NotFound, "")
	})
}

// L01: a step of a session's end that fails is tried again until it is done,
// each failed attempt is an event, and the rest does not wait for it.
func TestL01CloseGoesOnPastAFailingStep(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		w.cards[0].fail("DeregisterRegions", errIO)
		done := make(chan error)
		go func() {
			done <- w.f.CloseSession(ctx(), root, fabric.CloseSession{Delete: fabric.Delete{Name: "nodes/n1/sessions/s"}, Message: "its job is gone"})
		}()
		pass(25 * time.Millisecond)
		w.onDevice(1, 1, 1, 0) // the queue pair is gone; the domain and the buffer wait for the region
		s := must(w.f.GetSession(ctx(), root, "nodes/n1/sessions/s"))
		if s.State != fabric.StateClosing || !s.Condition.Reconciling {
			t.Errorf("%+v", s)
		}
		_, err := w.f.CreateProtectionDomain(ctx(), alice, fabric.CreateProtectionDomain{Create: fabric.Create{Parent: d0}, Session: s.Name})
		refused(t, err, fabric.SessionClosed, "session")
		// Calls that do not name the session name what they do name.
		_, err = w.f.CreateQueuePairs(ctx(), alice, "", false, []fabric.CreateQueuePair{qpRequest("q2", d0+"/protectionDomains/p")})
		refused(t, err, fabric.SessionClosed, "protection_domain")
		at := fabric.BufferRange{Buffer: d0 + "/buffers/b"}
		refused(t, w.f.WriteBuffer(ctx(), alice, at, []byte("x")), fabric.SessionClosed, "name")
		w.cards[0].fail("DeregisterRegions", nil)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		w.onDevice(0, 0, 0, 0)
		failed, said := 0, false
		for _, e := range w.events() {
			if e.Resource == d0+"/memoryRegions/m" && e.Reason == fabric.DeviceUnavailable {
				failed++
			}
			said = said || e.Message == "its job is gone" && e.Actor == root.Identity
		}
		if failed < 2 || !said {
			t.Errorf("%d events of failed attempts, the operator's reason told: %v", failed, said)
		}
	})
}

// L06: a session whose end fails does not keep others from ending.
func TestL06OtherSessionsEndInTheSamePass(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for i := range 3 {
			s := must(w.f.CreateSession(ctx(), alice, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: fmt.Sprintf("s%d", i)}, TTL: 2 * time.Second}))
			if i == 0 {
				w.buffer("b", s.Name, 4096)
			} else {
				w.pd(fmt.Sprintf("p%d", i), s.Name)
			}
		}
		w.cards[0].fail("Free", errIO)
		pass(2*time.Second + 5*time.Millisecond)
		p := must(w.f.ListSessions(ctx(), root, fabric.List{Parent: "nodes/n1"}, nil))
		if len(p.Items) != 1 || p.Items[0].Name != "nodes/n1/sessions/s0" {
			t.Errorf("%+v: want only s0 to be left", p.Items)
		}
		w.cards[0].fail("Free", nil)
		pass(30 * time.Second)
		w.onDevice(0, 0, 0, 0)
	})
}

// L09, Q12: a device that is held names its holder.
func TestL09ExclusiveDeviceNamesItsHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := must(w.f.CreateSession(ctx(), alice, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "a"}, Devices: []string{"nodes/local/devices/d0"}, Exclusive: true}))
		_, err := w.f.CreateSession(ctx(), bob, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "b"}})
		e := refused(t, err, fabric.DeviceBusy, "devices")
		if h := e.Shortage.Holders[0]; h.Name != a.Name || h.PID != 4711 || h.Identity != alice.Identity || h.Since.IsZero() {
			t.Errorf("%+v", h)
		}
		b := must(w.f.CreateSession(ctx(), bob, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "b"}, Devices: []string{d1}}))
		_, err = w.f.CreateSession(ctx(), alice, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "c"}, Devices: []string{d1}, Exclusive: true})
		refused(t, err, fabric.DeviceBusy, "devices")
		_, err = w.f.CreateSession(ctx(), alice, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "c"}, Exclusive: true})
		refused(t, err, fabric.FieldRequired, "devices")
		// A session builds on the devices that it holds alone.
		_, err = w.f.CreateProtectionDomain(ctx(), bob, fabric.CreateProtectionDomain{Create: fabric.Create{Parent: d0}, Session: b.Name})
		refused(t, err, fabric.FieldInvalid, "parent")
		refused(t, w.f.CloseSession(ctx(), bob, fabric.CloseSession{Delete: fabric.Delete{Name: a.Name}}), fabric.PermissionDenied, "")
		must(0, w.f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: a.Name}}))
		must(w.f.CreateSession(ctx(), bob, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "a"}, Devices: []string{d0}, Exclusive: true}))
		w.restart(false) // the claim is durable
		_, err = w.f.CreateSession(ctx(), alice, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "c"}, Devices: []string{d0}})
		refused(t, err, fabric.DeviceBusy, "devices")
	})
}

func TestUpdateSession(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		s := w.session("s", alice)
		up := fabric.UpdateSession{Update: fabric.Update{Name: s.Name, ETag: s.ETag()}, TTL: 2 * time.Second, Labels: map[string]string{"job": "7"}, SetLabels: true}
		got := must(w.f.UpdateSession(ctx(), alice, up))
		if got.TTL != 2*time.Second || got.Labels["job"] != "7" || got.ETag() == s.ETag() {
			t.Errorf("%+v", got)
		}
		_, err := w.f.UpdateSession(ctx(), alice, up)
		if e := refused(t, err, fabric.ETagMismatch, "etag"); e.Details["present"] != got.ETag() {
			t.Errorf("%+v", e)
		}
		refused(t, w.f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: s.Name, ETag: "0"}}), fabric.ETagMismatch, "etag")
		pass(3 * time.Second) // a shorter ttl ends it earlier than it was to end
		synctest.Wait()
		_, err = w.f.GetSession(ctx(), alice, s.Name)
		refused(t, err, fabric.NotFound, "")
	})
}

func TestCloseWhileACreateIsAtTheDevice(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.session("s", alice)
		w.pd("p", "nodes/n1/sessions/s")
		hold := make(chan struct{})
		w.cards[0].mu.Lock()
		w.cards[0].hold = hold
		w.cards[0].mu.Unlock()
		made, closed := make(chan error), make(chan error)
		go func() {
			_, err := w.f.CreateQueuePairs(ctx(), alice, "r", false, []fabric.CreateQueuePair{qpRequest("q", d0+"/protectionDomains/p")})
			made <- err
		}()
		synctest.Wait()
		go func() {
			closed <- w.f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: "nodes/n1/sessions/s"}})
		}()
		synctest.Wait()
		close(hold)
		refused(t, <-made, fabric.SessionClosed, "")
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		w.onDevice(0, 0, 0, 0)
	})
}
