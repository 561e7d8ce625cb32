package fabric_test

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/fabric"
)

func TestBufferContents(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		at := fabric.BufferRange{Buffer: d0 + "/buffers/b", Offset: 8190}
		must(0, w.f.WriteBuffer(ctx(), alice, at, []byte("hi")))
		got := make([]byte, 2)
		must(0, w.f.ReadBuffer(ctx(), alice, at, got))
		if !bytes.Equal(got, []byte("hi")) {
			t.Errorf("%q", got)
		}
		refused(t, w.f.ReadBuffer(ctx(), alice, at, make([]byte, 3)), fabric.FieldInvalid, "size_bytes")
		at.Offset = 8192
		refused(t, w.f.WriteBuffer(ctx(), alice, at, []byte("x")), fabric.FieldInvalid, "offset_bytes")
		refused(t, w.f.ReadBuffer(ctx(), bob, at, got), fabric.PermissionDenied, "")
		refused(t, w.f.ReadBuffer(ctx(), root, at, got), fabric.PermissionDenied, "") // not even an operator
	})
}

// A completion stays until the caller says that it has it.
func TestCompletionsAreKeptUntilGivenUp(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		q := d0 + "/queuePairs/q"
		if n := must(w.f.PostWork(ctx(), alice, fabric.PostWork{QueuePair: q, Requests: []device.WorkRequest{{ID: 1}, {ID: 2}, {ID: 3}}})); n != 3 {
			t.Errorf("%d posted", n)
		}
		n, err := w.f.PostWork(ctx(), alice, fabric.PostWork{QueuePair: q, Requests: []device.WorkRequest{{ID: 4}, {ID: 13}, {ID: 5}}})
		if e := refused(t, err, fabric.FieldInvalid, ""); n != 1 || e.Details["posted"] != "1" || e.Index != 1 {
			t.Errorf("%d posted, %+v", n, e)
		}
		_, err = w.f.PostWork(ctx(), alice, fabric.PostWork{QueuePair: q, Requests: []device.WorkRequest{{Opcode: device.WorkSend}}})
		if e := refused(t, err, fabric.StateInvalid, ""); e.Details["state"] != "INIT" {
			t.Errorf("%+v: want the state INIT", e.Details)
		}
		poll := func(after uint64, limit int) []fabric.Completion {
			return must(w.f.PollCompletions(ctx(), alice, fabric.PollCompletions{QueuePair: q, After: after, Limit: limit}))
		}
		a, b := poll(0, 2), poll(0, 2)
		if len(a) != 2 || len(b) != 2 || a[0] != b[0] || a[0].Sequence != 1 || a[0].ID != 1 {
			t.Errorf("%+v, then %+v: want the same again", a, b)
		}
		if c := poll(2, 0); len(c) != 2 || c[0].ID != 3 || c[1].Sequence != 4 {
			t.Errorf("%+v", c)
		}
		if c := poll(4, 0); len(c) != 0 {
			t.Errorf("%+v", c)
		}
		_, err = w.f.PollCompletions(ctx(), alice, fabric.PollCompletions{QueuePair: q, After: 9})
		refused(t, err, fabric.FieldInvalid, "after")
		start := time.Now()
		c := must(w.f.PollCompletions(ctx(), alice, fabric.PollCompletions{QueuePair: q, After: 4, Wait: 2 * time.Second}))
		if len(c) != 0 || time.Since(start) != 2*time.Second {
			t.Errorf("%+v after %v: want none after 2 s", c, time.Since(start))
		}
		_, err = w.f.PollCompletions(ctx(), bob, fabric.PollCompletions{QueuePair: q})
		refused(t, err, fabric.PermissionDenied, "")
	})
}

// Who waits for solicited completions alone sleeps through the others, and has
// all of them then.
func TestWaitForSolicitedCompletions(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.full()
		q, uid := d0+"/queuePairs/q", w.getQP("q").UID
		type answer struct {
			list  []fabric.Completion
			after time.Duration
		}
		wait := func(r fabric.PollCompletions) <-chan answer {
			done, start := make(chan answer, 1), time.Now()
			r.QueuePair = q
			go func() {
				list := must(w.f.PollCompletions(ctx(), alice, r))
				done <- answer{list, time.Since(start)}
			}()
			synctest.Wait()
			return done
		}
		solicited := wait(fabric.PollCompletions{Wait: time.Minute, SolicitedOnly: true})
		pass(time.Second)
		w.cards[0].receive(uid, device.Completion{ID: 1})
		pass(time.Second)
		// Another caller has what came at once, though the first reads the device.
		if got := <-wait(fabric.PollCompletions{Wait: time.Minute}); len(got.list) != 1 || got.after != 0 {
			t.Errorf("another caller has %+v, want the one that is there, at once", got)
		}
		next := wait(fabric.PollCompletions{After: 0, Wait: 10 * time.Millisecond, SolicitedOnly: true})
		if got := <-next; len(got.list) != 0 || got.after != 10*time.Millisecond {
			t.Errorf("%+v: want none after 10 ms", got)
		}
		w.cards[0].receive(uid, device.Completion{ID: 2, Solicited: true})
		if got := <-solicited; len(got.list) != 2 || got.list[0].ID != 1 || !got.list[1].Solicited || got.after < 2*time.Second {
			t.Errorf("%+v: want both after 2 s", got)
		}
		// What was answered counts until it is given up.
		if got := <-wait(fabric.PollCompletions{SolicitedOnly: true, Limit: 1}); len(got.list) != 1 || got.list[0].ID != 1 {
			t.Errorf("%+v: want the first again", got)
		}
		failed := wait(fabric.PollCompletions{After: 2, Wait: time.Minute, SolicitedOnly: true})
		w.cards[0].receive(uid, device.Completion{ID: 3, Status: ib.WRFlushErr})
		if got := <-failed; len(got.list) != 1 || got.list[0].ID != 3 {
			t.Errorf("%+v: want the failed one", got)
		}
		// No more fit: the caller has to take them.
		full := wait(fabric.PollCompletions{After: 3, Wait: time.Minute, SolicitedOnly: true, Limit: 1024})
		for range 1030 {
			w.cards[0].receive(uid, device.Completion{})
		}
		if got := <-full; len(got.list) != 1024 {
			t.Errorf("%d completions, want the 1,024 that fit", len(got.list))
		}
		if got := <-wait(fabric.PollCompletions{After: 1027, SolicitedOnly: true}); len(got.list) != 0 {
			t.Errorf("%+v: want none of the rest", got.list)
		}
		if got := <-wait(fabric.PollCompletions{After: 1027}); len(got.list) != 6 {
			t.Errorf("%d completions, want the rest", len(got.list))
		}
	})
}
