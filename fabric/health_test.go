package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/storetest"
)

// component gives a component of the node.
func (w *world) component(name string) fabric.Component {
	w.t.Helper()
	h := w.f.NodeHealth()
	i := slices.IndexFunc(h.Components, func(c fabric.Component) bool { return c.Name == name })
	if i < 0 {
		w.t.Fatalf("no component %q in %+v", name, h.Components)
	}
	return h.Components[i]
}

// healthIs wants a component, and the node, to be so.
func (w *world) healthIs(name string, status fabric.HealthStatus, reason fabric.Reason, node fabric.HealthStatus) fabric.Component {
	w.t.Helper()
	c := w.component(name)
	if h := w.f.NodeHealth(); c.Status != status || c.Reason != reason || h.Status != node {
		w.t.Fatalf("%+v, node %s: want %s %s, node %s", c, h.Status, status, reason, node)
	}
	if (c.Message == "") != (reason == "") {
		w.t.Errorf("%s %s with the message %q", c.Status, c.Reason, c.Message)
	}
	return c
}

// healthEvents gives what the journal tells of the health of a component, as
// "BEFORE AFTER REASON".
func (w *world) healthEvents(name string) (list []string) {
	w.t.Helper()
	for _, e := range w.events() {
		if e.Message == "health of "+name || strings.HasPrefix(e.Message, "health of "+name+":") {
			list = append(list, fmt.Sprintf("%s %s %s", e.Before, e.After, e.Reason))
		}
	}
	return list
}

func (w *world) toldHealth(name string, want ...string) {
	w.t.Helper()
	if got := w.healthEvents(name); !slices.Equal(got, want) {
		w.t.Errorf("the journal tells of %s %q: want %q", name, got, want)
	}
}

func TestHealthOfANodeThatIsWell(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		pass(time.Minute)
		h := w.f.NodeHealth()
		var names []string
		for _, c := range h.Components {
			names = append(names, c.Name)
			want := fabric.HealthOK
			if c.Name == fabric.ComponentCluster {
				want = fabric.HealthNotApplicable
			}
			if c.Status != want {
				t.Errorf("%+v", c)
			}
		}
		if want := []string{"clock", "cluster", "devices/d0", "devices/d0/ports", "devices/d1", "devices/d1/ports", "store"}; !slices.Equal(names, want) {
			t.Errorf("components %q, want %q", names, want)
		}
		if h.Status != fabric.HealthOK {
			t.Errorf("the node is %s", h.Status)
		}
		for _, n := range names {
			w.toldHealth(n)
		}
		d := must(w.f.GetDevice(ctx(), alice, d1))
		if d.Health.Status != fabric.HealthOK || len(d.Health.Components) != 2 || d.Health.Components[0].Resource != d1 {
			t.Errorf("%+v", d.Health)
		}
	})
}

func TestHealthOfADeviceThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cards[0].fail("List", errIO)
		w.open()
		defer w.close()
		w.healthIs("devices/d0", fabric.HealthFailed, fabric.DeviceUnavailable, fabric.HealthDegraded)
		w.cards[1].fail("List", errIO)
		w.cards[1].hint(device.Event{Kind: device.DeviceChanged})
		pass(time.Second)
		w.healthIs("devices/d1", fabric.HealthFailed, fabric.DeviceUnavailable, fabric.HealthFailed)
		since := w.component("devices/d0").Since
		pass(time.Minute) // tried many times
		if now := w.component("devices/d0").Since; !now.Equal(since) {
			t.Errorf("failed since %v, and then since %v", since, now)
		}
		w.cards[0].fail("List", nil)
		w.cards[1].fail("List", nil)
		pass(time.Minute)
		w.healthIs("devices/d0", fabric.HealthOK, "", fabric.HealthOK)
		w.toldHealth("devices/d0", " FAILED DEVICE_UNAVAILABLE", "FAILED OK CLEARED")
		w.toldHealth("devices/d1", "OK FAILED DEVICE_UNAVAILABLE", "FAILED OK CLEARED")
	})
}

// hung is a device whose lists wait while it is held.
type hung struct {
	device.Device
	hold atomic.Pointer[chan struct{}]
}

