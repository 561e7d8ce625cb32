package main

import (
	"context"
	"fmt"
	"time"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// demoPair is two queue pairs that are, or shall be, connected.
type demoPair struct {
	requester, responder *demoEnd
}

// demoEnd is one queue pair and the cursor in its completions.
type demoEnd struct {
	node *demoNode
	qp   *pb.QueuePair
	seen uint64
}

func (n *demoNode) createEnd(ctx context.Context, card, pd, port string) (*demoEnd, error) {
	ctx, cancel := context.WithTimeout(ctx, demoCall)
	defer cancel()
	qp, err := n.client.QueuePairs.CreateQueuePair(ctx, &pb.CreateQueuePairRequest{
		Parent: card, QueuePair: &pb.QueuePair{ProtectionDomain: pd, Port: port, Type: pb.QueuePair_TYPE_RC},
	})
	if err != nil {
		return nil, fmt.Errorf("queue pair on %s: %w", port, err)
	}
	if qp.GetState() != pb.QueuePair_STATE_INIT {
		return nil, fmt.Errorf("%s is %v, want INIT", qp.GetName(), qp.GetState())
	}
	return &demoEnd{node: n, qp: qp}, nil
}

// refresh reads the queue pair.
func (e *demoEnd) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, demoCall)
	defer cancel()
	qp, err := e.node.client.QueuePairs.GetQueuePair(ctx, &pb.GetQueuePairRequest{Name: e.qp.GetName()})
	if err == nil {
		e.qp = qp
	}
	return err
}

func (e *demoEnd) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, demoCall)
	defer cancel()
	_, err := e.node.client.QueuePairs.DeleteQueuePair(ctx, &pb.DeleteQueuePairRequest{Name: e.qp.GetName()})
	return err
}

// connect connects the two and checks that both are ready to send.
func (p demoPair) connect(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, demoCall)
	defer cancel()
	if err := connectPair(call, p.requester, p.responder); err != nil {
		return err
	}
	for _, e := range []*demoEnd{p.requester, p.responder} {
		if err := e.refresh(ctx); err != nil {
			return err
		}
		if e.qp.GetState() != pb.QueuePair_STATE_RTS {
			return fmt.Errorf("%s is %v after the connect, want RTS", e.qp.GetName(), e.qp.GetState())
		}
	}
	return nil
}

func (p demoPair) String() string {
	l, r := p.requester.qp.GetLocalEndpoint(), p.responder.qp.GetLocalEndpoint()
	return fmt.Sprintf("%s QPN %#x and %s QPN %#x, path MTU %d", l.GetGid(), l.GetQpn(), r.GetGid(), r.GetQpn(),
		p.requester.qp.GetAttributes().GetPathMtuBytes())
}

// transfer moves all of a local region to a remote one, or the other way, and
// gives the time from the post to the last completion.
func (e *demoEnd) transfer(ctx context.Context, op pb.WorkRequest_Opcode, local, remote *demoRegion) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, demoCall)
	defer cancel()
	var requests []*pb.WorkRequest
	for at := uint64(0); at < demoBytes; at += demoMessage {
		requests = append(requests, &pb.WorkRequest{
			WrId: at, Opcode: op, Signaled: true,
			Sges: []*pb.WorkRequest_Sge{{
				Lkey: local.region.GetLkey(), Address: local.region.GetIova() + at, LengthBytes: demoMessage,
			}},
			RemoteAddress: remote.region.GetIova() + at, Rkey: remote.region.GetRkey(),
		})
	}
	began := time.Now()
	if _, err := e.node.client.Transfers.PostWork(ctx, &pb.PostWorkRequest{Name: e.qp.GetName(), Requests: requests}); err != nil {
		return 0, err
	}
	done, err := e.completions(ctx, len(requests))
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	for i, c := range done {
		if c.GetStatus() != pb.CompletionStatus_COMPLETION_STATUS_SUCCESS {
			return 0, fmt.Errorf("work request %d of %s: %v: %s", c.GetWrId(), e.qp.GetName(), c.GetStatus(), c.GetMessage())
		}
		if c.GetWrId() != requests[i].GetWrId() {
			return 0, fmt.Errorf("completion %d of %s is of work request %d, want %d", i, e.qp.GetName(), c.GetWrId(), requests[i].GetWrId())
		}
	}
	return took, nil
}

// move moves a region to another by RDMA twice, since the first time includes
// what the machine takes to find memory, and checks each time what arrived.
func (d *demo) move(ctx context.Context, op pb.WorkRequest_Opcode, what string, p demoPair, from, to *demoRegion, sum [32]byte) error {
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
	var p demoPair
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
	for _, e := range []*demoEnd{p.requester, p.responder} {
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

// connectPair connects two queue pairs by the client's own means.
func connectPair(ctx context.Context, a, b *demoEnd) error {
	_, _, err := client.ConnectPair(ctx,
		client.End{Client: a.node.client, Name: a.qp.GetName()},
		client.End{Client: b.node.client, Name: b.qp.GetName()})
	return err
}

// completions waits for so many completions of the queue pair.
func (e *demoEnd) completions(ctx context.Context, count int) ([]*pb.Completion, error) {
	done, err := e.node.client.WaitCompletions(ctx, e.qp.GetName(), e.seen, count)
	if len(done) > 0 {
		e.seen = done[len(done)-1].GetSequence()
	}
	return done, err
}
