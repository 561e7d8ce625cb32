package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// killedDaemon kills the daemon of the first node at once and starts it again.
// Its devices are in a process of their own, so all that is on them stays, and
// the next daemon takes it over.
func (d *demo) killedDaemon(ctx context.Context) error {
	sum, err := d.source.fill(ctx)
	if err != nil {
		return err
	}
	before, err := d.a.objects(ctx)
	if err != nil {
		return err
	}
	old := d.a.daemon.Process.PID
	d.a.client.Close()
	began := time.Now()
	if err := d.a.daemon.Process.end(0); err != nil {
		return err
	}
	if err := d.lab.restart(ctx, d.a.daemon); err != nil {
		return err
	}
	if err := d.a.dial(); err != nil {
		return err
	}
	took := time.Since(began)
	d.took("daemon killed, and back", took)
	d.say("process %d killed by SIGKILL; process %d serves on the same state after %s", old, d.a.daemon.Process.PID, rounded(took))
	if err := d.recordsAreBack(ctx, before); err != nil {
		return err
	}
	return d.wentOn(ctx, sum)
}

// wentOn checks that queue pairs and memory outlived the daemon: they are used
// as they are.
func (d *demo) wentOn(ctx context.Context, sum [32]byte) error {
	here := []*rdmaEnd{d.across.requester, d.inside.requester, d.inside.responder}
	for _, e := range here {
		qpn := e.qp.GetLocalEndpoint().GetQpn()
		if err := e.refresh(ctx); err != nil {
			return err
		}
		if e.qp.GetState() != pb.QueuePair_STATE_RTS || e.qp.GetLocalEndpoint().GetQpn() != qpn {
			return fmt.Errorf("%s is %v with QPN %#x, and was RTS with %#x before its daemon was killed", e.qp.GetName(), e.qp.GetState(), e.qp.GetLocalEndpoint().GetQpn(), qpn)
		}
	}
	const what = "RDMA WRITE between nodes, as if nothing had been killed"
	took, err := d.across.requester.transfer(ctx, pb.WorkRequest_OPCODE_RDMA_WRITE, d.source, d.target)
	if err != nil {
		return err
	}
	if err := d.target.holds(ctx, sum); err != nil {
		return err
	}
	d.say("%d queue pairs are connected as before; %s: %s; SHA-256 as at the source", len(here), what, d.moved(what, demoBytes, took))
	return nil
}

// killedHost kills the process that the devices of the first node are in: what
// only they knew is gone; what was asked is not.
func (d *demo) killedHost(ctx context.Context) error {
	hosts := d.a.daemon.hosts()
	if len(hosts) != 1 {
		return fmt.Errorf("%s has %d device hosts, want 1", d.a.name, len(hosts))
	}
	began := time.Now()
	if err := hosts[0].end(0); err != nil {
		return err
	}
	d.say("process %d, in which the devices of %s are, killed by SIGKILL", hosts[0].PID, d.a.name)
	if err := d.lostMemory(ctx); err != nil {
		return err
	}
	d.took("device host killed, and its devices back", time.Since(began))
	return d.connectAgain(ctx)
}

// recordsAreBack checks that every object is there with the uid it had.
func (d *demo) recordsAreBack(ctx context.Context, before demoObjects) error {
	after, err := d.a.objects(ctx)
	if err != nil {
		return err
	}
	for name, uid := range before.uids {
		if after.uids[name] != uid {
			return fmt.Errorf("%s had uid %s before the kill and has %q now", name, uid, after.uids[name])
		}
	}
	if len(after.uids) != len(before.uids) {
		return fmt.Errorf("%d objects before the kill, %d after it", len(before.uids), len(after.uids))
	}
	d.say("all %d records are back: %s", len(after.uids), after)
	return nil
}

// lostMemory checks that the buffers say that their contents are gone, and puts
// new ones in their place.
func (d *demo) lostMemory(ctx context.Context) error {
	lost := []*rdmaRegion{d.source, d.back, d.near}
	for _, r := range lost {
		err := until(ctx, func(ctx context.Context) (bool, error) {
			b, err := d.a.client.Memory.GetBuffer(ctx, &pb.GetBufferRequest{Name: r.buffer.GetName()})
			if err != nil {
				return false, err
			}
			m, err := d.a.client.Memory.GetMemoryRegion(ctx, &pb.GetMemoryRegionRequest{Name: r.region.GetName()})
			return b.GetState() == pb.Buffer_STATE_LOST && m.GetState() == pb.MemoryRegion_STATE_LOST, err
		})
		if err != nil {
			return fmt.Errorf("%s and its region are not LOST though their memory is gone: %w", r.buffer.GetName(), err)
		}
		if err := r.remove(ctx); err != nil {
			return err
		}
	}
	d.say("%d buffers and their regions are LOST, since their contents went with the process; deleted", len(lost))
	for _, at := range []**rdmaRegion{&d.source, &d.near} {
		r, err := d.a.createRegion(ctx, (*at).card, (*at).pd, demoBytes, (*at).region.GetAccess())
		if err != nil {
			return err
		}
		*at = r
	}
	return nil
}

