package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

const (
	// perfVersion is of the exchange below. Ends of different versions do not talk.
	perfVersion = 1
	// perfLine is the longest line of the exchange, bytes.
	perfLine = 1 << 20
	// perfLastWords is how long an end that failed waits for what the other says.
	perfLastWords = time.Second
)

// perfMessage is one line of JSON between the two ends. The client says its plan
// and its end, the server connects and answers with its end, the client connects
// and says ready. Then, for each size, the client says the size, the server
// answers that it is ready, and the client says the row that it measured. The
// last line is bye. Either end may say an error instead.
type perfMessage struct {
	Plan  *perfPlan `json:"plan,omitempty"`
	End   *perfEnd  `json:"end,omitempty"`
	Ready bool      `json:"ready,omitempty"`
	Size  uint64    `json:"size,omitempty"`
	Row   *perfRow  `json:"row,omitempty"`
	Bye   bool      `json:"bye,omitempty"`
	Error string    `json:"error,omitempty"`
}

// perfPlan is what both ends do. It is the client's.
type perfPlan struct {
	Version int      `json:"version"`
	Test    string   `json:"test"` // write, read or send
	Mode    string   `json:"mode"` // bw or lat
	Sizes   []uint64 `json:"sizes"`
	Iters   int      `json:"iters,omitempty"`   // of each queue pair and size
	Seconds float64  `json:"seconds,omitempty"` // of each size, in place of iters
	TxDepth int      `json:"tx_depth"`
	QPs     int      `json:"qps"`
	MTU     uint32   `json:"mtu,omitempty"` // bytes; 0 is the largest that both ends carry
}

func (p *perfPlan) String() string { return "perf " + p.Test + " --" + p.Mode }

// slot is how many bytes of the buffer each queue pair has, whole pages.
func (p *perfPlan) slot() uint64 { return (slices.Max(p.Sizes) + 4095) / 4096 * 4096 }

// check refuses a plan that makes no sense, from the command line or from the
// wire; what is the flag or field.
func (p *perfPlan) check() error {
	for _, fault := range []struct {
		is   bool
		text string
	}{
		{len(p.Sizes) == 0 || slices.Min(p.Sizes) < 1 || slices.Max(p.Sizes) > 1<<31, fmt.Sprintf("--size %v: want 1 to 2GiB", p.Sizes)},
		{p.Iters < 1 && p.Seconds == 0, fmt.Sprintf("--iters %d: want 1 or more", p.Iters)},
		{p.Seconds < 0 || p.Seconds > 86400, fmt.Sprintf("--duration %v: want more than 0 and at most a day", p.Seconds)},
		{p.TxDepth < 1 || p.TxDepth > perfMaxDepth, fmt.Sprintf("--tx-depth %d: want 1 to %d", p.TxDepth, perfMaxDepth)},
		{p.QPs < 1 || p.QPs > perfMaxQPs, fmt.Sprintf("--qp %d: want 1 to %d", p.QPs, perfMaxQPs)},
		{p.MTU != 0 && !slices.Contains(pathMTUs, p.MTU), fmt.Sprintf("--mtu %d: want 256, 512, 1024, 2048 or 4096", p.MTU)},
	} {
		if fault.is {
			return errors.New(fault.text)
		}
	}
	return nil
}

// perfEnd is what one end tells of itself.
type perfEnd struct {
	QPs     []json.RawMessage `json:"qps"` // local endpoints as the REST API has them
	Address uint64            `json:"address"`
	RKey    uint32            `json:"rkey"`
}

func newPerfEnd(j *job) (*perfEnd, error) {
	e := &perfEnd{Address: j.region.GetIova(), RKey: j.region.GetRkey()}
	for _, end := range j.ends {
		b, err := protojson.Marshal(end.qp.GetLocalEndpoint())
		if err != nil {
			return nil, err
		}
		e.QPs = append(e.QPs, b)
	}
	return e, nil
}

// connect connects each queue pair of a job with the one of the same place.
func (e *perfEnd) connect(ctx context.Context, j *job) error {
	if e == nil || len(e.QPs) != len(j.ends) {
		return fmt.Errorf("the other end does not tell %d queue pairs", len(j.ends))
	}
	for i, end := range j.ends {
		var remote pb.QueuePair_Endpoint
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(e.QPs[i], &remote); err != nil {
			return fmt.Errorf("queue pair %d of the other end: %w", i, err)
		}
		if err := end.connect(ctx, &remote); err != nil {
			return err
		}
	}
	return nil
}

// perfConn is the connection between the ends.
type perfConn struct {
	tcpPeer
	in *bufio.Reader
}

func newPerfConn(conn net.Conn, limit time.Duration) *perfConn {
	return &perfConn{tcpPeer{conn, limit}, bufio.NewReaderSize(conn, perfLine)}
}

func (c *perfConn) say(ctx context.Context, m perfMessage) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return c.send(ctx, append(b, '\n'))
}

// hear reads one message. Without a limit it waits until the connection ends.
func (c *perfConn) hear(ctx context.Context, limit time.Duration) (m perfMessage, err error) {
	if err := c.begin(ctx, limit); err != nil {
		return m, err
	}
	line, err := c.in.ReadSlice('\n')
	switch {
	case errors.Is(err, io.EOF):
		return m, errors.New("the other end closed the connection")
	case errors.Is(err, bufio.ErrBufferFull):
		return m, fmt.Errorf("the other end says more than %d bytes in a line: is it accelfab perf?", perfLine)
	case err != nil:
		return m, c.fault(ctx, err)
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, fmt.Errorf("the other end says %.60q: is it accelfab perf?", strings.TrimSpace(string(line)))
	}
	if m.Error != "" {
		return m, perfPeerError(m.Error)
	}
	return m, nil
}

// perfPeerError is what the other end failed with.
type perfPeerError string

func (e perfPeerError) Error() string { return "the other end: " + string(e) }

// part tells the other end why this one gives up, and adds to the error what
// the other has to say.
func (c *perfConn) part(ctx context.Context, err error) error {
	if err == nil || errors.As(err, new(perfPeerError)) {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	c = &perfConn{tcpPeer{c.conn, perfLastWords}, c.in}
	_ = c.say(ctx, perfMessage{Error: client.Explain(err)})
	if errors.Is(err, errInterrupted) || errors.Is(err, context.Canceled) {
		return err
	}
	if _, said := c.hear(ctx, perfLastWords); errors.As(said, new(perfPeerError)) {
		return fmt.Errorf("%w; %w", err, said)
	}
	return err
}
