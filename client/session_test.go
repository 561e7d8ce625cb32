package client_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/client"
	"github.com/accelfab/accelfab/client/clienttest"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

var lease = &pb.Session{Name: "nodes/n1/sessions/s1", Generation: 3, Ttl: durationpb.New(60 * time.Second)}

// keeper is a daemon that answers keep-alives by how long the test has run.
func keeper(answer func(ctx context.Context, at time.Duration) error) *clienttest.Daemon {
	began := time.Now()
	return &clienttest.Daemon{Answer: func(ctx context.Context, _ string, _ proto.Message) (proto.Message, error) {
		return lease, answer(ctx, time.Since(began))
	}}
}

func TestKeepAlive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := keeper(func(context.Context, time.Duration) error { return nil })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+time.Second)
		defer cancel()
		if err := connect(t, d).KeepAlive(ctx, lease); err != nil {
			t.Fatalf("ended by its context: %v", err)
		}
		calls := d.Calls()
		if len(calls) != 30 {
			t.Errorf("%d calls in ten minutes, want three a minute", len(calls))
		}
		if want := (&pb.KeepAliveSessionRequest{Name: lease.Name, Generation: 3}); !proto.Equal(calls[0].Request, want) {
			t.Errorf("asks %v, want %v", calls[0].Request, want)
		}
	})
}

func TestKeepAliveWithoutTTL(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := keeper(func(context.Context, time.Duration) error { return nil })
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := connect(t, d).KeepAlive(ctx, &pb.Session{Name: lease.Name}); err != nil || len(d.Calls()) > 0 {
			t.Errorf("%v, and calls were made for a lease without end", err)
		}
	})
}

func TestKeepAliveEndsOnRefusal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		began := time.Now()
		d := keeper(func(_ context.Context, at time.Duration) error {
			if at < 70*time.Second {
				return nil
			}
			return clienttest.Refusal{Code: codes.FailedPrecondition, Reason: pb.ErrorReason_ERROR_REASON_GENERATION_STALE}.Err()
		})
		err := connect(t, d).KeepAlive(t.Context(), lease)
		if client.Reason(err) != pb.ErrorReason_ERROR_REASON_GENERATION_STALE || time.Since(began) != 80*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// A daemon that starts again within the ttl is waited for, whether nobody
// answers or it says itself that it ends.
func TestKeepAliveSurvivesRestart(t *testing.T) {
	for name, away := range map[string]error{
		"nobody there": status.Error(codes.Unavailable, "refused"),
		"ending":       clienttest.Refusal{Code: codes.Unavailable, Reason: pb.ErrorReason_ERROR_REASON_DEVICE_UNAVAILABLE}.Err(),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				d := keeper(func(_ context.Context, at time.Duration) error {
					if at > 15*time.Second && at < 50*time.Second {
						return away
					}
					return nil
				})
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				if err := connect(t, d).KeepAlive(ctx, lease); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestKeepAliveEndsAfterTTL(t *testing.T) {
	bubble(t, func(t *testing.T) {
		began := time.Now()
		d := keeper(func(_ context.Context, at time.Duration) error {
			if at < 30*time.Second {
				return nil
			}
			return status.Error(codes.Unavailable, "refused")
		})
		err := connect(t, d).KeepAlive(t.Context(), lease)
		if lost := time.Since(began) - 20*time.Second; status.Code(err) != codes.Unavailable || lost < 60*time.Second || lost > 90*time.Second {
			t.Errorf("%v after the last answer: %v", lost, err)
		}
	})
}

// A daemon that takes calls and never answers them has lost the session too.
func TestKeepAliveOfMuteDaemon(t *testing.T) {
	bubble(t, func(t *testing.T) {
		began := time.Now()
		d := keeper(func(ctx context.Context, _ time.Duration) error { <-ctx.Done(); return ctx.Err() })
		err := connect(t, d).KeepAlive(t.Context(), lease)
		if took := time.Since(began); status.Code(err) != codes.DeadlineExceeded || took > 2*60*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
	})
}
