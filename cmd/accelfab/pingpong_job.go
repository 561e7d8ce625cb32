package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

const (
	// jobTTL is how long what a job made outlives a process that was killed.
	jobTTL = 30 * time.Second
	// jobClose bounds the clean-up, which goes on after an interrupt.
	jobClose = 10 * time.Second
)

// jobSpec is what pingpong and perf need of a node: a port, one buffer with a
// region over all of it, and queue pairs that are alike.
type jobSpec struct {
	program   string // begin of the session's id
	place     jobPlace
	bytes     uint64 // of the buffer
	datagram  uint64 // UD: bytes of the largest message
	access    []pb.MemoryRegion_Access
	count     int           // of queue pairs
	queuePair *pb.QueuePair // its protection domain, port and GID index are put in
}

// job is what was made. It all belongs to one session, which lives as long as
// this process keeps it alive.
type job struct {
	client *client.Client
	limit  time.Duration // of one call

	session *pb.Session
	port    *pb.Port
	gid     *pb.Port_Gid
	buffer  *pb.Buffer
	region  *pb.MemoryRegion
	ends    []*jobEnd
}

// runJob makes a job, has fn use it, and deletes all of it, however fn ends. The
// context that fn is given ends also when the session is lost.
func runJob(ctx context.Context, c *client.Client, limit time.Duration, spec jobSpec, fn func(context.Context, *job) error) (err error) {
	j := &job{client: c, limit: limit}
	if err := j.findPort(ctx, spec.place); err != nil {
		return err
	}
	if err := spec.fits(j.port); err != nil {
		return err
	}
	id := spec.program + "-" + strings.ToLower(rand.Text()[:12])
	defer func() { err = errors.Join(err, j.close(ctx, id)) }()
	if err := j.make(ctx, id, spec); err != nil {
		return err
	}
	use, cancel := context.WithCancelCause(ctx)
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		if err := c.KeepAlive(use, j.session); err != nil {
			cancel(fmt.Errorf("the session %s is lost: %w", id, err))
		}
	}()
	err = fn(use, j)
	if lost := context.Cause(use); lost != nil && ctx.Err() == nil {
		err = lost
	}
	cancel(nil)
	<-kept
	return err
}

// fits refuses what no datagram carries.
func (s *jobSpec) fits(port *pb.Port) error {
	if mtu := uint64(port.GetActiveMtuBytes()); s.datagram > mtu {
		return fmt.Errorf("--size %d: a UD message is at most the MTU of its port, and that of %s is %d bytes", s.datagram, short(port.GetName()), mtu)
	}
	return nil
}

func (j *job) make(ctx context.Context, id string, spec jobSpec) error {
	device := deviceOf(j.port)
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"session", func(ctx context.Context) (err error) {
			j.session, err = j.client.Sessions.CreateSession(ctx, &pb.CreateSessionRequest{Parent: localNode, SessionId: id, Session: &pb.Session{
				Devices: []string{device}, Mode: pb.Session_MODE_SHARED, Ttl: durationpb.New(jobTTL)}})
			return err
		}},
		{"protection domain", func(ctx context.Context) error {
			pd, err := j.client.Memory.CreateProtectionDomain(ctx, &pb.CreateProtectionDomainRequest{Parent: device,
				ProtectionDomain: &pb.ProtectionDomain{Session: j.session.GetName()}})
			spec.queuePair.ProtectionDomain = pd.GetName()
			return err
		}},
		{"buffer", func(ctx context.Context) (err error) {
			j.buffer, err = j.client.Memory.CreateBuffer(ctx, &pb.CreateBufferRequest{Parent: device,
				Buffer: &pb.Buffer{Session: j.session.GetName(), SizeBytes: spec.bytes}})
			return err
		}},
		{"memory region", func(ctx context.Context) (err error) {
			j.region, err = j.client.Memory.CreateMemoryRegion(ctx, &pb.CreateMemoryRegionRequest{Parent: device, MemoryRegion: &pb.MemoryRegion{
				ProtectionDomain: spec.queuePair.ProtectionDomain, Buffer: j.buffer.GetName(), Access: spec.access}})
			return err
		}},
		{"queue pair", func(ctx context.Context) error { return j.makeEnds(ctx, device, spec) }},
	} {
		call, cancel := context.WithTimeout(ctx, j.limit)
		err := step.do(call)
		cancel()
		switch {
		case ctx.Err() != nil:
			return errInterrupted
		case err != nil:
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

func (j *job) makeEnds(ctx context.Context, device string, spec jobSpec) error {
	q := spec.queuePair
	q.Port = j.port.GetName()
	q.Attributes.GidIndex = &j.gid.Index
	batch := &pb.BatchCreateQueuePairsRequest{Parent: device}
	for range spec.count {
		batch.Requests = append(batch.Requests, &pb.CreateQueuePairRequest{QueuePair: q})
	}
	r, err := j.client.QueuePairs.BatchCreateQueuePairs(ctx, batch)
	for _, qp := range r.GetQueuePairs() {
		j.ends = append(j.ends, &jobEnd{job: j, qp: qp})
	}
	return err
}

// close deletes the session and all that it owns. The create of the session may
// have had no answer, so that there may be none.
func (j *job) close(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), jobClose)
	defer cancel()
	_, err := j.client.Sessions.DeleteSession(ctx, &pb.DeleteSessionRequest{Name: localNode + "/sessions/" + id})
	switch {
	case status.Code(err) == codes.NotFound, j.session == nil && err != nil:
		return nil
	case err != nil:
		return fmt.Errorf("the session %s goes away by itself within %v, as closing it failed: %w", id, jobTTL, err)
	}
	return nil
}

