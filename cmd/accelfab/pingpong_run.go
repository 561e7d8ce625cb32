package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

const (
	// grhBytes is what a UD receive has in front of the payload.
	grhBytes = 40
	// pingpongQKey is the Q_Key of both ends of ibv_ud_pingpong.
	pingpongQKey = 0x11111111
	// pingpongFill is what ibv_*_pingpong fills its buffer with. The client that
	// checks sets the first byte of each page to 0, and the server that checks
	// looks for that.
	pingpongFill = 0x7b
	pingpongPage = 4096
	// pingpongAckTimeout is the code of the ACK timer, 537 ms. The programs have 14,
	// 67 ms, with 7 retries, and Soft-RoCE takes 7 as without end (rxe_comp.c). Here
	// they end, so that a peer that a busy machine lets wait for half a second, as it
	// does with an emulated one, needs more.
	pingpongAckTimeout = 17
	// pingpongLinger is how long a client answers for after its last message: the
	// server waits for an ACK, which may be lost on the way, and asks again after
	// 67 ms and more.
	pingpongLinger = 250 * time.Millisecond
)

// The ids of work requests.
const (
	pingpongReceive = 1
	pingpongSend    = 2
)

// pingpong is one run of one end.
type pingpong struct {
	kind     pb.QueuePair_Type
	client   bool // this end begins
	size     uint64
	iters    int
	receives int           // posted at a time
	sleep    bool          // wait at the daemon instead of asking again and again
	check    bool          // look at what came
	limit    time.Duration // without a message

	end  *jobEnd
	peer pingpongAddress
}

// header is how many bytes of a receive are in front of the message. Messages
// arrive at the begin of the buffer. A server sends them back from there. A
// client sends from behind it, so that what it checks has gone there and back.
func (p *pingpong) header() uint64 {
	if p.kind == pb.QueuePair_TYPE_UD {
		return grhBytes
	}
	return 0
}

// sendFrom is the offset of the message in the buffer.
func (p *pingpong) sendFrom() uint64 {
	if p.client {
		return (p.header() + p.size + pingpongPage - 1) / pingpongPage * pingpongPage
	}
	return p.header()
}

func (p *pingpong) bufferSize() uint64 { return p.sendFrom() + p.size }

// message is what a client sends.
func (p *pingpong) message() []byte {
	m := bytes.Repeat([]byte{pingpongFill}, int(p.size))
	if p.check {
		for i := 0; i < len(m); i += pingpongPage {
			m[i] = 0
		}
	}
	return m
}

// prepare fills the buffer and posts the first receives.
func (p *pingpong) prepare(ctx context.Context) error {
	contents := bytes.Repeat([]byte{pingpongFill}, int(p.bufferSize()))
	if p.check {
		for i := range p.header() + p.size {
			contents[i] = ^byte(pingpongFill) // what nobody sends
		}
	}
	if p.client {
		copy(contents[p.sendFrom():], p.message())
	}
	j := p.end.job
	if err := j.client.Upload(ctx, j.buffer.GetName(), contents); err != nil {
		return interruptedOr(ctx, err)
	}
	return p.end.post(ctx, p.receiveRequests(p.receives)...)
}

func (p *pingpong) receiveRequests(n int) []*pb.WorkRequest {
	one := &pb.WorkRequest{WrId: pingpongReceive, Opcode: pb.WorkRequest_OPCODE_RECV, Sges: p.end.job.sge(0, p.header()+p.size)}
	work := make([]*pb.WorkRequest, n)
	for i := range work {
		work[i] = one
	}
	return work
}

func (p *pingpong) sendRequest() *pb.WorkRequest {
	w := &pb.WorkRequest{WrId: pingpongSend, Opcode: pb.WorkRequest_OPCODE_SEND, Signaled: true, Solicited: p.sleep, Sges: p.end.job.sge(p.sendFrom(), p.size)}
	if p.kind == pb.QueuePair_TYPE_UD {
		w.Destination = &pb.WorkRequest_Destination{Gid: p.peer.GID.String(), Qpn: p.peer.QPN, Qkey: pingpongQKey}
	}
	return w
}

