package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// fake is a device that answers what the test wants.
type fake struct {
	device.Device
	id     string
	events chan device.Event
	port   func(context.Context) error
	done   chan device.Completion
	gone   atomic.Bool // the queue pair
}

func newFake(id string) *fake {
	return &fake{id: id, events: make(chan device.Event, 16), done: make(chan device.Completion, 4096)}
}

func (f *fake) Info() device.Info           { return device.Info{ID: f.id, Driver: "fake", Ports: 1} }
func (f *fake) Events() <-chan device.Event { return f.events }

func (f *fake) Port(ctx context.Context, n int) (device.Port, error) {
	if f.port != nil {
		if err := f.port(ctx); err != nil {
			return device.Port{}, err
		}
	}
	return device.Port{Number: n, Reason: f.id}, nil
}

func (f *fake) GetQueuePair(_ context.Context, uid device.UID) (device.QueuePair, error) {
	if f.gone.Load() {
		return device.QueuePair{}, device.ErrNotFound
	}
	return device.QueuePair{UID: uid, State: ib.RTS}, nil
}

func (f *fake) Completions(ctx context.Context, _ device.UID, limit int) (list []device.Completion, err error) {
	select {
	case c := <-f.done:
		list = append(list, c)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for len(list) < limit && len(f.done) > 0 {
		list = append(list, <-f.done)
	}
	return list, nil
}

// reached dials a host and closes its devices with the test.
func reached(t *testing.T, c Config, speaks protocols) []device.Device {
	t.Helper()
	if c.BootID == "" {
		c.BootID = testBoot(t)
	}
	far, err := dial(t.Context(), c, speaks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, d := range far {
			d.Close()
		}
	})
	return far
}

// next waits for a hint.
func next(t *testing.T, d device.Device) device.Event {
	t.Helper()
	select {
	case e := <-d.Events():
		return e
	case <-time.After(30 * time.Second):
		t.Fatal("no hint came")
		return device.Event{}
	}
}

// TestHostsThatMustNotBeUsed: each is refused by what it is, and the text says
// how it is ended. One version apart is served.
func TestHostsThatMustNotBeUsed(t *testing.T) {
	ours := protocols{4, 5}
	for _, c := range []struct {
		name   string
		host   protocols
		served Served
		want   error
		says   []string
	}{
		{"of this version", ours, Served{}, nil, nil},
		{"one older", protocols{3, 4}, Served{}, nil, nil},
		{"one newer", protocols{5, 6}, Served{}, nil, nil},
		{"two older", protocols{2, 3}, Served{Version: "v0.3"}, ErrVersion, []string{"v9.9", "v0.3", "versions 4 to 5", "versions 2 to 3", "end it like so"}},
		{"two newer", protocols{6, 7}, Served{Version: "v12"}, ErrVersion, []string{"v9.9", "v12", "versions 4 to 5", "versions 6 to 7"}},
		{"of another spec", ours, Served{Spec: "three cards"}, ErrSpec, []string{"three cards", "two cards", "end it like so"}},
		{"of another boot", ours, Served{BootID: "long ago"}, ErrBoot, []string{"long ago"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			socket := socketIn(t)
			c.served.Devices = []device.Device{newFake("d0")}
			if c.served.Spec == "" {
				c.served.Spec = "two cards"
			}
			start(t, socket, c.served, c.host)
			far, err := dial(t.Context(), Config{Socket: socket, Spec: "two cards", Version: "v9.9", BootID: testBoot(t), Instead: "end it like so",
				Start: func() (Started, error) { t.Error("another host was started"); return Started{}, errors.New("not now") }}, ours)
			if !errors.Is(err, c.want) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			for _, part := range c.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%v: want it to say %q", err, part)
				}
			}
			for _, d := range far {
				if p, err := d.Port(t.Context(), 0); err != nil || p.Reason != "d0" {
					t.Errorf("%v, %v", p, err)
				}
				d.Close()
			}
		})
	}
}

