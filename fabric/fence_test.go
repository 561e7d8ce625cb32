package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/fabric"
)

const sessionS = "nodes/n1/sessions/s"

// believing is a caller who believes in a generation of session s.
func believing(c fabric.Caller, generation uint64) fabric.Caller {
	c.Generations = fabric.Generations{sessionS: generation}
	return c
}

// L07: what comes with an old generation does nothing, whatever it is.
func TestL07AnOldGenerationIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		first := must(w.f.GetSession(ctx(), alice, sessionS)).Generation
		old := believing(alice, first)
		must(w.f.KeepAlive(ctx(), old, fabric.KeepAlive{Name: sessionS}))
		w.restart(false)
		s := must(w.f.ResumeSession(ctx(), alice, fabric.ResumeSession{Update: fabric.Update{Name: sessionS}, Generation: first}))
		if s.Generation <= first || s.State != fabric.StateActive {
			t.Fatalf("%+v", s)
		}
		w.told(t, sessionS, "uid:1000", fabric.CauseResumed, fmt.Sprintf("generation %d", s.Generation))
		w.restart(false) // it is durable
		before := len(w.events())
		for what, call := range map[string]func(c fabric.Caller) error{
			"keep-alive": func(c fabric.Caller) error {
				_, err := w.f.KeepAlive(ctx(), c, fabric.KeepAlive{Name: sessionS})
				return err
			},
			"create in it": func(c fabric.Caller) error {
				_, err := w.f.CreateBuffer(ctx(), c, fabric.CreateBuffer{Create: fabric.Create{Parent: d0}, Session: sessionS, Size: 4096})
				return err
			},
			"create on what it has": func(c fabric.Caller) error {
				_, err := w.f.CreateQueuePairs(ctx(), c, "", false, []fabric.CreateQueuePair{qpRequest("late", d0+"/protectionDomains/p")})
				return err
			},
			"connect": func(c fabric.Caller) error {
				_, err := w.f.ConnectQueuePairs(ctx(), c, false, []fabric.ConnectQueuePair{{Update: fabric.Update{Name: d0 + "/queuePairs/q"}, Remote: peer}})
				return err
			},
			"write": func(c fabric.Caller) error {
				return w.f.WriteBuffer(ctx(), c, fabric.BufferRange{Buffer: d0 + "/buffers/b"}, []byte("late"))
			},
			"post": func(c fabric.Caller) error {
				_, err := w.f.PostWork(ctx(), c, fabric.PostWork{QueuePair: d0 + "/queuePairs/q", Requests: []device.WorkRequest{{Opcode: device.WorkRecv}}})
				return err
			},
			"delete": func(c fabric.Caller) error {
				return w.f.DeleteMemoryRegion(ctx(), c, fabric.Delete{Name: d0 + "/memoryRegions/m"})
			},
			"close": func(c fabric.Caller) error {
				return w.f.CloseSession(ctx(), c, fabric.CloseSession{Delete: fabric.Delete{Name: sessionS}})
			},
			"resume": func(c fabric.Caller) error {
				_, err := w.f.ResumeSession(ctx(), c, fabric.ResumeSession{Update: fabric.Update{Name: sessionS}})
				return err
			},
		} {
			e := refused(t, call(old), fabric.GenerationStale, "generation")
			if e.Details["asked"] != fmt.Sprint(first) || e.Details["present"] != fmt.Sprint(s.Generation) || e.Details["session"] != sessionS {
				t.Errorf("%s: %v", what, e.Details)
			}
			if what != "keep-alive" && what != "write" {
				continue
			}
			if err := call(believing(alice, s.Generation)); err != nil { // the present holder may
				t.Errorf("%s by the present holder: %v", what, err)
			}
		}
		if now := len(w.events()); now != before {
			t.Errorf("%d events more by refused calls", now-before)
		}
		_, err := w.f.ResumeSession(ctx(), alice, fabric.ResumeSession{Update: fabric.Update{Name: sessionS}, Generation: first})
		refused(t, err, fabric.GenerationStale, "generation")
		_, err = w.f.ResumeSession(ctx(), bob, fabric.ResumeSession{Update: fabric.Update{Name: sessionS}})
		refused(t, err, fabric.PermissionDenied, "")
	})
}

