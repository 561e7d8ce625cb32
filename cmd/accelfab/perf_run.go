package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

const (
	perfMaxDepth = 8192
	perfMaxQPs   = 1000
	// perfBatchBytes bounds what one call posts, so that a duration ends in time.
	perfBatchBytes = 8 << 20
	// perfReceives is how many receives a queue pair has posted.
	perfReceives = 256
	// perfSignal is how often a message of a latency test asks for a completion of
	// its own; the answer of the other end is what is waited for.
	perfSignal = 32
)

// perfRun is one end at work.
type perfRun struct {
	plan   *perfPlan
	job    *job
	remote *perfEnd
}

// perfOpcodes are the work requests of the tests. In a latency test of WRITE
// each end tells the other by immediate data that it has written.
var perfOpcodes = map[string]pb.WorkRequest_Opcode{
	"write bw": pb.WorkRequest_OPCODE_RDMA_WRITE, "write lat": pb.WorkRequest_OPCODE_RDMA_WRITE_WITH_IMM,
	"read bw": pb.WorkRequest_OPCODE_RDMA_READ, "read lat": pb.WorkRequest_OPCODE_RDMA_READ,
	"send bw": pb.WorkRequest_OPCODE_SEND, "send lat": pb.WorkRequest_OPCODE_SEND,
}

func (p *perfPlan) opcode() pb.WorkRequest_Opcode { return perfOpcodes[p.Test+" "+p.Mode] }

// pingpongs tells whether each message is answered by one.
func (p *perfPlan) pingpongs() bool { return p.Mode == "lat" && p.Test != "read" }

// receives tells whether an end posts receives.
func (p *perfPlan) receives(server bool) bool {
	return p.pingpongs() || server && p.Test == "send"
}

// spec is what the daemon is to make.
func (p *perfPlan) spec(place jobPlace) jobSpec {
	q := &pb.QueuePair{Type: pb.QueuePair_TYPE_RC, Attributes: &pb.QueuePair_Attributes{},
		Capacities: &pb.QueuePair_Capacities{SendWr: uint32(max(p.TxDepth, 4*perfSignal)), RecvWr: perfReceives}}
	if p.MTU != 0 {
		q.Attributes.PathMtuBytes = &p.MTU
	}
	return jobSpec{
		program: "perf", place: place, bytes: p.slot() * uint64(p.QPs), count: p.QPs, queuePair: q,
		access: []pb.MemoryRegion_Access{pb.MemoryRegion_ACCESS_LOCAL_WRITE, pb.MemoryRegion_ACCESS_REMOTE_WRITE, pb.MemoryRegion_ACCESS_REMOTE_READ},
	}
}

// request is one message of a queue pair.
func (r *perfRun) request(qp int, size uint64, signaled bool) *pb.WorkRequest {
	at := uint64(qp) * r.plan.slot()
	w := &pb.WorkRequest{Opcode: r.plan.opcode(), Signaled: signaled, Sges: r.job.sge(at, size)}
	if r.plan.Test != "send" {
		w.RemoteAddress, w.Rkey = r.remote.Address+at, r.remote.RKey
	}
	return w
}

// receiveRequests are receives for the largest message.
func (r *perfRun) receiveRequests(qp, n int) []*pb.WorkRequest {
	one := &pb.WorkRequest{Opcode: pb.WorkRequest_OPCODE_RECV, Sges: r.job.sge(uint64(qp)*r.plan.slot(), slices.Max(r.plan.Sizes))}
	return slices.Repeat([]*pb.WorkRequest{one}, n)
}

// perfTouch bounds what is written into a buffer before it is used.
const perfTouch = 64 << 20

// prepare touches the memory, so that the first message does not wait for the
// machine to find it, and posts the first receives.
func (r *perfRun) prepare(ctx context.Context, server bool) error {
	j := r.job
	if err := j.client.Upload(ctx, j.buffer.GetName(), make([]byte, min(j.buffer.GetSizeBytes(), perfTouch))); err != nil {
		return interruptedOr(ctx, err)
	}
	if !r.plan.receives(server) {
		return nil
	}
	for i, e := range j.ends {
		if err := e.post(ctx, r.receiveRequests(i, perfReceives)...); err != nil {
			return err
		}
	}
	return nil
}

// batch is how many messages of a size one call posts, with one completion for
// all. Two are under way where the depth allows.
func (p *perfPlan) batch(size uint64) int {
	return max(min(p.TxDepth/2, int(perfBatchBytes/size), maxPost), 1)
}

