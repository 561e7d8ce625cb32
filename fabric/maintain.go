package fabric

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/accelfab/accelfab/device"
)

// PeerAccess says whether one device can reach the memory of another.
type PeerAccess struct {
	Exporter  string // name
	Importer  string // name
	Reachable bool
	Path      string // for people
	Obstacle  string // what is in the way, if it is not reachable
}

// findDevice resolves a device that a field names and that is configured.
func (f *Fabric) findDevice(op, field, name string) (*card, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	var v violations
	c, err := f.parentCard(op, name, &v)
	if len(v) > 0 {
		v[0].Field = field
		return nil, v.err(op, "")
	}
	if err != nil {
		err.(*Error).Field = field
		return nil, err
	}
	if c.dev == nil {
		return nil, &Error{Op: op, Name: c.name, Field: field, Reason: DeviceUnavailable, Message: c.health.Message}
	}
	return c, nil
}

// deviceFault says why a device did not do what was asked of it as a whole.
func deviceFault(ctx context.Context, op string, c *card, capability device.Capability, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	e := &Error{Op: op, Name: c.name, Reason: DeviceUnavailable, Message: "the device failed", RetryAfter: time.Second, Err: err}
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		e.Reason, e.Message, e.RetryAfter = Unsupported, "the device cannot do this", 0
		e.Details = map[string]string{"capability": string(capability)}
	case errors.Is(err, device.ErrBusy):
		e.Reason, e.Message, e.RetryAfter = InUse, "the device is in use", 0
	}
	return e
}

// CheckPeerAccess asks the importer whether it can reach the exporter's memory.
func (f *Fabric) CheckPeerAccess(ctx context.Context, _ Caller, exporter, importer string) (PeerAccess, error) {
	const op = "CheckPeerAccess"
	from, err := f.findDevice(op, "exporter", exporter)
	if err != nil {
		return PeerAccess{}, err
	}
	to, err := f.findDevice(op, "importer", importer)
	if err != nil {
		return PeerAccess{}, err
	}
	out := PeerAccess{Exporter: from.name, Importer: to.name}
	pa, err := to.dev.PeerAccess(ctx, from.info.ID)
	switch {
	case isNotFound(err), errors.Is(err, errors.ErrUnsupported):
		out.Obstacle = to.name + " knows no way to the memory of " + from.name + ": " + err.Error()
	case err != nil:
		return PeerAccess{}, deviceFault(ctx, op, to, device.CapImport, err)
	default:
		out.Reachable, out.Path, out.Obstacle = pa.Reachable, pa.Path, pa.Obstacle
	}
	return out, nil
}

func (f *Fabric) operatorOnly(c Caller, op, name string) error {
	if c.Operator {
		return nil
	}
	return &Error{Op: op, Name: name, Reason: PermissionDenied, Message: fmt.Sprintf("%q is not an operator", c.Identity),
		Details: map[string]string{"identity": c.Identity}}
}

// MoveBuffer puts a buffer at another place of its card's memory: an operator's
// right. IN_USE names the importers that pin it.
func (f *Fabric) MoveBuffer(ctx context.Context, c Caller, r Update) (Buffer, error) {
	const op = "MoveBuffer"
	if err := f.operatorOnly(c, op, r.Name); err != nil {
		return Buffer{}, err
	}
	var buf *record
	var uid device.UID
	var ch *change
	err := f.withIdle(ctx, op, func() ([]*record, error) {
		b, err := f.find(c, op, kindBuffer, "name", r.Name)
		if err == nil {
			err = checkETag(op, r.ETag, b)
		}
		if err == nil && (!b.there || b.gone()) {
			err = &Error{Op: op, Name: b.name, Field: "name", Reason: StateInvalid, Message: "it is not on the device: " + string(b.state()),
				Details: map[string]string{"state": string(b.state()), "asked": string(StateReady)}}
		}
		if err == nil && !slices.Contains(b.card.info.Capabilities, device.CapMove) {
			err = &Error{Op: op, Name: b.card.name, Reason: Unsupported, Message: "the device cannot move buffers", Details: map[string]string{"capability": string(device.CapMove)}}
		}
		buf = b
		return []*record{b}, err
	}, func(recs []*record) error {
		uid = buf.UID
		if !r.ValidateOnly {
			ch = newChange(changeUpdate, op, c.Identity, recs) // nobody frees it meanwhile
			ch.claim()
		}
		return nil
	})
	if err != nil {
		return Buffer{}, err
	}
	if ch != nil {
		err = f.moveBuffer(ctx, op, c, buf, uid)
		f.mu.Lock()
		ch.release()
		buf.card.push(buf) // what came up meanwhile
		f.mu.Unlock()
		if err != nil {
			return Buffer{}, err
		}
	}
	return get(f, c, op, kindBuffer, r.Name, f.viewBuffer)
}

