package fabric_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/fabric"
)

// numbered is a card that outlives the daemon with the completions that it has
// handed out: it keeps them until they are given up.
type numbered struct {
	device.Device
	log *numberedLog
}

type numberedLog struct {
	newest uint64
	kept   []device.Completion
	asked  []device.AskCompletions
}

func (n numbered) CompletionsAfter(ctx context.Context, qp device.UID, a device.AskCompletions) (device.NumberedCompletions, error) {
	l := n.log
	l.asked = append(l.asked, a)
	l.newest = max(l.newest, a.After)
	for first := l.newest - uint64(len(l.kept)) + 1; first <= a.GivenUp && len(l.kept) > 0; first++ {
		l.kept = l.kept[1:]
	}
	if a.Limit == 0 {
		return device.NumberedCompletions{First: l.newest - uint64(len(l.kept)) + 1, List: l.kept, Newest: l.newest}, nil
	}
	wait, cancel := context.WithTimeout(ctx, max(a.Wait, time.Nanosecond))
	defer cancel()
	if a.After == l.newest || len(l.kept) == 0 {
		if got, err := n.Completions(wait, qp, a.Limit); err == nil {
			l.kept, l.newest = append(l.kept, got...), l.newest+uint64(len(got))
		}
	}
	first := max(l.newest-uint64(len(l.kept)), a.After) + 1
	list := l.kept[len(l.kept)-int(l.newest-first+1):]
	return device.NumberedCompletions{First: first, List: list, Newest: l.newest}, nil
}

// A daemon that dies with completions in its hands has a successor that gives
// them out again, by the numbers they had.
func TestCompletionsSurviveTheDaemon(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		log := &numberedLog{}
		w.wrap = func(d device.Device) device.Device { return numbered{d, log} }
		w.restart(false)
		w.full()
		q, uid := d0+"/queuePairs/q", w.getQP("q").UID
		poll := func(after uint64) []fabric.Completion {
			return must(w.f.PollCompletions(ctx(), alice, fabric.PollCompletions{QueuePair: q, After: after}))
		}
		for id := range uint64(3) {
			w.cards[0].receive(uid, device.Completion{ID: 10 + id})
		}
		if got := poll(0); len(got) != 3 || got[2].Sequence != 3 {
			t.Fatalf("%+v", got)
		}
		if got := poll(1); len(got) != 2 || got[0].ID != 11 || got[0].Sequence != 2 {
			t.Fatalf("%+v", got)
		}
		w.restart(false)
		w.cards[0].receive(uid, device.Completion{ID: 13})
		if got := poll(1); len(got) != 2 || got[0].ID != 11 || got[0].Sequence != 2 || got[1].Sequence != 3 {
			t.Fatalf("after a restart %+v: want those that were not given up, with their numbers", got)
		}
		if got := poll(3); len(got) != 1 || got[0].ID != 13 || got[0].Sequence != 4 {
			t.Fatalf("after a restart %+v", got)
		}
		w.restart(false)
		_, err := w.f.PollCompletions(ctx(), alice, fabric.PollCompletions{QueuePair: q, After: 5})
		refused(t, err, fabric.FieldInvalid, "after")
		// The queue pair is lost, and with it all that the device kept: the
		// numbers go on.
		w.cards[0].wipe()
		*log = numberedLog{}
		w.cards[0].hint(device.Event{Kind: device.DeviceChanged})
		synctest.Wait()
		pass(time.Second)
		w.cards[0].receive(uid, device.Completion{ID: 20})
		if got := poll(4); len(got) != 1 || got[0].ID != 20 || got[0].Sequence != 5 {
			t.Fatalf("after a loss %+v: want the number after the last", got)
		}
		// The same when the daemon is another one by then.
		w.cards[0].wipe()
		*log = numberedLog{}
		w.restart(false)
		w.cards[0].receive(uid, device.Completion{ID: 30})
		if got := poll(5); len(got) != 1 || got[0].ID != 30 || got[0].Sequence != 6 {
			t.Fatalf("after a loss and a restart %+v: want the number after the caller's last", got)
		}
		// What waits for the caller's next call keeps no call of the device: a
		// second caller is not held up.
		done := make(chan int)
		go func() {
			got, _ := w.f.PollCompletions(ctx(), alice, fabric.PollCompletions{QueuePair: q, After: 6, Wait: time.Minute})
			done <- len(got)
		}()
		synctest.Wait()
		start := time.Now()
		if got := poll(6); len(got) != 0 || time.Since(start) > time.Second {
			t.Errorf("%+v after %v beside one who waits", got, time.Since(start))
		}
		w.cards[0].receive(uid, device.Completion{ID: 21})
		if n := <-done; n != 1 {
			t.Errorf("who waited has %d completions", n)
		}
	})
}

// One event says what a device has lost, beside those of each object.
func TestALossIsToldAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		told := func() (all []string) {
			for _, e := range w.events() {
				if e.Resource == d0 && e.Reason == fabric.Lost {
					all = append(all, e.Message)
				}
			}
			return all
		}
		w.restart(false)
		if got := told(); len(got) != 0 {
			t.Errorf("told of a restart without a loss: %q", got)
		}
		w.cards[0].wipe()
		w.cards[0].hint(device.Event{Kind: device.DeviceChanged})
		synctest.Wait()
		pass(time.Second)
		w.cards[0].hint(device.Event{Kind: device.DeviceChanged}) // nothing more is lost
		synctest.Wait()
		pass(time.Second)
		got := told()
		if len(got) != 1 || !strings.Contains(got[0], "1 memory region, 1 buffer: LOST") || !strings.Contains(got[0], "1 queue pair, 1 protection domain: made again") {
			t.Errorf("told %q", got)
		}
	})
}

// A device that is away in the middle of a connect has refused nothing: when it
// is back the queue pair goes where it was asked to.
func TestADeviceThatIsAwayRefusesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		rtsErr := func(err error) {
			w.cards[0].mu.Lock()
			defer w.cards[0].mu.Unlock()
			w.cards[0].rtsErr = err
		}
		rtsErr(fmt.Errorf("%w: its host ended", device.ErrUnavailable))
		done := make(chan error)
		go func() {
			_, err := w.connect("q", peer)
			done <- err
		}()
		pass(time.Second)
		select {
		case err := <-done:
			t.Fatalf("the connect ended: %v", err)
		default:
		}
		rtsErr(nil)
		w.cards[0].hint(device.Event{Kind: device.DeviceChanged})
		if err := <-done; err != nil {
			t.Error(err)
		}
		if q := w.getQP("q"); q.QPState != ib.RTS || q.Remote == nil {
			t.Errorf("%+v: want it in RTS with its peer", q)
		}
	})
}
