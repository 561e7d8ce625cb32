package fabric

import (
	"context"
	"fmt"
)

// Alive returns nil once everything that each call depends on has answered: the
// lock, the goroutine that records outcomes, and the store, which is read. A
// store that refuses changes answers, and a device that hangs is not asked. If
// ctx is done first the error is a TIMEOUT that names what did not answer. Of
// many calls at once one asks, and the others wait for it to end.
func (f *Fabric) Alive(ctx context.Context) error {
	const op = "Alive"
	late := func(what string) error {
		return &Error{Op: op, Name: f.names.node, Reason: Timeout, Message: fmt.Sprintf("%s does not answer; if it goes on, end the daemon and start it again", what), Err: ctx.Err()}
	}
	select {
	case f.asking <- struct{}{}:
	case <-ctx.Done():
		return late("an earlier question of whether the daemon is alive")
	}
	steps := make(chan string)
	go func() { // stays where it hangs, and so does asking
		defer func() { <-f.asking }()
		defer close(steps)
		for _, s := range []struct {
			name string
			ask  func()
		}{
			{"the lock of the records", f.askLock},
			{"the goroutine that records outcomes", f.askKeeper},
			{"the store", func() { _, _ = f.store.Events(f.ctx, f.journal.last(), 1) }},
		} {
			select {
			case steps <- s.name:
			case <-ctx.Done():
				return
			}
			s.ask()
		}
	}()
	at := "the daemon"
	for {
		select {
		case name, more := <-steps:
			if !more {
				if f.ctx.Err() != nil {
					return f.closing(op)
				}
				return nil
			}
			at = name
		case <-ctx.Done():
			return late(at)
		}
	}
}

// askLock waits until it has had the lock.
func (f *Fabric) askLock() {
	f.mu.Lock()
	defer f.mu.Unlock()
}

// askKeeper waits until the keeper answers, or the fabric is closed.
func (f *Fabric) askKeeper() {
	select {
	case f.keeperAsked <- struct{}{}:
	case <-f.ctx.Done():
	}
}
