package client_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// descriptorDaemon answers each packet on a descriptor socket with what answer
// says, and the given number of descriptors; nil ends the connection.
func descriptorDaemon(t *testing.T, answer func(*pb.DescriptorRequest, int) (*pb.DescriptorReply, int)) *client.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "fds") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(dir, "d"), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			serveOne(t, conn, answer)
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	c, err := client.Dial("unix://" + filepath.Join(dir, "accelfabd.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	// The daemon's file beside its socket tells where.
	ready := `{"grpc": ["unix://` + dir + `/accelfabd.sock"], "descriptors": "` + dir + `/d"}`
	if err := os.WriteFile(filepath.Join(dir, "accelfabd.json"), []byte(ready), 0o644); err != nil {
		t.Fatal(err)
	}
	return c
}

func serveOne(t *testing.T, conn *net.UnixConn, answer func(*pb.DescriptorRequest, int) (*pb.DescriptorReply, int)) {
	defer conn.Close()
	data, control := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	n, nc, _, _, err := conn.ReadMsgUnix(data, control)
	if err != nil {
		return
	}
	came := 0
	if messages, err := unix.ParseSocketControlMessage(control[:nc]); err == nil && len(messages) == 1 {
		fds, _ := unix.ParseUnixRights(&messages[0])
		for _, fd := range fds {
			came++
			unix.Close(fd)
		}
	}
	var r pb.DescriptorRequest
	if err := proto.Unmarshal(data[:n], &r); err != nil {
		t.Errorf("the packet is no request: %v", err)
	}
	reply, give := answer(&r, came)
	if reply == nil {
		return
	}
	b, err := proto.Marshal(reply)
	if err != nil {
		t.Error(err)
	}
	fds := make([]int, give)
	for i := range fds {
		fds[i] = int(os.Stdin.Fd())
	}
	var rights []byte
	if give > 0 {
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := conn.WriteMsgUnix(b, rights, nil); err != nil {
		t.Error(err)
	}
}

const anExport = "nodes/n1/devices/d0/memoryExports/e"

var fetched = &pb.DescriptorReply{Reply: &pb.DescriptorReply_Fetched{Fetched: &pb.FetchedDescriptor{MemoryExport: anExport}}}

func openDescriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// noneIsLeft waits until no more descriptors are open than before: the daemon may
// still be closing its end.
func noneIsLeft(t *testing.T, before int) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(15 * time.Second); ; <-tick.C {
		after := openDescriptors(t)
		if after <= before {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors are open, %d were before", after, before)
		}
	}
}

func TestFetchAndUpload(t *testing.T) {
	c := descriptorDaemon(t, func(r *pb.DescriptorRequest, came int) (*pb.DescriptorReply, int) {
		if r.GetFetch().GetName() == anExport && came == 0 {
			return fetched, 1
		}
		if r.GetUpload() != nil && came == 1 {
			return &pb.DescriptorReply{Reply: &pb.DescriptorReply_Uploaded{Uploaded: &pb.UploadedDescriptor{UploadId: "u1", MemoryExport: anExport}}}, 0
		}
		t.Errorf("asked %v with %d descriptors", r, came)
		return nil, 0
	})
	f, err := c.FetchDescriptor(t.Context(), anExport)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if up, err := c.UploadDescriptor(t.Context(), f); err != nil || up.GetUploadId() != "u1" || up.GetMemoryExport() != anExport {
		t.Errorf("%v, %v", up, err)
	}
	if _, err := f.Stat(); err != nil {
		t.Errorf("the descriptor is not the caller's any more: %v", err)
	}
}

// Whatever the daemon answers, no descriptor is left.
func TestBadAnswersToAFetch(t *testing.T) {
	refusal := &pb.DescriptorReply{Reply: &pb.DescriptorReply_Error{Error: status.New(codes.PermissionDenied, "it is another's").Proto()}}
	for what, row := range map[string]struct {
		reply *pb.DescriptorReply
		give  int
		want  string
	}{
		"none":                     {nil, 0, "without an answer"},
		"no descriptor":            {fetched, 0, "no descriptor"},
		"two":                      {fetched, 2, "cut off"},
		"many":                     {fetched, 9, "cut off"},
		"a refusal":                {refusal, 0, "it is another's"},
		"a refusal and descriptor": {refusal, 1, "it is another's"},
		"another answer":           {&pb.DescriptorReply{Reply: &pb.DescriptorReply_Uploaded{Uploaded: &pb.UploadedDescriptor{UploadId: "u"}}}, 1, "no descriptor"},
	} {
		t.Run(what, func(t *testing.T) {
			c := descriptorDaemon(t, func(*pb.DescriptorRequest, int) (*pb.DescriptorReply, int) { return row.reply, row.give })
			// The collector would tidy up after the code under test.
			defer debug.SetGCPercent(debug.SetGCPercent(-1))
			before := openDescriptors(t)
			f, err := c.FetchDescriptor(t.Context(), anExport)
			if f != nil || err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("%v, %v: want %q", f, err, row.want)
			}
			noneIsLeft(t, before)
		})
	}
}

func TestAFetchEndsWithItsContext(t *testing.T) {
	wait := make(chan struct{})
	c := descriptorDaemon(t, func(*pb.DescriptorRequest, int) (*pb.DescriptorReply, int) { <-wait; return nil, 0 })
	defer close(wait)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.FetchDescriptor(ctx, anExport); err == nil || ctx.Err() == nil || !strings.Contains(err.Error(), "deadline exceeded") {
		t.Errorf("%v", err)
	}
	c.DescriptorSocket = "/nonexistent/socket"
	if _, err := c.FetchDescriptor(t.Context(), anExport); err == nil || !strings.Contains(err.Error(), "/nonexistent/socket") {
		t.Errorf("%v", err)
	}
}
