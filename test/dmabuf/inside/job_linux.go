package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

const (
	server = "unix:///tmp/run/accelfabd.sock"
	card0  = "nodes/local/devices/soft-0"
	card1  = "nodes/local/devices/soft-1"
	size   = 1 << 20 // bytes of the memory that is exported
)

// job is a session with a buffer on each of two cards, which a cable joins. That
// of card 1 is exported.
type job struct {
	*client.Client
	session    string
	pd0        string
	source     *pb.MemoryRegion // on card 0
	target     *pb.MemoryRegion // on card 1
	end        *pb.QueuePair    // on card 0
	seen       uint64           // of its completions
	exp        *pb.MemoryExport
	descriptor *os.File
	mapped     []byte // the dma-buf
	data       []byte // what is in it now
}

func open(ctx context.Context) (*job, error) {
	c, err := client.Dial(server)
	if err != nil {
		return nil, err
	}
	j := &job{Client: c}
	s, err := c.Sessions.CreateSession(ctx, &pb.CreateSessionRequest{Parent: "nodes/local", SessionId: "s", Session: &pb.Session{Ttl: durationpb.New(limit)}})
	if err != nil {
		return nil, err
	}
	j.session = s.GetName()
	var pd1 string
	if j.pd0, j.source, err = j.memory(ctx, card0); err != nil {
		return nil, err
	}
	if pd1, j.target, err = j.memory(ctx, card1); err != nil {
		return nil, err
	}
	topo, err := c.Nodes.GetTopology(ctx, &pb.GetTopologyRequest{Name: "nodes/local/topology"})
	if err != nil {
		return nil, err
	}
	for _, p := range topo.GetCards()[0].GetPorts() {
		if p.GetClass() != pb.Port_CLASS_INTERNAL || p.GetPeer().GetPort() == "" {
			continue
		}
		if j.end, err = j.queuePair(ctx, card0, j.pd0, p.GetPort()); err != nil {
			return nil, err
		}
		far, err := j.queuePair(ctx, card1, pd1, p.GetPeer().GetPort())
		if err != nil {
			return nil, err
		}
		_, _, err = client.ConnectPair(ctx, client.End{Client: c, Name: j.end.GetName()}, client.End{Client: c, Name: far.GetName()})
		return j, err
	}
	return nil, errors.New("no cable joins the two cards")
}

func (j *job) memory(ctx context.Context, card string) (pd string, m *pb.MemoryRegion, err error) {
	p, err := j.Memory.CreateProtectionDomain(ctx, &pb.CreateProtectionDomainRequest{Parent: card, ProtectionDomain: &pb.ProtectionDomain{Session: j.session}})
	if err != nil {
		return "", nil, err
	}
	b, err := j.Memory.CreateBuffer(ctx, &pb.CreateBufferRequest{Parent: card, BufferId: "b", Buffer: &pb.Buffer{Session: j.session, SizeBytes: size}})
	if err != nil {
		return "", nil, err
	}
	m, err = j.Memory.CreateMemoryRegion(ctx, &pb.CreateMemoryRegionRequest{Parent: card, MemoryRegion: &pb.MemoryRegion{
		ProtectionDomain: p.GetName(), Buffer: b.GetName(),
		Access: []pb.MemoryRegion_Access{pb.MemoryRegion_ACCESS_LOCAL_WRITE, pb.MemoryRegion_ACCESS_REMOTE_WRITE},
	}})
	return p.GetName(), m, err
}

func (j *job) queuePair(ctx context.Context, card, pd, port string) (*pb.QueuePair, error) {
	return j.QueuePairs.CreateQueuePair(ctx, &pb.CreateQueuePairRequest{Parent: card, QueuePair: &pb.QueuePair{ProtectionDomain: pd, Port: port, Type: pb.QueuePair_TYPE_RC}})
}

