package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/client"
	"github.com/accelfab/accelfab/client/clienttest"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// memory is a daemon with one buffer.
func memory(size int) (*clienttest.Daemon, []byte) {
	var mu sync.Mutex
	contents := make([]byte, size)
	return answers(map[string]func(proto.Message) (proto.Message, error){
		"WriteBuffer": func(m proto.Message) (proto.Message, error) {
			r := m.(*pb.WriteBufferRequest)
			if n := len(r.GetData()); n < 1 || n > client.Chunk || r.GetOffsetBytes()+uint64(n) > uint64(size) {
				return nil, clienttest.Refusal{Code: codes.InvalidArgument, Reason: pb.ErrorReason_ERROR_REASON_FIELD_INVALID, Message: "out of range"}.Err()
			}
			mu.Lock()
			defer mu.Unlock()
			copy(contents[r.GetOffsetBytes():], r.GetData())
			return &pb.WriteBufferResponse{}, nil
		},
		"ReadBuffer": func(m proto.Message) (proto.Message, error) {
			r := m.(*pb.ReadBufferRequest)
			from, n := r.GetOffsetBytes(), r.GetLengthBytes()
			if n < 1 || n > client.Chunk || from+n > uint64(size) {
				return nil, clienttest.Refusal{Code: codes.InvalidArgument, Reason: pb.ErrorReason_ERROR_REASON_FIELD_INVALID, Message: "out of range"}.Err()
			}
			mu.Lock()
			defer mu.Unlock()
			return &pb.ReadBufferResponse{Data: bytes.Clone(contents[from : from+n])}, nil
		},
	}), contents
}

func TestUploadAndDownload(t *testing.T) {
	for _, size := range []int{0, 1, client.Chunk - 1, client.Chunk, client.Chunk + 1, 6*client.Chunk + 4711} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				d, contents := memory(size)
				c := connect(t, d)
				data := make([]byte, size)
				random := rand.NewChaCha8([32]byte{1})
				random.Read(data)
				if err := c.Upload(t.Context(), "b", data); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(contents, data) {
					t.Fatal("the buffer has other contents than were uploaded")
				}
				got, err := c.Download(t.Context(), "b", size)
				if err != nil || !bytes.Equal(got, data) {
					t.Fatalf("%d bytes came back, not what was written (%v)", len(got), err)
				}
				if calls, want := len(d.Calls()), 2*((size+client.Chunk-1)/client.Chunk); calls != want {
					t.Errorf("%d calls, want %d", calls, want)
				}
			})
		})
	}
}

func TestUploadRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d, _ := memory(client.Chunk)
		c := connect(t, d)
		err := c.Upload(t.Context(), "b", make([]byte, 3*client.Chunk))
		if client.Reason(err) != pb.ErrorReason_ERROR_REASON_FIELD_INVALID {
			t.Errorf("upload beyond the end: %v", err)
		}
		if got, err := c.Download(t.Context(), "b", 3*client.Chunk); got != nil || client.Reason(err) != pb.ErrorReason_ERROR_REASON_FIELD_INVALID {
			t.Errorf("download beyond the end: %d bytes, %v", len(got), err)
		}
	})
}

func TestDownloadShortReply(t *testing.T) {
	for _, came := range []int{0, 99, 101} {
		bubble(t, func(t *testing.T) {
			c := connect(t, answers(map[string]func(proto.Message) (proto.Message, error){
				"ReadBuffer": func(proto.Message) (proto.Message, error) {
					return &pb.ReadBufferResponse{Data: make([]byte, came)}, nil
				},
			}))
			got, err := c.Download(t.Context(), "b1", 100)
			if want := fmt.Sprintf("b1: %d bytes came from offset 0, want 100", came); err == nil || err.Error() != want || got != nil {
				t.Errorf("%d bytes and %v, want %q", len(got), err, want)
			}
		})
	}
}

func TestUploadCancelled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d, _ := memory(client.Chunk)
		c := connect(t, d)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.Upload(ctx, "b", make([]byte, client.Chunk)); err == nil {
			t.Error("an upload whose context has ended is done")
		}
		if _, err := c.Download(ctx, "b", client.Chunk); err == nil {
			t.Error("a download whose context has ended is done")
		}
	})
}

