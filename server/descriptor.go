package server

import (
	queue "container/list"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// The descriptor socket carries what the API cannot: descriptors of exports, to
// those who fetch one and from those who import one (descriptor.proto). Every
// descriptor that arrives is handed to the domain or closed, whatever comes with
// it.

// Bounds of the descriptor socket.
const (
	maxPacket      = 4096             // bytes of a request
	descriptorIdle = 10 * time.Second // that a connection may be quiet
	descriptorSend = 5 * time.Second  // to take a reply
	maxQuiet       = 256              // connections that are quiet; then the one that is it longest is closed
	// descriptorMode lets everybody connect: the kernel says who it is, and the
	// export says who may have its descriptor.
	descriptorMode = 0o666
)

// DescriptorCounts are what became of packets and connections.
type DescriptorCounts struct {
	Fetched, Uploaded uint64 // descriptors given out and taken in
	Refused           uint64 // requests that the domain refused
	Malformed         uint64 // packets that were no request
	Quiet             uint64 // connections closed since nothing came
}

// descriptors is the descriptor socket of a server.
type descriptors struct {
	fetched, uploaded, refused, malformed, quiet atomic.Uint64

	path atomic.Pointer[string]

	mu       sync.Mutex
	listener *net.UnixListener
	waiting  queue.List // of *net.UnixConn, quiet ones, the longest first
	stopped  bool
}

// DescriptorCounts gives the counts since New.
func (s *Server) DescriptorCounts() DescriptorCounts {
	d := &s.descriptors
	return DescriptorCounts{d.fetched.Load(), d.uploaded.Load(), d.refused.Load(), d.malformed.Load(), d.quiet.Load()}
}

// ListenDescriptors opens a descriptor socket at an absolute path.
func ListenDescriptors(path string) (*net.UnixListener, error) {
	l, err := listenSocket("unixpacket", "unix://"+path, path, descriptorMode)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// ServeDescriptors serves the descriptor socket, and closes it. It returns nil
// once Stop has stopped the server, or the error of the listener. It can be
// called once.
func (s *Server) ServeDescriptors(l *net.UnixListener) error {
	defer l.Close()
	d := &s.descriptors
	d.mu.Lock()
	d.listener = l
	stopped := d.stopped
	d.mu.Unlock()
	if stopped {
		return nil
	}
	path := l.Addr().String()
	d.path.Store(&path)
	defer d.path.Store(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := l.AcceptUnix()
		switch {
		case err == nil:
			wg.Go(func() { s.converse(conn) })
		case s.stopping() && errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("descriptor socket: %w", err)
		default: // out of descriptors: it passes
			s.log.Warn("descriptor socket", "error", err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-s.drain.begun.Done():
				return nil
			}
		}
	}
}

// stop ends the socket: nobody new comes in, and who is quiet is sent away.
func (d *descriptors) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
	if d.listener != nil {
		d.listener.Close()
	}
	for e := d.waiting.Front(); e != nil; e = e.Next() {
		_ = e.Value.(*net.UnixConn).SetReadDeadline(time.Now())
	}
}

// await waits for a packet on a connection. While too many are quiet it closes
// the one that is it longest: whoever has something to say says it at once.
func (d *descriptors) await(conn *net.UnixConn, p *packet) error {
	d.mu.Lock()
	deadline := time.Now().Add(descriptorIdle)
	if d.stopped {
		deadline = time.Now()
	}
	err := conn.SetReadDeadline(deadline)
	here := d.waiting.PushBack(conn)
	if d.waiting.Len() > maxQuiet {
		_ = d.waiting.Front().Value.(*net.UnixConn).SetReadDeadline(time.Now())
		d.waiting.MoveToBack(d.waiting.Front()) // it is on its way: do not choose it again
	}
	d.mu.Unlock()
	if err == nil {
		err = p.receive(conn)
	}
	d.mu.Lock()
	d.waiting.Remove(here)
	d.mu.Unlock()
	return err
}

// packet is one that arrived, with the descriptors that came with it.
type packet struct {
	data  []byte
	files []*os.File
	fault string // of its form: cut off, or with too many descriptors
}

// close closes the descriptors that nobody took.
func (p *packet) close() {
	for _, f := range p.files {
		f.Close()
	}
	p.files = nil
}

// converse answers a connection until one side ends it.
func (s *Server) converse(conn *net.UnixConn) {
	defer conn.Close()
	defer func() {
		if p := recover(); p != nil {
			s.panics.Add(1)
			s.log.Error("panic", "socket", "descriptors", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	who, err := identify(conn)
	if err != nil {
		s.log.Warn("descriptor socket", "error", err)
		return
	}
	for {
		var p packet
		err := s.descriptors.await(conn, &p)
		if err != nil {
			p.close()
			if errors.Is(err, os.ErrDeadlineExceeded) {
				s.descriptors.quiet.Add(1)
			}
			return
		}
		if !s.drain.enter() {
			p.close()
			return
		}
		more := s.respond(conn, who, &p)
		s.drain.leave()
		if !more {
			return
		}
	}
}

// respond answers one packet, and says whether another may come.
func (s *Server) respond(conn *net.UnixConn, who fabric.Caller, p *packet) bool {
	defer p.close()
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	reply, file, err := s.serveDescriptor(ctx, who, p)
	if file != nil {
		defer file.Close()
	}
	more := true
	if err != nil {
		var m malformed
		if errors.As(err, &m) {
			s.descriptors.malformed.Add(1)
			more, err = false, m.fault()
		} else {
			s.descriptors.refused.Add(1)
		}
		s.log.Debug("descriptor refused", "caller", who.Identity, "pid", who.PID, "error", err)
		reply = &pb.DescriptorReply{Reply: &pb.DescriptorReply_Error{Error: refusal(err).Proto()}}
	}
	b, err := proto.Marshal(reply)
	if err == nil {
		err = conn.SetWriteDeadline(time.Now().Add(descriptorSend))
	}
	if err == nil {
		err = send(conn, b, file)
	}
	if err != nil {
		s.log.Debug("descriptor not sent", "caller", who.Identity, "error", err)
	}
	return more && err == nil
}

// malformed is a packet that is no request.
type malformed struct{ field, problem string }

func (m malformed) Error() string { return m.field + ": " + m.problem }

func (m malformed) fault() error {
	var v faults
	v.invalid(m.field, "%s", m.problem)
	return v.err()
}

// serveDescriptor does what a packet asks.
func (s *Server) serveDescriptor(ctx context.Context, who fabric.Caller, p *packet) (*pb.DescriptorReply, *os.File, error) {
	if p.fault != "" {
		return nil, nil, malformed{"descriptor", p.fault}
	}
	var r pb.DescriptorRequest
	if err := proto.Unmarshal(p.data, &r); err != nil || len(r.ProtoReflect().GetUnknown()) > 0 {
		return nil, nil, malformed{"request", "the packet is no DescriptorRequest of this version"}
	}
	switch ask := r.Request.(type) {
	case *pb.DescriptorRequest_Fetch:
		if len(p.files) > 0 {
			return nil, nil, malformed{"descriptor", "want none with a fetch"}
		}
		file, err := s.fabric.FetchDescriptor(ctx, who, ask.Fetch.GetName())
		if err != nil {
			return nil, nil, err
		}
		s.descriptors.fetched.Add(1)
		return &pb.DescriptorReply{Reply: &pb.DescriptorReply_Fetched{
			Fetched: &pb.FetchedDescriptor{MemoryExport: s.canonical(ask.Fetch.GetName())}}}, file, nil
	case *pb.DescriptorRequest_Upload:
		if n := len(p.files); n != 1 {
			return nil, nil, malformed{"descriptor", fmt.Sprintf("%d came with the upload: want exactly one", n)}
		}
		file := p.files[0]
		p.files = nil // the domain's from now on
		up, err := s.fabric.UploadDescriptor(ctx, who, file)
		if err != nil {
			return nil, nil, err
		}
		s.descriptors.uploaded.Add(1)
		return &pb.DescriptorReply{Reply: &pb.DescriptorReply_Uploaded{Uploaded: &pb.UploadedDescriptor{
			UploadId: up.ID, ExpireTime: timestamppb.New(up.Expires), MemoryExport: up.Export, LengthBytes: up.Length}}}, nil, nil
	}
	return nil, nil, malformed{"request", "want fetch or upload"}
}

// DescriptorSocket is the path of the descriptor socket that is served, "" if
// none is.
func (s *Server) DescriptorSocket() string {
	if p := s.descriptors.path.Load(); p != nil {
		return *p
	}
	return ""
}