func (h *hung) ListBuffers(ctx context.Context) ([]device.Buffer, error) {
	if ch := h.hold.Load(); ch != nil {
		select {
		case <-*ch:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return h.Device.ListBuffers(ctx)
}

func TestHealthOfADeviceThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		cfg := w.config(w.mem)
		h := &hung{Device: cfg.Devices[0]}
		cfg.Devices[0] = h
		w.f = must(fabric.Open(ctx(), cfg))
		defer w.close()
		hold := make(chan struct{})
		h.hold.Store(&hold)
		w.cards[0].hint(device.Event{Kind: device.DeviceChanged})
		pass(4 * time.Second)
		w.healthIs("devices/d0", fabric.HealthOK, "", fabric.HealthOK)
		pass(2 * time.Second)
		w.healthIs("devices/d0", fabric.HealthDegraded, fabric.Timeout, fabric.HealthDegraded)
		w.healthIs("devices/d1", fabric.HealthOK, "", fabric.HealthDegraded)
		pass(18 * time.Second)
		w.healthIs("devices/d0", fabric.HealthFailed, fabric.Timeout, fabric.HealthDegraded)
		h.hold.Store(nil)
		close(hold)
		pass(time.Minute)
		w.healthIs("devices/d0", fabric.HealthOK, "", fabric.HealthOK)
		w.toldHealth("devices/d0", "OK DEGRADED TIMEOUT", "DEGRADED FAILED TIMEOUT", "FAILED OK CLEARED")
	})
}

func (c *card) pull(port int, out bool) {
	c.mu.Lock()
	c.pulled[port], c.changed[port] = out, time.Now()
	c.mu.Unlock()
	c.hint(device.Event{Kind: device.PortChanged, Port: port})
	synctest.Wait()
}

func TestHealthOfPorts(t *testing.T) {
	const ports = "devices/d0/ports"
	inBubble(t, func(t *testing.T, w *world) {
		w.cards[0].pull(0, true)
		w.cards[0].pull(1, true)
		w.cards[0].pull(2, true) // has no cable by the map
		c := w.healthIs(ports, fabric.HealthDegraded, fabric.ReasonPortDown, fabric.HealthDegraded)
		if !strings.Contains(c.Message, "1 more") {
			t.Errorf("%+v", c)
		}
		d := must(w.f.GetDevice(ctx(), alice, d0))
		if p := d.Health.Problems; d.Health.Status != fabric.HealthDegraded || len(p) != 2 || p[0].Resource != d0+"/ports/0" {
			t.Errorf("%+v", d.Health)
		}
		w.cards[0].pull(0, false)
		w.healthIs(ports, fabric.HealthDegraded, fabric.ReasonPortDown, fabric.HealthDegraded)
		must(w.f.SetPort(ctx(), root, fabric.SetPort{Update: fabric.Update{Name: d0 + "/ports/1"}})) // as it is meant to be
		w.healthIs(ports, fabric.HealthOK, "", fabric.HealthOK)
		synctest.Wait()
		w.toldHealth(ports, "OK DEGRADED PORT_DOWN", "DEGRADED OK CLEARED")
	})
}

// F07: how often a port left ACTIVE is counted, for that port alone, also where it was
// back before anybody looked.
func TestF07FlapsOfAPortAreCounted(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		flaps := func(n int) uint64 {
			return must(w.f.GetPort(ctx(), root, fmt.Sprintf("%s/ports/%d", d0, n))).Flaps
		}
		for range 7 {
			pass(time.Second)
			w.cards[0].pull(0, true)
			pass(time.Second)
			w.cards[0].pull(0, false)
		}
		if a, b := flaps(0), flaps(1); a != 7 || b != 0 {
			t.Errorf("port 0 has flapped %d times, port 1 %d: want 7 and 0", a, b)
		}
		pass(time.Second)
		w.cards[0].pull(0, false) // it was down and is back
		if n := flaps(0); n != 8 {
			t.Errorf("%d flaps: want 8", n)
		}
		if n := flaps(0); n != 8 { // a look changes nothing
			t.Errorf("%d flaps after another look: want 8", n)
		}
	})
}

