package fabric_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/storetest"
)

// world is a node of two cards and a store, all of which outlive the daemon.
type world struct {
	t     *testing.T
	cards [2]*card
	mem   *storetest.Memory
	boot  string
	f     *fabric.Fabric
	start time.Time
	devs  []device.Device                   // of the daemon that runs
	wrap  func(device.Device) device.Device // what it gets in the place of a device; may be nil
}

var (
	alice = fabric.Caller{Identity: "uid:1000", UID: 1000, PID: 4711, HasPeer: true}
	bob   = fabric.Caller{Identity: "uid:2000", UID: 2000, PID: 4712, HasPeer: true}
	root  = fabric.Caller{Identity: "uid:0", Operator: true}
)

const d0, d1 = "nodes/n1/devices/d0", "nodes/n1/devices/d1"

// inBubble runs a scenario with fake time. A goroutine that outlives the
// scenario fails it: synctest waits for all and reports a deadlock.
func inBubble(t *testing.T, fn func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.open()
		defer w.close()
		fn(t, w)
	})
}

func newWorld(t *testing.T) *world {
	return &world{t: t, cards: [2]*card{newCard("d0", 0), newCard("d1", 1)}, mem: storetest.NewMemory(storetest.Limits{}), boot: "boot-1", start: time.Now()}
}

// config is that of the next daemon.
func (w *world) config(store fabric.Store) fabric.Config {
	w.devs = nil
	for _, c := range w.cards {
		var d device.Device = c.open()
		if w.wrap != nil {
			d = w.wrap(d)
		}
		w.devs = append(w.devs, d)
	}
	return fabric.Config{NodeID: "n1", BootID: w.boot, Version: "test", Store: store, Devices: w.devs,
		Uptime: func() time.Duration { return time.Since(w.start) }, ClockSynchronized: func() (bool, error) { return true, nil }}
}

func (w *world) open() {
	w.t.Helper()
	w.mem = w.mem.Reopen()
	f, err := fabric.Open(context.Background(), w.config(w.mem))
	if err != nil {
		w.t.Fatal("Open:", err)
	}
	w.f = f
}

func (w *world) close() {
	if w.f != nil {
		if err := w.f.Close(); err != nil {
			w.t.Error("Close:", err)
		}
		w.f = nil
	}
}

// restart is a daemon that ends and starts again; lose: the devices lose all.
func (w *world) restart(lose bool) {
	w.t.Helper()
	w.close()
	if lose {
		for _, c := range w.cards {
			c.wipe()
		}
	}
	w.open()
}

// pass lets (fake) time pass, and all that is due in it happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func ctx() context.Context { return context.Background() }

func (w *world) session(id string, c fabric.Caller) fabric.Session {
	w.t.Helper()
	s, err := w.f.CreateSession(ctx(), c, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/local", ID: id}, TTL: time.Hour})
	return must(s, err)
}

func (w *world) pd(id, session string) fabric.ProtectionDomain {
	w.t.Helper()
	p, err := w.f.CreateProtectionDomain(ctx(), alice, fabric.CreateProtectionDomain{Create: fabric.Create{Parent: d0, ID: id}, Session: session})
	return must(p, err)
}

func (w *world) buffer(id, session string, size uint64) fabric.Buffer {
	w.t.Helper()
	b, err := w.f.CreateBuffer(ctx(), alice, fabric.CreateBuffer{Create: fabric.Create{Parent: d0, ID: id}, Session: session, Size: size})
	return must(b, err)
}

func (w *world) region(id, pd, buf string) fabric.MemoryRegion {
	w.t.Helper()
	m, err := w.f.CreateMemoryRegion(ctx(), alice, fabric.CreateMemoryRegion{Create: fabric.Create{Parent: d0, ID: id}, ProtectionDomain: pd, Buffer: buf,
		Access: ib.LocalWrite | ib.RemoteWrite})
	return must(m, err)
}

func qpRequest(id, pd string) fabric.CreateQueuePair {
	return fabric.CreateQueuePair{Create: fabric.Create{Parent: d0, ID: id}, ProtectionDomain: pd, Port: 1, Type: ib.RC}
}

func (w *world) qp(id, pd string) fabric.QueuePair {
	w.t.Helper()
	qs, err := w.f.CreateQueuePairs(ctx(), alice, "", false, []fabric.CreateQueuePair{qpRequest(id, pd)})
	return must(qs, err)[0]
}

// full makes one of each kind.
func (w *world) full() {
	w.t.Helper()
	w.session("s", alice)
	w.pd("p", "nodes/n1/sessions/s")
	w.buffer("b", "nodes/n1/sessions/s", 8192)
	w.region("m", d0+"/protectionDomains/p", d0+"/buffers/b")
	w.qp("q", d0+"/protectionDomains/p")
}

func (w *world) getQP(id string) fabric.QueuePair {
	w.t.Helper()
	q, err := w.f.GetQueuePair(ctx(), alice, d0+"/queuePairs/"+id)
	return must(q, err)
}

var peer = fabric.Endpoint{GID: gidOf(9, 1), QPN: 77, PSN: 5}

func (w *world) connect(id string, to fabric.Endpoint) ([]fabric.QueuePair, error) {
	return w.f.ConnectQueuePairs(ctx(), alice, false, []fabric.ConnectQueuePair{{Update: fabric.Update{Name: d0 + "/queuePairs/" + id}, Remote: to}})
}

// events gives all that the journal has.
func (w *world) events() []fabric.Event {
	w.t.Helper()
	p, err := w.f.ListEvents(ctx(), root, fabric.ListEvents{Limit: 1000}, nil)
	return must(p, err).Items
}

// must is for calls that have no reason to fail.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// refused wants an error with a reason, about a field where one is given.
func refused(t *testing.T, err error, reason fabric.Reason, field string) *fabric.Error {
	t.Helper()
	var e *fabric.Error
	if !errors.As(err, &e) || !errors.Is(err, reason) {
		t.Fatalf("error %v (%#v): want %s", err, err, reason)
	}
	if field != "" && e.Field != field {
		t.Fatalf("error %v is about %q: want %q", err, e.Field, field)
	}
	return e
}

// onDevice wants so many objects on card 0.
func (w *world) onDevice(pds, bufs, regions, qps int) {
	w.t.Helper()
	a, b, c, d := w.cards[0].count()
	if a != pds || b != bufs || c != regions || d != qps {
		w.t.Fatalf("the device has %d domains, %d buffers, %d regions, %d queue pairs: want %d, %d, %d, %d", a, b, c, d, pds, bufs, regions, qps)
	}
}