// slowWrite is a device whose WriteMemory waits.
type slowWrite struct {
	device.Device
	began, release chan struct{}
	acted          *atomic.Int32
}

func (s slowWrite) WriteMemory(c context.Context, address uint64, p []byte) error {
	s.began <- struct{}{}
	<-s.release
	s.acted.Add(1)
	return s.Device.WriteMemory(c, address, p)
}

// Who takes a session over knows that nothing of the old holder comes after: what
// was let in before has ended when the call returns.
func TestAResumeWaitsForWorkThatWasLetIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		slow := slowWrite{began: make(chan struct{}), release: make(chan struct{}), acted: new(atomic.Int32)}
		w.wrap = func(d device.Device) device.Device { s := slow; s.Device = d; return s }
		w.open()
		defer w.close()
		w.full()
		first := must(w.f.GetSession(ctx(), alice, sessionS)).Generation
		wrote := make(chan error, 1)
		go func() {
			wrote <- w.f.WriteBuffer(ctx(), believing(alice, first), fabric.BufferRange{Buffer: d0 + "/buffers/b"}, []byte("late"))
		}()
		<-slow.began
		resumed := make(chan int32, 1)
		go func() {
			must(w.f.ResumeSession(ctx(), alice, fabric.ResumeSession{Update: fabric.Update{Name: sessionS}}))
			resumed <- slow.acted.Load()
		}()
		synctest.Wait()
		select {
		case <-resumed:
			t.Fatal("it did not wait")
		default:
		}
		// Nothing new gets in meanwhile.
		err := w.f.WriteBuffer(ctx(), believing(alice, first), fabric.BufferRange{Buffer: d0 + "/buffers/b"}, []byte("late"))
		refused(t, err, fabric.GenerationStale, "generation")
		close(slow.release)
		if n := <-resumed; n != 1 {
			t.Errorf("%d writes had been done when it returned", n)
		}
		if err := <-wrote; err != nil {
			t.Errorf("the write that was let in: %v", err)
		}
	})
}

// slowCreate is a device whose CreateQueuePairs waits.
type slowCreate struct {
	device.Device
	began, release chan struct{}
	acted          *atomic.Bool
}

func (s slowCreate) CreateQueuePairs(c context.Context, specs []device.QueuePairSpec) []device.QueuePairResult {
	s.began <- struct{}{}
	<-s.release
	s.acted.Store(true)
	return s.Device.CreateQueuePairs(c, specs)
}

// Nor is a change under way: what the old holder asked of a device is done, or
// refused, when the session has changed hands.
func TestAResumeWaitsForChangesThatWereLetIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		slow := slowCreate{began: make(chan struct{}), release: make(chan struct{}), acted: new(atomic.Bool)}
		w.wrap = func(d device.Device) device.Device { s := slow; s.Device = d; return s }
		w.open()
		defer w.close()
		first := w.session("s", alice).Generation
		w.pd("p", sessionS)
		made := make(chan error, 1)
		go func() {
			_, err := w.f.CreateQueuePairs(ctx(), believing(alice, first), "", false, []fabric.CreateQueuePair{qpRequest("q", d0+"/protectionDomains/p")})
			made <- err
		}()
		<-slow.began
		short, cancel := context.WithTimeout(ctx(), time.Second)
		defer cancel()
		s, err := w.f.ResumeSession(short, alice, fabric.ResumeSession{Update: fabric.Update{Name: sessionS}, Generation: first})
		refused(t, err, fabric.Timeout, "")
		if s.Generation <= first { // it has changed hands all the same
			t.Errorf("generation %d after %d", s.Generation, first)
		}
		resumed := make(chan bool, 1)
		go func() {
			must(w.f.ResumeSession(ctx(), alice, fabric.ResumeSession{Update: fabric.Update{Name: sessionS}}))
			resumed <- slow.acted.Load()
		}()
		synctest.Wait()
		close(slow.release)
		if !<-resumed {
			t.Error("it returned while a create of the old holder was under way")
		}
		if err := <-made; err != nil {
			t.Error(err)
		}
	})
}