func TestHealthThatComesAndGoes(t *testing.T) {
	const ports = "devices/d0/ports"
	inBubble(t, func(t *testing.T, w *world) {
		for range 50 {
			w.cards[0].pull(0, true)
			pass(time.Second)
			w.cards[0].pull(0, false)
			pass(time.Second)
		}
		c := w.healthIs(ports, fabric.HealthDegraded, fabric.ReasonPortDown, fabric.HealthDegraded)
		if !strings.Contains(c.Message, "comes and goes") || strings.Count(c.Message, "comes and goes") > 1 {
			t.Errorf("%+v", c)
		}
		if p := w.f.Node().Health.Problems; len(p) != 1 || p[0].Component != ports {
			t.Errorf("held, and the problems are %+v", p)
		}
		pass(28 * time.Second)
		w.healthIs(ports, fabric.HealthDegraded, fabric.ReasonPortDown, fabric.HealthDegraded)
		pass(2 * time.Second)
		w.healthIs(ports, fabric.HealthOK, "", fabric.HealthOK)
		w.toldHealth(ports, "OK DEGRADED PORT_DOWN", "DEGRADED OK CLEARED", "OK DEGRADED PORT_DOWN", "DEGRADED OK CLEARED", "OK DEGRADED PORT_DOWN", "DEGRADED OK CLEARED")
		w.cards[0].pull(0, true) // once again is not flapping
		pass(time.Second)
		w.cards[0].pull(0, false)
		w.healthIs(ports, fabric.HealthOK, "", fabric.HealthOK)
	})
}

// One cause that first degrades and then fails a component is one.
func TestHealthThatGetsWorseByAndBy(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for range 2 {
			for _, s := range []fabric.HealthStatus{fabric.HealthDegraded, fabric.HealthFailed} {
				w.f.SetFault("hosts/soft", "process", fabric.Fault{Status: s, Reason: fabric.Timeout, Message: "it hangs"})
				pass(time.Second)
			}
			w.f.ClearFault("hosts/soft", "process")
			w.healthIs("hosts/soft", fabric.HealthOK, "", fabric.HealthOK)
			pass(time.Second)
		}
	})
}

func TestHealthOfStepsThatFail(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		w.cards[0].fail("DestroyQueuePairs", errIO)
		c, cancel := context.WithTimeout(ctx(), time.Minute)
		defer cancel()
		err := w.f.DeleteQueuePairs(c, alice, false, []fabric.Delete{{Name: d0 + "/queuePairs/q"}})
		refused(t, err, fabric.Timeout, "")
		w.healthIs("devices/d0", fabric.HealthDegraded, fabric.DeviceUnavailable, fabric.HealthDegraded)
		w.cards[0].fail("DestroyQueuePairs", nil)
		pass(time.Minute)
		w.healthIs("devices/d0", fabric.HealthOK, "", fabric.HealthOK)
		w.toldHealth("devices/d0", "OK DEGRADED DEVICE_UNAVAILABLE", "DEGRADED OK CLEARED")
	})
}

func TestHealthOfStrays(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		w.close()
		w.mem = storetest.NewMemory(storetest.Limits{}) // nobody knows them any more
		w.cards[0].fail("DestroyQueuePairs", errIO)
		w.open()
		w.healthIs("devices/d0", fabric.HealthDegraded, fabric.DeviceUnavailable, fabric.HealthDegraded)
		w.cards[0].fail("DestroyQueuePairs", nil)
		pass(time.Minute)
		w.healthIs("devices/d0", fabric.HealthOK, "", fabric.HealthOK)
		w.onDevice(0, 0, 0, 0)
	})
}

// sick is a store that fails on demand.
type sick struct {
	fabric.Store
	is atomic.Bool
}

var errFull = fmt.Errorf("%w: no space left on device", fabric.ErrStoreFailed)

func (s *sick) Commit(ctx context.Context, c fabric.Change) (uint64, error) {
	if s.is.Load() {
		return 0, errFull
	}
	return s.Store.Commit(ctx, c)
}

func TestHealthOfAStoreThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		store := &sick{Store: w.mem}
		w.f = must(fabric.Open(ctx(), w.config(store)))
		defer w.close()
		changed := w.f.HealthChanged()
		store.is.Store(true)
		w.cards[0].pull(0, true) // an event that cannot be recorded
		pass(time.Second)
		select {
		case <-changed:
		default:
			t.Error("a change was not told")
		}
		c := w.healthIs("store", fabric.HealthDegraded, fabric.StoreUnavailable, fabric.HealthDegraded)
		if !strings.Contains(c.Message, "no space left") {
			t.Errorf("%+v", c)
		}
		w.cards[0].pull(0, false)
		store.is.Store(false)
		pass(time.Minute)
		w.healthIs("store", fabric.HealthOK, "", fabric.HealthOK)
		w.toldHealth("store", "OK DEGRADED STORE_UNAVAILABLE", "DEGRADED OK CLEARED")
	})
}

