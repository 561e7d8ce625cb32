package host

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/accelfab/accelfab/proto/accelfab/device/v1"
)

// Bounds of the descriptor socket.
const (
	maxPacket       = 512              // bytes
	maxWaiting      = 64               // descriptors that wait for their call, or to be fetched
	waitingLife     = 30 * time.Second // of one
	descriptorTime  = 5 * time.Second  // for a packet each way
	maxConversation = 64               // connections at a time
)

// descriptorID names a descriptor that waits.
type descriptorID [16]byte

// waiting holds descriptors on their way between the two processes, each until
// it is asked for, for a bounded time.
type waiting struct {
	life time.Duration
	log  *slog.Logger

	mu     sync.Mutex
	files  map[descriptorID]*resting
	closed bool
}

type resting struct {
	file  *os.File
	timer *time.Timer
}

func newWaiting(log *slog.Logger) *waiting {
	return &waiting{life: waitingLife, log: log, files: map[descriptorID]*resting{}}
}

// put takes a descriptor over, and closes it if it cannot keep it.
func (w *waiting) put(id descriptorID, f *os.File) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		f.Close()
		return errors.New("the device host ends")
	case len(w.files) >= maxWaiting:
		f.Close()
		return fmt.Errorf("%d descriptors wait already: try again", maxWaiting)
	case w.files[id] != nil:
		f.Close()
		return errTaken
	}
	w.files[id] = &resting{f, time.AfterFunc(w.life, func() {
		if f := w.take(id); f != nil {
			f.Close()
		}
	})}
	return nil
}

// take gives a descriptor, the caller's from then on; nil if there is none.
func (w *waiting) take(id descriptorID) *os.File {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.files[id]
	if r == nil {
		return nil
	}
	r.timer.Stop()
	delete(w.files, id)
	return r.file
}

func (w *waiting) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for id, r := range w.files {
		r.timer.Stop()
		r.file.Close()
		delete(w.files, id)
	}
}

// serve answers connections until the listener is closed, and until all are
// answered.
func (w *waiting) serve(l *net.UnixListener) {
	var wg sync.WaitGroup
	defer wg.Wait()
	room := make(chan struct{}, maxConversation)
	for {
		conn, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors: it passes
			w.log.Warn("descriptor socket: connection not accepted", "error", err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			w.answer(conn)
		})
	}
}

// answer serves the one request of a connection.
func (w *waiting) answer(conn *net.UnixConn) {
	defer conn.Close()
	err := checkPeer(conn)
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(descriptorTime))
	}
	if err != nil {
		w.log.Warn("descriptor socket: connection refused", "error", err)
		return
	}
	data, files, err := receivePacket(conn)
	var given *os.File
	if err == nil {
		given, files, err = w.do(data, files)
	}
	for _, f := range files {
		f.Close()
	}
	if given != nil {
		defer given.Close()
	}
	reply := &pb.TransferResponse{}
	if err != nil {
		reply.Refusal = err.Error()
	}
	b, err := proto.Marshal(reply)
	if err == nil {
		// An empty packet would look like the end: the field is sent in any case.
		err = sendPacket(conn, append(b, emptyField...), given)
	}
	if err != nil {
		w.log.Warn("descriptor socket: not answered", "error", err)
	}
}

// emptyField is an unknown field of no meaning, so that no packet is empty.
var emptyField = []byte{0xf8, 0x07, 0x00} // number 127, varint 0

// do leaves a descriptor, or gives one. It returns those that nobody took.
func (w *waiting) do(data []byte, files []*os.File) (given *os.File, left []*os.File, err error) {
	var r pb.TransferRequest
	if err := proto.Unmarshal(data, &r); err != nil || len(r.DescriptorId) != len(descriptorID{}) {
		return nil, files, errors.New("the packet is no request of this contract")
	}
	id := descriptorID(r.DescriptorId)
	if len(files) == 1 {
		return nil, nil, w.put(id, files[0])
	}
	if given = w.take(id); given == nil {
		return nil, nil, errors.New("no descriptor waits under this id any more")
	}
	return given, nil, nil
}

// errTaken refuses a second descriptor under an id.
var errTaken = errors.New("the id is taken")

// leave leaves a descriptor with the host at path. Connections that end without
// an answer have been seen, one in some 100,000 on a busy machine (Linux 6.18), so
// it asks again: the host says whether it has the descriptor already.
func leave(ctx context.Context, path string, file *os.File) (descriptorID, error) {
	id := newDescriptorID()
	_, err := transfer(ctx, path, id, file)
	if errors.Is(err, io.EOF) {
		if _, err = transfer(ctx, path, id, file); err != nil && strings.HasSuffix(err.Error(), errTaken.Error()) {
			err = nil
		}
	}
	return id, err
}

func newDescriptorID() (id descriptorID) {
	rand.Read(id[:]) // never fails (crypto/rand)
	return id
}

// transfer leaves a descriptor with the host at path, or asks for one if file is
// nil; what it returns is the caller's.
func transfer(ctx context.Context, path string, id descriptorID, file *os.File) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, descriptorTime)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unixpacket", path)
	if err != nil {
		return nil, err
	}
	conn := c.(*net.UnixConn)
	defer conn.Close()
	if err := checkPeer(conn); err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })()
	b, err := proto.Marshal(&pb.TransferRequest{DescriptorId: id[:]})
	if err != nil {
		return nil, err
	}
	if err := sendPacket(conn, b, file); err != nil {
		return nil, err
	}
	data, files, err := receivePacket(conn)
	var reply pb.TransferResponse
	if err == nil {
		err = proto.Unmarshal(data, &reply)
	}
	if err == nil && reply.Refusal != "" {
		err = errors.New(reply.Refusal)
	}
	want := 0
	if file == nil {
		want = 1
	}
	if err == nil && len(files) != want {
		err = fmt.Errorf("%d descriptors came, want %d", len(files), want)
	}
	if err != nil {
		for _, f := range files {
			f.Close()
		}
		if ctx.Err() != nil {
			err = errors.Join(ctx.Err(), err)
		}
		return nil, fmt.Errorf("descriptor socket %s: %w", path, err)
	}
	// The host closes its end when it has closed its copy: then nothing is left of
	// this.
	_, _ = conn.Read(make([]byte, 1))
	if file != nil {
		return nil, nil
	}
	return files[0], nil
}
