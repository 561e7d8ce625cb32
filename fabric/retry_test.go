package fabric_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/fabric"
)

// comparisons counts how often card 0 was listed.
func (w *world) comparisons() int {
	w.cards[0].mu.Lock()
	defer w.cards[0].mu.Unlock()
	return w.cards[0].lists
}

// An object that no record knows and that the device does not let go is tried
// again, with back-off, and does not fill the journal.
func TestAStrayThatStaysIsTriedWithBackOff(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.cards[0].fail("DestroyProtectionDomains", errIO)
		w.cards[0].CreateProtectionDomains(ctx(), []device.UID{{1}})
		before := w.comparisons()
		w.look()
		pass(30 * time.Minute)
		if n := w.comparisons() - before; n < 100 || n > 250 {
			t.Errorf("%d comparisons in half an hour: want one in 10 s at the end", n)
		}
		told := 0
		for _, e := range w.events() {
			if e.Reason == fabric.CauseOrphan {
				told++
			}
		}
		if told < 1 || told > 10 {
			t.Errorf("%d events: want the first attempts", told)
		}
		w.cards[0].fail("DestroyProtectionDomains", nil)
		pass(11 * time.Second)
		w.onDevice(0, 0, 0, 0)
	})
}

// A device that does not answer is asked with back-off, also while there is
// work for it.
func TestADeadDeviceIsAskedWithBackOff(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		w.cards[0].fail("List", errIO)
		w.look()
		c, cancel := context.WithTimeout(ctx(), time.Second)
		defer cancel()
		refused(t, w.f.DeleteQueuePairs(c, alice, false, []fabric.Delete{{Name: d0 + "/queuePairs/q"}}), fabric.Timeout, "")
		before := w.comparisons()
		pass(30 * time.Minute)
		if n := w.comparisons() - before; n < 100 || n > 250 {
			t.Errorf("%d comparisons in half an hour: want one in 10 s", n)
		}
		w.cards[0].fail("List", nil)
		pass(11 * time.Second)
		w.onDevice(1, 1, 1, 0)
	})
}

// Other work on the card does not put off what is to be tried again.
func TestARetryComesUnderLoad(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		q := w.getQP("q")
		w.cards[0].fail("Allocate", errIO)
		done := make(chan error, 1)
		go func() {
			_, err := w.f.CreateBuffer(ctx(), alice, fabric.CreateBuffer{Create: fabric.Create{Parent: d0}, Session: "nodes/n1/sessions/s", Size: 1})
			done <- err
		}()
		pass(time.Second) // the back-off is above the pace of what follows
		w.cards[0].fail("Allocate", nil)
		for range 2000 {
			w.cards[0].hint(device.Event{Kind: device.QueuePairChanged, QP: q.UID})
			pass(time.Millisecond)
		}
		if err, ok := answer(done); err != nil || !ok {
			t.Errorf("%v, ended: %v", err, ok)
		}
	})
}

// slowCard does not answer changes of queue pairs in time, for a while.
type slowCard struct {
	device.Device
	slow chan struct{} // closed: it answers
}

func (c *slowCard) ModifyQueuePairs(ctx context.Context, changes []device.QueuePairChange) []device.QueuePairResult {
	select {
	case <-c.slow:
		return c.Device.ModifyQueuePairs(ctx, changes)
	case <-ctx.Done():
	}
	out := make([]device.QueuePairResult, len(changes))
	for i := range out {
		out[i].Err = ctx.Err()
	}
	return out
}

// A connect that was recorded and not done when the daemon ended is done by the
// next one, also if the device is slow at first.
func TestAConnectOutlivesASlowDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		start := func() *slowCard {
			w.mem = w.mem.Reopen()
			cfg := w.config(w.mem)
			s := &slowCard{cfg.Devices[0], make(chan struct{})}
			cfg.Devices[0] = s
			w.f = must(fabric.Open(ctx(), cfg))
			return s
		}
		start()
		defer func() { w.close() }()
		w.full()
		c, cancel := context.WithTimeout(ctx(), time.Second)
		defer cancel()
		_, err := w.f.ConnectQueuePairs(c, alice, false, []fabric.ConnectQueuePair{{Update: fabric.Update{Name: d0 + "/queuePairs/q"}, Remote: peer}})
		refused(t, err, fabric.Timeout, "")
		w.close()
		s := start()
		pass(time.Minute)
		close(s.slow)
		pass(time.Minute)
		if q := w.getQP("q"); q.QPState != ib.RTS || q.Remote == nil {
			t.Errorf("%+v: want it connected", q)
		}
	})
}

// hintingCard loses all and says so while it is being listed, once.
type hintingCard struct {
	device.Device
	card *card
	arm  bool
}

func (c *hintingCard) ListQueuePairs(ctx context.Context) ([]device.QueuePair, error) {
	list, err := c.Device.ListQueuePairs(ctx)
	if c.arm {
		c.arm = false
		c.card.wipe()
		c.card.hint(device.Event{Kind: device.DeviceChanged})
		<-time.After(time.Millisecond) // the hint is taken in
	}
	return list, err
}

func TestAHintDuringAComparisonAsksForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		cfg := w.config(w.mem)
		h := &hintingCard{Device: cfg.Devices[0], card: w.cards[0]}
		cfg.Devices[0] = h
		w.f = must(fabric.Open(ctx(), cfg))
		defer w.close()
		w.full()
		h.arm = true
		w.look()
		pass(time.Second)
		if b := must(w.f.GetBuffer(ctx(), alice, d0+"/buffers/b")); b.State != fabric.StateLost {
			t.Errorf("buffer %s: want LOST", b.State)
		}
		w.onDevice(1, 0, 0, 1)
	})
}

// What a device did not answer about a queue pair is asked again.
func TestAStateThatCouldNotBeReadIsReadAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		q := must(w.connect("q", peer))[0]
		w.cards[0].fail("GetQueuePair", errIO)
		w.cards[0].mu.Lock()
		w.cards[0].qps[q.UID].State = ib.Err
		w.cards[0].mu.Unlock()
		w.cards[0].hint(device.Event{Kind: device.QueuePairChanged, QP: q.UID})
		pass(time.Second)
		w.cards[0].fail("GetQueuePair", nil)
		pass(time.Minute)
		q = must(w.f.ListQueuePairs(ctx(), alice, fabric.List{Parent: d0}, nil)).Items[0]
		if q.QPState != ib.Err || q.Condition != (fabric.Condition{}) {
			t.Errorf("%v, %+v: want ERR, and nothing left to do", q.QPState, q.Condition)
		}
	})
}
