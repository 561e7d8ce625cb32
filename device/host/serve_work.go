package host

import (
	"context"
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc"

	"github.com/accelfab/accelfab/device"
	pb "github.com/accelfab/accelfab/proto/accelfab/device/v1"
)

// left gives a descriptor that was left on the descriptor socket.
func (s *server) left(id []byte) (*os.File, error) {
	if len(id) == len(descriptorID{}) {
		if f := s.waiting.take(descriptorID(id)); f != nil {
			return f, nil
		}
	}
	return nil, errors.New("the descriptor of this call is not with the device host any more")
}

// queuePairService serves queue pairs.
type queuePairService struct {
	pb.UnimplementedQueuePairServiceServer
	*server
}

func (s queuePairService) CreateQueuePairs(ctx context.Context, r *pb.CreateQueuePairsRequest) (*pb.CreateQueuePairsResponse, error) {
	d, _, err := s.batch(r.GetDevice(), mapped(r.GetSpecs(), (*pb.QueuePairSpec).GetUid))
	if err != nil {
		return nil, err
	}
	specs := make([]device.QueuePairSpec, len(r.GetSpecs()))
	for i, q := range r.GetSpecs() {
		if specs[i], err = queuePairSpecOf(q); err != nil {
			return nil, err
		}
	}
	return &pb.CreateQueuePairsResponse{Results: mapped(d.CreateQueuePairs(ctx, specs), queuePairResultProto)}, nil
}

func (s queuePairService) ModifyQueuePairs(ctx context.Context, r *pb.ModifyQueuePairsRequest) (*pb.ModifyQueuePairsResponse, error) {
	d, uids, err := s.batch(r.GetDevice(), mapped(r.GetChanges(), (*pb.QueuePairChange).GetUid))
	if err != nil {
		return nil, err
	}
	changes := make([]device.QueuePairChange, len(uids))
	for i, c := range r.GetChanges() {
		steps, err := stepsOf(c.GetSteps())
		if err != nil {
			return nil, err
		}
		changes[i] = device.QueuePairChange{UID: uids[i], Steps: steps}
	}
	return &pb.ModifyQueuePairsResponse{Results: mapped(d.ModifyQueuePairs(ctx, changes), queuePairResultProto)}, nil
}

func (s queuePairService) ListQueuePairs(r *pb.ListQueuePairsRequest, stream grpc.ServerStreamingServer[pb.ListQueuePairsResponse]) error {
	d, err := s.device(r.GetDevice())
	if err != nil {
		return err
	}
	list, err := d.ListQueuePairs(stream.Context())
	if err != nil {
		return err
	}
	d.logs.keep(list)
	return parts(list, queuePairProto, func(p []*pb.QueuePair) error { return stream.Send(&pb.ListQueuePairsResponse{QueuePairs: p}) })
}

func (s queuePairService) GetQueuePair(ctx context.Context, r *pb.GetQueuePairRequest) (*pb.GetQueuePairResponse, error) {
	d, uid, err := s.one(r.GetDevice(), r.GetUid())
	if err != nil {
		return nil, err
	}
	q, err := d.GetQueuePair(ctx, uid)
	return &pb.GetQueuePairResponse{QueuePair: queuePairProto(q)}, err
}

func (s queuePairService) DestroyQueuePairs(ctx context.Context, r *pb.DestroyQueuePairsRequest) (*pb.DestroyQueuePairsResponse, error) {
	d, uids, err := s.batch(r.GetDevice(), r.GetUids())
	if err != nil {
		return nil, err
	}
	errs := d.DestroyQueuePairs(ctx, uids)
	d.logs.drop(uids...)
	return &pb.DestroyQueuePairsResponse{Errors: encodeErrors(errs)}, nil
}

// workService serves work.
type workService struct {
	pb.UnimplementedWorkServiceServer
	*server
}

func (s workService) Post(ctx context.Context, r *pb.PostRequest) (*pb.PostResponse, error) {
	d, uid, err := s.one(r.GetDevice(), r.GetQueuePair())
	if err != nil {
		return nil, err
	}
	if n := len(r.GetRequests()); n > maxBatch {
		return nil, &device.FieldError{Field: "requests", Problem: fmt.Sprintf("%d: want at most %d", n, maxBatch)}
	}
	return &pb.PostResponse{}, d.Post(ctx, uid, mapped(r.GetRequests(), workOf))
}

func (s workService) ListCompletions(ctx context.Context, r *pb.ListCompletionsRequest) (*pb.ListCompletionsResponse, error) {
	d, uid, err := s.one(r.GetDevice(), r.GetQueuePair())
	if err != nil {
		return nil, err
	}
	got, err := d.logs.read(ctx, d, uid, device.AskCompletions{After: r.GetAfter(), GivenUp: r.GetGivenUp(), Limit: int(r.GetLimit()), Wait: r.GetWait().AsDuration()})
	return &pb.ListCompletionsResponse{First: got.First, Completions: mapped(got.List, completionProto), Newest: got.Newest}, err
}
