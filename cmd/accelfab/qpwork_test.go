package main

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// worker is a daemon with completions, which are kept until they are given up.
type worker struct {
	*recorder
	kept  []*pb.Completion // that nobody has given up
	comes []*pb.Completion // that the next post brings
}

func newWorker(t *testing.T, kept ...*pb.Completion) *worker {
	w := &worker{kept: kept}
	w.recorder = newRecorder(t, func(method string, req proto.Message) (proto.Message, error) {
		switch r := req.(type) {
		case *pb.PostWorkRequest:
			w.kept, w.comes = append(w.kept, w.comes...), nil
		case *pb.PollCompletionsRequest:
			w.kept = slices.DeleteFunc(w.kept, func(c *pb.Completion) bool { return c.GetSequence() <= r.GetAfter() })
			return &pb.PollCompletionsResponse{Completions: slices.Clone(w.kept)}, nil
		}
		return nil, nil
	})
	return w
}

func completion(sequence, id uint64, op pb.Completion_Opcode) *pb.Completion {
	return &pb.Completion{Sequence: sequence, WrId: id, Opcode: op, Status: pb.CompletionStatus_COMPLETION_STATUS_SUCCESS, Receive: op == pb.Completion_OPCODE_RECV}
}

// sequences are the first cells of a table.
func sequences(table string) string {
	var list []string
	for line := range strings.Lines(table) {
		list = append(list, strings.Fields(line)[0])
	}
	return strings.Join(list[1:], " ")
}

// A post shows its completion and those that it gives up for it; what comes
// later is left for others. The wr-id alone does not tell: a receive may have the
// same, and so may what was there before.
func TestPostLosesNoCompletion(t *testing.T) {
	send, recv := pb.Completion_OPCODE_SEND, pb.Completion_OPCODE_RECV
	w := newWorker(t, completion(4, 9, recv), completion(5, 1, send))
	w.comes = []*pb.Completion{completion(6, 1, recv), completion(7, 1, send), completion(8, 2, send)}
	got := w.run(t, strings.Fields("qp post soft-0/q1 --opcode send --mr soft-0/mr1")...)
	if got.status != 0 || sequences(got.stdout) != "4 5 6 7" {
		t.Errorf("%+v", got)
	}
	if len(w.kept) != 1 || w.kept[0].GetSequence() != 8 {
		t.Errorf("kept is %v, want what came after", w.kept)
	}
}

func TestPostFails(t *testing.T) {
	w := newWorker(t)
	failed := completion(1, 1, pb.Completion_OPCODE_RDMA_READ)
	failed.Status, failed.Message = pb.CompletionStatus_COMPLETION_STATUS_RETRY_EXC_ERR, "the peer does not answer"
	w.comes = []*pb.Completion{failed}
	got := w.run(t, strings.Fields("qp post soft-0/q1 --opcode rdma-read --mr soft-0/mr1 --to-mr soft-3/mr2")...)
	if got.status != 1 || sequences(got.stdout) != "1" || got.stderr != "accelfab: the work request ended with RETRY_EXC_ERR: the peer does not answer\n" {
		t.Errorf("%+v", got)
	}
	if len(w.kept) > 0 {
		t.Errorf("shown, and kept: %v", w.kept)
	}
}

func TestPostWithoutCompletion(t *testing.T) {
	r := newRecorder(t, func(method string, req proto.Message) (proto.Message, error) {
		if method == "PollCompletions" {
			return &pb.PollCompletionsResponse{}, nil
		}
		return nil, nil
	})
	got := r.run(t, strings.Fields("qp post soft-0/q1 --opcode recv --mr soft-0/mr1 --wait 20ms")...)
	if got != (result{1, "", "accelfab: posted, and no completion of it came in 20ms; qp poll gives it when it comes\n"}) {
		t.Errorf("%+v", got)
	}
}

