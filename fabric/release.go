package fabric

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const maxWhy = 256 // bytes of an operator's reason

// What is remembered of sessions that did not end by their owners' will.
const (
	epitaphAge = time.Hour
	epitaphMax = 1024
)

// epitaph is what the owner of a session is told that is no more.
type epitaph struct {
	identity string
	cause    Reason
	why      string
	at       time.Time
}

// closedError says that a session is closing, or gone, and why.
func closedError(op, name string, cause Reason, why string) *Error {
	e := &Error{Op: op, Name: name, Field: "session", Reason: SessionClosed, Message: "the session is closing",
		Details: map[string]string{"session": name, "cause": string(cause)}}
	switch cause {
	case CauseReleased:
		e.Message = "an operator released the session: " + why
	case CauseExpired:
		e.Message = "the session has expired: it was not kept alive"
	case CauseProcess:
		e.Message = "the session has ended with its process"
	}
	return e
}

// remember keeps why a session ended against its owner's will. Fabric.mu is held.
func (f *Fabric) remember(s *record) {
	if s.Cause != CauseReleased && s.Cause != CauseExpired && s.Cause != CauseProcess {
		return
	}
	now := time.Now()
	for name, e := range f.epitaphs {
		if now.Sub(e.at) > epitaphAge || len(f.epitaphs) >= epitaphMax {
			delete(f.epitaphs, name)
		}
	}
	f.epitaphs[s.name] = epitaph{s.life.identity, s.Cause, s.Why, now}
}

// epitaphOf tells the owner of a session that is no more why that is so. Fabric.mu
// is held.
func (f *Fabric) epitaphOf(c Caller, op, name string) *Error {
	e, ok := f.epitaphs[name]
	if !ok || e.identity != c.Identity || time.Since(e.at) > epitaphAge {
		return nil
	}
	return closedError(op, name, e.cause, e.why)
}

// ReleaseSession ends anybody's session: an operator's right. It returns as
// CloseSession does. The owner who names the session later is told why it ended:
// SESSION_CLOSED, for an hour.
func (f *Fabric) ReleaseSession(ctx context.Context, c Caller, r ReleaseSession) error {
	const op = "ReleaseSession"
	if err := f.operatorOnly(c, op, r.Name); err != nil {
		return err
	}
	var v violations
	switch bad := func(r rune) bool { return unicode.IsControl(r) }; {
	case strings.TrimSpace(r.Why) == "":
		v.required("reason", "say why, for the journal and for the owner")
	case len(r.Why) > maxWhy:
		v.invalid("reason", fmt.Sprintf("%d bytes: want at most %d", len(r.Why), maxWhy))
	case !utf8.ValidString(r.Why) || strings.ContainsFunc(r.Why, bad):
		v.invalid("reason", "want one line of text")
	}
	if err := v.err(op, r.Name); err != nil {
		return err
	}
	return f.closeSession(ctx, op, c, r.Delete, CauseReleased, r.Why)
}