// completer is a daemon whose polls are answered by turns, with so many
// completions each; then it waits as long as it is asked to.
func completer(turns ...int) *clienttest.Daemon {
	last := uint64(0)
	return &clienttest.Daemon{Answer: func(ctx context.Context, _ string, m proto.Message) (proto.Message, error) {
		r := m.(*pb.PollCompletionsRequest)
		if r.GetAfter() != last {
			return nil, fmt.Errorf("after %d, want %d", r.GetAfter(), last)
		}
		if len(turns) == 0 {
			select {
			case <-time.After(r.GetWait().AsDuration()):
			case <-ctx.Done():
			}
			return &pb.PollCompletionsResponse{}, nil
		}
		var out pb.PollCompletionsResponse
		for range turns[0] {
			last++
			out.Completions = append(out.Completions, &pb.Completion{Sequence: last, WrId: 100 + last})
		}
		turns = turns[1:]
		return &out, nil
	}}
}

func TestWaitCompletions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := completer(2, 0, 1, 4)
		got, err := connect(t, d).WaitCompletions(t.Context(), "q1", 0, 5)
		if err != nil || len(got) != 7 {
			t.Fatalf("%d completions, %v; want the 7 of four polls", len(got), err)
		}
		for i, one := range got {
			if one.GetSequence() != uint64(i+1) {
				t.Errorf("completion %d has sequence %d", i, one.GetSequence())
			}
		}
		calls := d.Calls()
		if len(calls) != 4 {
			t.Errorf("%d polls, want 4", len(calls))
		}
		if wait := calls[0].Request.(*pb.PollCompletionsRequest).GetWait().AsDuration(); wait <= 0 || wait > time.Minute {
			t.Errorf("waits %v at the daemon", wait)
		}
	})
}

// A context that ends leaves the caller what came until then.
func TestWaitCompletionsContextEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
		defer cancel()
		got, err := connect(t, completer(1, 1)).WaitCompletions(ctx, "q1", 0, 3)
		if len(got) != 2 || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "2 of 3 completions of q1") {
			t.Errorf("%d completions, %v", len(got), err)
		}
	})
}

func TestWaitCompletionsRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, err := connect(t, answers(map[string]func(proto.Message) (proto.Message, error){
			"PollCompletions": func(proto.Message) (proto.Message, error) {
				return nil, clienttest.Refusal{Code: codes.NotFound, Reason: pb.ErrorReason_ERROR_REASON_NOT_FOUND, Message: "no such queue pair"}.Err()
			},
		})).WaitCompletions(t.Context(), "q1", 0, 1)
		if client.Reason(err) != pb.ErrorReason_ERROR_REASON_NOT_FOUND {
			t.Error(err)
		}
	})
}

// The daemon may see the deadline pass before the client does.
func TestWaitCompletionsDaemonSeesTheDeadline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := connect(t, answers(map[string]func(proto.Message) (proto.Message, error){
			"PollCompletions": func(proto.Message) (proto.Message, error) {
				return nil, clienttest.Refusal{Code: codes.DeadlineExceeded, Reason: pb.ErrorReason_ERROR_REASON_TIMEOUT}.Err()
			},
		})).WaitCompletions(ctx, "q1", 0, 1)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// Polls that bring nothing are made again; the rest is the daemon's choice.
func TestWaitSolicited(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := completer(0, 0, 3)
		got, err := connect(t, d).WaitSolicited(t.Context(), "q1", 0)
		calls := d.Calls()
		if err != nil || len(got) != 3 || len(calls) != 3 {
			t.Fatalf("%d completions after %d polls, %v; want the 3 of the third", len(got), len(calls), err)
		}
		if r := calls[0].Request.(*pb.PollCompletionsRequest); !r.GetSolicitedOnly() || r.GetWait().AsDuration() <= 0 || r.GetMaxCompletions() != 1024 {
			t.Errorf("asks %v", r)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
		defer cancel()
		if got, err := connect(t, completer()).WaitSolicited(ctx, "q1", 0); len(got) != 0 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%d completions, %v; want the deadline", len(got), err)
		}
	})
}
