package fabric_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/fabric"
)

// gatedStore is a store whose commits wait at a gate while it is shut, and fail
// there if an error is set.
type gatedStore struct {
	fabric.Store
	mu   sync.Mutex
	gate chan struct{} // nil: open
	err  error
}

func (s *gatedStore) Commit(ctx context.Context, c fabric.Change) (uint64, error) {
	s.mu.Lock()
	gate := s.gate
	s.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	s.mu.Lock()
	err := s.err
	s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return s.Store.Commit(ctx, c)
}

func (s *gatedStore) shut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate = make(chan struct{})
}

// open lets out those who wait; their commits fail with err if it is not nil.
func (s *gatedStore) open(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.gate)
	s.gate, s.err = nil, err
}

// inGatedBubble runs a scenario on a store with a gate.
func inGatedBubble(t *testing.T, fn func(t *testing.T, w *world, s *gatedStore)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := &gatedStore{Store: w.mem}
		w.f = must(fabric.Open(ctx(), w.config(s)))
		defer w.close()
		fn(t, w, s)
	})
}

// look makes the worker of card 0 compare everything, now.
func (w *world) look() {
	w.cards[0].hint(device.Event{Kind: device.DeviceChanged})
	synctest.Wait()
}

// answer is how a call in the background ended; ok is false while it has not.
func answer(c <-chan error) (err error, ok bool) {
	synctest.Wait()
	select {
	case err := <-c:
		return err, true
	default:
		return nil, false
	}
}

func TestNothingIsDestroyedBeforeItIsRecorded(t *testing.T) {
	inGatedBubble(t, func(t *testing.T, w *world, s *gatedStore) {
		w.full()
		before := w.getQP("q")
		s.shut()
		done := make(chan error, 1)
		go func() { done <- w.f.DeleteQueuePairs(ctx(), alice, false, []fabric.Delete{{Name: before.Name}}) }()
		synctest.Wait()
		w.look()
		w.onDevice(1, 1, 1, 1)
		s.open(errIO)
		err, ok := answer(done)
		if !ok {
			t.Fatal("the call has not ended")
		}
		refused(t, err, fabric.StoreUnavailable, "")
		pass(time.Second)
		if q := w.getQP("q"); q.State != fabric.StateReady || q.Local.QPN != before.Local.QPN {
			t.Errorf("%+v: want it as it was", q)
		}
		s.mu.Lock()
		s.err = nil
		s.mu.Unlock()
		must(0, w.f.DeleteQueuePairs(ctx(), alice, false, []fabric.Delete{{Name: before.Name}}))
		w.onDevice(1, 1, 1, 0)
	})
}

func TestAMoveIsNotDoneBeforeItIsRecorded(t *testing.T) {
	inGatedBubble(t, func(t *testing.T, w *world, s *gatedStore) {
		w.full()
		q := w.getQP("q")
		s.shut()
		done := make(chan error, 1)
		go func() {
			qs, err := w.connect("q", peer)
			if err == nil && qs[0].QPState != ib.RTS {
				err = errors.New("answered in " + qs[0].QPState.String())
			}
			done <- err
		}()
		synctest.Wait()
		w.cards[0].hint(device.Event{Kind: device.QueuePairChanged, QP: q.UID})
		w.look()
		if err, ok := answer(done); ok {
			t.Error("answered before it was recorded:", err)
		}
		s.open(nil)
		if err, ok := answer(done); err != nil || !ok {
			t.Errorf("%v, ended: %v", err, ok)
		}
	})
}

// setPort sets port 1 of card 0 in the background.
func (w *world) setPort(up bool) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := w.f.SetPort(ctx(), root, fabric.SetPort{Update: fabric.Update{Name: d0 + "/ports/1"}, Up: up})
		done <- err
	}()
	synctest.Wait()
	return done
}

func TestTwoChangesOfAPortMakeOneRecord(t *testing.T) {
	inGatedBubble(t, func(t *testing.T, w *world, s *gatedStore) {
		s.shut()
		down, up := w.setPort(false), w.setPort(true)
		s.open(nil)
		must(0, errors.Join(<-down, <-up))
		w.close()
		w.mem = w.mem.Reopen()
		n := 0
		must(w.mem.Load(ctx(), func(r fabric.Record) error {
			if r.Name == d0+"/ports/1" {
				n++
			}
			return nil
		}))
		if n != 1 {
			t.Errorf("%d records: want 1", n)
		}
		w.open()
		if p := must(w.f.GetPort(ctx(), root, d0+"/ports/1")); !p.AdminUp {
			t.Error("down: want as the later call left it")
		}
	})
}

