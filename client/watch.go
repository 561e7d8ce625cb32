package client

import (
	"context"
	"io"
	"iter"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// A Watch follows the journal of a node.
type Watch struct {
	Node string // such as nodes/local
	// After is the cursor of the last event that the caller has: 0 for all that
	// the journal holds. nil begins with the events to come.
	After  *uint64
	Filter string
}

// First and longest wait between attempts to reach a daemon that is away.
const (
	firstRetry   = 50 * time.Millisecond
	longestRetry = 5 * time.Second
)

// Watch gives the events of a node, each once and in order, and goes on by
// itself where it stopped when the daemon was away. A message with a Gap tells
// that events between two cursors are not kept any more: events of the type
// SNAPSHOT with the present state of every object follow, again from a Gap if the
// daemon went away among them. Bookmarks are used and not given. It ends when ctx
// ends, without an error, or with the daemon's refusal.
func (c *Client) Watch(ctx context.Context, w Watch) iter.Seq2[*pb.WatchEventsResponse, error] {
	return func(yield func(*pb.WatchEventsResponse, error) bool) {
		wait := firstRetry
		for {
			err, done := c.watchOnce(ctx, &w, yield, &wait)
			switch {
			case done || ctx.Err() != nil:
				return
			case err != nil && err != io.EOF && !away(err):
				yield(nil, err)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			wait = min(2*wait, longestRetry)
		}
	}
}

// watchOnce reads one stream to its end. done says that the caller has enough.
func (c *Client) watchOnce(ctx context.Context, w *Watch, yield func(*pb.WatchEventsResponse, error) bool, wait *time.Duration) (err error, done bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Events.WatchEvents(ctx, &pb.WatchEventsRequest{Parent: w.Node, After: w.After, Filter: w.Filter})
	if err != nil {
		return err, false
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err, false
		}
		*wait = firstRetry
		switch m := m.GetMessage().(type) {
		case *pb.WatchEventsResponse_Event:
			// A snapshot is told to its end or anew: its events have the cursor from
			// which the journal goes on after all of them.
			if m.Event.GetType() != pb.Event_TYPE_SNAPSHOT {
				w.After = proto.Uint64(m.Event.GetCursor())
			}
		case *pb.WatchEventsResponse_Bookmark:
			w.After = proto.Uint64(m.Bookmark.GetCursor())
			continue
		}
		if !yield(m, nil) {
			return nil, true
		}
	}
}
