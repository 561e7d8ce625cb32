package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// maxPost is how many work requests one call posts at most.
const maxPost = 1024

// jobEnd is one queue pair of a job and the cursor in its completions. One
// goroutine uses it.
type jobEnd struct {
	job  *job
	qp   *pb.QueuePair
	seen uint64
}

// connect connects the queue pair with a remote one.
func (e *jobEnd) connect(ctx context.Context, remote *pb.QueuePair_Endpoint) error {
	call, cancel := context.WithTimeout(ctx, e.job.limit)
	defer cancel()
	qp, err := e.job.client.QueuePairs.ConnectQueuePair(call, &pb.ConnectQueuePairRequest{Name: e.qp.GetName(), RemoteEndpoint: remote})
	switch {
	case ctx.Err() != nil:
		return errInterrupted
	case err != nil:
		return fmt.Errorf("connect: %w", err)
	}
	e.qp = qp
	return nil
}

// post posts work in order, in as many calls as it takes.
func (e *jobEnd) post(ctx context.Context, work ...*pb.WorkRequest) error {
	for len(work) > 0 {
		n := min(len(work), maxPost)
		call, cancel := context.WithTimeout(ctx, e.job.limit)
		_, err := e.job.client.Transfers.PostWork(call, &pb.PostWorkRequest{Name: e.qp.GetName(), Requests: work[:n]})
		cancel()
		switch {
		case ctx.Err() != nil:
			return errInterrupted
		case err != nil:
			return fmt.Errorf("post: %w", err)
		}
		work = work[n:]
	}
	return nil
}

// poll reads completions, which are given up with the next poll. If there are
// none it waits so long for one, and then gives none. One that is no success is
// an error.
func (e *jobEnd) poll(ctx context.Context, wait time.Duration) ([]*pb.Completion, error) {
	call, cancel := context.WithTimeout(ctx, wait+e.job.limit)
	defer cancel()
	r, err := e.job.client.Transfers.PollCompletions(call, &pb.PollCompletionsRequest{
		Name: e.qp.GetName(), After: e.seen, MaxCompletions: maxPoll, Wait: durationpb.New(min(wait, maxWait))})
	switch {
	case ctx.Err() != nil:
		return nil, errInterrupted
	case err != nil:
		return nil, fmt.Errorf("poll: %w", err)
	}
	for _, c := range r.GetCompletions() {
		e.seen = c.GetSequence()
		if c.GetStatus() != pb.CompletionStatus_COMPLETION_STATUS_SUCCESS {
			return nil, badCompletion(c)
		}
	}
	return r.GetCompletions(), nil
}

// maxWait is how long one call may wait for a completion.
const maxWait = time.Minute

func badCompletion(c *pb.Completion) error {
	what := "a work request"
	switch op := strings.ReplaceAll(enum(c.GetOpcode(), "OPCODE"), "_", " "); {
	case c.GetReceive():
		what = "a receive"
	case op != "":
		what = "a " + op
	}
	text := what + " ended with " + enum(c.GetStatus(), "COMPLETION_STATUS")
	if c.GetMessage() != "" {
		text += ": " + c.GetMessage()
	}
	return errors.New(text)
}

// sge is a range of the job's buffer.
func (j *job) sge(offset, length uint64) []*pb.WorkRequest_Sge {
	return []*pb.WorkRequest_Sge{{Lkey: j.region.GetLkey(), Address: j.region.GetIova() + offset, LengthBytes: uint32(length)}}
}
