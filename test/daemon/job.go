package daemon

import (
	"context"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// Dial gives a client of the daemon, which is closed with the test.
func (d *Daemon) Dial() *client.Client {
	d.t.Helper()
	c, err := client.Dial(d.Target)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { c.Close() })
	return c
}

// Job is what one end of a transfer needs, on one card: a session and all that
// it owns.
type Job struct {
	Client  *client.Client
	Session *pb.Session
	PD      *pb.ProtectionDomain
	Buffer  *pb.Buffer
	Region  *pb.MemoryRegion
	QP      *pb.QueuePair

	t    testing.TB
	seen uint64 // sequence of the last completion
}

// NewJob makes a session with a buffer of size bytes, a region over all of it,
// and a queue pair on a port of a card.
func NewJob(t testing.TB, c *client.Client, card, port string, size uint64) *Job {
	t.Helper()
	ctx := t.Context()
	device := "nodes/local/devices/" + card
	j := &Job{Client: c, t: t}
	var err error
	must := func(what string) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	j.Session, err = c.Sessions.CreateSession(ctx, &pb.CreateSessionRequest{Parent: "nodes/local", Session: &pb.Session{
		Devices: []string{device}, Mode: pb.Session_MODE_SHARED, Ttl: durationpb.New(3600e9)}})
	must("session")
	j.PD, err = c.Memory.CreateProtectionDomain(ctx, &pb.CreateProtectionDomainRequest{Parent: device,
		ProtectionDomain: &pb.ProtectionDomain{Session: j.Session.GetName()}})
	must("protection domain")
	j.Buffer, err = c.Memory.CreateBuffer(ctx, &pb.CreateBufferRequest{Parent: device,
		Buffer: &pb.Buffer{Session: j.Session.GetName(), SizeBytes: size}})
	must("buffer")
	j.Region, err = c.Memory.CreateMemoryRegion(ctx, &pb.CreateMemoryRegionRequest{Parent: device, MemoryRegion: &pb.MemoryRegion{
		ProtectionDomain: j.PD.GetName(), Buffer: j.Buffer.GetName(), LengthBytes: size,
		Access: []pb.MemoryRegion_Access{pb.MemoryRegion_ACCESS_LOCAL_WRITE, pb.MemoryRegion_ACCESS_REMOTE_WRITE, pb.MemoryRegion_ACCESS_REMOTE_READ, pb.MemoryRegion_ACCESS_REMOTE_ATOMIC}}})
	must("memory region")
	j.QP, err = c.QueuePairs.CreateQueuePair(ctx, &pb.CreateQueuePairRequest{Parent: device, QueuePair: &pb.QueuePair{
		ProtectionDomain: j.PD.GetName(), Port: device + "/ports/" + port, Type: pb.QueuePair_TYPE_RC}})
	must("queue pair")
	return j
}

// Connect connects the queue pairs of two jobs.
func Connect(t testing.TB, a, b *Job) {
	t.Helper()
	var err error
	a.QP, b.QP, err = client.ConnectPair(t.Context(), client.End{Client: a.Client, Name: a.QP.GetName()}, client.End{Client: b.Client, Name: b.QP.GetName()})
	if err != nil {
		t.Fatal(err)
	}
}

// SGE is a range of the job's buffer.
func (j *Job) SGE(offset uint64, length uint32) []*pb.WorkRequest_Sge {
	return []*pb.WorkRequest_Sge{{Lkey: j.Region.GetLkey(), Address: j.Region.GetIova() + offset, LengthBytes: length}}
}

// Post posts work and does not wait.
func (j *Job) Post(ctx context.Context, work ...*pb.WorkRequest) {
	j.t.Helper()
	if _, err := j.Client.Transfers.PostWork(ctx, &pb.PostWorkRequest{Name: j.QP.GetName(), Requests: work}); err != nil {
		j.t.Fatal(err)
	}
}

// Wait waits for so many more completions.
func (j *Job) Wait(ctx context.Context, count int) []*pb.Completion {
	j.t.Helper()
	got, err := j.Client.WaitCompletions(ctx, j.QP.GetName(), j.seen, count)
	if err != nil {
		j.t.Fatal(err)
	}
	j.seen = got[len(got)-1].GetSequence()
	return got
}

// WaitSuccess is Wait, and all must have gone well.
func (j *Job) WaitSuccess(ctx context.Context, count int) {
	j.t.Helper()
	for _, c := range j.Wait(ctx, count) {
		if c.GetStatus() != pb.CompletionStatus_COMPLETION_STATUS_SUCCESS {
			j.t.Fatalf("work request %d: %v: %s", c.GetWrId(), c.GetStatus(), c.GetMessage())
		}
	}
}
