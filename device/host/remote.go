package host

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/accelfab/accelfab/device"
	pb "github.com/accelfab/accelfab/proto/accelfab/device/v1"
)

// remote is a device of a host. It implements device.Device and
// device.NumberedWork.
type remote struct {
	link   *link
	info   device.Info
	events *hints
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	read   numbers // of Completions
}

var (
	_ device.Device       = (*remote)(nil)
	_ device.NumberedWork = (*remote)(nil)
)

func newRemote(l *link, info device.Info) *remote {
	r := &remote{link: l, info: info, events: &hints{c: make(chan device.Event, 256)}}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// hints is the channel of a device's events. The last place is for one that
// stands for what has no room any more.
type hints struct {
	mu     sync.Mutex
	c      chan device.Event
	closed bool
}

func (h *hints) post(e device.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	if len(h.c) >= cap(h.c)-1 {
		e = device.Event{Kind: device.DeviceChanged, Port: -1}
	}
	select {
	case h.c <- e:
	default: // what the reader comes to last says to look at all
	}
}

// close reports whether it was open.
func (h *hints) close() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.closed = true
	close(h.c)
	return true
}

// Info implements device.Device.
func (r *remote) Info() device.Info { return r.info }

// Events implements device.Device.
func (r *remote) Events() <-chan device.Event { return r.events.c }

// Close implements device.Device: the device stays open in its host.
func (r *remote) Close() error {
	if r.events.close() {
		r.cancel()
		r.link.closed()
	}
	return nil
}

// ask makes one call of the host, which ends at the latest after limit.
func ask[A any](ctx context.Context, r *remote, limit time.Duration, call func(context.Context, *session) (A, error)) (A, error) {
	var none A
	if r.ctx.Err() != nil {
		return none, device.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return none, err
	}
	r.link.mu.Lock()
	s, away := r.link.now, r.link.away
	r.link.mu.Unlock()
	if s == nil {
		return none, fmt.Errorf("%w: %s", device.ErrUnavailable, away)
	}
	bound, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	out, err := call(bound, s)
	if err == nil {
		return out, nil
	}
	return none, r.fault(ctx, bound, s, err)
}

// fault says what the end of a call means.
func (r *remote) fault(ctx, bound context.Context, s *session, err error) error {
	if r.ctx.Err() != nil {
		return device.ErrClosed
	}
	st, isStatus := status.FromError(err)
	var told error // by the device
	for _, d := range st.Details() {
		if e, ok := d.(*pb.Error); ok {
			told = decodeError(e)
		}
	}
	// The host's clock may be ahead: then the caller's end comes at once.
	late := st.Code() == codes.DeadlineExceeded || errors.Is(told, context.DeadlineExceeded)
	if late && ctx.Err() == nil {
		select {
		case <-bound.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	why := s.why.Load()
	switch {
	case ctx.Err() != nil && (told == nil || late || errors.Is(told, context.Canceled)):
		return ctx.Err()
	case told != nil:
		return told
	case why != nil:
		return fmt.Errorf("%w: %s", device.ErrUnavailable, *why)
	case late:
		return fmt.Errorf("%w: the device host (process %d) has not answered in time: %w", device.ErrUnavailable, s.pid, context.DeadlineExceeded)
	case st.Code() == codes.Unavailable, st.Code() == codes.Canceled:
		return fmt.Errorf("%w: the device host ended (process %d)", device.ErrUnavailable, s.pid)
	case st.Code() == codes.Unimplemented:
		return fmt.Errorf("the device host (process %d) is older than this call: %w", s.pid, errors.ErrUnsupported)
	case isStatus: // not the device's word: nothing is known of what was done
		return fmt.Errorf("%w: the device host (process %d) failed: %s", device.ErrUnavailable, s.pid, st.Message())
	}
	return fmt.Errorf("%w: device host (process %d): %w", device.ErrUnavailable, s.pid, err)
}

// do is ask for a call whose answer says nothing.
func do[A any](ctx context.Context, r *remote, call func(context.Context, *session) (A, error)) error {
	_, err := ask(ctx, r, callLimit, call)
	return err
}

// batch makes as many calls as the entries need, and gives an answer for each.
func batch[E, A any](ctx context.Context, r *remote, entries []E, failed func(error) A, call func(context.Context, *session, []E) ([]A, error)) []A {
	out := make([]A, 0, len(entries))
	for at := 0; at < len(entries); at += maxBatch {
		part := entries[at:min(len(entries), at+maxBatch)]
		got, err := ask(ctx, r, callLimit, func(ctx context.Context, s *session) ([]A, error) { return call(ctx, s, part) })
		for i := range part {
			switch {
			case err != nil:
				out = append(out, failed(err))
			case i < len(got):
				out = append(out, got[i])
			default:
				out = append(out, failed(errShort))
			}
		}
	}
	return out
}

// list gathers the parts of a list.
func list[M, P, A any](ctx context.Context, r *remote, open func(context.Context, *session) (grpc.ServerStreamingClient[M], error), part func(*M) []P, convert func(P) A) ([]A, error) {
	return ask(ctx, r, callLimit, func(ctx context.Context, s *session) ([]A, error) {
		stream, err := open(ctx, s)
		if err != nil {
			return nil, err
		}
		var out []A
		for {
			m, err := stream.Recv()
			if errors.Is(err, errEOF) {
				return out, nil
			}
			if err != nil {
				return nil, err
			}
			for _, p := range part(m) {
				out = append(out, convert(p))
			}
		}
	})
}