// L07: a session that is made again under its name does not begin at the generation
// of its forerunner, so that a late call of that one is refused.
func TestL07ASessionMadeAgainHasANewGeneration(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		seen := map[uint64]bool{}
		for i := range 6 {
			s := w.session("s", alice)
			if i%2 == 1 {
				s = must(w.f.ResumeSession(ctx(), alice, fabric.ResumeSession{Update: fabric.Update{Name: sessionS}}))
			}
			if seen[s.Generation] {
				t.Errorf("generation %d again", s.Generation)
			}
			for old := range seen {
				if s.Generation < old {
					t.Errorf("generation %d after %d", s.Generation, old)
				}
				_, err := w.f.KeepAlive(ctx(), believing(alice, old), fabric.KeepAlive{Name: sessionS})
				refused(t, err, fabric.GenerationStale, "generation")
			}
			seen[s.Generation] = true
			must(struct{}{}, w.f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: sessionS}}))
			if i%3 == 2 {
				w.restart(false)
			}
		}
	})
}

// Who takes a session over has a full ttl, and not the end of the process that it
// was bound to before.
func TestAResumeRenewsTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.session("s", alice) // for an hour
		pass(59 * time.Minute)
		must(w.f.ResumeSession(ctx(), alice, fabric.ResumeSession{Update: fabric.Update{Name: sessionS}}))
		pass(59 * time.Minute)
		must(w.f.GetSession(ctx(), alice, sessionS))
		pass(2 * time.Minute)
		_, err := w.f.GetSession(ctx(), alice, sessionS)
		refused(t, err, fabric.NotFound, "")
	})
}

// A buffer is not freed while a call that was let in reads or writes it: its memory
// may be another session's at once.
func TestNothingIsFreedUnderACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		slow := slowWrite{began: make(chan struct{}), release: make(chan struct{}), acted: new(atomic.Int32)}
		w.wrap = func(d device.Device) device.Device { s := slow; s.Device = d; return s }
		w.open()
		defer w.close()
		w.full()
		wrote := make(chan error, 1)
		go func() {
			wrote <- w.f.WriteBuffer(ctx(), alice, fabric.BufferRange{Buffer: d0 + "/buffers/b"}, []byte("late"))
		}()
		<-slow.began
		closed := make(chan error, 1)
		go func() {
			closed <- w.f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: sessionS}})
		}()
		pass(time.Second)
		w.onDevice(0, 1, 0, 0) // all else is gone, the domain too
		err := w.f.WriteBuffer(ctx(), alice, fabric.BufferRange{Buffer: d0 + "/buffers/b"}, []byte("later"))
		refused(t, err, fabric.SessionClosed, "name")
		close(slow.release)
		if err := <-wrote; err != nil {
			t.Error(err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		w.onDevice(0, 0, 0, 0)
	})
}

// Of many who take a session over at once, each in the belief of the same
// generation, one does.
func TestOneOfManyResumes(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		first := w.session("s", alice).Generation
		var won atomic.Int32
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				_, err := w.f.ResumeSession(ctx(), alice, fabric.ResumeSession{Update: fabric.Update{Name: sessionS}, Generation: first})
				switch {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, fabric.GenerationStale):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := won.Load(); n != 1 {
			t.Errorf("%d took it over", n)
		}
		if s := must(w.f.GetSession(ctx(), alice, sessionS)); s.Generation <= first {
			t.Errorf("generation %d after %d", s.Generation, first)
		}
	})
}

