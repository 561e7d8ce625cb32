package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// workFlags say what one work request is.
type workFlags struct {
	opcode     string
	id         uint64
	mr         string
	offset     sizeFlag
	length     sizeFlag
	toMR       string
	peerServer string
	toOffset   sizeFlag
	toAddress  sizeFlag
	rkey       numberFlag
	imm        numberFlag
	wait       time.Duration
}

func newQPPostCmd(a *app) *cobra.Command {
	var w workFlags
	cmd := &cobra.Command{
		Use:   "post DEVICE/ID",
		Short: "Post a work request, and wait for its completion",
		Long: `Post a work request, and wait for its completion. Local memory is a range of --mr.
The peer's memory, for write and read, is a range of --to-mr (on --peer-server, if
the peer is on another node), or --to-address with --rkey.

It waits --wait for the completion and fails if that is not a success; --wait 0 does
not wait, and "qp poll" gives the completion later.`,
		Example: `  accelfab qp post soft-0/q1 --opcode rdma-write --mr soft-0/mr1 --to-mr soft-3/mr2
  accelfab qp post soft-3/q2 --opcode recv --mr soft-3/mr2 --wait 0`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: qps.complete(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := qpKind.name(args[0])
			if err != nil {
				return err
			}
			return a.call(cmd, func(ctx context.Context, c *client.Client) error {
				wr, err := w.request(ctx, cmd, a, c)
				if err != nil {
					return err
				}
				after, err := lastCompletion(ctx, c, name)
				if err != nil {
					return err
				}
				if _, err := c.Transfers.PostWork(ctx, &pb.PostWorkRequest{Name: name, Requests: []*pb.WorkRequest{wr}}); err != nil {
					return err
				}
				if w.wait == 0 {
					return a.done(cmd, "posted")
				}
				wait, cancel := context.WithTimeout(ctx, w.wait)
				defer cancel()
				return a.showCompletion(wait, cmd, c, name, after, wr.GetWrId())
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&w.opcode, "opcode", "", "send, send-with-imm, rdma-write, rdma-write-with-imm, rdma-read or recv")
	f.Uint64Var(&w.id, "wr-id", 1, "number that the completion gives back")
	f.StringVar(&w.mr, "mr", "", "memory region with the local memory")
	f.Var(&w.offset, "offset", "where in it to begin, bytes")
	f.Var(&w.length, "length", "bytes (default: up to the region's end)")
	f.StringVar(&w.toMR, "to-mr", "", "memory region of the peer")
	f.StringVar(&w.peerServer, "peer-server", "", "daemon that --to-mr is on (default: the same)")
	f.Var(&w.toOffset, "to-offset", "where in the peer's region to begin, bytes")
	f.Var(&w.toAddress, "to-address", "address of the peer's memory, in place of --to-mr")
	f.Var(&w.rkey, "rkey", "the peer's key for --to-address")
	f.Var(&w.imm, "imm", "immediate data")
	f.DurationVar(&w.wait, "wait", 10*time.Second, "how long to wait for the completion; 0 does not")
	_ = cmd.MarkFlagRequired("opcode")
	_ = cmd.MarkFlagRequired("mr")
	cmd.MarkFlagsMutuallyExclusive("to-mr", "to-address")
	cmd.MarkFlagsRequiredTogether("to-address", "rkey")
	_ = cmd.RegisterFlagCompletionFunc("mr", mrs.complete(a))
	return cmd
}

// request makes the work request, with keys and addresses as the daemons know
// them.
func (w *workFlags) request(ctx context.Context, cmd *cobra.Command, a *app, c *client.Client) (*pb.WorkRequest, error) {
	wr := &pb.WorkRequest{WrId: w.id, Signaled: true, RemoteAddress: uint64(w.toAddress), Rkey: uint32(w.rkey)}
	var err error
	if wr.Opcode, err = parseEnum[pb.WorkRequest_Opcode]("--opcode", w.opcode, "OPCODE"); err != nil {
		return nil, err
	}
	if cmd.Flags().Changed("imm") {
		wr.ImmData = uint32(w.imm)
	}
	local, err := w.region(ctx, c, w.mr)
	if err != nil {
		return nil, err
	}
	if !cmd.Flags().Changed("length") {
		w.length = sizeFlag(max(local.GetLengthBytes(), uint64(w.offset))) - w.offset
	}
	if w.length > 1<<31 {
		return nil, usage("--length %d: a message has at most 2 GiB", w.length)
	}
	wr.Sges = []*pb.WorkRequest_Sge{{Lkey: local.GetLkey(), Address: local.GetIova() + uint64(w.offset), LengthBytes: uint32(w.length)}}
	if w.toMR == "" {
		return wr, nil
	}
	find := func(c *client.Client) error {
		remote, err := w.region(ctx, c, w.toMR)
		if err == nil {
			wr.RemoteAddress, wr.Rkey = remote.GetIova()+uint64(w.toOffset), remote.GetRkey()
		}
		return err
	}
	if w.peerServer != "" {
		return wr, a.dial(w.peerServer, find)
	}
	return wr, find(c)
}

func (w *workFlags) region(ctx context.Context, c *client.Client, short string) (*pb.MemoryRegion, error) {
	name, err := mrKind.name(short)
	if err != nil {
		return nil, err
	}
	return c.Memory.GetMemoryRegion(ctx, &pb.GetMemoryRegionRequest{Name: name})
}

var completionColumns = []column[*pb.Completion]{
	{"SEQUENCE", func(c *pb.Completion) any { return c.GetSequence() }},
	{"WR ID", func(c *pb.Completion) any { return c.GetWrId() }},
	{"OPCODE", func(c *pb.Completion) any { return enum(c.GetOpcode(), "OPCODE") }},
	{"STATUS", func(c *pb.Completion) any { return enum(c.GetStatus(), "COMPLETION_STATUS") }},
	{"BYTES", func(c *pb.Completion) any { return c.GetLengthBytes() }},
	{"MESSAGE", func(c *pb.Completion) any { return c.GetMessage() }},
}

// lastCompletion is the sequence of the newest completion that is there; those
// before it stay for others to read.
func lastCompletion(ctx context.Context, c *client.Client, qp string) (uint64, error) {
	r, err := c.Transfers.PollCompletions(ctx, &pb.PollCompletionsRequest{Name: qp, MaxCompletions: maxPoll})
	if n := len(r.GetCompletions()); n > 0 {
		return r.GetCompletions()[n-1].GetSequence(), err
	}
	return 0, err
}

const maxPoll = 1024

// showCompletion waits for the completion of one work request.
func (a *app) showCompletion(ctx context.Context, cmd *cobra.Command, c *client.Client, qp string, after, id uint64) error {
	for {
		got, err := c.WaitCompletions(ctx, qp, after, 1)
		if err != nil {
			return err
		}
		for _, wc := range got {
			after = wc.GetSequence()
			if wc.GetWrId() != id {
				continue
			}
			if err := print(a, cmd, wc, completionColumns, wc); err != nil {
				return err
			}
			if wc.GetStatus() != pb.CompletionStatus_COMPLETION_STATUS_SUCCESS {
				return fmt.Errorf("the work request ended with %s: %s", enum(wc.GetStatus(), "COMPLETION_STATUS"), wc.GetMessage())
			}
			return nil
		}
	}
}

func newQPPollCmd(a *app) *cobra.Command {
	var after uint64
	var wait time.Duration
	cmd := &cobra.Command{
		Use:               "poll DEVICE/ID",
		Short:             "Read completions; --after gives up those that were read",
		Example:           "  accelfab qp poll soft-0/q1 --wait 5s\n  accelfab qp poll soft-0/q1 --after 12",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: qps.complete(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := qpKind.name(args[0])
			if err != nil {
				return err
			}
			if wait > a.timeout {
				return usage("--wait %v is longer than --timeout %v", wait, a.timeout)
			}
			return a.call(cmd, func(ctx context.Context, c *client.Client) error {
				r, err := c.Transfers.PollCompletions(ctx, &pb.PollCompletionsRequest{
					Name: name, After: after, MaxCompletions: maxPoll, Wait: durationpb.New(wait),
				})
				if err != nil {
					return err
				}
				if wait > 0 && len(r.GetCompletions()) == 0 {
					return errors.New("no completion came in " + wait.String())
				}
				return print(a, cmd, r, completionColumns, r.GetCompletions()...)
			})
		},
	}
	cmd.Flags().Uint64Var(&after, "after", 0, "sequence of the last completion that you have")
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long to wait for one")
	return cmd
}