// A post that cannot be waited for without losing completions is not made.
func TestPostWithFullQueue(t *testing.T) {
	var many []*pb.Completion
	for i := range uint64(maxPoll) {
		many = append(many, completion(i+1, 1, pb.Completion_OPCODE_RECV))
	}
	w := newWorker(t, many...)
	got := w.run(t, strings.Fields("qp post soft-0/q1 --opcode send --mr soft-0/mr1")...)
	if got.status != 1 || got.stdout != "" || !strings.Contains(got.stderr, "soft-0/q1 has 1024 completions or more that nobody has read") || len(w.kept) != maxPoll {
		t.Errorf("%+v, %d kept", got, len(w.kept))
	}
	for _, c := range w.Calls() {
		if c.Method == "PostWork" {
			t.Error("posted")
		}
	}
}

// What the flags make of a work request.
func TestPostRequests(t *testing.T) {
	r := newRecorder(t, nil)
	remote := aRegion.GetIova()
	for flags, want := range map[string]*pb.WorkRequest{
		"send":                      {Opcode: pb.WorkRequest_OPCODE_SEND, Sges: sge(0, 1<<16)},
		"send --wr-id 9 --length 0": {Opcode: pb.WorkRequest_OPCODE_SEND, WrId: 9, Sges: sge(0, 0)},
		"send-with-imm --solicited --imm 1 --dest-gid ::ffff:10.77.0.2 --dest-qpn 0x11 --dest-qkey 0x80000000": {Opcode: pb.WorkRequest_OPCODE_SEND_WITH_IMM, ImmData: 1,
			Solicited: true, Destination: &pb.WorkRequest_Destination{Gid: "::ffff:10.77.0.2", Qpn: 0x11, Qkey: 1 << 31}, Sges: sge(0, 1<<16)},
		"recv --offset 64KiB":        {Opcode: pb.WorkRequest_OPCODE_RECV, Sges: sge(1<<16, 0)},
		"SEND_WITH_IMM --imm 0xbeef": {Opcode: pb.WorkRequest_OPCODE_SEND_WITH_IMM, ImmData: 0xbeef, Sges: sge(0, 1<<16)},
		"rdma-write --to-mr soft-3/m --to-offset 8 --offset 4KiB": {
			Opcode: pb.WorkRequest_OPCODE_RDMA_WRITE, RemoteAddress: remote + 8, Rkey: aRegion.GetRkey(), Sges: sge(4096, 1<<16-4096)},
		"rdma-read --to-address 0x5000 --rkey 0x77 --length 1KiB": {
			Opcode: pb.WorkRequest_OPCODE_RDMA_READ, RemoteAddress: 0x5000, Rkey: 0x77, Sges: sge(0, 1024)},
		"rdma-write-with-imm --to-address 0x5000 --to-offset 8 --rkey 0 --imm 1": {
			Opcode: pb.WorkRequest_OPCODE_RDMA_WRITE_WITH_IMM, RemoteAddress: 0x5008, ImmData: 1, Sges: sge(0, 1<<16)},
		"compare-swap --to-mr soft-3/m --compare-add 1 --swap 2": {
			Opcode: pb.WorkRequest_OPCODE_COMPARE_SWAP, RemoteAddress: remote, Rkey: aRegion.GetRkey(), CompareAdd: 1, Swap: 2, Sges: sge(0, 8)},
		"fetch-add --to-mr soft-3/m --compare-add 18446744073709551615": {
			Opcode: pb.WorkRequest_OPCODE_FETCH_ADD, RemoteAddress: remote, Rkey: aRegion.GetRkey(), CompareAdd: 1<<64 - 1, Sges: sge(0, 8)},
	} {
		t.Run(flags, func(t *testing.T) {
			got := r.run(t, strings.Fields("qp post soft-0/q1 --wait 0 --mr soft-0/mr1 --opcode "+flags)...)
			if got != (result{0, "posted\n", ""}) {
				t.Errorf("%+v", got)
			}
			calls := r.Calls()
			if last := calls[len(calls)-1].Request; !proto.Equal(last, postOf(want)) {
				t.Errorf("posts\n%v, want\n%v", last, postOf(want))
			}
		})
	}
	for flags, want := range map[string]string{
		"recv --offset 65537":                              "--offset 65537: soft-0/mr1 has 65536 bytes",
		"send --length 2049MiB":                            "2148532224 bytes: a message has at most 2 GiB; give --length",
		"rdma-read --to-mr soft-3/m --peer-server nothing": `server "nothing": want unix:///path or host:port`,
	} {
		got := r.run(t, strings.Fields("qp post soft-0/q1 --wait 0 --mr soft-0/mr1 --opcode "+flags)...)
		if got.status == 0 || got.stdout != "" || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: %+v, want %s", flags, got, want)
		}
		for _, c := range r.Calls() {
			if c.Method == "PostWork" {
				t.Errorf("%s: posted", flags)
			}
		}
	}
}