// An operator ends anybody's session, with a reason that is in the journal and that
// the owner is told.
func TestReleaseSession(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		release := fabric.ReleaseSession{Delete: fabric.Delete{Name: sessionS}, Why: "the node is drained"}
		refused(t, w.f.ReleaseSession(ctx(), alice, release), fabric.PermissionDenied, "")
		if err := w.f.ReleaseSession(ctx(), root, release); err != nil {
			t.Fatal(err)
		}
		w.onDevice(0, 0, 0, 0)
		w.told(t, sessionS, "uid:0", fabric.CauseReleased, "the node is drained")
		_, err := w.f.KeepAlive(ctx(), alice, fabric.KeepAlive{Name: sessionS})
		if e := refused(t, err, fabric.SessionClosed, "name"); !strings.Contains(e.Message, "the node is drained") || e.Details["cause"] != "RELEASED" {
			t.Errorf("%v: %v", e, e.Details)
		}
		_, err = w.f.CreateBuffer(ctx(), alice, fabric.CreateBuffer{Create: fabric.Create{Parent: d0}, Session: sessionS, Size: 4096})
		refused(t, err, fabric.SessionClosed, "session")
		_, err = w.f.GetSession(ctx(), alice, sessionS)
		if e := refused(t, err, fabric.NotFound, "name"); !strings.Contains(e.Message, "the node is drained") {
			t.Errorf("%v", e)
		}
		_, err = w.f.KeepAlive(ctx(), bob, fabric.KeepAlive{Name: sessionS}) // it was none of his
		refused(t, err, fabric.NotFound, "name")
		pass(time.Hour + time.Second)
		_, err = w.f.KeepAlive(ctx(), alice, fabric.KeepAlive{Name: sessionS})
		if e := refused(t, err, fabric.NotFound, "name"); strings.Contains(e.Message, "drained") {
			t.Errorf("%v", e)
		}
	})
}

// A release that the daemon did not survive goes on after it, with its reason.
func TestAReleaseSurvivesARestart(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		w.cards[0].fail("DestroyQueuePairs", errors.New("a test"))
		done := make(chan error, 1)
		f := w.f
		go func() {
			done <- f.ReleaseSession(ctx(), root, fabric.ReleaseSession{Delete: fabric.Delete{Name: sessionS}, Why: "the node is drained"})
		}()
		pass(time.Second)
		_, err := w.f.KeepAlive(ctx(), alice, fabric.KeepAlive{Name: sessionS})
		refused(t, err, fabric.SessionClosed, "")
		w.restart(false)
		<-done
		_, err = w.f.KeepAlive(ctx(), alice, fabric.KeepAlive{Name: sessionS})
		if e := refused(t, err, fabric.SessionClosed, ""); !strings.Contains(e.Message, "the node is drained") {
			t.Errorf("%v", e)
		}
	})
}

// L09: while a session that held a device alone is closing, nobody else gets the device,
// and the refusal says that it is closing and when to try again; once it is gone
// and its memory is zeroed, the next does.
func TestL09ADeviceIsFreeOnceItIsClean(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		alone := fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "s"}, Devices: []string{d0}, Exclusive: true, TTL: time.Hour}
		must(w.f.CreateSession(ctx(), alice, alone))
		w.buffer("b", sessionS, 4096)
		w.cards[0].fail("Free", errors.New("a test"))
		f := w.f
		done := make(chan error, 1)
		go func() {
			done <- f.CloseSession(ctx(), alice, fabric.CloseSession{Delete: fabric.Delete{Name: sessionS}})
		}()
		pass(time.Second)
		next := alone
		next.ID = "next"
		_, err := w.f.CreateSession(ctx(), bob, next)
		e := refused(t, err, fabric.DeviceBusy, "")
		if e.RetryAfter == 0 || !strings.Contains(e.Message, "closing") || e.Details["holder"] != sessionS {
			t.Errorf("%v: %v, again after %v", e, e.Details, e.RetryAfter)
		}
		w.cards[0].fail("Free", nil)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		must(w.f.CreateSession(ctx(), bob, next))
	})
}

// What a start is can be read in the journal.
func TestTheJournalTellsStartsApart(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		last := func() string {
			var text string
			for _, e := range w.events() {
				if e.Resource == "nodes/n1" && strings.Contains(e.Message, "started") {
					text = e.Message
				}
			}
			return text
		}
		for _, step := range []struct {
			what, want string
			do         func()
		}{
			{"first", "for the first time", func() {}},
			{"restart", "started again after instance " + w.f.Node().InstanceID, func() { w.restart(false) }},
			{"reboot", "booted since", func() { w.boot = "boot-2"; w.restart(true) }},
		} {
			step.do()
			if got := last(); !strings.Contains(got, step.want) {
				t.Errorf("%s: %q, want %q in it", step.what, got, step.want)
			}
		}
	})
}
