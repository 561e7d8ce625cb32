package main

import (
	"context"
	"fmt"
	"time"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// rdmaCall bounds one call, and one transfer.
const rdmaCall = time.Minute

// rdmaMessage is the largest work request, trafficMessage that of endless traffic,
// of which trafficDepth are under way.
const (
	rdmaMessage    = 4 << 20
	trafficMessage = 64 << 10
	trafficDepth   = 32
)

// rdmaNode is one who makes objects on a node, in a session.
type rdmaNode struct {
	client  *client.Client
	session *pb.Session
}

// rdmaPair is two queue pairs that are, or shall be, connected.
type rdmaPair struct {
	requester, responder *rdmaEnd
}

// rdmaEnd is one queue pair and the cursor in its completions.
type rdmaEnd struct {
	node *rdmaNode
	qp   *pb.QueuePair
	seen uint64
}

func (n *rdmaNode) createEnd(ctx context.Context, card, pd, port string) (*rdmaEnd, error) {
	ctx, cancel := context.WithTimeout(ctx, rdmaCall)
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
	return &rdmaEnd{node: n, qp: qp}, nil
}

// refresh reads the queue pair.
func (e *rdmaEnd) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rdmaCall)
	defer cancel()
	qp, err := e.node.client.QueuePairs.GetQueuePair(ctx, &pb.GetQueuePairRequest{Name: e.qp.GetName()})
	if err == nil {
		e.qp = qp
	}
	return err
}

func (e *rdmaEnd) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rdmaCall)
	defer cancel()
	_, err := e.node.client.QueuePairs.DeleteQueuePair(ctx, &pb.DeleteQueuePairRequest{Name: e.qp.GetName()})
	return err
}

// connect connects the two and checks that both are ready to send.
func (p rdmaPair) connect(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, rdmaCall)
	defer cancel()
	if err := connectPair(call, p.requester, p.responder); err != nil {
		return err
	}
	for _, e := range []*rdmaEnd{p.requester, p.responder} {
		if err := e.refresh(ctx); err != nil {
			return err
		}
		if e.qp.GetState() != pb.QueuePair_STATE_RTS {
			return fmt.Errorf("%s is %v after the connect, want RTS", e.qp.GetName(), e.qp.GetState())
		}
	}
	return nil
}

func (p rdmaPair) String() string {
	l, r := p.requester.qp.GetLocalEndpoint(), p.responder.qp.GetLocalEndpoint()
	return fmt.Sprintf("%s QPN %#x and %s QPN %#x, path MTU %d", l.GetGid(), l.GetQpn(), r.GetGid(), r.GetQpn(),
		p.requester.qp.GetAttributes().GetPathMtuBytes())
}

// transfer moves all of a local region to a remote one, or the other way, and
// gives the time from the post to the last completion.
func (e *rdmaEnd) transfer(ctx context.Context, op pb.WorkRequest_Opcode, local, remote *rdmaRegion) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, rdmaCall)
	defer cancel()
	var requests []*pb.WorkRequest
	size := min(local.region.GetLengthBytes(), remote.region.GetLengthBytes())
	for at := uint64(0); at < size; at += rdmaMessage {
		requests = append(requests, &pb.WorkRequest{
			WrId: at, Opcode: op, Signaled: true,
			Sges: []*pb.WorkRequest_Sge{{
				Lkey: local.region.GetLkey(), Address: local.region.GetIova() + at, LengthBytes: uint32(min(rdmaMessage, size-at)),
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

// trafficEnd is how a writer ended.
type trafficEnd struct {
	bytes  uint64 // acknowledged before
	status pb.CompletionStatus
	err    error // of a call, rather than of the wire
}

// writeUntilRefused writes a local region to a remote one, over and over and
// each time other bytes to each place, until a write fails. It closes flowing
// once every place of the remote region was written.
func (e *rdmaEnd) writeUntilRefused(ctx context.Context, local, remote *rdmaRegion, flowing chan struct{}) (end trafficEnd) {
	places := min(local.region.GetLengthBytes(), remote.region.GetLengthBytes()) / trafficMessage
	var posted, done uint64
	for {
		var requests []*pb.WorkRequest
		for ; posted < done+trafficDepth; posted++ {
			to, from := posted%places, (posted+posted/places)%places
			requests = append(requests, &pb.WorkRequest{
				WrId: posted, Opcode: pb.WorkRequest_OPCODE_RDMA_WRITE, Signaled: true,
				Sges: []*pb.WorkRequest_Sge{{
					Lkey: local.region.GetLkey(), Address: local.region.GetIova() + from*trafficMessage, LengthBytes: trafficMessage,
				}},
				RemoteAddress: remote.region.GetIova() + to*trafficMessage, Rkey: remote.region.GetRkey(),
			})
		}
		if _, err := e.node.client.Transfers.PostWork(ctx, &pb.PostWorkRequest{Name: e.qp.GetName(), Requests: requests}); err != nil {
			end.err = fmt.Errorf("traffic: %w", err)
			return end
		}
		completed, err := e.completions(ctx, len(requests))
		if err != nil {
			end.err = fmt.Errorf("traffic: %w", err)
			return end
		}
		for _, c := range completed {
			if end.status = c.GetStatus(); end.status != pb.CompletionStatus_COMPLETION_STATUS_SUCCESS {
				return end
			}
			done++
			if end.bytes += trafficMessage; done == places {
				close(flowing)
			}
		}
	}
}

// connectPair connects two queue pairs by the client's own means.
func connectPair(ctx context.Context, a, b *rdmaEnd) error {
	_, _, err := client.ConnectPair(ctx,
		client.End{Client: a.node.client, Name: a.qp.GetName()},
		client.End{Client: b.node.client, Name: b.qp.GetName()})
	return err
}

// completions waits for so many completions of the queue pair.
func (e *rdmaEnd) completions(ctx context.Context, count int) ([]*pb.Completion, error) {
	done, err := e.node.client.WaitCompletions(ctx, e.qp.GetName(), e.seen, count)
	if len(done) > 0 {
		e.seen = done[len(done)-1].GetSequence()
	}
	return done, err
}
