package host

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/accelfab/accelfab/device"
)

// maxKept is how many completions of a queue pair are kept for the daemon; what
// is more stays in the device's queue.
const maxKept = 1024

// completionLog numbers the completions of one queue pair and keeps those that
// were not given up.
type completionLog struct {
	busy chan struct{} // one reads the device at a time; holds one token

	mu     sync.Mutex
	newest uint64 // number of the last of kept, or of the last there was
	kept   []device.Completion
}

func newCompletionLog() *completionLog { return &completionLog{busy: make(chan struct{}, 1)} }

// logs are those of a device. Only queue pairs that somebody has read from have
// one.
type logs struct {
	mu sync.Mutex
	of map[device.UID]*completionLog
}

func (l *logs) get(uid device.UID) *completionLog {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = map[device.UID]*completionLog{}
	}
	log := l.of[uid]
	if log == nil {
		log = newCompletionLog()
		l.of[uid] = log
	}
	return log
}

// drop forgets queue pairs that are not there any more.
func (l *logs) drop(uids ...device.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, uid := range uids {
		delete(l.of, uid)
	}
}

// keep forgets all but those that are there.
func (l *logs) keep(there []device.QueuePair) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.of) == 0 {
		return
	}
	is := make(map[device.UID]bool, len(there))
	for i := range there {
		is[there[i].UID] = true
	}
	for uid := range l.of {
		if !is[uid] {
			delete(l.of, uid)
		}
	}
}

// read gives completions by their numbers, as device.NumberedWork says.
func (l *logs) read(ctx context.Context, d device.Device, uid device.UID, ask device.AskCompletions) (device.NumberedCompletions, error) {
	if ask.Limit < 0 || ask.Limit > maxKept {
		return device.NumberedCompletions{}, &device.FieldError{Field: "limit", Problem: fmt.Sprintf("%d: want 1 to %d, or 0 for those that are kept", ask.Limit, maxKept)}
	}
	if _, err := d.GetQueuePair(ctx, uid); err != nil {
		if errors.Is(err, device.ErrNotFound) {
			l.drop(uid)
		}
		return device.NumberedCompletions{}, err
	}
	log := l.get(uid)
	log.giveUp(ask.GivenUp)
	if ask.Limit == 0 {
		return log.all(), nil
	}
	got := log.look(&ask)
	if len(got.List) > 0 {
		return got, nil
	}
	// A device may heed the context before it looks, hence a little time even
	// for a caller who does not wait.
	wait, cancel := context.WithTimeout(ctx, max(ask.Wait, time.Millisecond))
	defer cancel()
	select {
	case log.busy <- struct{}{}:
	case <-wait.Done():
		return log.look(&ask), ctx.Err()
	}
	defer func() { <-log.busy }()
	if got = log.look(&ask); len(got.List) > 0 {
		return got, nil
	}
	room := log.room()
	if room == 0 {
		return got, nil // those that are kept are to be given up first
	}
	list, err := d.Completions(wait, uid, min(ask.Limit, room))
	log.add(list) // whoever asked may be gone
	switch {
	case len(list) > 0:
		return log.look(&ask), nil
	case errors.Is(err, device.ErrNotFound):
		l.drop(uid)
	case ctx.Err() == nil && wait.Err() != nil && errors.Is(err, wait.Err()):
		err = nil
	}
	return log.look(&ask), err
}

func (l *completionLog) first() uint64 { return l.newest - uint64(len(l.kept)) + 1 }

func (l *completionLog) giveUp(to uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if first := l.first(); to >= first {
		n := int(min(to-first+1, uint64(len(l.kept))))
		if l.kept = append(l.kept[:0], l.kept[n:]...); len(l.kept) == 0 {
			l.kept = nil
		}
	}
}

// look gives what is kept above a number. Numbers never go back: a reader who
// is ahead, as the queue pair was lost, goes on with the next.
func (l *completionLog) look(ask *device.AskCompletions) device.NumberedCompletions {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ask.After > l.newest {
		l.kept, l.newest = nil, ask.After
	}
	first := max(l.first(), ask.After+1)
	skip := int(first - l.first())
	list := l.kept[skip:min(len(l.kept), skip+ask.Limit)]
	return device.NumberedCompletions{First: first, List: append([]device.Completion(nil), list...), Newest: l.newest}
}

// all gives what is kept.
func (l *completionLog) all() device.NumberedCompletions {
	l.mu.Lock()
	defer l.mu.Unlock()
	return device.NumberedCompletions{First: l.first(), List: append([]device.Completion(nil), l.kept...), Newest: l.newest}
}

func (l *completionLog) room() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maxKept - len(l.kept)
}

func (l *completionLog) add(list []device.Completion) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = append(l.kept, list...)
	l.newest += uint64(len(list))
}
