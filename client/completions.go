package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// longPoll is how long one call waits at the daemon for a completion.
const longPoll = 30 * time.Second

// maxPoll is the most completions that one call answers.
const maxPoll = 1024

// WaitCompletions waits until a queue pair has given count completions after
// the one with sequence after, which it gives up together with those before it,
// and returns count of them or more, oldest first. If ctx ends before, it
// returns those that came and ctx's error. Their status is not looked at.
func (c *Client) WaitCompletions(ctx context.Context, queuePair string, after uint64, count int) ([]*pb.Completion, error) {
	var all []*pb.Completion
	for len(all) < count {
		r, err := c.Transfers.PollCompletions(ctx, &pb.PollCompletionsRequest{Name: queuePair, After: after, Wait: durationpb.New(longPoll)})
		if err != nil {
			return all, fmt.Errorf("%d of %d completions of %s came: %w", len(all), count, queuePair, waitError(ctx, err))
		}
		all = append(all, r.GetCompletions()...)
		if n := len(all); n > 0 {
			after = all[n-1].GetSequence()
		}
	}
	return all, nil
}

// WaitSolicited waits until a queue pair has given a completion that its peer
// marked as solicited, or one that is not a success, after the one with sequence
// after, which it gives up together with those before it. It returns all that
// came, at most 1,024 and oldest first, also where 1,024 came and none is of
// these. If ctx ends before, it returns ctx's error and gives up nothing more.
func (c *Client) WaitSolicited(ctx context.Context, queuePair string, after uint64) ([]*pb.Completion, error) {
	for {
		r, err := c.Transfers.PollCompletions(ctx, &pb.PollCompletionsRequest{Name: queuePair, After: after,
			MaxCompletions: maxPoll, Wait: durationpb.New(longPoll), SolicitedOnly: true})
		switch {
		case err != nil:
			return nil, fmt.Errorf("no solicited completion of %s came: %w", queuePair, waitError(ctx, err))
		case len(r.GetCompletions()) > 0:
			return r.GetCompletions(), nil
		}
	}
}

// waitError is ctx's error where the end of ctx ended a call. The daemon has the
// deadline too, and may be the first to see it pass.
func waitError(ctx context.Context, err error) error {
	_, bounded := ctx.Deadline()
	switch s, ok := statusOf(err); {
	case ctx.Err() != nil:
		return ctx.Err()
	case ok && bounded && s.Code() == codes.DeadlineExceeded:
		return context.DeadlineExceeded
	}
	return err
}