func TestAPortThatCannotBeRecordedStaysAsItWas(t *testing.T) {
	inGatedBubble(t, func(t *testing.T, w *world, s *gatedStore) {
		s.shut()
		done := w.setPort(false)
		s.open(errIO)
		refused(t, <-done, fabric.StoreUnavailable, "")
		if p := must(w.f.GetPort(ctx(), root, d0+"/ports/1")); !p.AdminUp {
			t.Error("down: want as it was")
		}
	})
}

// twoCards asks for a queue pair on each card, in one batch.
func (w *world) twoCards() <-chan error {
	w.t.Helper()
	w.session("s", alice)
	w.pd("p", "nodes/n1/sessions/s")
	must(w.f.CreateProtectionDomain(ctx(), alice, fabric.CreateProtectionDomain{Create: fabric.Create{Parent: d1, ID: "p"}, Session: "nodes/n1/sessions/s"}))
	other := qpRequest("q1", d1+"/protectionDomains/p")
	other.Parent = d1
	done := make(chan error, 1)
	hold := make(chan struct{})
	w.cards[1].mu.Lock()
	w.cards[1].hold = hold
	w.cards[1].mu.Unlock()
	go func() {
		_, err := w.f.CreateQueuePairs(ctx(), alice, "", false, []fabric.CreateQueuePair{qpRequest("q0", d0+"/protectionDomains/p"), other})
		done <- err
	}()
	synctest.Wait()
	w.look() // the first of the two is compared again
	if err, ok := answer(done); ok {
		w.t.Fatal("answered while one card is still at work:", err)
	}
	w.cards[1].mu.Lock()
	w.cards[1].hold = nil
	w.cards[1].mu.Unlock()
	close(hold)
	return done
}

func TestABatchOverTwoCardsWaitsForBoth(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		if err, ok := answer(w.twoCards()); err != nil || !ok {
			t.Fatalf("%v, ended: %v", err, ok)
		}
		for _, name := range []string{d0 + "/queuePairs/q0", d1 + "/queuePairs/q1"} {
			if q := must(w.f.GetQueuePair(ctx(), alice, name)); q.State != fabric.StateReady {
				t.Errorf("%+v", q)
			}
		}
	})
}

// What a failed batch leaves is taken away entirely, however long one card
// takes for its part.
func TestAFailedBatchForgetsNothingThatIsThere(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.cards[1].fail("CreateQueuePairs", &device.FieldError{Field: "port", Problem: "is broken"})
		w.cards[0].fail("DestroyQueuePairs", errIO)
		done := w.twoCards()
		for range 3 {
			w.cards[1].hint(device.Event{Kind: device.DeviceChanged})
			synctest.Wait()
		}
		if err, ok := answer(done); ok {
			t.Error("answered while a queue pair is still there:", err)
		}
		if q := must(w.f.GetQueuePair(ctx(), alice, d0+"/queuePairs/q0")); q.State != fabric.StateDeleting {
			t.Errorf("%+v", q)
		}
		w.cards[0].fail("DestroyQueuePairs", nil)
		pass(time.Minute)
		err, ok := answer(done)
		if !ok {
			t.Fatal("the call has not ended")
		}
		if e := refused(t, err, fabric.FieldInvalid, "port"); e.Index != 1 {
			t.Errorf("index %d: want 1", e.Index)
		}
		w.onDevice(1, 0, 0, 0)
		if p := must(w.f.ListQueuePairs(ctx(), root, fabric.List{Parent: "nodes/n1/devices/-"}, nil)); len(p.Items) != 0 {
			t.Errorf("%+v", p.Items)
		}
	})
}

// Work on an object, while its record changes: for the race detector.
func TestUseWhileTheRecordChanges(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		name := d0 + "/queuePairs/q"
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 20 {
				must(w.connect("q", peer))
				must(w.f.ModifyQueuePair(ctx(), alice, fabric.ModifyQueuePair{Update: fabric.Update{Name: name}, Target: ib.Init}))
			}
		})
		wg.Go(func() {
			for range 50 {
				must(w.f.PostWork(ctx(), alice, fabric.PostWork{QueuePair: name, Requests: []device.WorkRequest{{Opcode: device.WorkRecv}}}))
				must(w.f.PollCompletions(ctx(), alice, fabric.PollCompletions{QueuePair: name}))
				must(w.f.GetQueuePair(ctx(), alice, name))
			}
		})
		wg.Wait()
	})
}
