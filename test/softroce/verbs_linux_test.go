package softroce

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
	"github.com/accelfab/accelfab/test/daemon"
)

// verbsSize is how much memory each end has.
const verbsSize = 256 << 10

// verbs is a queue pair of Linux, worked by machine/verbs.c.
type verbs struct {
	t        *testing.T
	command  *command
	endpoint *pb.QueuePair_Endpoint
	address  uint64
	rkey     uint32
}

func startVerbs(t *testing.T, p *peer, kind string, gid int) *verbs {
	t.Helper()
	v := &verbs{t: t, command: p.command(t, fmt.Sprintf("verbs %s %d %d", kind, gid, verbsSize)), endpoint: &pb.QueuePair_Endpoint{}}
	line := v.line()
	if _, err := fmt.Sscanf(line, "local %d %d %s %d %d", &v.endpoint.Qpn, &v.endpoint.Psn, &v.endpoint.Gid, &v.address, &v.rkey); err != nil {
		t.Fatalf("verbs says %q: %v", line, err)
	}
	return v
}

func (v *verbs) line() string {
	v.t.Helper()
	line, err := v.command.lines.ReadString('\n')
	if err != nil {
		v.t.Fatalf("verbs broke off: %v after %q", err, line)
	}
	return strings.TrimSpace(line)
}

// do gives the answer to a line.
func (v *verbs) do(format string, args ...any) string {
	v.t.Helper()
	if _, err := fmt.Fprintf(v.command, format+"\n", args...); err != nil {
		v.t.Fatal(err)
	}
	return v.line()
}

// must is do of what has nothing to tell.
func (v *verbs) must(format string, args ...any) {
	v.t.Helper()
	if got := v.do(format, args...); got != "ok" {
		v.t.Fatalf(format+": %s", append(args, got)...)
	}
}

func (v *verbs) put(offset int, b []byte) { v.t.Helper(); v.must("put %d %x", offset, b) }

func (v *verbs) get(offset, length int) []byte {
	v.t.Helper()
	b, err := hex.DecodeString(v.do("get %d %d", offset, length))
	if err != nil || len(b) != length {
		v.t.Fatalf("get of %d bytes: %d bytes, %v", length, len(b), err)
	}
	return b
}

// verbsCompletion is what a work request of Linux has come to.
type verbsCompletion struct {
	status, bytes, immediate int
	text                     string
}

// Numbers of enum ibv_wc_status.
const (
	wcSuccess      = 0
	wcRemoteAccess = 10
)

func (v *verbs) poll() (c verbsCompletion) {
	v.t.Helper()
	line := v.do("poll")
	if n, _ := fmt.Sscanf(line, "%d %d %d", &c.status, &c.bytes, &c.immediate); n != 3 {
		v.t.Fatalf("no completion of Linux: %s", line)
	}
	c.text = line
	return c
}

// pair is a queue pair of Linux and one of ours, connected.
type pair struct {
	t     *testing.T
	linux *verbs
	we    *daemon.Job
}

func newPair(t *testing.T, p *peer, d *daemon.Daemon, kind pb.QueuePair_Type, gid int) *pair {
	t.Helper()
	j := daemon.NewJob(t, d.Dial(), "soft-0", "8", verbsSize)
	name, access := "rc", []pb.MemoryRegion_Access{pb.MemoryRegion_ACCESS_REMOTE_WRITE, pb.MemoryRegion_ACCESS_REMOTE_READ, pb.MemoryRegion_ACCESS_REMOTE_ATOMIC}
	if kind == pb.QueuePair_TYPE_UC {
		name, access = "uc", access[:1]
		qp, err := j.Client.QueuePairs.CreateQueuePair(t.Context(), &pb.CreateQueuePairRequest{Parent: "nodes/local/devices/soft-0",
			QueuePair: &pb.QueuePair{ProtectionDomain: j.PD.GetName(), Port: j.QP.GetPort(), Type: kind}})
		if err != nil {
			t.Fatal(err)
		}
		j.QP = qp
	}
	v := startVerbs(t, p, name, gid)
	qp, err := j.Client.QueuePairs.ConnectQueuePair(t.Context(), &pb.ConnectQueuePairRequest{Name: j.QP.GetName(), RemoteEndpoint: v.endpoint,
		Attributes: &pb.QueuePair_Attributes{GidIndex: new(uint32(gid)), Access: access}})
	if err != nil {
		t.Fatal(err)
	}
	j.QP = qp
	e := qp.GetLocalEndpoint()
	v.must("connect %d %d %s %d", e.GetQpn(), e.GetPsn(), e.GetGid(), qp.GetAttributes().GetPathMtuBytes())
	return &pair{t, v, j}
}

