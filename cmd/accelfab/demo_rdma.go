package main

import (
	"context"
	"fmt"
	"time"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// move moves a region to another by RDMA twice, since the first time includes
// what the machine takes to find memory, and checks each time what arrived.
func (d *demo) move(ctx context.Context, op pb.WorkRequest_Opcode, what string, p rdmaPair, from, to *rdmaRegion, sum [32]byte) error {
	local, remote := from, to
	if op == pb.WorkRequest_OPCODE_RDMA_READ {
		local, remote = to, from
	}
	for _, what := range []string{what + ", fresh memory", what} {
		took, err := p.requester.transfer(ctx, op, local, remote)
		if err != nil {
			return err
		}
		if err := to.holds(ctx, sum); err != nil {
			return err
		}
		d.say("%s: %s; SHA-256 as at the source", what, d.moved(what, demoBytes, took))
	}
	return nil
}

func (d *demo) betweenNodes(ctx context.Context) error {
	began := time.Now()
	var err error
	if d.across.requester, err = d.a.createEnd(ctx, d.a.card, d.source.pd, d.a.port); err != nil {
		return err
	}
	if d.across.responder, err = d.b.createEnd(ctx, d.b.card, d.target.pd, d.b.port); err != nil {
		return err
	}
	if err := d.across.connect(ctx); err != nil {
		return err
	}
	took := time.Since(began)
	d.took("2 queue pairs made and connected between nodes", took)
	d.say("connected in %s: %v", rounded(took), d.across)

	began = time.Now()
	sum, err := d.source.fill(ctx)
	if err != nil {
		return err
	}
	d.say("source filled with random bytes by the API: %s, SHA-256 %x...", d.moved("upload by the API", demoBytes, time.Since(began)), sum[:8])
	if err := d.move(ctx, pb.WorkRequest_OPCODE_RDMA_WRITE, "RDMA WRITE between nodes", d.across, d.source, d.target, sum); err != nil {
		return err
	}
	return d.move(ctx, pb.WorkRequest_OPCODE_RDMA_READ, "RDMA READ between nodes", d.across, d.target, d.back, sum)
}

func (d *demo) insideNode(ctx context.Context) error {
	var err error
	if d.inside.requester, err = d.a.createEnd(ctx, d.lane.card, d.source.pd, d.lane.port); err != nil {
		return err
	}
	if d.inside.responder, err = d.a.createEnd(ctx, d.lane.peer, d.near.pd, d.lane.peerPort); err != nil {
		return err
	}
	if err := d.inside.connect(ctx); err != nil {
		return err
	}
	d.say("connected: %v", d.inside)
	sum, err := d.source.sum(ctx)
	if err != nil {
		return err
	}
	if err := d.move(ctx, pb.WorkRequest_OPCODE_RDMA_WRITE, "RDMA WRITE inside a node", d.inside, d.source, d.near, sum); err != nil {
		return err
	}
	return d.uncabled(ctx)
}

// uncabled shows that two ports without a cable between them do not connect,
// though their cards have other cables to one another.
func (d *demo) uncabled(ctx context.Context) error {
	var p rdmaPair
	var err error
	if p.requester, err = d.a.createEnd(ctx, d.lane.card, d.source.pd, d.lane.port); err != nil {
		return err
	}
	if p.responder, err = d.a.createEnd(ctx, d.lane.peer, d.near.pd, d.lane.otherPort); err != nil {
		return err
	}
	refusal := connectPair(ctx, p.requester, p.responder)
	if err := refusedWith(refusal, pb.ErrorReason_ERROR_REASON_PATH_NOT_CABLED); err != nil {
		return fmt.Errorf("connect %s with %s, which no cable joins: %w", d.lane.port, d.lane.otherPort, err)
	}
	d.say("without a cable it is refused: %s", client.Explain(refusal))
	for _, e := range []*rdmaEnd{p.requester, p.responder} {
		if err := e.refresh(ctx); err != nil {
			return err
		}
		if e.qp.GetState() != pb.QueuePair_STATE_INIT {
			return fmt.Errorf("%s is %v after a refused connect, want INIT as before", e.qp.GetName(), e.qp.GetState())
		}
		if err := e.remove(ctx); err != nil {
			return err
		}
	}
	return nil
}