// connect takes the queue pair to its peer.
func (p *pingpong) connect(ctx context.Context, peer pingpongAddress) error {
	p.peer = peer
	if p.kind == pb.QueuePair_TYPE_UD {
		return nil // each message carries the address
	}
	return p.end.connect(ctx, &pb.QueuePair_Endpoint{Gid: peer.GID.String(), Qpn: peer.QPN, Psn: peer.PSN})
}

// own is what the peer is told.
func (p *pingpong) own() (pingpongAddress, error) {
	e := p.end.qp.GetLocalEndpoint()
	gid, err := netip.ParseAddr(e.GetGid())
	return pingpongAddress{QPN: e.GetQpn(), PSN: e.GetPsn(), GID: gid}, err
}

// run exchanges the messages and gives the time that it took. An end sends once
// its last message has left and one has come, as ibv_*_pingpong does.
func (p *pingpong) run(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	var sent, received int
	posted := p.receives
	owed := map[uint64]bool{pingpongReceive: true} // what is waited for before the next send
	if p.client {
		if err := p.end.post(ctx, p.sendRequest()); err != nil {
			return 0, err
		}
		owed[pingpongSend] = true
	}
	fault := func(err error) error {
		return fmt.Errorf("%d of %d messages arrived and %d were sent: %w", received, p.iters, sent, err)
	}
	for heard := began; sent < p.iters || received < p.iters; {
		var wait time.Duration
		if p.sleep {
			wait = max(p.limit-time.Since(heard), 0)
		}
		done, err := p.end.poll(ctx, wait)
		switch {
		case err != nil:
			return 0, fault(err)
		case len(done) > 0:
			heard = time.Now()
		case time.Since(heard) >= p.limit:
			return 0, fault(p.stalled())
		}
		var work []*pb.WorkRequest
		for _, c := range done {
			switch c.GetWrId() {
			case pingpongReceive:
				received, posted = received+1, posted-1
				if got := uint64(c.GetLengthBytes()) - p.header(); got != p.size {
					return 0, fault(fmt.Errorf("a message has %d bytes, want %d: give both ends the same --size", got, p.size))
				}
			case pingpongSend:
				sent++
			}
			delete(owed, c.GetWrId())
		}
		if posted <= p.receives/2 {
			work = p.receiveRequests(p.receives - posted)
			posted = p.receives
		}
		if sent < p.iters && len(owed) == 0 {
			work = append(work, p.sendRequest())
			owed[pingpongReceive], owed[pingpongSend] = true, true
		}
		if err := p.end.post(ctx, work...); err != nil {
			return 0, fault(err)
		}
	}
	return time.Since(began), nil
}

// stalled says why nothing comes any more.
func (p *pingpong) stalled() error {
	why := "is the other end still there"
	if p.kind != pb.QueuePair_TYPE_RC {
		why = enum(p.kind, "TYPE") + " sends nothing again, so one lost message ends the exchange"
	}
	return fmt.Errorf("nothing came for %v (--timeout); %s", p.limit, why)
}

// linger answers a server that may not have heard of its last message's arrival.
func (p *pingpong) linger(ctx context.Context) {
	if !p.client || p.kind != pb.QueuePair_TYPE_RC {
		return
	}
	t := time.NewTimer(pingpongLinger)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// verify looks at the last message that came.
func (p *pingpong) verify(ctx context.Context) error {
	j := p.end.job
	got, err := j.client.Download(ctx, j.buffer.GetName(), int(p.header()+p.size))
	if err != nil {
		return interruptedOr(ctx, err)
	}
	got = got[p.header():]
	for i, want := range p.message() {
		if got[i] == want {
			continue
		}
		hint := ""
		if want == 0 && got[i] == pingpongFill {
			hint = "; does the client check too (-c)"
		}
		return fmt.Errorf("invalid data in page %d: byte %d is %#02x, want %#02x%s", i/pingpongPage, i, got[i], want, hint)
	}
	return nil
}

// interruptedOr is err, unless the user ended the command.
func interruptedOr(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return errInterrupted
	}
	return err
}