func (p *pair) upload(b []byte) {
	p.t.Helper()
	if err := p.we.Client.Upload(p.t.Context(), p.we.Buffer.GetName(), b); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) download(offset, length int) []byte {
	p.t.Helper()
	b, err := p.we.Client.Download(p.t.Context(), p.we.Buffer.GetName(), offset+length)
	if err != nil {
		p.t.Fatal(err)
	}
	return b[offset:]
}

// TestVerbs has each end read, write and change the other's memory.
func TestVerbs(t *testing.T) {
	p := thePeer(t, largeMTU)
	d := startDaemon(t, p)
	for _, c := range []struct {
		name string
		kind pb.QueuePair_Type
		gid  int
		does string
		// What to do where Linux asks, and where we do.
		linux, we func(*pair)
	}{
		{"RC IPv4", pb.QueuePair_TYPE_RC, gidIPv4, "SEND, WRITE, READ, atomics", linuxAsks, weAsk},
		{"RC IPv6", pb.QueuePair_TYPE_RC, gidIPv6, "SEND, WRITE, READ, atomics", linuxAsks, weAsk},
		{"RC imm", pb.QueuePair_TYPE_RC, gidIPv4, "WRITE with immediate", linuxWrites, weWrite},
		{"UC", pb.QueuePair_TYPE_UC, gidIPv4, "WRITE with and without immediate", linuxWrites, weWrite},
	} {
		t.Run(c.name+" requester", func(t *testing.T) {
			defer record(t, row{"verbs", "requester", "4096", "1 to 128K", c.name, "ok, " + c.does})
			c.linux(newPair(t, p, d, c.kind, c.gid))
		})
		t.Run(c.name+" responder", func(t *testing.T) {
			defer record(t, row{"verbs", "responder", "4096", "1 to 128K", c.name, "ok, " + c.does})
			c.we(newPair(t, p, d, c.kind, c.gid))
		})
	}
}

// Lengths that end before, at and after the end of a packet.
var lengths = []int{1, 3, 4095, 4096, 4097, 10000, verbsSize / 2}

// linuxAsks: the lower half of Linux's memory is what it sends, the upper half
// what it gets.
func linuxAsks(p *pair) {
	t, half := p.t, verbsSize/2
	iova, rkey := p.we.Region.GetIova(), p.we.Region.GetRkey()
	sent, there := someBytes(1, half), someBytes(2, verbsSize)
	p.linux.put(0, sent)
	for _, n := range lengths {
		p.upload(there)
		p.linux.must("post write 0 %d %d %d", n, iova+5, rkey)
		p.want("WRITE", p.linux.poll(), wcSuccess)
		want := bytes.Clone(there)
		copy(want[5:], sent[:n])
		p.same(fmt.Sprintf("a WRITE of %d bytes", n), p.download(0, verbsSize), want)

		p.linux.must("post read %d %d %d %d", half, n, iova+uint64(half-n), rkey)
		p.want("READ", p.linux.poll(), wcSuccess)
		p.same(fmt.Sprintf("a READ of %d bytes", n), p.linux.get(half, n), want[half-n:half])

		p.we.Post(t.Context(), &pb.WorkRequest{Opcode: pb.WorkRequest_OPCODE_RECV, Sges: p.we.SGE(uint64(half), uint32(half))})
		p.linux.must("post send-imm 0 %d 0 0 %d", n, 0xcafe0000+n)
		p.want("SEND", p.linux.poll(), wcSuccess)
		c := p.we.Wait(t.Context(), 1)[0]
		if c.GetStatus() != pb.CompletionStatus_COMPLETION_STATUS_SUCCESS || c.GetLengthBytes() != uint32(n) || c.GetImmData() != uint32(0xcafe0000+n) {
			t.Errorf("a SEND of %d bytes arrived as %v", n, c)
		}
		p.same(fmt.Sprintf("a SEND of %d bytes", n), p.download(half, n), sent[:n])
	}

	p.upload(word(100))
	p.linux.must("post add %d 8 %d %d 23", half, iova, rkey)
	p.want("FETCH_ADD", p.linux.poll(), wcSuccess)
	p.same("what a FETCH_ADD gives", p.linux.get(half, 8), word(100))
	p.same("what a FETCH_ADD leaves", p.download(0, 8), word(123))
	p.linux.must("post cas %d 8 %d %d 99 7", half, iova, rkey)
	p.want("COMPARE_SWAP", p.linux.poll(), wcSuccess)
	p.same("what a COMPARE_SWAP gives that does not fit", p.linux.get(half, 8), word(123))
	p.same("what a COMPARE_SWAP leaves that does not fit", p.download(0, 8), word(123))
	p.linux.must("post cas %d 8 %d %d 123 %d", half, iova, rkey, uint64(1)<<63+5)
	p.want("COMPARE_SWAP", p.linux.poll(), wcSuccess)
	p.same("what a COMPARE_SWAP gives", p.linux.get(half, 8), word(123))
	p.same("what a COMPARE_SWAP leaves", p.download(0, 8), word(1<<63+5))

	// The last, because it ends the connection.
	p.linux.must("post write 0 64 %d %d", iova, rkey^1)
	p.want("WRITE with a wrong R_Key", p.linux.poll(), wcRemoteAccess)
}

