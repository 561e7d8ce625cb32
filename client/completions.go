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

// WaitCompletions waits until a queue pair has given count completions after
// the one with sequence after, which it gives up together with those before it,
// and returns count of them or more, oldest first. If ctx ends before, it
// returns those that came and ctx's error. Their status is not looked at.
func (c *Client) WaitCompletions(ctx context.Context, queuePair string, after uint64, count int) ([]*pb.Completion, error) {
	var all []*pb.Completion
	for len(all) < count {
		r, err := c.Transfers.PollCompletions(ctx, &pb.PollCompletionsRequest{Name: queuePair, After: after, Wait: durationpb.New(longPoll)})
		if err != nil {
			// The daemon has the deadline too, and may be the first to see it pass.
			_, bounded := ctx.Deadline()
			switch s, ok := statusOf(err); {
			case ctx.Err() != nil:
				err = ctx.Err()
			case ok && bounded && s.Code() == codes.DeadlineExceeded:
				err = context.DeadlineExceeded
			}
			return all, fmt.Errorf("%d of %d completions of %s came: %w", len(all), count, queuePair, err)
		}
		all = append(all, r.GetCompletions()...)
		if n := len(all); n > 0 {
			after = all[n-1].GetSequence()
		}
	}
	return all, nil
}
