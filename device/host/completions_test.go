package host

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
)

// TestCompletionsAreKept until they are given up, whoever asks, and whatever
// became of who asked before.
func TestCompletionsAreKept(t *testing.T) {
	near := newFake("d0")
	socket := socketIn(t)
	start(t, socket, Served{Devices: []device.Device{near}}, current)
	qp := device.UID{1}
	read := func(d device.Device, a device.AskCompletions) device.NumberedCompletions {
		t.Helper()
		got, err := d.(device.NumberedWork).CompletionsAfter(t.Context(), qp, a)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	want := func(got device.NumberedCompletions, first uint64, ids ...uint64) {
		t.Helper()
		if len(got.List) != len(ids) || len(ids) > 0 && got.First != first {
			t.Fatalf("%+v, want %d from number %d", got, ids, first)
		}
		for i := range ids {
			if got.List[i].ID != ids[i] {
				t.Fatalf("%+v, want %d", got, ids)
			}
		}
	}
	one := reached(t, Config{Socket: socket}, current)[0]
	want(read(one, device.AskCompletions{Limit: 8}), 0)
	for id := range uint64(5) {
		near.done <- device.Completion{ID: id}
	}
	want(read(one, device.AskCompletions{Limit: 3, Wait: time.Minute}), 1, 0, 1, 2)
	want(read(one, device.AskCompletions{Limit: 8, After: 2, GivenUp: 1}), 3, 2)
	one.Close()
	// The next one begins with what is kept, and takes nothing before it asks.
	two := reached(t, Config{Socket: socket}, current)[0]
	kept := read(two, device.AskCompletions{})
	want(kept, 2, 1, 2)
	if kept.Newest != 3 || len(near.done) != 2 {
		t.Errorf("%+v, and %d are with the device, want 2", kept, len(near.done))
	}
	want(read(two, device.AskCompletions{Limit: 8, After: 3, GivenUp: 3}), 4, 3, 4)
	// Numbers do not go back where the device lost all.
	want(read(two, device.AskCompletions{Limit: 8, After: 1000}), 0)
	near.done <- device.Completion{ID: 7}
	want(read(two, device.AskCompletions{Limit: 8, After: 1000}), 1001, 7)
	// A queue pair that is gone has none.
	near.gone.Store(true)
	if _, err := two.(device.NumberedWork).CompletionsAfter(t.Context(), qp, device.AskCompletions{Limit: 1}); !errors.Is(err, device.ErrNotFound) {
		t.Errorf("of a queue pair that is gone: %v", err)
	}
	near.gone.Store(false)
	want(read(two, device.AskCompletions{}), 0)
	for _, limit := range []int{-1, maxKept + 1} {
		_, err := two.(device.NumberedWork).CompletionsAfter(t.Context(), qp, device.AskCompletions{Limit: limit})
		if f, ok := errors.AsType[*device.FieldError](err); !ok || f.Field != "limit" {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
}

// TestCallsThatAreGivenUpLoseNoCompletion: what such a call took from the device
// comes with the next one.
func TestCallsThatAreGivenUpLoseNoCompletion(t *testing.T) {
	const count = 300
	near := newFake("d0")
	d := through(t, []device.Device{near})[0]
	qp := device.UID{1}
	var given []device.Completion
	for id := range uint64(count) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Duration(id%20)*20*time.Microsecond, cancel)
		near.done <- device.Completion{ID: id}
		if list, err := d.Completions(ctx, qp, 8); err == nil {
			given = append(given, list...)
		}
		cancel()
	}
	t.Logf("%d came before their call was given up", len(given))
	for len(given) < count {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		list, err := d.Completions(ctx, qp, 8)
		cancel()
		if err != nil {
			t.Fatalf("%d of %d came: %v", len(given), count, err)
		}
		given = append(given, list...)
	}
	for i := range given {
		if given[i].ID != uint64(i) {
			t.Fatalf("number %d is %d", i+1, given[i].ID)
		}
	}
}

// TestKeptCompletionsAreBounded: what is more stays with the device.
func TestKeptCompletionsAreBounded(t *testing.T) {
	near := newFake("d0")
	for id := range uint64(maxKept + 100) {
		near.done <- device.Completion{ID: id}
	}
	var l logs
	qp := device.UID{1}
	for range 4 {
		if _, err := l.read(t.Context(), near, qp, device.AskCompletions{Limit: 500, After: l.get(qp).all().Newest}); err != nil {
			t.Fatal(err)
		}
	}
	if kept := l.get(qp).all(); len(kept.List) != maxKept || len(near.done) != 100 {
		t.Errorf("%d are kept and %d with the device, want %d and 100", len(kept.List), len(near.done), maxKept)
	}
}