// write writes fresh bytes from card 0 to card 1 by RDMA.
func (j *job) write(ctx context.Context) error {
	j.data = make([]byte, size)
	rand.Read(j.data) // never fails
	if err := j.Upload(ctx, j.source.GetBuffer(), j.data); err != nil {
		return err
	}
	if _, err := j.Transfers.PostWork(ctx, &pb.PostWorkRequest{Name: j.end.GetName(), Requests: []*pb.WorkRequest{{
		Opcode: pb.WorkRequest_OPCODE_RDMA_WRITE, Signaled: true,
		Sges:          []*pb.WorkRequest_Sge{{Lkey: j.source.GetLkey(), Address: j.source.GetIova(), LengthBytes: size}},
		RemoteAddress: j.target.GetIova(), Rkey: j.target.GetRkey(),
	}}}); err != nil {
		return err
	}
	done, err := j.WaitCompletions(ctx, j.end.GetName(), j.seen, 1)
	if err != nil {
		return err
	}
	j.seen = done[0].GetSequence()
	if s := done[0].GetStatus(); s != pb.CompletionStatus_COMPLETION_STATUS_SUCCESS {
		return fmt.Errorf("RDMA WRITE: %v", s)
	}
	return nil
}

// sees is how many references the registry sees beside the card's own.
func (j *job) sees(ctx context.Context, open, attached int) error {
	e, err := j.Memory.GetMemoryExport(ctx, &pb.GetMemoryExportRequest{Name: j.exp.GetName()})
	if err != nil {
		return err
	}
	if int(e.GetOpenDescriptorCount()) != open || len(e.GetAttachments()) != attached {
		return fmt.Errorf("the registry sees %d held and %d attached, want %d and %d", e.GetOpenDescriptorCount(), len(e.GetAttachments()), open, attached)
	}
	return nil
}

func (j *job) export(ctx context.Context) (err error) {
	d, err := j.Devices.GetDevice(ctx, &pb.GetDeviceRequest{Name: card1})
	if err != nil {
		return err
	}
	if !slices.Contains(d.GetCapabilities(), "MAPPABLE") {
		return fmt.Errorf("the capabilities are %v", d.GetCapabilities())
	}
	if j.exp, err = j.Memory.CreateMemoryExport(ctx, &pb.CreateMemoryExportRequest{Parent: card1, MemoryExportId: "e", MemoryExport: &pb.MemoryExport{Buffer: j.target.GetBuffer()}}); err != nil {
		return err
	}
	if j.exp.GetState() != pb.MemoryExport_STATE_ACTIVE || !j.exp.GetMappable() {
		return fmt.Errorf("%v", j.exp)
	}
	j.descriptor, err = j.FetchDescriptor(ctx, j.exp.GetName())
	if err != nil {
		return err
	}
	return j.sees(ctx, 1, 0)
}

// tell gives the importer in the kernel a command.
func (j *job) tell(command string) error {
	return os.WriteFile("/dev/importer", []byte(command), 0)
}

func (j *job) importer(ctx context.Context) error {
	if err := j.write(ctx); err != nil {
		return err
	}
	if err := j.tell(fmt.Sprintf("sum %d", j.descriptor.Fd())); err != nil {
		return err
	}
	got, err := os.ReadFile("/dev/importer")
	if err != nil {
		return err
	}
	h := fnv.New64a()
	h.Write(j.data)
	var exporter string
	var read, pieces int
	var hash uint64
	if _, err := fmt.Sscanf(string(got), "%s %d %d %x", &exporter, &read, &pieces, &hash); err != nil {
		return fmt.Errorf("it says %q: %w", got, err)
	}
	if read != size || hash != h.Sum64() {
		return fmt.Errorf("it read %s; want %d bytes with hash %016x", strings.TrimSpace(string(got)), size, h.Sum64())
	}
	fmt.Printf("the importer in the kernel read %d bytes of %s in %d pieces: hash %016x, as that of what RDMA wrote\n", read, exporter, pieces, hash)
	return nil
}

