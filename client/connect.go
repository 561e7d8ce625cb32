package client

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// End is one of two queue pairs that shall be connected.
type End struct {
	Client *Client // of the node that the queue pair is on
	Name   string  // of the queue pair
	// Attributes to set on the way; nil leaves all as they are. Not gid_index and
	// psn, which make another endpoint of this end: they go with its create.
	Attributes *pb.QueuePair_Attributes
}

// undoLimit bounds what is done after a failure, when the caller's context may
// have ended.
const undoLimit = 10 * time.Second

// ConnectPair connects two queue pairs with each other, on one node or on two:
// it reads both local endpoints, gives each to the other end, and returns both
// queue pairs in RTS. If one end cannot be connected the other is taken back to
// INIT, so that none is left half connected; receives posted there are lost. So
// is an end whose daemon gave no answer, which may have been connected.
// Two that are connected with each other already are left as they are.
//
// The error says which end failed, in which phase ("read", "check", "connect" or
// "undo"); Reason finds the daemon's reason in it.
func ConnectPair(ctx context.Context, a, b End) (qpA, qpB *pb.QueuePair, err error) {
	if err := errors.Join(a.checkAttributes(), b.checkAttributes()); err != nil {
		return nil, nil, err
	}
	if qpA, err = a.read(ctx); err != nil {
		return nil, nil, err
	}
	if qpB, err = b.read(ctx); err != nil {
		return nil, nil, err
	}
	if err := checkEnds(qpA, qpB); err != nil {
		return nil, nil, err
	}
	nowA, err := a.connect(ctx, qpB.GetLocalEndpoint())
	if err != nil {
		return nil, nil, errors.Join(err, a.undoUnanswered(ctx, qpA, err))
	}
	nowB, err := b.connect(ctx, qpA.GetLocalEndpoint())
	if err != nil {
		return nil, nil, errors.Join(err, a.undo(ctx, qpA), b.undoUnanswered(ctx, qpB, err))
	}
	return nowA, nowB, nil
}

// checkAttributes refuses those that change the endpoint after the other end was
// told of it.
func (e End) checkAttributes() error {
	if x := e.Attributes; x != nil && (x.GidIndex != nil || x.Psn != nil) {
		return fmt.Errorf("phase check, %s: gid_index and psn cannot be changed by connecting, since the other end is told them before: give them when it is created", e.Name)
	}
	return nil
}

func (e End) read(ctx context.Context) (*pb.QueuePair, error) {
	qp, err := e.Client.QueuePairs.GetQueuePair(ctx, &pb.GetQueuePairRequest{Name: e.Name})
	if err != nil {
		return nil, fmt.Errorf("phase read, %s: %w", e.Name, err)
	}
	if qp.GetLocalEndpoint().GetQpn() == 0 {
		return nil, fmt.Errorf("phase check, %s: it is in state %v and has no queue pair number yet", e.Name, qp.GetState())
	}
	return qp, nil
}

func (e End) connect(ctx context.Context, remote *pb.QueuePair_Endpoint) (*pb.QueuePair, error) {
	qp, err := e.Client.QueuePairs.ConnectQueuePair(ctx, &pb.ConnectQueuePairRequest{
		Name: e.Name, RemoteEndpoint: remote, Attributes: e.Attributes,
	})
	if err != nil {
		return nil, fmt.Errorf("phase connect, %s to QPN 0x%06x at %s: %w", e.Name, remote.GetQpn(), remote.GetGid(), err)
	}
	return qp, nil
}

// undo takes an end that was connected back to INIT, also when ctx has ended. An
// end that was in RTS before is left there.
func (e End) undo(ctx context.Context, before *pb.QueuePair) error {
	if before.GetState() == pb.QueuePair_STATE_RTS {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	_, err := e.Client.QueuePairs.ModifyQueuePair(ctx, &pb.ModifyQueuePairRequest{Name: e.Name, TargetState: pb.QueuePair_STATE_INIT})
	if err != nil {
		return fmt.Errorf("phase undo, %s may stay connected to a peer that is not: %w", e.Name, err)
	}
	return nil
}

// undoUnanswered is undo for an end that failed by err: after a refusal there is
// nothing to take back.
func (e End) undoUnanswered(ctx context.Context, before *pb.QueuePair, err error) error {
	if Reason(err) != pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		return nil
	}
	return e.undo(ctx, before)
}

// checkEnds refuses ends of two types, or that cannot reach each other by the
// form of their addresses, before anything is changed. What an end alone tells,
// its daemon finds.
func checkEnds(a, b *pb.QueuePair) error {
	if a.GetType() != b.GetType() {
		return fmt.Errorf("phase check: %s is of %v, and %s of %v: two of one type can be connected", a.GetName(), a.GetType(), b.GetName(), b.GetType())
	}
	gidA, errA := netip.ParseAddr(a.GetLocalEndpoint().GetGid())
	gidB, errB := netip.ParseAddr(b.GetLocalEndpoint().GetGid())
	if errA != nil || errB != nil || gidA.Is4In6() == gidB.Is4In6() {
		return nil // what is odd about a GID the daemons say better
	}
	return fmt.Errorf("phase check: %s has the GID %s (%s), and %s has %s (%s): choose a gid_index of the same family at both ends",
		a.GetName(), gidA, family(gidA), b.GetName(), gidB, family(gidB))
}

func family(gid netip.Addr) string {
	if gid.Is4In6() {
		return "IPv4"
	}
	return "IPv6"
}
