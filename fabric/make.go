package fabric

import (
	"context"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// making is a call of a device that makes objects of one kind. Its results are
// in the order of the records that it was prepared for.
type making func(context.Context) ([]*present, []error)

// maker gathers what the device needs to make objects of one kind, while
// Fabric.mu is held, and gives the call that does it, to be made without.
func (c *card) maker(k kind, recs []*record) making {
	switch k {
	case kindPD:
		return c.pdMaker(recs)
	case kindBuffer:
		return c.bufferMaker(recs)
	case kindRegion:
		return c.regionMaker(recs)
	case kindExport:
		return c.exportMaker(recs)
	}
	return c.qpMaker(recs)
}

func (c *card) pdMaker(recs []*record) making {
	uids := make([]device.UID, len(recs))
	for i, r := range recs {
		uids[i] = r.UID
	}
	return func(ctx context.Context) ([]*present, []error) {
		got, errs := make([]*present, len(uids)), make([]error, len(uids))
		for i, res := range c.dev.CreateProtectionDomains(ctx, uids) {
			got[i], errs[i] = &present{pd: res.PD}, res.Err
		}
		return got, errs
	}
}

func (c *card) bufferMaker(recs []*record) making {
	specs := make([]device.BufferSpec, len(recs))
	for i, r := range recs {
		specs[i] = device.BufferSpec{UID: r.UID, Size: r.BufferAsk.Size, Alignment: r.BufferAsk.Alignment}
	}
	return func(ctx context.Context) ([]*present, []error) {
		got, errs := make([]*present, len(specs)), make([]error, len(specs))
		for i, s := range specs {
			b, err := c.dev.Allocate(ctx, s)
			got[i], errs[i] = &present{addr: b.Address}, err
		}
		return got, errs
	}
}

func (c *card) regionMaker(recs []*record) making {
	specs := make([]device.RegionSpec, 0, len(recs))
	var at []int // of the specs in recs
	var imports []importing
	for i, r := range recs {
		a := r.RegionAsk
		if r.ImportAsk != nil {
			imports = append(imports, c.importing(i, r))
			continue
		}
		at = append(at, i)
		specs = append(specs, device.RegionSpec{UID: r.UID, PD: r.pd.is.pd, Address: r.buf.is.addr + a.Offset, Length: a.Length, Access: a.Access})
	}
	return func(ctx context.Context) ([]*present, []error) {
		got, errs := make([]*present, len(recs)), make([]error, len(recs))
		if len(specs) > 0 {
			for i, res := range c.dev.RegisterRegions(ctx, specs) {
				got[at[i]], errs[at[i]] = presentRegion(&res.Region), res.Err
			}
		}
		for _, x := range imports {
			got[x.at], errs[x.at] = x.do(ctx)
		}
		return got, errs
	}
}

func presentRegion(m *device.Region) *present {
	return &present{addr: m.Address, lkey: m.LKey, rkey: m.RKey, revoked: m.Revoked}
}

func (c *card) qpMaker(recs []*record) making {
	specs := make([]device.QueuePairSpec, len(recs))
	for i, r := range recs {
		q := r.QPAsk
		specs[i] = device.QueuePairSpec{UID: r.UID, PD: r.pd.is.pd, Port: q.Port, Type: q.Type, SendWR: q.SendWR, RecvWR: q.RecvWR, SGE: q.SGE}
		// There is a way: the door refuses a target that RESET does not lead
		// to, and restart lets none through later.
		specs[i].Steps, _ = qpSteps(q, ib.Reset, q.Target)
	}
	return func(ctx context.Context) ([]*present, []error) {
		got, errs := make([]*present, len(specs)), make([]error, len(specs))
		results := c.dev.CreateQueuePairs(ctx, specs)
		for i := range results {
			got[i], errs[i] = presentQP(&results[i].QueuePair), results[i].Err
		}
		return got, errs
	}
}

func presentQP(q *device.QueuePair) *present {
	return &present{qpn: q.QPN, state: q.State, gid: q.GID, gidIx: q.GIDIndex, mtu: q.PathMTU,
		sendWR: q.SendWR, recvWR: q.RecvWR, sge: q.SGE, status: q.Status, reason: q.Reason}
}