// errInterrupted says that the user ended the command.
var errInterrupted = errors.New("interrupted, and cleaned up")

// jobPlace says which port of the node to use and as which GID.
type jobPlace struct {
	device   string  // short or whole name; "" is any
	ibPort   uint32  // the number that verbs use, from 1; 0 is the first active scale-out port
	gidFlag  string  // the flag of gidIndex, for people
	gidIndex *uint32 // nil: the usual one
}

// findPort finds the port and the entry of its GID table.
func (j *job) findPort(ctx context.Context, place jobPlace) error {
	call, cancel := context.WithTimeout(ctx, j.limit)
	defer cancel()
	parent := localNode + "/devices/-"
	if place.device != "" {
		name, err := deviceKind.name(place.device)
		if err != nil {
			return err
		}
		parent = name
	}
	_, list, err := ports.all(call, j.client, page{parent: parent})
	switch {
	case ctx.Err() != nil:
		return errInterrupted
	case err != nil:
		return err
	}
	if j.port, err = choosePort(list, place); err != nil {
		return err
	}
	j.gid, err = chooseGID(j.port, place)
	return err
}

func deviceOf(port *pb.Port) string {
	device, _, _ := strings.Cut(port.GetName(), "/ports/")
	return device
}

// choosePort takes the port with the number, or the first active scale-out
// port. Without a device it is on the first that has such a one.
func choosePort(list []*pb.Port, place jobPlace) (*pb.Port, error) {
	active := func(p *pb.Port) bool { return p.GetState() == pb.Port_STATE_ACTIVE }
	var first *pb.Port
	for _, p := range list {
		if active(p) && p.GetClass() == pb.Port_CLASS_SCALE_OUT {
			first = p
			break
		}
	}
	whose := "this node"
	switch {
	case place.device != "":
		whose = short(place.device)
	case first != nil:
		whose = short(deviceOf(first))
	}
	if place.ibPort == 0 {
		if first == nil {
			return nil, fmt.Errorf("%s has no active scale-out port: \"accelfab port list\" shows what there is, and --ib-port takes another", whose)
		}
		return first, nil
	}
	for _, p := range list {
		if p.GetIbPort() != place.ibPort || place.device == "" && first != nil && deviceOf(p) != deviceOf(first) {
			continue
		}
		if !active(p) {
			return nil, fmt.Errorf("--ib-port %d: %s is %s", place.ibPort, short(p.GetName()), stateText(enum(p.GetState(), "STATE"), p.GetReason()))
		}
		return p, nil
	}
	return nil, fmt.Errorf("--ib-port %d: %s has no such port", place.ibPort, whose)
}

// chooseGID takes the entry with the index, or the one that is usual.
func chooseGID(port *pb.Port, place jobPlace) (*pb.Port_Gid, error) {
	if place.gidIndex == nil {
		if usual := usualGID(port.GetGids()); usual != nil {
			return usual, nil
		}
		return nil, fmt.Errorf("%s has no GID: \"accelfab port get %s\" shows its table", short(port.GetName()), short(port.GetName()))
	}
	var known []string
	for _, g := range port.GetGids() {
		if g.GetIndex() == *place.gidIndex && g.GetType() == pb.GidType_GID_TYPE_ROCE_V2 {
			return g, nil
		}
		known = append(known, fmt.Sprintf("%d (%s)", g.GetIndex(), g.GetGid()))
	}
	return nil, fmt.Errorf("--%s %d: no RoCE v2 GID of %s has it; its table has %s", place.gidFlag, *place.gidIndex, short(port.GetName()), strings.Join(known, ", "))
}