// weAsk is the same the other way around.
func weAsk(p *pair) {
	t, half := p.t, verbsSize/2
	work := func(op pb.WorkRequest_Opcode, offset, length int, remote uint64) *pb.WorkRequest {
		return &pb.WorkRequest{Opcode: op, Sges: p.we.SGE(uint64(offset), uint32(length)), RemoteAddress: p.linux.address + remote, Rkey: p.linux.rkey, Signaled: true}
	}
	do := func(w *pb.WorkRequest) { t.Helper(); p.we.Post(t.Context(), w); p.we.WaitSuccess(t.Context(), 1) }
	sent, there := someBytes(1, verbsSize), someBytes(2, verbsSize)
	p.upload(sent)
	for _, n := range lengths {
		p.linux.put(0, there)
		do(work(pb.WorkRequest_OPCODE_RDMA_WRITE, 0, n, 5))
		want := bytes.Clone(there)
		copy(want[5:], sent[:n])
		p.same(fmt.Sprintf("a WRITE of %d bytes", n), p.linux.get(0, verbsSize), want)

		do(work(pb.WorkRequest_OPCODE_RDMA_READ, half, n, uint64(half-n)))
		p.same(fmt.Sprintf("a READ of %d bytes", n), p.download(half, n), want[half-n:half])

		p.linux.must("post recv %d %d", half, half)
		do(&pb.WorkRequest{Opcode: pb.WorkRequest_OPCODE_SEND_WITH_IMM, Sges: p.we.SGE(0, uint32(n)), ImmData: uint32(0xcafe0000 + n), Signaled: true})
		if c := p.linux.poll(); c.status != wcSuccess || c.bytes != n || c.immediate != 0xcafe0000+n {
			t.Errorf("a SEND of %d bytes arrived as %v", n, c)
		}
		p.same(fmt.Sprintf("a SEND of %d bytes", n), p.linux.get(half, n), sent[:n])
	}

	p.linux.put(0, word(100))
	add := work(pb.WorkRequest_OPCODE_FETCH_ADD, half, 8, 0)
	add.CompareAdd = 23
	do(add)
	p.same("what a FETCH_ADD gives", p.download(half, 8), word(100))
	p.same("what a FETCH_ADD leaves", p.linux.get(0, 8), word(123))
	swap := work(pb.WorkRequest_OPCODE_COMPARE_SWAP, half, 8, 0)
	swap.CompareAdd, swap.Swap = 99, 7
	do(swap)
	p.same("what a COMPARE_SWAP gives that does not fit", p.download(half, 8), word(123))
	p.same("what a COMPARE_SWAP leaves that does not fit", p.linux.get(0, 8), word(123))
	swap.CompareAdd, swap.Swap = 123, 1<<63+5
	do(swap)
	p.same("what a COMPARE_SWAP gives", p.download(half, 8), word(123))
	p.same("what a COMPARE_SWAP leaves", p.linux.get(0, 8), word(1<<63+5))

	wrong := work(pb.WorkRequest_OPCODE_RDMA_WRITE, 0, 64, 0)
	wrong.Rkey ^= 1
	p.we.Post(t.Context(), wrong)
	if c := p.we.Wait(t.Context(), 1)[0]; c.GetStatus() != pb.CompletionStatus_COMPLETION_STATUS_REM_ACCESS_ERR {
		t.Errorf("a WRITE with a wrong R_Key ended with %v, want REM_ACCESS_ERR", c.GetStatus())
	}
}

