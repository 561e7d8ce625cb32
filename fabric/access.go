package fabric

import "fmt"

// find resolves a name that a field of a request gives, and checks that the
// caller may see it. Fabric.mu is held.
func (f *Fabric) find(c Caller, op string, k kind, field, name string) (*record, error) {
	if name == "" {
		return nil, violations{{Field: field, Reason: FieldRequired, Problem: "want " + f.pattern(k)}}.err(op, "")
	}
	full, ok := f.object(k, name)
	if !ok {
		return nil, violations{{Field: field, Reason: FieldInvalid, Problem: fmt.Sprintf("%q: want %s", name, f.pattern(k))}}.err(op, "")
	}
	r := f.idx.byName[full]
	if r == nil || !r.committed {
		if k == kindSession {
			if e := f.epitaphOf(c, op, full); e != nil {
				if e.Field = field; op == "GetSession" || op == "CloseSession" { // who asks whether it is there has an answer
					e.Reason, e.Message = NotFound, "there is no such session: "+e.Message
				}
				return nil, e
			}
		}
		return nil, &Error{Op: op, Name: full, Field: field, Reason: NotFound, Message: "there is no such " + k.String()}
	}
	if !f.sees(c, r) {
		return nil, f.denied(c, op, r)
	}
	return r, f.fence(c, op, r)
}

// sees says whether c may read r and end it.
func (f *Fabric) sees(c Caller, r *record) bool { return c.Operator || f.owns(c, r) }

// owns says whether c is the owner, who alone may build on r and use it.
func (f *Fabric) owns(c Caller, r *record) bool { return r.owner().life.identity == c.Identity }

func (f *Fabric) denied(c Caller, op string, r *record) *Error {
	return &Error{Op: op, Name: r.name, Reason: PermissionDenied, Details: map[string]string{"identity": c.Identity},
		Message: fmt.Sprintf("it belongs to another identity than %q", c.Identity)}
}

// findSession resolves the session that something is to be made in.
func (f *Fabric) findSession(c Caller, op, name string) (*record, error) {
	s, err := f.find(c, op, kindSession, "session", name)
	if err != nil {
		return nil, err
	}
	return s, f.usableSession(c, op, s)
}

func (f *Fabric) usableSession(c Caller, op string, s *record) error {
	switch {
	case !f.owns(c, s):
		return f.denied(c, op, s)
	case s.Deleting:
		return closedError(op, s.name, s.Cause, s.Why)
	case s.life.lost:
		return &Error{Op: op, Name: s.name, Field: "session", Reason: Lost, Message: "the node started again since this session was made; close it and make another"}
	}
	return nil
}

// findUsable resolves an object that something is to be built on.
func (f *Fabric) findUsable(c Caller, op string, k kind, field, name string) (*record, error) {
	r, err := f.find(c, op, k, field, name)
	if err != nil {
		return nil, err
	}
	if err := f.usableSession(c, op, r.sess); err != nil {
		err.(*Error).Field = field // of a session that the request does not name
		return nil, err
	}
	switch r.state() {
	case StateLost:
		return nil, &Error{Op: op, Name: r.name, Field: field, Reason: Lost, Message: r.failure.Message}
	case StateDeleting:
		return nil, &Error{Op: op, Name: r.name, Field: field, Reason: StateInvalid, Message: "it is being deleted",
			Details: map[string]string{"state": string(StateDeleting)}}
	}
	return r, nil
}

// checkETag compares the etag that a change gives.
func checkETag(op, etag string, r *record) error {
	if have := r.meta().ETag(); etag != "" && etag != have {
		return &Error{Op: op, Name: r.name, Field: "etag", Reason: ETagMismatch, Message: "it has changed since; read it again",
			Details: map[string]string{"asked": etag, "present": have}}
	}
	return nil
}
