package fabric

import (
	"errors"
	"fmt"
)

// Process is what a session dies with.
type Process struct {
	PID     int32  // as this process sees it
	Command string // what it calls itself, an operator's with arguments, at most maxCommand bytes
}

// processAsk is what is durable of it. Boot id and start time tell it from others
// that have had, or will have, its id.
type processAsk struct {
	PID     int32  `cbor:"0,keyasint"`
	Start   uint64 `cbor:"1,keyasint"` // clock ticks after the boot
	BootID  string `cbor:"2,keyasint"`
	Command string `cbor:"3,keyasint,omitempty"`
}

// maxCommand bounds what is kept of a command line, in bytes.
const maxCommand = 128

// errNoProcess is of a process that is no more, or is another than was meant.
var errNoProcess = errors.New("there is no such process")

// proc is a process that is watched.
type proc interface {
	start() uint64 // clock ticks after the boot
	uid() uint32   // whom it runs as
	// wait returns nil when the process has ended, and an error after close or if
	// it cannot be told any more.
	wait() error
	close()
}

// bindProcess finds the process that a session is to die with. Only what comes by
// the unix socket is known as a process; another than the caller's own must be of
// the same user.
func (f *Fabric) bindProcess(op string, c Caller, pid int32) (*processAsk, proc, error) {
	refused := func(field string, reason Reason, message string) (*processAsk, proc, error) {
		return nil, nil, &Error{Op: op, Field: field, Reason: reason, Message: message,
			Violations: []Violation{{Field: field, Reason: reason, Problem: message}}}
	}
	if !c.HasPeer || c.PID <= 0 {
		return refused("process", FieldInvalid, "a session can die with a process of this machine only if it is asked for on the unix socket; leave process out and keep the session alive")
	}
	if pid < 0 {
		return refused("process.pid", FieldInvalid, fmt.Sprintf("pid %d: want a process id, or 0 for the caller's own", pid))
	}
	own := pid == 0
	if own {
		pid = c.PID
	}
	p, err := openProcess(pid)
	if err == nil && own && c.Began != 0 && p.start() != c.Began { // another has its id now
		p.close()
		err = errNoProcess
	}
	if errors.Is(err, errNoProcess) {
		return refused("process.pid", FieldInvalid, fmt.Sprintf("pid %d: there is no such process", pid))
	}
	if err != nil {
		return refused("process.pid", Unsupported, fmt.Sprintf("pid %d cannot be watched: %v; leave process out and keep the session alive", pid, err))
	}
	if p.uid() != c.UID && !c.Operator {
		p.close()
		return refused("process.pid", PermissionDenied, fmt.Sprintf("pid %d runs as uid %d, not as the caller's %d", pid, p.uid(), c.UID))
	}
	return &processAsk{PID: pid, Start: p.start(), BootID: f.cfg.BootID, Command: commandOf(pid, c.Operator)}, p, nil
}

// commandNow is what the caller's process calls itself. It is read without any lock.
func (c Caller) commandNow() string {
	if !c.HasPeer {
		return ""
	}
	return commandOf(c.PID, c.Operator)
}

// findProcess finds the process of a session that was loaded.
func (f *Fabric) findProcess(a *processAsk) (proc, error) {
	if a.BootID != f.cfg.BootID {
		return nil, errNoProcess
	}
	p, err := openProcess(a.PID)
	if err == nil && p.start() != a.Start {
		p.close()
		return nil, errNoProcess
	}
	return p, err
}

// resumeWatch goes on watching the process of a session that was loaded. One that
// has ended meanwhile ends the session now, one that cannot be told leaves it to
// its ttl.
func (f *Fabric) resumeWatch(s *record) {
	if s.ProcessAsk == nil || s.Deleting {
		return
	}
	p, err := f.findProcess(s.ProcessAsk)
	switch {
	case err == nil:
		f.watchProcess(s, p)
	case errors.Is(err, errNoProcess):
		s.life.orphan = true
	default:
		f.log.Warn("the process of a session cannot be watched", "session", s.name, "pid", s.ProcessAsk.PID, "error", err)
	}
}

// watchProcess lets a session end with a process, which it closes. Fabric.mu is
// held.
func (f *Fabric) watchProcess(s *record, p proc) {
	if old := s.life.process; old != nil {
		old.close()
	}
	s.life.process = p
	if p == nil {
		return
	}
	f.wg.Go(func() {
		err := p.wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		if s.life.process != p { // closed, or in another's place
			return
		}
		if err != nil { // no sign of its end: the session lives to its ttl
			f.log.Warn("the process of a session is not watched any more", "session", s.name, "pid", s.ProcessAsk.PID, "error", err)
		}
		p.close()
		s.life.process = nil
		if err == nil && !s.removed && !f.closed {
			s.life.orphan = true
			f.rearm() // the lease ends
		}
	})
}

// dropProcesses ends the watch of all processes when the fabric is closed.
func (f *Fabric) dropProcesses() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.idx.sessions.after(0, func(s *record) bool {
		f.watchProcess(s, nil)
		return true
	})
}