// TestTheHostIsReplaced: calls fail while there is none, the devices say when
// they are away and when they are back, and then they are the next host's.
func TestTheHostIsReplaced(t *testing.T) {
	socket := socketIn(t)
	old := newFake("d0")
	held := make(chan struct{})
	old.port = func(ctx context.Context) error {
		close(held)
		<-ctx.Done()
		return ctx.Err()
	}
	first := start(t, socket, Served{Devices: []device.Device{old}}, current)
	d := reached(t, Config{Socket: socket}, current)[0]
	waits := make(chan error)
	go func() {
		_, err := d.Port(context.Background(), 0)
		waits <- err
	}()
	<-held
	if err := first.end(); err != nil {
		t.Fatal(err)
	}
	if err := <-waits; !errors.Is(err, device.ErrUnavailable) || errors.Is(err, context.Canceled) {
		t.Errorf("a call of a host that ended: %v, want ErrUnavailable alone", err)
	}
	if e := next(t, d); e.Kind != device.DeviceChanged {
		t.Errorf("%+v, want a hint that the device is away", e)
	}
	if _, err := d.Port(t.Context(), 0); !errors.Is(err, device.ErrUnavailable) {
		t.Errorf("without a host: %v", err)
	}
	if _, err := os.Lstat(socket); err == nil {
		t.Error("a host that ends leaves its socket")
	}
	start(t, socket, Served{Devices: []device.Device{newFake("d0")}}, current)
	if e := next(t, d); e.Kind != device.DeviceChanged {
		t.Errorf("%+v, want a hint that the device is back", e)
	}
	if _, err := d.Port(t.Context(), 0); err != nil {
		t.Errorf("of the next host: %v", err)
	}
}

// TestCallsAreBounded: a device that does not answer holds up nothing else, and
// its callers as long as they like.
func TestCallsAreBounded(t *testing.T) {
	slow, quick := newFake("slow"), newFake("quick")
	slow.port = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	far := through(t, []device.Device{slow, quick})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := far[0].Port(ctx, 0); err != ctx.Err() || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("at its deadline: %v, want the context's error", err)
	}
	given, giveUp := context.WithCancel(t.Context())
	time.AfterFunc(time.Millisecond, giveUp)
	if _, err := far[0].Port(given, 0); err != context.Canceled {
		t.Errorf("given up: %v, want the context's error", err)
	}
	if _, err := ask(t.Context(), far[0].(*remote), 20*time.Millisecond, func(ctx context.Context, s *session) (device.Port, error) {
		return far[0].Port(ctx, 0)
	}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("at the bound of every call: %v", err)
	}
	if _, err := far[1].Port(t.Context(), 0); err != nil {
		t.Error(err)
	}
}

func TestHintsArrive(t *testing.T) {
	near := newFake("d0")
	d := through(t, []device.Device{near})[0]
	uid := device.UID{1, 2, 3}
	for _, e := range []device.Event{{Kind: device.PortChanged, Port: 3}, {Kind: device.QueuePairChanged, Port: -1, QP: uid}, {Kind: device.MemoryChanged, Port: -1}, {Kind: device.DeviceChanged, Port: -1}} {
		near.events <- e
		if got := next(t, d); got != e {
			t.Errorf("%+v arrived as %+v", e, got)
		}
	}
	// More than there is room for ends in one that stands for all.
	for range 2000 {
		near.events <- device.Event{Kind: device.PortChanged, Port: 1}
	}
	near.events <- device.Event{Kind: device.PortChanged, Port: 2}
	for e := next(t, d); e.Kind != device.DeviceChanged; e = next(t, d) {
		if e.Port == 2 {
			break // it was fast enough
		}
	}
}

func TestOneHostAName(t *testing.T) {
	socket := socketIn(t)
	s := start(t, socket, Served{Devices: []device.Device{newFake("d0")}}, current)
	if _, err := Listen(socket); !errors.Is(err, ErrServed) {
		t.Errorf("a second host: %v", err)
	}
	r, err := ReadRuntime(socket)
	if err != nil || !r.Running() || r.PID != os.Getpid() || len(r.Devices) != 1 || r.Devices[0].ID != "d0" {
		t.Errorf("%+v, %v", r, err)
	}
	for _, name := range []string{socket, beside(socket, ".fds"), beside(socket, ".json")} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v: want mode 0600", name, info.Mode(), err)
		}
	}
	s.end()
	at, err := Listen(socket)
	if err != nil {
		t.Fatalf("after its end: %v", err)
	}
	at.Close()
	// A file that is no socket is nobody's to remove.
	file := filepath.Join(filepath.Dir(socket), "file.sock")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(file); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("in the place of a file: %v", err)
	}
	for _, path := range []string{"a.sock", "/a", "/" + strings.Repeat("a", 120) + ".sock"} {
		if _, err := Listen(path); err == nil {
			t.Errorf("%s was taken", path)
		}
	}
}