// While the disk takes nothing, reads and the clean-up of devices go on and changes
// are refused; then all that happened is recorded, without being asked to.
func TestWhileTheStoreTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		store := &sick{Store: w.mem}
		w.f = must(fabric.Open(ctx(), w.config(store)))
		defer w.close()
		w.full()
		must(w.f.CreateSession(ctx(), bob, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "brief"}, TTL: 5 * time.Second}))
		store.is.Store(true)
		_, err := w.f.CreateBuffer(ctx(), alice, fabric.CreateBuffer{Create: fabric.Create{Parent: d0, ID: "no"}, Session: sessionS, Size: 4096})
		if e := refused(t, err, fabric.StoreUnavailable, ""); !strings.Contains(e.Error(), "no space left") || e.RetryAfter == 0 {
			t.Errorf("%v, again after %v", e, e.RetryAfter)
		}
		pass(time.Second)
		w.healthIs("store", fabric.HealthDegraded, fabric.StoreUnavailable, fabric.HealthDegraded)
		must(w.f.GetBuffer(ctx(), alice, d0+"/buffers/b"))
		refused(t, w.f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: sessionS}}), fabric.StoreUnavailable, "")
		w.onDevice(1, 1, 1, 1)
		pass(10 * time.Second) // bob's ttl has ended
		_, err = w.f.KeepAlive(ctx(), bob, fabric.KeepAlive{Name: "nodes/n1/sessions/brief"})
		refused(t, err, fabric.SessionClosed, "")
		pass(2 * time.Hour) // and that of alice: her devices are clean
		w.onDevice(0, 0, 0, 0)
		store.is.Store(false)
		pass(time.Minute)
		w.healthIs("store", fabric.HealthOK, "", fabric.HealthOK)
		w.told(t, sessionS, "system", fabric.CauseExpired, "not kept alive")
		if list := must(w.f.ListSessions(ctx(), root, fabric.List{Parent: "nodes/n1"}, nil)); len(list.Items) != 0 {
			t.Errorf("%+v", list.Items)
		}
		w.restart(false)
		if list := must(w.f.ListSessions(ctx(), root, fabric.List{Parent: "nodes/n1"}, nil)); len(list.Items) != 0 {
			t.Errorf("after a restart: %+v", list.Items)
		}
		_, err = w.f.GetBuffer(ctx(), root, d0+"/buffers/no")
		refused(t, err, fabric.NotFound, "")
	})
}

// What a caller outside of the fabric tells, such as of the process that a
// device runs in.
func TestHealthOfAnotherComponent(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		fault := fabric.Fault{Status: fabric.HealthFailed, Reason: fabric.DeviceUnavailable, Message: "it has ended"}
		w.f.SetFault("hosts/soft", "process", fault)
		since := w.healthIs("hosts/soft", fabric.HealthFailed, fabric.DeviceUnavailable, fabric.HealthDegraded).Since
		pass(time.Minute)
		fault.Message = "it has ended again"
		w.f.SetFault("hosts/soft", "process", fault)
		if c := w.component("hosts/soft"); !c.Since.Equal(since) || c.Message != fault.Message || !w.f.NodeHealth().Problems[0].Since.Equal(since) {
			t.Errorf("%+v, since %v", c, since)
		}
		w.f.ClearFault("hosts/soft", "another")
		w.healthIs("hosts/soft", fabric.HealthFailed, fabric.DeviceUnavailable, fabric.HealthDegraded)
		w.f.ClearFault("hosts/soft", "process")
		w.healthIs("hosts/soft", fabric.HealthOK, "", fabric.HealthOK)
		synctest.Wait()
	})
}

func TestHealthAtOnceFromManySides(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		done := make(chan struct{})
		for i := range 8 {
			go func() {
				for n := range 100 {
					name := fmt.Sprintf("hosts/h%d", n%3)
					w.f.SetFault(name, fmt.Sprint(i), fabric.Fault{Status: fabric.HealthDegraded, Reason: fabric.Internal, Message: errors.ErrUnsupported.Error()})
					w.f.NodeHealth()
					<-time.After(time.Millisecond)
					w.f.ClearFault(name, fmt.Sprint(i))
				}
				done <- struct{}{}
			}()
		}
		for range 8 {
			<-done
		}
		pass(time.Minute)
		for n := range 3 {
			w.healthIs(fmt.Sprintf("hosts/h%d", n), fabric.HealthOK, "", fabric.HealthOK)
		}
		if n := len(w.healthEvents("hosts/h0")); n > 6 {
			t.Errorf("%d events of a component that comes and goes", n)
		}
	})
}