// measure is the client's part at one size.
func (r *perfRun) measure(ctx context.Context, size uint64) (perfRow, error) {
	if r.plan.Mode == "lat" {
		times, err := r.latency(ctx, size)
		if err != nil {
			return perfRow{}, err
		}
		return latencyOf(size, times), nil
	}
	perQP := make([][]perfBatch, len(r.job.ends))
	g, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	for i := range r.job.ends {
		g.Go(func() (err error) {
			perQP[i], err = r.bandwidth(ctx, i, size, began)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return perfRow{}, err
	}
	return bandwidthOf(size, slices.Concat(perQP...)), nil
}

// goal tells how many more messages there are to be, at most most of them. There
// are some in the shortest of durations.
func (p *perfPlan) goal(done, most int, began time.Time) int {
	if p.Iters > 0 {
		return min(p.Iters-done, most)
	}
	if done > 0 && time.Since(began).Seconds() >= p.Seconds {
		return 0
	}
	return most
}

// bandwidth keeps one queue pair's send queue filled.
func (r *perfRun) bandwidth(ctx context.Context, qp int, size uint64, began time.Time) ([]perfBatch, error) {
	e := r.job.ends[qp]
	batch := r.plan.batch(size)
	plain := r.request(qp, size, false)
	var batches []perfBatch
	posted, underWay := 0, 0
	heard := time.Now()
	for {
		var work []*pb.WorkRequest
		now := time.Since(began)
		for r.plan.TxDepth-underWay >= batch && len(work)+batch <= maxPost {
			n := r.plan.goal(posted, batch, began)
			if n == 0 {
				break
			}
			last := r.request(qp, size, true)
			last.WrId = uint64(len(batches))
			work = append(append(work, slices.Repeat([]*pb.WorkRequest{plain}, n-1)...), last)
			batches = append(batches, perfBatch{messages: n, posted: now})
			posted, underWay = posted+n, underWay+n
		}
		if err := e.post(ctx, work...); err != nil {
			return nil, err
		}
		if underWay == 0 {
			return batches, nil
		}
		done, err := e.poll(ctx, max(e.job.limit-time.Since(heard), 0))
		switch {
		case err != nil:
			return nil, fmt.Errorf("after %d messages of %d bytes: %w", posted-underWay, size, err)
		case len(done) > 0:
			heard = time.Now()
		case time.Since(heard) >= e.job.limit:
			return nil, fmt.Errorf("after %d messages of %d bytes nothing was completed for %v (--timeout)", posted-underWay, size, e.job.limit)
		}
		for _, c := range done {
			b := &batches[c.GetWrId()]
			b.completed = time.Since(began)
			underWay -= b.messages
		}
	}
}

// latency sends one message after the other, each when that before has been
// answered, or, of READ, has ended.
func (r *perfRun) latency(ctx context.Context, size uint64) ([]time.Duration, error) {
	e := r.job.ends[0]
	var times []time.Duration
	answers, owed := r.plan.pingpongs(), 0
	began := time.Now()
	for r.plan.goal(len(times), 1, began) > 0 {
		work := []*pb.WorkRequest{r.request(0, size, !answers || len(times)%perfSignal == 0)}
		if owed >= perfReceives/2 {
			work = append(r.receiveRequests(0, owed), work...)
			owed = 0
		}
		posted := time.Now()
		if err := e.post(ctx, work...); err != nil {
			return nil, err
		}
		for ended := false; !ended; {
			done, err := e.poll(ctx, max(e.job.limit-time.Since(posted), 0))
			took := time.Since(posted)
			switch {
			case err != nil:
				return nil, fmt.Errorf("after %d messages of %d bytes: %w", len(times), size, err)
			case len(done) == 0 && took >= e.job.limit:
				return nil, fmt.Errorf("after %d messages of %d bytes nothing came for %v (--timeout)", len(times), size, e.job.limit)
			}
			for _, c := range done {
				if c.GetReceive() != answers {
					continue // its send has left
				}
				ended = true
				if answers {
					owed++
					took /= 2 // there and back
				}
				times = append(times, took)
			}
		}
	}
	return times, e.post(ctx, r.receiveRequests(0, owed)...) // all are posted again
}

// serve answers the client's messages of one size, until poll's context ends. It
// does not end while it posts.
func (r *perfRun) serve(ctx, poll context.Context, size uint64) error {
	if !r.plan.receives(true) {
		return nil
	}
	g, poll := errgroup.WithContext(poll)
	for i := range r.job.ends {
		g.Go(func() error { return r.answer(ctx, poll, i, size) })
	}
	return g.Wait()
}

func (r *perfRun) answer(ctx, poll context.Context, qp int, size uint64) error {
	e := r.job.ends[qp]
	answered, owed := 0, 0
	for {
		done, err := e.poll(poll, maxWait)
		switch {
		case poll.Err() != nil:
			return e.post(ctx, r.receiveRequests(qp, owed)...) // all are posted again
		case err != nil:
			return err
		}
		var work []*pb.WorkRequest
		for _, c := range done {
			if !c.GetReceive() {
				continue
			}
			owed++
			if r.plan.pingpongs() {
				work = append(work, r.request(qp, size, answered%perfSignal == 0))
				answered++
			}
		}
		if !r.plan.pingpongs() || owed >= perfReceives/2 {
			work = append(r.receiveRequests(qp, owed), work...)
			owed = 0
		}
		if err := e.post(ctx, work...); err != nil {
			return err
		}
	}
}