// mapping maps the dma-buf: one memory, seen by both.
func (j *job) mapping(ctx context.Context) (err error) {
	if j.mapped, err = unix.Mmap(int(j.descriptor.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return err
	}
	if !bytes.Equal(j.mapped, j.data) {
		return errors.New("the mapping does not show what RDMA wrote before")
	}
	if err := j.write(ctx); err != nil {
		return err
	}
	if !bytes.Equal(j.mapped, j.data) {
		return errors.New("the mapping does not show what RDMA writes")
	}
	copy(j.mapped[4096:], "written by the holder")
	copy(j.data[4096:], "written by the holder")
	got, err := j.Download(ctx, j.target.GetBuffer(), size)
	if err == nil && !bytes.Equal(got, j.data) {
		err = errors.New("the card does not see what the holder writes")
	}
	if err == nil {
		fmt.Println("the holder's mapping and the card are one memory")
	}
	return err
}

// holders counts who holds the dma-buf. A mapping is a reference of its own.
func (j *job) holders(ctx context.Context) error {
	if err := j.sees(ctx, 2, 0); err != nil {
		return err
	}
	if err := j.tell(fmt.Sprintf("hold %d", j.descriptor.Fd())); err != nil {
		return err
	}
	if err := j.descriptor.Close(); err != nil {
		return err
	}
	if err := j.sees(ctx, 2, 0); err != nil {
		return fmt.Errorf("mapped and attached, with no descriptor open: %w", err)
	}
	if err := j.tell("drop"); err != nil {
		return err
	}
	if err := j.sees(ctx, 1, 0); err != nil {
		return fmt.Errorf("mapped alone: %w", err)
	}
	fmt.Println("the registry counts who holds it")
	return nil
}

// refusals are what a dma-buf does not allow, each with its reason.
func (j *job) refusals(ctx context.Context) error {
	_, err := j.Memory.RevokeMemoryExport(ctx, &pb.RevokeMemoryExportRequest{Name: j.exp.GetName()})
	if err := refused(err, pb.ErrorReason_ERROR_REASON_UNSUPPORTED); err != nil {
		return fmt.Errorf("revoke: %w", err)
	}
	_, err = j.Memory.MoveBuffer(ctx, &pb.MoveBufferRequest{Name: j.target.GetBuffer()})
	if err := refused(err, pb.ErrorReason_ERROR_REASON_IN_USE); err != nil {
		return fmt.Errorf("move of the buffer: %w", err)
	}
	_, err = j.Memory.DeleteBuffer(ctx, &pb.DeleteBufferRequest{Name: j.target.GetBuffer()})
	if err := refused(err, pb.ErrorReason_ERROR_REASON_IN_USE); err != nil {
		return fmt.Errorf("delete of the buffer: %w", err)
	}
	large, err := j.Memory.CreateBuffer(ctx, &pb.CreateBufferRequest{Parent: card1, BufferId: "large", Buffer: &pb.Buffer{Session: j.session, SizeBytes: 96 << 20}})
	if err != nil {
		return err
	}
	_, err = j.Memory.CreateMemoryExport(ctx, &pb.CreateMemoryExportRequest{Parent: card1, MemoryExport: &pb.MemoryExport{Buffer: large.GetName()}})
	if err := refused(err, pb.ErrorReason_ERROR_REASON_EXHAUSTED); err != nil {
		return fmt.Errorf("export of more than the kernel makes a dma-buf of: %w", err)
	}
	if _, err := j.Memory.DeleteBuffer(ctx, &pb.DeleteBufferRequest{Name: large.GetName()}); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "/accelfab", "--server", server, "export", "get", "soft-1/e").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "cannot be revoked") {
		return fmt.Errorf("export get: %w\n%s", err, out)
	}
	return nil
}

