package transport_test

import (
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/soft/transport"
)

// A requester that is never out of requests owes acknowledgements too. The peer
// acknowledges so fast that the window does not close.
func TestAnAckDoesNotWaitForTheEndOfTheRequests(t *testing.T) {
	const size, batch = 4 << 20, 16
	w := newWire(t, options{window: 512, queue: 4})
	a, b := w.ends[0], w.ends[1]
	la, lb := a.memory.add(size, all), b.memory.add(size, all)
	a.send(device.WorkRequest{ID: 1, Opcode: device.WorkWrite, SGL: la.sge(0, size), RemoteAddr: lb.base, RKey: lb.rkey, Signaled: true})
	b.send(device.WorkRequest{ID: 2, Opcode: device.WorkWrite, SGL: lb.sge(0, 8), RemoteAddr: la.base, RKey: la.rkey, Signaled: true})
	batches := 0
	for done := false; !done; {
		for i, e := range w.ends {
			w.sender = i
			e.Transmit(w.now, w, batch)
			e.collect()
			w.now = w.now.Add(w.o.delay)
			w.deliver()
		}
		done = len(b.take()) > 0
		if batches++; batches > 4 {
			t.Fatalf("no acknowledgement in %d batches, with %d packets outstanding of %d", batches, a.Unanswered(), a.WindowSize())
		}
	}
	a.expect() // the stream is still under way
	if a.total.Packets[transport.Taken] == 0 || a.Unanswered() == 0 {
		t.Errorf("counters %+v, %d packets outstanding", a.total, a.Unanswered())
	}
}
