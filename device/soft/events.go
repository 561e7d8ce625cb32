package soft

import (
	"sync"

	"github.com/accelfab/accelfab/device"
)

// events is the channel of hints of a card. Its last place is for a DeviceChanged
// hint, which means to look at all: it stands for what has no room any more.
type events struct {
	mu     sync.Mutex
	c      chan device.Event
	closed bool
}

func newEvents() *events { return &events{c: make(chan device.Event, 256)} }

func (e *events) post(ev device.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	if len(e.c) >= cap(e.c)-1 {
		ev = device.Event{Kind: device.DeviceChanged, Port: -1}
	}
	select {
	case e.c <- ev:
	default: // what the reader comes to last is the one in the last place
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
