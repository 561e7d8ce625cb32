package fabric

import (
	"context"
	"fmt"
	"math/bits"
	"slices"
)

// build checks what all creates of objects on a device have in common.
// Fabric.mu is held.
func (f *Fabric) buildObject(c Caller, op string, k kind, cr *Create, v *violations, owner func() (*record, error)) (*record, error) {
	card, err := f.parentCard(op, cr.Parent, v)
	if err != nil {
		return nil, err
	}
	parent := ""
	if card != nil {
		parent = card.name
	}
	r := f.newRecord(v, k, parent, cr)
	if err := v.err(op, ""); err != nil {
		return nil, err
	}
	if r.sess, err = owner(); err != nil {
		return nil, err
	}
	r.card, r.Session = card, r.sess.id
	if !slices.Contains(r.sess.SessionAsk.Devices, card.id) {
		return nil, &Error{Op: op, Name: r.sess.name, Field: "parent", Reason: FieldInvalid,
			Message: "the session does not hold the device " + card.name + "; make a session that does"}
	}
	if err := card.usable(); err != nil {
		err.Op = op
		return nil, err
	}
	return r, f.taken(op, r)
}

// CreateProtectionDomain makes a protection domain.
func (f *Fabric) CreateProtectionDomain(ctx context.Context, c Caller, r CreateProtectionDomain) (ProtectionDomain, error) {
	const op = "CreateProtectionDomain"
	var out ProtectionDomain
	err := f.create(ctx, creation{op, c, r.RequestID, r.ValidateOnly, r, func() ([]*record, error) {
		var v violations
		p, err := f.buildObject(c, op, kindPD, &r.Create, &v, func() (*record, error) { return f.findSession(c, op, r.Session) })
		return []*record{p}, err
	}}, func(recs []*record) { out = f.viewPD(recs[0]) })
	return out, err
}

const (
	pageBytes    = 4096
	maxAlignment = 1 << 30
)

// CreateBuffer allocates device memory. EXHAUSTED tells what is free and who
// holds the rest.
func (f *Fabric) CreateBuffer(ctx context.Context, c Caller, r CreateBuffer) (Buffer, error) {
	const op = "CreateBuffer"
	var out Buffer
	err := f.create(ctx, creation{op, c, r.RequestID, r.ValidateOnly, r, func() ([]*record, error) {
		var v violations
		if r.Size == 0 {
			v.required("size_bytes", "want at least 1")
		}
		align := r.Alignment
		if align == 0 {
			align = pageBytes
		}
		if bits.OnesCount64(align) != 1 || align > maxAlignment {
			v.invalid("alignment_bytes", fmt.Sprintf("%d: want a power of two up to 1 GiB", r.Alignment))
		}
		b, err := f.buildObject(c, op, kindBuffer, &r.Create, &v, func() (*record, error) { return f.findSession(c, op, r.Session) })
		if err != nil {
			return nil, err
		}
		b.BufferAsk = &bufferAsk{Size: r.Size, Alignment: align}
		// What can never fit is refused here; what does not fit now, by the
		// device.
		if total := b.card.info.MemoryBytes; r.Size > total {
			hs := f.holders(b.card, "memory_bytes")
			used := min(b.card.usage.BufferBytes, total)
			return nil, &Error{Op: op, Name: b.card.name, Field: "size_bytes", Reason: Exhausted,
				Message:  fmt.Sprintf("the device has %d bytes in all", total) + describe(hs),
				Shortage: &Shortage{Kind: "memory_bytes", Asked: r.Size, Available: total - used, Limit: total, Holders: hs}}
		}
		return []*record{b}, nil
	}}, func(recs []*record) { out = f.viewBuffer(recs[0]) })
	return out, err
}

// CreateMemoryRegion registers a range of a buffer.
func (f *Fabric) CreateMemoryRegion(ctx context.Context, c Caller, r CreateMemoryRegion) (MemoryRegion, error) {
	const op = "CreateMemoryRegion"
	var out MemoryRegion
	err := f.create(ctx, creation{op, c, r.RequestID, r.ValidateOnly, r, func() ([]*record, error) {
		m, err := f.buildRegion(c, op, &r)
		return []*record{m}, err
	}}, func(recs []*record) { out = f.viewRegion(c, recs[0]) })
	return out, err
}

func (f *Fabric) buildRegion(c Caller, op string, r *CreateMemoryRegion) (*record, error) {
	if r.Import != nil {
		return f.buildImport(c, op, r)
	}
	var v violations
	if err := r.Access.CheckRegion(); err != nil {
		v.invalid("access", err.Error())
	}
	if r.ProtectionDomain == "" {
		v.required("protection_domain", "want "+f.pattern(kindPD))
	}
	if r.Buffer == "" {
		v.required("buffer", "want "+f.pattern(kindBuffer)+", or import_source instead")
	}
	var pd, buf *record
	m, err := f.buildObject(c, op, kindRegion, &r.Create, &v, func() (*record, error) {
		var err error
		if pd, err = f.findUsable(c, op, kindPD, "protection_domain", r.ProtectionDomain); err != nil {
			return nil, err
		}
		buf, err = f.findUsable(c, op, kindBuffer, "buffer", r.Buffer)
		return pd.sess, err
	})
	if err != nil {
		return nil, err
	}
	if pd.card != m.card {
		v.invalid("protection_domain", pd.name+" is on another device than "+m.card.name)
	}
	switch {
	case buf.card != m.card:
		v.invalid("buffer", buf.name+" is on another device than "+m.card.name)
	case buf.sess != pd.sess:
		v.invalid("buffer", "it belongs to "+buf.sess.name+" and the protection domain to "+pd.sess.name)
	}
	size := buf.BufferAsk.Size
	length := r.Length
	switch {
	case r.Offset >= size:
		v.invalid("offset_bytes", fmt.Sprintf("%d: want less than the buffer's %d bytes", r.Offset, size))
	case length == 0:
		length = size - r.Offset
	case length > size-r.Offset:
		v.invalid("length_bytes", fmt.Sprintf("%d: from offset %d the buffer has %d bytes", length, r.Offset, size-r.Offset))
	}
	if err := v.err(op, ""); err != nil {
		return nil, err
	}
	m.pd, m.buf = pd, buf
	m.RegionAsk = &regionAsk{PD: pd.id, Buffer: buf.id, Offset: r.Offset, Length: length, Access: r.Access}
	return m, nil
}
