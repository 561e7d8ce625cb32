package fabric

import (
	"context"
	"errors"
	"slices"

	"github.com/accelfab/accelfab/device"
)

// The card's side of exports: what its worker does about them.

func presentExport(e *device.Export) *present {
	return &present{addr: e.Address, revoked: e.Revoked, export: e}
}

// listExports lists those of a device that has any.
func (c *card) listExports(ctx context.Context) ([]device.Export, error) {
	if !slices.Contains(c.info.Capabilities, device.CapExport) {
		return nil, nil
	}
	return c.dev.ListExports(ctx)
}

// readExports takes in what the device says of its exports now. One that is
// not there any more is for a comparison to find.
func (c *card) readExports(ctx context.Context) error {
	if c.dev == nil {
		return nil
	}
	list, err := c.listExports(ctx)
	if err != nil {
		return err
	}
	f := c.f
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range list {
		r := f.idx.byUID[list[i].UID]
		if r == nil || r.card != c || r.Kind != kindExport || !r.there {
			continue
		}
		if revoked := r.is.revoked; revoked {
			list[i].Revoked = true // it never comes back
		}
		r.is = presentExport(&list[i])
		f.judge(r)
		if r.is.revoked {
			f.cutImports(r)
		}
	}
	return nil
}

// readAllExports does it for every card that has any.
func (f *Fabric) readAllExports(ctx context.Context) {
	var cards []*card
	f.mu.RLock()
	for _, c := range f.cards {
		if c.known && c.usage.MemoryExports > 0 {
			cards = append(cards, c)
		}
	}
	f.mu.RUnlock()
	for _, c := range cards {
		if err := c.readExports(ctx); err != nil {
			f.log.Debug("exports not read", "device", c.name, "error", err)
		}
	}
}

func (c *card) exportMaker(recs []*record) making {
	specs := make([]device.ExportSpec, len(recs))
	for i, r := range recs {
		specs[i] = device.ExportSpec{UID: r.UID, Address: r.buf.is.addr + r.ExportAsk.Offset, Length: r.ExportAsk.Length}
	}
	return func(ctx context.Context) ([]*present, []error) {
		got, errs := make([]*present, len(specs)), make([]error, len(specs))
		for i, s := range specs {
			e, err := c.dev.CreateExport(ctx, s)
			got[i], errs[i] = presentExport(&e), err
		}
		return got, errs
	}
}

// destroyExports takes exports off the device. They are revoked first: those who
// import may belong to other sessions, which are not asked.
func (c *card) destroyExports(ctx context.Context, uids []device.UID) []error {
	errs := make([]error, len(uids))
	for i, uid := range uids {
		err := c.dev.RevokeExport(ctx, uid)
		if err == nil || errors.Is(err, errors.ErrUnsupported) {
			err = c.dev.DestroyExport(ctx, uid)
		}
		errs[i] = err
	}
	return errs
}

// revoke revokes exports that are to be, and settles those that are as asked.
func (c *card) revoke(recs []*record) {
	f := c.f
	f.mu.Lock()
	var todo []*record
	var uids []device.UID // of todo, which must not be read without the lock
	for _, r := range recs {
		switch {
		case r.leaving || r.removed || !r.committed || r.gone() || r.op != nil && r.op.writing || !c.known:
		case !r.ExportAsk.Revoked:
			if r.there {
				f.settle(r, nil)
			}
		case !r.there || r.is.revoked:
			f.cutImports(r)
			f.settle(r, nil)
		default:
			todo, uids = append(todo, r), append(uids, r.UID)
		}
	}
	f.mu.Unlock()
	for i, r := range todo {
		ctx, cancel := c.call()
		err := c.dev.RevokeExport(ctx, uids[i])
		cancel()
		f.mu.Lock()
		c.revoked(r, err)
		f.mu.Unlock()
	}
}

// revoked takes in how a revocation ended. Fabric.mu is held.
func (c *card) revoked(r *record, err error) {
	switch {
	case isNotFound(err):
		c.look()
	case err != nil:
		c.fail(r, err)
		return
	}
	if r.there {
		r.is.revoked = true
	}
	r.failure, r.tries = Condition{}, 0
	actor := system
	if r.op != nil {
		actor = r.op.actor
	}
	ev := r.event(EventChanged, actor, r.Cause)
	ev.Before, ev.After = string(StateRevoking), string(StateRevoked)
	c.f.enter(entry{events: []Event{ev}})
	c.f.cutImports(r)
	c.f.settle(r, nil)
}

// cutImports marks the regions made of an export that gives no access any more,
// and drops the descriptors of it that wait to be used. Of other kinds there are
// none. Fabric.mu is held.
func (f *Fabric) cutImports(r *record) {
	if r.Kind != kindExport {
		return
	}
	for m := range r.given.imports {
		f.cut(m)
	}
	for id, u := range f.uploads {
		if u.exp == r {
			f.uploads.drop(id)
		}
	}
}

// cut marks a region whose export gives no access any more. Fabric.mu is held.
func (f *Fabric) cut(m *record) {
	if m.take == nil || m.take.cut {
		return
	}
	before := m.label()
	m.take.cut = true
	if !m.committed || m.gone() {
		return
	}
	ev := m.event(EventChanged, system, ExportRevoked)
	ev.Before, ev.After, ev.Message = before, m.label(), cutCondition(m).Message
	f.enter(entry{events: []Event{ev}})
}

func cutCondition(m *record) Condition {
	return Condition{Reason: ExportRevoked, Message: "the export " + m.ImportAsk.Export + " was revoked, or is gone: no access by this region's keys succeeds; delete it"}
}