// The peer may be on another daemon, for a post and for a connect.
func TestPeerServer(t *testing.T) {
	near, far := newRecorder(t, nil), newRecorder(t, nil)
	got := near.run(t, "qp", "post", "soft-0/q1", "--wait", "0", "--opcode", "rdma-write", "--mr", "soft-0/mr1", "--to-mr", "soft-3/mr2", "--peer-server", far.target)
	if got.status != 0 {
		t.Errorf("%+v", got)
	}
	far.asked(t, getMR("soft-3/memoryRegions/mr2"))
	near.Calls()

	if got := near.run(t, "qp", "connect", "soft-0/q1", "soft-0/q1", "--peer-server", far.target); got.status != 0 {
		t.Errorf("%+v", got)
	}
	q1 := device0 + "/queuePairs/q1"
	for _, r := range []*recorder{near, far} {
		r.asked(t, &pb.GetQueuePairRequest{Name: q1}, &pb.ConnectQueuePairRequest{Name: q1, RemoteEndpoint: aQueuePair.GetLocalEndpoint()})
	}
}

// Both ends of a pair that is not are told in one line (case L16).
func TestConnectRefusedL16(t *testing.T) {
	near := newRecorder(t, func(method string, req proto.Message) (proto.Message, error) {
		if method == "GetQueuePair" {
			q := proto.Clone(aQueuePair).(*pb.QueuePair)
			q.State = pb.QueuePair_STATE_INIT
			return q, nil
		}
		return nil, nil
	})
	far := newRecorder(t, func(method string, _ proto.Message) (proto.Message, error) {
		if method == "ConnectQueuePair" {
			return nil, errEnough
		}
		return nil, nil
	})
	got := near.run(t, "qp", "connect", "soft-0/q1", "soft-3/q2", "--peer-server", far.target)
	if got.status != 1 || got.stdout != "" || !strings.Contains(got.stderr, "phase connect, nodes/local/devices/soft-3/queuePairs/q2") || !strings.Contains(got.stderr, "that is all") {
		t.Errorf("%+v", got)
	}
	calls := near.Calls()
	want := &pb.ModifyQueuePairRequest{Name: device0 + "/queuePairs/q1", TargetState: pb.QueuePair_STATE_INIT}
	if last := calls[len(calls)-1].Request; !proto.Equal(last, want) {
		t.Errorf("last asks %v of the end that was connected, want %v", last, want)
	}
}

// A datagram's completion tells who sent it and what is in front of it.
func TestPollShowsDatagrams(t *testing.T) {
	wc := completion(1, 7, pb.Completion_OPCODE_RECV)
	wc.Receive, wc.LengthBytes, wc.ImmData, wc.Solicited = true, 104, proto.Uint32(0), true
	wc.SourceGid, wc.SourceQpn, wc.HasGrh = "::ffff:10.77.0.2", 0x11, true
	got := newWorker(t, wc).run(t, strings.Fields("qp poll soft-0/q1")...)
	want := `
SEQUENCE  WR ID  OPCODE  STATUS   BYTES  IMM  FROM                   FLAGS          MESSAGE
1         7      RECV    SUCCESS  104    0x0  ::ffff:10.77.0.2 0x11  solicited,grh  -
`
	if got.status != 0 || "\n"+got.stdout != want {
		t.Errorf("prints\n%s\nwant%s", got.stdout, want)
	}
}
