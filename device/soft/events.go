package soft

import (
	"sync"

	"github.com/accelfab/accelfab/device"
)

// events is the channel of hints of a card. What does not fit is lost, and said
// so by a DeviceChanged hint as soon as there is room: it means to look at all.
type events struct {
	mu     sync.Mutex
	c      chan device.Event
	lost   bool
	closed bool
}

func newEvents() *events { return &events{c: make(chan device.Event, 256)} }

func (e *events) post(ev device.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	if e.lost {
		ev = device.Event{Kind: device.DeviceChanged, Port: -1}
	}
	select {
	case e.c <- ev:
		e.lost = false
	default:
		e.lost = true
	}
}

func (e *events) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.closed = true
		close(e.c)
	}
}