func (f *Fabric) moveBuffer(ctx context.Context, op string, c Caller, buf *record, uid device.UID) error {
	// Importers are told, and have a bounded time to let go, whatever the caller's.
	bounded, cancel := context.WithTimeout(ctx, f.cfg.ActTimeout)
	defer cancel()
	_, err := buf.card.dev.MoveBuffer(bounded, uid)
	switch {
	case errors.Is(err, device.ErrBusy):
		return f.pinned(ctx, op, buf, err)
	case err != nil && bounded.Err() != nil && ctx.Err() == nil:
		return &Error{Op: op, Name: buf.name, Reason: Timeout, Err: err, RetryAfter: time.Second,
			Message: fmt.Sprintf("it could not be moved within %v and is where it was; an importer did not let go, or the device does not answer", f.cfg.ActTimeout)}
	}
	if err != nil {
		return f.workFault(ctx, op, buf, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	ev := buf.event(EventChanged, c.Identity, CauseRequested)
	ev.Before, ev.After, ev.Message = buf.label(), buf.label(), "moved to another place of the card's memory; importers attached anew"
	f.enter(entry{events: []Event{ev}})
	return nil
}

// pinned says who keeps a buffer where it is.
func (f *Fabric) pinned(ctx context.Context, op string, buf *record, cause error) error {
	_ = buf.card.readExports(ctx)
	f.mu.RLock()
	defer f.mu.RUnlock()
	e := &Error{Op: op, Name: buf.name, Reason: InUse, Shortage: &Shortage{Kind: "children"}, Err: cause}
	var names []string
	buf.card.lists[kindExport].after(0, func(x *record) bool {
		if x.buf != buf || !x.there {
			return true
		}
		if x.is.export.Mappable {
			names = append(names, x.name) // its holders, whoever they are
		}
		for _, at := range x.is.export.Attachments {
			if v := f.viewAttachment(at); !at.Dynamic && v.Region != "" {
				names = append(names, v.Region)
			}
		}
		return true
	})
	e.Message = "it is pinned where it is"
	for i, n := range names[:min(len(names), 5)] {
		e.Message += []string{" by ", ", "}[min(i, 1)] + n
		e.Shortage.Holders = append(e.Shortage.Holders, Holder{Name: n})
	}
	if len(names) > 0 {
		e.Message += "; delete what pins it, or revoke an export that is not mappable, first"
		e.Details = map[string]string{"count": itoa(len(names)), "pinned": strings.Join(names, ",")}
	}
	return e
}

// ResetDevice makes a device as new: an operator's right. It returns when the
// device was compared with what is recorded.
func (f *Fabric) ResetDevice(ctx context.Context, c Caller, r Update) (Device, error) {
	const op = "ResetDevice"
	card, err := f.findDevice(op, "name", r.Name)
	if err == nil {
		err = f.operatorOnly(c, op, card.name)
	}
	if err == nil && !slices.Contains(card.info.Capabilities, device.CapReset) {
		err = deviceFault(ctx, op, card, device.CapReset, errors.ErrUnsupported)
	}
	if err != nil {
		return Device{}, err
	}
	if r.ValidateOnly {
		return f.GetDevice(ctx, c, r.Name)
	}
	if err := card.dev.Reset(ctx); err != nil {
		return Device{}, deviceFault(ctx, op, card, device.CapReset, err)
	}
	done := make(chan struct{})
	f.mu.Lock()
	f.enter(entry{events: []Event{{Type: EventChanged, Resource: card.name, Actor: c.Identity, Reason: CauseRequested, Message: "the device was reset: what was on it is gone"}}})
	card.lookers = append(card.lookers, done)
	card.look()
	f.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
		return Device{}, &Error{Op: op, Name: card.name, Reason: Timeout, Message: "the device was reset; it has not been compared yet", Err: ctx.Err()}
	case <-f.ctx.Done():
		return Device{}, f.closing(op)
	}
	return f.GetDevice(ctx, c, r.Name)
}
