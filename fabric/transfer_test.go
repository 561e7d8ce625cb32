package fabric_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
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
