package main

import (
	"context"
	"time"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// memory is the step that makes protection domains, buffers and regions.
func (d *demo) memory(ctx context.Context) error {
	began := time.Now()
	pds := map[string]string{}
	for _, at := range []struct {
		n    *demoNode
		card string
	}{{d.a, d.lane.card}, {d.a, d.lane.peer}, {d.b, d.b.card}} {
		pd, err := at.n.createDomain(ctx, at.card)
		if err != nil {
			return err
		}
		pds[at.card] = pd
	}
	remote := []pb.MemoryRegion_Access{
		pb.MemoryRegion_ACCESS_LOCAL_WRITE, pb.MemoryRegion_ACCESS_REMOTE_WRITE, pb.MemoryRegion_ACCESS_REMOTE_READ,
	}
	local := remote[:1]
	var err error
	if d.source, err = d.a.createRegion(ctx, d.lane.card, pds[d.lane.card], demoBytes, nil); err != nil {
		return err
	}
	if d.back, err = d.a.createRegion(ctx, d.lane.card, pds[d.lane.card], demoBytes, local); err != nil {
		return err
	}
	if d.near, err = d.a.createRegion(ctx, d.lane.peer, pds[d.lane.peer], demoBytes, remote); err != nil {
		return err
	}
	if d.target, err = d.b.createRegion(ctx, d.b.card, pds[d.b.card], demoBytes, remote); err != nil {
		return err
	}
	t := time.Since(began)
	d.took("3 protection domains, 4 buffers, 4 memory regions made", t)
	d.say("3 protection domains, 4 buffers of %d MiB and a memory region on each, in %s", demoBytes>>20, rounded(t))
	for _, r := range []*rdmaRegion{d.source, d.target} {
		d.say("%s: device address %#x, rkey %#x", r.region.GetName(), r.buffer.GetDeviceAddress(), r.region.GetRkey())
	}
	return nil
}
