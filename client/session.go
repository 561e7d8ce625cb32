package client

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// KeepAlive keeps a session alive, three times within its ttl, until ctx ends
// (then it returns nil) or the session is lost: the daemon says so, or did not
// answer for a whole ttl. A session without ttl needs no call.
func (c *Client) KeepAlive(ctx context.Context, session *pb.Session) error {
	ttl := session.GetTtl().AsDuration()
	if ttl <= 0 {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(max(ttl/3, time.Millisecond))
	defer tick.Stop()
	alive := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		call, cancel := context.WithTimeout(ctx, ttl)
		_, err := c.Sessions.KeepAliveSession(call, &pb.KeepAliveSessionRequest{Name: session.GetName(), Generation: session.GetGeneration()})
		cancel()
		switch {
		case err == nil:
			alive = time.Now()
		case ctx.Err() != nil:
			return nil
		case !away(err) || time.Since(alive) > ttl:
			return err
		}
	}
}

// away says whether an error means that no daemon answers, or that it is ending
// or cannot now, all of which may change.
func away(err error) bool {
	s, ok := statusOf(err)
	return ok && (s.Code() == codes.Unavailable || s.Code() == codes.DeadlineExceeded)
}