// linuxWrites: a receive takes the immediate data, and says that what was written
// before it has arrived.
func linuxWrites(p *pair) {
	t, half := p.t, verbsSize/2
	iova, rkey := p.we.Region.GetIova(), p.we.Region.GetRkey()
	sent, there := someBytes(1, half), someBytes(2, verbsSize)
	p.linux.put(0, sent)
	for _, n := range lengths {
		p.upload(there)
		p.we.Post(t.Context(), &pb.WorkRequest{Opcode: pb.WorkRequest_OPCODE_RECV})
		p.linux.must("post write 0 %d %d %d", n, iova, rkey)
		p.linux.must("post write-imm 0 %d %d %d %d", n, iova+uint64(half), rkey, 0xcafe0000+n)
		p.want("WRITE", p.linux.poll(), wcSuccess)
		p.want("WRITE with immediate", p.linux.poll(), wcSuccess)
		c := p.we.Wait(t.Context(), 1)[0]
		if c.GetStatus() != pb.CompletionStatus_COMPLETION_STATUS_SUCCESS || c.GetLengthBytes() != uint32(n) || c.GetImmData() != uint32(0xcafe0000+n) {
			t.Errorf("a WRITE of %d bytes with immediate arrived as %v", n, c)
		}
		want := bytes.Clone(there)
		copy(want, sent[:n])
		copy(want[half:], sent[:n])
		p.same(fmt.Sprintf("two WRITEs of %d bytes", n), p.download(0, verbsSize), want)
	}
}

// weWrite is the same the other way around.
func weWrite(p *pair) {
	t, half := p.t, verbsSize/2
	sent, there := someBytes(1, verbsSize), someBytes(2, verbsSize)
	p.upload(sent)
	for _, n := range lengths {
		p.linux.put(0, there)
		p.linux.must("post recv 0 0")
		write := &pb.WorkRequest{Opcode: pb.WorkRequest_OPCODE_RDMA_WRITE, Sges: p.we.SGE(0, uint32(n)), RemoteAddress: p.linux.address, Rkey: p.linux.rkey, Signaled: true}
		imm := &pb.WorkRequest{Opcode: pb.WorkRequest_OPCODE_RDMA_WRITE_WITH_IMM, Sges: write.Sges, RemoteAddress: p.linux.address + uint64(half), Rkey: p.linux.rkey,
			ImmData: uint32(0xcafe0000 + n), Signaled: true}
		p.we.Post(t.Context(), write, imm)
		p.we.WaitSuccess(t.Context(), 2)
		if c := p.linux.poll(); c.status != wcSuccess || c.bytes != n || c.immediate != 0xcafe0000+n {
			t.Errorf("a WRITE of %d bytes with immediate arrived as %v", n, c)
		}
		want := bytes.Clone(there)
		copy(want, sent[:n])
		copy(want[half:], sent[:n])
		p.same(fmt.Sprintf("two WRITEs of %d bytes", n), p.linux.get(0, verbsSize), want)
	}
}

func (p *pair) want(what string, c verbsCompletion, status int) {
	p.t.Helper()
	if c.status != status {
		p.t.Errorf("%s of Linux ended with %s, want status %d", what, c.text, status)
	}
}

func (p *pair) same(what string, got, want []byte) {
	p.t.Helper()
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			p.t.Fatalf("%s: %d bytes of %d; byte %d is %x, want %x", what, len(got), len(want), i, got[i:min(i+8, len(got))], want[i:min(i+8, len(want))])
		}
	}
}

func word(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }

// someBytes are always the same for a seed. None is zero: Wireshark takes a
// payload whose third and fourth byte are zero, as those of a short message's pad
// are, for an Ethernet type and what follows, which other bytes may make malformed.
func someBytes(seed uint64, n int) []byte {
	random := rand.New(rand.NewPCG(seed, seed))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(0xa0 + random.IntN(0x50))
	}
	return b
}