func TestAloneForTooLong(t *testing.T) {
	socket := socketIn(t)
	at, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	err = Serve(t.Context(), at, Served{Devices: []device.Device{newFake("d0")}, Linger: 10 * time.Millisecond})
	if !errors.Is(err, ErrAlone) {
		t.Errorf("%v, want ErrAlone", err)
	}
	// With a daemon it stays.
	h := start(t, socket, Served{Devices: []device.Device{newFake("d0")}, Linger: 10 * time.Second}, current)
	d := reached(t, Config{Socket: socket}, current)[0]
	h.end()
	if _, err := d.Port(t.Context(), 0); err == nil {
		t.Error("a host that ended has answered")
	}
}

// TestAFailedStartIsTold: a host that ends before it serves is not waited for.
func TestAFailedStartIsTold(t *testing.T) {
	ended := make(chan error, 1)
	ended <- errors.New("exit status 1: no such map")
	_, err := Dial(t.Context(), Config{Socket: socketIn(t), BootID: testBoot(t), Start: func() (Started, error) {
		return Started{Ended: ended, Kill: func() {}}, nil
	}})
	if err == nil || !strings.Contains(err.Error(), "exit status 1: no such map") {
		t.Errorf("error %v, want what the host said", err)
	}
	// One that does not serve before the caller gives up is not left behind.
	killed := false
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, Config{Socket: socketIn(t), BootID: testBoot(t), Start: func() (Started, error) {
		return Started{Kill: func() { killed = true }}, nil
	}}); !errors.Is(err, context.DeadlineExceeded) || !killed {
		t.Errorf("error %v, killed %t", err, killed)
	}
}

// TestAManagersHostIsWaitedFor: the manager starts it again, and the daemon
// none of its own beside it.
func TestAManagersHostIsWaitedFor(t *testing.T) {
	socket := socketIn(t)
	boot := testBoot(t)
	if err := (Runtime{Process: Process{PID: 1 << 30, Boot: boot}, Managed: true}).write(socket); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		devices []device.Device
		err     error
	}
	got := make(chan answer)
	go func() {
		devices, err := Dial(t.Context(), Config{Socket: socket, BootID: boot, Start: func() (Started, error) {
			return Started{}, errors.New("the daemon started one of its own")
		}})
		got <- answer{devices, err}
	}()
	select {
	case a := <-got:
		t.Fatalf("nobody serves, and it has not waited: %v", a.err)
	case <-time.After(50 * time.Millisecond):
	}
	start(t, socket, Served{Devices: []device.Device{newFake("d0")}}, current)
	a := <-got
	if a.err != nil {
		t.Fatal(a.err)
	}
	a.devices[0].Close()
}

// TestADaemonWaitsForTheCallsOfTheOneBefore: what that one asked is over when
// this one looks.
func TestADaemonWaitsForTheCallsOfTheOneBefore(t *testing.T) {
	near := newFake("d0")
	begun, goOn := make(chan struct{}), make(chan struct{})
	var over atomic.Bool
	near.port = func(context.Context) error { // as a call that has begun to change something
		close(begun)
		<-goOn
		over.Store(true)
		near.port = nil
		return nil
	}
	socket := socketIn(t)
	start(t, socket, Served{Devices: []device.Device{near}}, current)
	before := reached(t, Config{Socket: socket}, current)[0]
	go before.Port(context.Background(), 0)
	<-begun
	before.Close() // the connection ends, as when a daemon is killed
	time.AfterFunc(20*time.Millisecond, func() { close(goOn) })
	after := reached(t, Config{Socket: socket}, current)[0]
	if !over.Load() {
		t.Error("a call of the daemon before is under way")
	}
	if _, err := after.Port(t.Context(), 0); err != nil {
		t.Error(err)
	}
}
