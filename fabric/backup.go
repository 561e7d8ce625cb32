package fabric

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Backup writes a copy of the store to w while the node serves: an operator's
// right. It gives its size in bytes. UNSUPPORTED if the store cannot be copied. An
// error of w is given as it is.
func (f *Fabric) Backup(ctx context.Context, c Caller, name string, w io.Writer) (int64, error) {
	const op = "BackupNode"
	switch full := f.canonical(name); {
	case name == "":
		return 0, violations{{Field: "name", Reason: FieldRequired, Problem: "want " + f.names.node}}.err(op, "")
	case full != f.names.node:
		return 0, violations{{Field: "name", Reason: FieldInvalid, Problem: fmt.Sprintf("%q: want %s or nodes/local", name, f.names.node)}}.err(op, "")
	}
	if err := f.operatorOnly(c, op, f.names.node); err != nil {
		return 0, err
	}
	s, ok := f.store.(Copier)
	if !ok {
		return 0, &Error{Op: op, Name: f.names.node, Reason: Unsupported, Message: "the store cannot be copied while the node serves"}
	}
	n, err := s.Backup(ctx, w)
	switch {
	case errors.Is(err, ErrStoreClosed):
		return n, f.closing(op)
	case errors.Is(err, ErrStoreFailed):
		return n, &Error{Op: op, Name: f.names.node, Reason: StoreUnavailable, Message: "the store cannot be copied: " + err.Error(), Err: err}
	case err != nil:
		return n, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.enter(entry{events: []Event{{Type: EventChanged, Resource: f.names.node, ResourceUID: f.node.UID, Actor: c.Identity, Reason: CauseRequested,
		Before: "READY", After: "READY", Message: fmt.Sprintf("a backup of %d bytes was given to %s", n, c.process())}}})
	return n, nil
}
