package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
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
	destGID    string
	destQPN    numberFlag
	destQKey   numberFlag
	imm        numberFlag
	solicited  bool
	compareAdd uint64
	swap       uint64
	wait       time.Duration
}

func newQPPostCmd(a *app) *cobra.Command {
	var w workFlags
	cmd := &cobra.Command{
		Use:   "post DEVICE/ID",
		Short: "Post a work request, and wait for its completion",
		Long: `Post a work request, and wait for its completion. Local memory is a range of --mr.
The peer's memory, for RDMA and atomics, is a range of --to-mr (on --peer-server, if
the peer is on another node), or --to-address with --rkey. A send of a UD queue pair
names its receiver by --dest-gid, --dest-qpn and --dest-qkey; what a UD queue pair
receives begins with 40 bytes of route header.

It waits --wait for the completion and fails if that is not a success. It shows and
gives up this completion and all that nobody has read before it. --wait 0 does not
wait, and "qp poll" gives the completion later.`,
		Example: `  accelfab qp post soft-0/q1 --opcode rdma-write --mr soft-0/mr1 --to-mr soft-3/mr2
  accelfab qp post soft-3/q2 --opcode recv --mr soft-3/mr2 --wait 0
  accelfab qp post soft-0/u1 --opcode send --mr soft-0/mr1 --dest-gid ::ffff:10.77.0.2 --dest-qpn 17 --dest-qkey 0x11111111`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: first(qps.complete(a)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := qpKind.name(args[0])
			if err != nil {
				return err
			}
			wr, err := w.request(cmd.Flags().Changed)
			if err != nil {
				return err
			}
			return a.within(cmd, a.timeout+w.wait, func(ctx context.Context, c *client.Client) error {
				if err := w.resolve(ctx, a, c, wr); err != nil {
					return err
				}
				if w.wait == 0 {
					if err := post(ctx, c, name, wr); err != nil {
						return err
					}
					return a.done(cmd, "posted")
				}
				return w.postAndWait(ctx, a, cmd, c, name, wr)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&w.opcode, "opcode", "", "send, send-with-imm, rdma-write, rdma-write-with-imm, rdma-read,\ncompare-swap, fetch-add or recv")
	f.Uint64Var(&w.id, "wr-id", 1, "number that the completion gives back")
	f.StringVar(&w.mr, "mr", "", "memory region with the local memory")
	f.Var(&w.offset, "offset", "where in it to begin, bytes")
	f.Var(&w.length, "length", "bytes (default: up to the region's end; 8 for atomics)")
	f.StringVar(&w.toMR, "to-mr", "", "memory region of the peer")
	f.StringVar(&w.peerServer, "peer-server", "", "daemon that --to-mr is on (default: the same)")
	f.Var(&w.toOffset, "to-offset", "where in the peer's region to begin, bytes")
	f.Var(&w.toAddress, "to-address", "address of the peer's memory, in place of --to-mr")
	f.Var(&w.rkey, "rkey", "the peer's key for --to-address")
	f.StringVar(&w.destGID, "dest-gid", "", "UD: GID of the receiver, for instance ::ffff:10.77.0.2")
	f.Var(&w.destQPN, "dest-qpn", "UD: its queue pair number")
	f.Var(&w.destQKey, "dest-qkey", "UD: its Q_Key; with the highest bit set, the queue pair's own")
	f.Var(&w.imm, "imm", "immediate data")
	f.BoolVar(&w.solicited, "solicited", false, "wake who waits for solicited completions at the peer")
	f.Uint64Var(&w.compareAdd, "compare-add", 0, "value that an atomic compares or adds")
	f.Uint64Var(&w.swap, "swap", 0, "value that compare-swap puts")
	f.DurationVar(&w.wait, "wait", 10*time.Second, "how long to wait for the completion; 0 does not")
	_ = cmd.MarkFlagRequired("opcode")
	_ = cmd.MarkFlagRequired("mr")
	cmd.MarkFlagsMutuallyExclusive("to-mr", "to-address")
	cmd.MarkFlagsRequiredTogether("to-address", "rkey")
	cmd.MarkFlagsRequiredTogether("dest-gid", "dest-qpn", "dest-qkey")
	_ = cmd.RegisterFlagCompletionFunc("mr", mrs.complete(a))
	return cmd
}

// opcodeFlags are the flags that belong to some opcodes only.
var opcodeFlags = map[string][]pb.WorkRequest_Opcode{
	"to-mr":       remoteOpcodes,
	"peer-server": remoteOpcodes,
	"to-offset":   remoteOpcodes,
	"to-address":  remoteOpcodes,
	"dest-gid":    sendOpcodes,
	"imm":         {pb.WorkRequest_OPCODE_SEND_WITH_IMM, pb.WorkRequest_OPCODE_RDMA_WRITE_WITH_IMM},
	"solicited":   append([]pb.WorkRequest_Opcode{pb.WorkRequest_OPCODE_RDMA_WRITE_WITH_IMM}, sendOpcodes...),
	"compare-add": atomicOpcodes,
	"swap":        {pb.WorkRequest_OPCODE_COMPARE_SWAP},
}

var (
	sendOpcodes   = []pb.WorkRequest_Opcode{pb.WorkRequest_OPCODE_SEND, pb.WorkRequest_OPCODE_SEND_WITH_IMM}
	atomicOpcodes = []pb.WorkRequest_Opcode{pb.WorkRequest_OPCODE_COMPARE_SWAP, pb.WorkRequest_OPCODE_FETCH_ADD}
	remoteOpcodes = append([]pb.WorkRequest_Opcode{
		pb.WorkRequest_OPCODE_RDMA_WRITE, pb.WorkRequest_OPCODE_RDMA_WRITE_WITH_IMM, pb.WorkRequest_OPCODE_RDMA_READ,
	}, atomicOpcodes...)
)

// request makes the work request as far as the command line tells it.
func (w *workFlags) request(given func(flag string) bool) (*pb.WorkRequest, error) {
	op, err := parseEnum[pb.WorkRequest_Opcode]("--opcode", w.opcode, "OPCODE")
	if err != nil {
		return nil, err
	}
	if w.wait < 0 {
		return nil, usage("--wait %v: want 0 or more", w.wait)
	}
	for _, name := range slices.Sorted(maps.Keys(opcodeFlags)) {
		if given(name) && !slices.Contains(opcodeFlags[name], op) {
			return nil, usage("--%s does not go with --opcode %s", name, w.opcode)
		}
	}
	switch {
	case w.peerServer != "" && w.toMR == "":
		return nil, usage("--peer-server goes with --to-mr")
	case slices.Contains(remoteOpcodes, op) && w.toMR == "" && !given("to-address"):
		return nil, usage("--opcode %s needs --to-mr, or --to-address with --rkey", w.opcode)
	}
	switch {
	case given("length"):
	case slices.Contains(atomicOpcodes, op):
		w.length = 8
	default:
		w.length = toEnd
	}
	if w.mr, err = mrKind.name(w.mr); err != nil {
		return nil, err
	}
	if w.toMR != "" {
		if w.toMR, err = mrKind.name(w.toMR); err != nil {
			return nil, err
		}
	}
	wr := &pb.WorkRequest{
		WrId: w.id, Opcode: op, Signaled: true, Solicited: w.solicited, RemoteAddress: uint64(w.toAddress), Rkey: uint32(w.rkey),
		ImmData: uint32(w.imm), CompareAdd: w.compareAdd, Swap: w.swap,
	}
	if given("dest-gid") {
		wr.Destination = &pb.WorkRequest_Destination{Gid: w.destGID, Qpn: uint32(w.destQPN), Qkey: uint32(w.destQKey)}
	}
	return wr, nil
}

// toEnd is the length of all from the offset to the end of a region.
const toEnd = math.MaxUint64

// resolve puts in keys and addresses as the daemons know them.
func (w *workFlags) resolve(ctx context.Context, a *app, c *client.Client, wr *pb.WorkRequest) error {
	local, err := region(ctx, c, w.mr)
	if err != nil {
		return err
	}
	if w.length == toEnd {
		if uint64(w.offset) > local.GetLengthBytes() {
			return fmt.Errorf("--offset %d: %s has %d bytes", w.offset, short(w.mr), local.GetLengthBytes())
		}
		w.length = sizeFlag(local.GetLengthBytes()) - w.offset
	}
	if w.length > 1<<31 {
		return fmt.Errorf("%d bytes: a message has at most 2 GiB; give --length", w.length)
	}
	wr.Sges = []*pb.WorkRequest_Sge{{Lkey: local.GetLkey(), Address: local.GetIova() + uint64(w.offset), LengthBytes: uint32(w.length)}}
	if w.toMR == "" {
		wr.RemoteAddress += uint64(w.toOffset)
		return nil
	}
	find := func(c *client.Client) error {
		remote, err := region(ctx, c, w.toMR)
		wr.RemoteAddress, wr.Rkey = remote.GetIova()+uint64(w.toOffset), remote.GetRkey()
		return err
	}
	if w.peerServer != "" {
		return a.dial(w.peerServer, find)
	}
	return find(c)
}

func region(ctx context.Context, c *client.Client, name string) (*pb.MemoryRegion, error) {
	return c.Memory.GetMemoryRegion(ctx, &pb.GetMemoryRegionRequest{Name: name})
}

func post(ctx context.Context, c *client.Client, qp string, wr *pb.WorkRequest) error {
	_, err := c.Transfers.PostWork(ctx, &pb.PostWorkRequest{Name: qp, Requests: []*pb.WorkRequest{wr}})
	return err
}

// postAndWait posts and shows the completion, with those that nobody has read
// before it: to wait for it gives them up. It is given up itself when it was
// shown.
func (w *workFlags) postAndWait(ctx context.Context, a *app, cmd *cobra.Command, c *client.Client, qp string, wr *pb.WorkRequest) error {
	shown, err := c.Transfers.PollCompletions(ctx, &pb.PollCompletionsRequest{Name: qp, MaxCompletions: maxPoll})
	if err != nil {
		return err
	}
	after := uint64(0)
	switch n := len(shown.GetCompletions()); {
	case n == maxPoll:
		return fmt.Errorf("%s has %d completions or more that nobody has read: read and give them up with qp poll --after, or post with --wait 0", short(qp), n)
	case n > 0:
		after = shown.GetCompletions()[n-1].GetSequence()
	}
	if err := post(ctx, c, qp, wr); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, w.wait)
	defer cancel()
	own, err := w.await(wait, c, qp, after, wr, shown)
	if len(shown.GetCompletions()) > 0 {
		if err := print(a, cmd, shown, completionColumns, shown.GetCompletions()...); err != nil {
			return err
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("posted, and no completion of it came in %v; qp poll gives it when it comes", w.wait)
	case err != nil:
		return err
	}
	if _, err := c.Transfers.PollCompletions(ctx, &pb.PollCompletionsRequest{Name: qp, After: own.GetSequence(), MaxCompletions: 1}); err != nil {
		return err
	}
	if own.GetStatus() != pb.CompletionStatus_COMPLETION_STATUS_SUCCESS {
		return fmt.Errorf("the work request ended with %s: %s", enum(own.GetStatus(), "COMPLETION_STATUS"), own.GetMessage())
	}
	return nil
}

// await gives the completion of a work request, the first of its id and queue
// after a sequence, and adds all that came to list.
func (w *workFlags) await(ctx context.Context, c *client.Client, qp string, after uint64, wr *pb.WorkRequest, list *pb.PollCompletionsResponse) (*pb.Completion, error) {
	receive := wr.GetOpcode() == pb.WorkRequest_OPCODE_RECV
	for {
		got, err := c.WaitCompletions(ctx, qp, after, 1)
		for _, wc := range got {
			after = wc.GetSequence()
			list.Completions = append(list.Completions, wc)
			if wc.GetWrId() == wr.GetWrId() && wc.GetReceive() == receive {
				return wc, nil
			}
		}
		if err != nil {
			return nil, err
		}
	}
}

// bytesMoved is how much came: only receives, reads and atomics tell.
func bytesMoved(c *pb.Completion) any {
	switch c.GetOpcode() {
	case pb.Completion_OPCODE_SEND, pb.Completion_OPCODE_RDMA_WRITE, pb.Completion_OPCODE_UNSPECIFIED:
		return ""
	}
	return c.GetLengthBytes()
}

func immText(c *pb.Completion) any {
	if c.ImmData == nil {
		return ""
	}
	return fmt.Sprintf("%#x", c.GetImmData())
}

// sourceText is who sent a datagram.
func sourceText(c *pb.Completion) any {
	if c.GetSourceGid() == "" {
		return ""
	}
	return fmt.Sprintf("%s %#x", c.GetSourceGid(), c.GetSourceQpn())
}

func completionFlags(c *pb.Completion) any {
	var flags []string
	if c.GetSolicited() {
		flags = append(flags, "solicited")
	}
	if c.GetHasGrh() {
		flags = append(flags, "grh")
	}
	return strings.Join(flags, ",")
}

var completionColumns = []column[*pb.Completion]{
	{"SEQUENCE", func(c *pb.Completion) any { return c.GetSequence() }},
	{"WR ID", func(c *pb.Completion) any { return c.GetWrId() }},
	{"OPCODE", func(c *pb.Completion) any { return enum(c.GetOpcode(), "OPCODE") }},
	{"STATUS", func(c *pb.Completion) any { return enum(c.GetStatus(), "COMPLETION_STATUS") }},
	{"BYTES", bytesMoved},
	{"IMM", immText},
	{"FROM", sourceText},
	{"FLAGS", completionFlags},
	{"MESSAGE", func(c *pb.Completion) any { return c.GetMessage() }},
}

// maxPoll is how many completions one call reads at most.
const maxPoll = 1024

func newQPPollCmd(a *app) *cobra.Command {
	var after uint64
	var wait time.Duration
	var solicited bool
	cmd := &cobra.Command{
		Use:               "poll DEVICE/ID",
		Short:             "Read completions; --after gives up those that were read",
		Example:           "  accelfab qp poll soft-0/q1 --wait 5s\n  accelfab qp poll soft-0/q1 --after 12",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: first(qps.complete(a)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := qpKind.name(args[0])
			if err != nil {
				return err
			}
			return a.within(cmd, a.timeout+max(wait, 0), func(ctx context.Context, c *client.Client) error {
				r, err := c.Transfers.PollCompletions(ctx, &pb.PollCompletionsRequest{
					Name: name, After: after, MaxCompletions: maxPoll, Wait: durationpb.New(wait), SolicitedOnly: solicited,
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
	cmd.Flags().BoolVar(&solicited, "solicited-only", false, "none until the peer solicited one, or one failed; then all there are")
	return cmd
}