// connectAgain connects the queue pairs that were made again and moves data.
func (d *demo) connectAgain(ctx context.Context) error {
	back := []*rdmaEnd{d.across.requester, d.inside.requester, d.inside.responder}
	for _, e := range back {
		qpn := e.qp.GetLocalEndpoint().GetQpn()
		err := until(ctx, func(ctx context.Context) (bool, error) {
			err := e.refresh(ctx)
			return e.qp.GetState() == pb.QueuePair_STATE_INIT, err
		})
		if err != nil {
			return fmt.Errorf("%s is %v, want INIT: %w", e.qp.GetName(), e.qp.GetState(), err)
		}
		if e.qp.GetLocalEndpoint().GetQpn() == qpn {
			return fmt.Errorf("%s is made again with the QPN %#x that its peer still sends to", e.qp.GetName(), qpn)
		}
	}
	d.say("%d queue pairs are made again: INIT, with new QPNs", len(back))

	// The other node's end still speaks to the queue pair that died.
	far := d.across.responder
	call, cancel := context.WithTimeout(ctx, demoCall)
	defer cancel()
	if _, err := d.b.client.QueuePairs.ModifyQueuePair(call, &pb.ModifyQueuePairRequest{
		Name: far.qp.GetName(), TargetState: pb.QueuePair_STATE_INIT,
	}); err != nil {
		return err
	}
	began := time.Now()
	for _, p := range []rdmaPair{d.across, d.inside} {
		if err := p.connect(ctx); err != nil {
			return err
		}
	}
	d.say("both pairs connected again in %s", rounded(time.Since(began)))
	sum, err := d.source.fill(ctx)
	if err != nil {
		return err
	}
	for _, again := range []struct {
		what string
		pair rdmaPair
		to   *rdmaRegion
	}{{"RDMA WRITE between nodes, after the kill", d.across, d.target}, {"RDMA WRITE inside a node, after the kill, fresh memory", d.inside, d.near}} {
		took, err := again.pair.requester.transfer(ctx, pb.WorkRequest_OPCODE_RDMA_WRITE, d.source, again.to)
		if err != nil {
			return err
		}
		if err := again.to.holds(ctx, sum); err != nil {
			return err
		}
		d.say("%s: %s; SHA-256 as at the source", again.what, d.moved(again.what, demoBytes, took))
	}
	return nil
}

// until asks again and again, since reconcile works beside us, until the answer
// is yes or a call has taken too long.
func until(ctx context.Context, ask func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, demoCall)
	defer cancel()
	tick := time.NewTicker(readyTick)
	defer tick.Stop()
	for {
		if yes, err := ask(ctx); yes || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("still so after %v: %w", demoCall, ctx.Err())
		case <-tick.C:
		}
	}
}

// closeAll closes both sessions and checks that nothing is left.
func (d *demo) closeAll(ctx context.Context) error {
	began := time.Now()
	for _, n := range []*demoNode{d.a, d.b} {
		call, cancel := context.WithTimeout(ctx, demoCall)
		_, err := n.client.Sessions.DeleteSession(call, &pb.DeleteSessionRequest{Name: n.session.GetName()})
		cancel()
		if err != nil {
			return err
		}
	}
	took := time.Since(began)
	d.took("2 sessions closed with all they had", took)
	for _, n := range []*demoNode{d.a, d.b} {
		left, err := n.objects(ctx)
		if err != nil {
			return err
		}
		if len(left.uids) > 0 {
			return fmt.Errorf("%s still has %s", n.name, left)
		}
		devices, err := n.devices(ctx)
		if err != nil {
			return err
		}
		for _, dev := range devices {
			u := dev.GetUsage()
			if u.GetQueuePairs()+u.GetProtectionDomains()+u.GetMemoryRegions()+u.GetBuffers()+u.GetMemoryExports() > 0 || len(dev.GetHolders()) > 0 {
				return fmt.Errorf("%s still has %v and is held by %v", dev.GetName(), u, dev.GetHolders())
			}
			if free := n.free[dev.GetName()]; dev.GetMemoryFreeBytes() != free {
				return fmt.Errorf("%s has %d bytes free, and had %d before the demo", dev.GetName(), dev.GetMemoryFreeBytes(), free)
			}
		}
	}
	d.say("both sessions closed in %s; every list is empty and all memory is free on both nodes", rounded(took))
	return nil
}

// demoObjects is what is on a node.
type demoObjects struct {
	uids  map[string]string // by name
	count [6]int
}

func (o demoObjects) String() string {
	return fmt.Sprintf("%d sessions, %d protection domains, %d buffers, %d memory regions, %d queue pairs, %d exports",
		o.count[0], o.count[1], o.count[2], o.count[3], o.count[4], o.count[5])
}

// objects lists all objects of the node, which fit into one page each.
func (n *demoNode) objects(ctx context.Context) (demoObjects, error) {
	ctx, cancel := context.WithTimeout(ctx, demoCall)
	defer cancel()
	all := demoObjects{uids: map[string]string{}}
	parent := n.name + "/devices/-"
	s, err1 := n.client.Sessions.ListSessions(ctx, &pb.ListSessionsRequest{Parent: n.name})
	p, err2 := n.client.Memory.ListProtectionDomains(ctx, &pb.ListProtectionDomainsRequest{Parent: parent})
	b, err3 := n.client.Memory.ListBuffers(ctx, &pb.ListBuffersRequest{Parent: parent})
	m, err4 := n.client.Memory.ListMemoryRegions(ctx, &pb.ListMemoryRegionsRequest{Parent: parent})
	q, err5 := n.client.QueuePairs.ListQueuePairs(ctx, &pb.ListQueuePairsRequest{Parent: parent})
	x, err6 := n.client.Memory.ListMemoryExports(ctx, &pb.ListMemoryExportsRequest{Parent: parent})
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
		return all, err
	}
	take(&all, 0, s.GetSessions())
	take(&all, 1, p.GetProtectionDomains())
	take(&all, 2, b.GetBuffers())
	take(&all, 3, m.GetMemoryRegions())
	take(&all, 4, q.GetQueuePairs())
	take(&all, 5, x.GetMemoryExports())
	return all, nil
}

func take[T interface {
	GetName() string
	GetUid() string
}](all *demoObjects, kind int, list []T) {
	for _, o := range list {
		all.uids[o.GetName()] = o.GetUid()
	}
	all.count[kind] = len(list)
}