func refused(err error, want pb.ErrorReason) error {
	if got := client.Reason(err); err == nil || got != want {
		return fmt.Errorf("%v (%v), want %v", err, got, want)
	}
	fmt.Println("refused:", client.Explain(err))
	return nil
}

// imported hands the descriptor in and makes a region of it on the other card.
func (j *job) imported(ctx context.Context) error {
	f, err := j.FetchDescriptor(ctx, j.exp.GetName())
	if err != nil {
		return err
	}
	defer f.Close()
	up, err := j.UploadDescriptor(ctx, f)
	if err != nil {
		return err
	}
	m, err := j.Memory.CreateMemoryRegion(ctx, &pb.CreateMemoryRegionRequest{Parent: card0, MemoryRegion: &pb.MemoryRegion{
		ProtectionDomain: j.pd0, ImportSource: &pb.MemoryRegion_ImportSource{UploadId: up.GetUploadId(), OffsetBytes: 4096, LengthBytes: 8192}}})
	if err != nil {
		return err
	}
	if err := j.sees(ctx, 2, 1); err != nil {
		return err
	}
	fmt.Println("known again, and imported by the other card")
	_, err = j.Memory.DeleteMemoryRegion(ctx, &pb.DeleteMemoryRegionRequest{Name: m.GetName()})
	return err
}

// close ends everything while the holder still has its mapping, which keeps what
// it showed and shows nothing that comes after.
func (j *job) close(ctx context.Context) error {
	for _, del := range []func() error{
		func() error {
			_, err := j.Memory.DeleteMemoryExport(ctx, &pb.DeleteMemoryExportRequest{Name: j.exp.GetName()})
			return err
		},
		func() error {
			_, err := j.Memory.DeleteMemoryRegion(ctx, &pb.DeleteMemoryRegionRequest{Name: j.target.GetName()})
			return err
		},
		func() error {
			_, err := j.Memory.DeleteBuffer(ctx, &pb.DeleteBufferRequest{Name: j.target.GetBuffer()})
			return err
		},
	} {
		if err := del(); err != nil {
			return err
		}
	}
	next, err := j.Memory.CreateBuffer(ctx, &pb.CreateBufferRequest{Parent: card1, BufferId: "next", Buffer: &pb.Buffer{Session: j.session, SizeBytes: size}})
	if err != nil {
		return err
	}
	zeros, err := j.Download(ctx, next.GetName(), size)
	if err != nil {
		return err
	}
	if !bytes.Equal(zeros, make([]byte, size)) {
		return errors.New("the next buffer does not read as zeros")
	}
	if err := j.Upload(ctx, next.GetName(), bytes.Repeat([]byte("secret"), 1000)); err != nil {
		return err
	}
	if !bytes.Equal(j.mapped, j.data) {
		return errors.New("the mapping shows what came after its buffer was freed")
	}
	copy(j.mapped, "late")
	if got, err := j.Download(ctx, next.GetName(), 6); err != nil || string(got) != "secret" {
		return fmt.Errorf("the next buffer has %q after a late write by the holder: %w", got, err)
	}
	if err := unix.Munmap(j.mapped); err != nil {
		return err
	}
	if _, err := j.Sessions.DeleteSession(ctx, &pb.DeleteSessionRequest{Name: j.session}); err != nil {
		return err
	}
	list, err := j.Memory.ListMemoryExports(ctx, &pb.ListMemoryExportsRequest{Parent: "nodes/local/devices/-"})
	if err != nil || len(list.GetMemoryExports()) > 0 {
		return fmt.Errorf("%v: %w", list, err)
	}
	fmt.Println("everything is closed; what the holder kept is apart from what came after")
	return nil
}

// conformance holds the cards against what is asked of every exporter and importer:
// what a mappable export cannot do does not apply, all else must hold.
func (j *job) conformance(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "/accelfab", "--server", server, "conformance", "importer").CombinedOutput()
	fmt.Printf("%s", out)
	return err
}
