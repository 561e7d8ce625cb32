package server

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// exchange is a house with a descriptor socket and one export.
type exchange struct {
	*house
	path string
	name string // of the export
	pd1  string // a domain on the other card
}

func newExchange(t *testing.T) *exchange {
	t.Helper()
	h := newHouse(t)
	dir, err := os.MkdirTemp("", "fds") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	x := &exchange{house: h, path: filepath.Join(dir, "d")}
	l, err := ListenDescriptors(x.path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- h.server.ServeDescriptors(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		h.stop(ctx)
		if err := <-served; err != nil {
			t.Errorf("ServeDescriptors: %v", err)
		}
		if n := h.server.Panics(); n != 0 {
			t.Errorf("%d panics", n)
		}
	})
	session, _, buffer := h.open("s", dev0)
	x.pd1 = h.domain(session, dev1, "s1").Name
	x.name = must[*pb.MemoryExport](t)(h.memory.CreateMemoryExport(context.Background(), &pb.CreateMemoryExportRequest{Parent: dev0, MemoryExportId: "e",
		MemoryExport: &pb.MemoryExport{Buffer: buffer.Name}})).Name
	return x
}

func (x *exchange) dialSocket() *net.UnixConn {
	x.t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: x.path, Net: "unixpacket"})
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		x.t.Fatal(err)
	}
	return c
}

// exchange sends a packet and gives the reply and what came with it.
func (x *exchange) packet(c *net.UnixConn, data []byte, files ...*os.File) (*pb.DescriptorReply, *os.File) {
	x.t.Helper()
	var control []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		control = unix.UnixRights(fds...)
	}
	if _, _, err := c.WriteMsgUnix(data, control, nil); err != nil {
		x.t.Fatalf("send: %v", err)
	}
	return x.reply(c)
}

func (x *exchange) reply(c *net.UnixConn) (*pb.DescriptorReply, *os.File) {
	x.t.Helper()
	var p packet
	data, control := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(4*8))
	n, nc, _, _, err := c.ReadMsgUnix(data, control)
	if err != nil {
		x.t.Fatalf("receive: %v", err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:nc])
	if err != nil {
		x.t.Fatal(err)
	}
	for i := range messages {
		fds, _ := unix.ParseUnixRights(&messages[i])
		for _, fd := range fds {
			p.files = append(p.files, os.NewFile(uintptr(fd), "fetched"))
		}
	}
	if len(p.files) > 1 {
		x.t.Fatalf("%d descriptors in one packet", len(p.files))
	}
	var r pb.DescriptorReply
	if err := proto.Unmarshal(data[:n], &r); err != nil {
		x.t.Fatal(err)
	}
	if len(p.files) == 0 {
		return &r, nil
	}
	x.t.Cleanup(func() { p.files[0].Close() })
	return &r, p.files[0]
}

func wirePacket(t *testing.T, r *pb.DescriptorRequest) []byte {
	t.Helper()
	b, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var uploadPacket = &pb.DescriptorRequest{Request: &pb.DescriptorRequest_Upload{Upload: &pb.UploadDescriptor{}}}

func fetchPacket(name string) *pb.DescriptorRequest {
	return &pb.DescriptorRequest{Request: &pb.DescriptorRequest_Fetch{Fetch: &pb.FetchDescriptor{Name: name}}}
}

func (x *exchange) fetch() *os.File {
	x.t.Helper()
	r, f := x.packet(x.dialSocket(), wirePacket(x.t, fetchPacket(x.name)))
	if r.GetFetched().GetMemoryExport() != x.name || f == nil {
		x.t.Fatalf("fetch: %v, descriptor %v", r, f)
	}
	return f
}

// descriptorCount counts the descriptors of this process.
func descriptorCount(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// An export's descriptor from its owner to a region on another card, and back to
// nothing.
func TestADescriptorFromFetchToRegion(t *testing.T) {
	x := newExchange(t)
	ctx := context.Background()
	f := x.fetch()
	e := must[*pb.MemoryExport](t)(x.memory.GetMemoryExport(ctx, &pb.GetMemoryExportRequest{Name: x.name}))
	if e.State != pb.MemoryExport_STATE_ACTIVE || e.OpenDescriptorCount != 1 || e.FetchCount != 1 || e.LastFetchTime == nil || e.LengthBytes != 8192 || len(e.Segments) == 0 {
		t.Fatalf("the export is %v", e)
	}
	r, _ := x.packet(x.dialSocket(), wirePacket(t, uploadPacket), f)
	up := r.GetUploaded()
	if up.GetMemoryExport() != x.name || len(up.GetUploadId()) != 32 || up.GetLengthBytes() != 8192 {
		t.Fatalf("upload: %v", r)
	}
	ask := &pb.CreateMemoryRegionRequest{Parent: dev1, MemoryRegionId: "i", MemoryRegion: &pb.MemoryRegion{ProtectionDomain: x.pd1,
		ImportSource: &pb.MemoryRegion_ImportSource{UploadId: up.UploadId, OffsetBytes: 100, LengthBytes: 1000},
		Access:       []pb.MemoryRegion_Access{pb.MemoryRegion_ACCESS_LOCAL_WRITE}}}
	m := must[*pb.MemoryRegion](t)(x.memory.CreateMemoryRegion(ctx, ask))
	if s := m.ImportSource; s.GetMemoryExport() != x.name || s.GetUploadId() != "" || s.GetPath() == "" || m.LengthBytes != 1000 || m.Iova != e.Segments[0].DeviceAddress+100 || m.Rkey == 0 {
		t.Fatalf("the region is %v", m)
	}
	ask.MemoryRegionId = "again"
	if _, err := x.memory.CreateMemoryRegion(ctx, ask); asRefused(err).info.Reason != "NOT_FOUND" {
		t.Errorf("a used upload id: %v", err)
	}
	e = must[*pb.MemoryExport](t)(x.memory.GetMemoryExport(ctx, &pb.GetMemoryExportRequest{Name: x.name}))
	if len(e.Attachments) != 1 || e.Attachments[0].MemoryRegion != m.Name || e.Attachments[0].Device != dev1 || e.Attachments[0].OffsetBytes != 100 || e.Attachments[0].LengthBytes != 1000 {
		t.Fatalf("attached: %v", e.Attachments)
	}
	_, err := x.memory.DeleteMemoryExport(ctx, &pb.DeleteMemoryExportRequest{Name: x.name})
	if r := asRefused(err); r.info.Reason != "IN_USE" || !strings.Contains(r.message, m.Name) {
		t.Errorf("delete of an export in use: %v", err)
	}
	_, err = x.memory.DeleteBuffer(ctx, &pb.DeleteBufferRequest{Name: e.Buffer})
	if r := asRefused(err); r.info.Reason != "IN_USE" || !strings.Contains(r.message, x.name) {
		t.Errorf("free of an exported buffer: %v", err)
	}
	e = must[*pb.MemoryExport](t)(x.memory.RevokeMemoryExport(ctx, &pb.RevokeMemoryExportRequest{Name: x.name}))
	if e.State != pb.MemoryExport_STATE_REVOKED || e.Reason != "EXPORT_REVOKED" {
		t.Fatalf("revoked: %v", e)
	}
	must[*pb.MemoryExport](t)(x.memory.RevokeMemoryExport(ctx, &pb.RevokeMemoryExportRequest{Name: x.name})) // no harm
	m = must[*pb.MemoryRegion](t)(x.memory.GetMemoryRegion(ctx, &pb.GetMemoryRegionRequest{Name: m.Name}))
	if m.State != pb.MemoryRegion_STATE_LOST || m.Reason != "EXPORT_REVOKED" || !strings.Contains(m.Message, x.name) {
		t.Fatalf("the region of a revoked export is %v", m)
	}
	for what, p := range map[string]*pb.DescriptorRequest{"fetch": fetchPacket(x.name), "upload": uploadPacket} {
		var files []*os.File
		if what == "upload" {
			files = append(files, f)
		}
		if r, got := x.packet(x.dialSocket(), wirePacket(t, p), files...); reasonOf(r) != "EXPORT_REVOKED" || got != nil {
			t.Errorf("%s of a revoked export: %v", what, r)
		}
	}
	must[any](t)(x.memory.DeleteMemoryExport(ctx, &pb.DeleteMemoryExportRequest{Name: x.name}))
	must[any](t)(x.memory.DeleteMemoryRegion(ctx, &pb.DeleteMemoryRegionRequest{Name: m.Name}))
	must[any](t)(x.memory.DeleteBuffer(ctx, &pb.DeleteBufferRequest{Name: e.Buffer}))
}

func reasonOf(r *pb.DescriptorReply) string {
	if r.GetError() == nil {
		return ""
	}
	return asRefused(status.FromProto(r.GetError()).Err()).info.Reason
}

// D16: what the holder can do with it: pass it on, and nothing else. What comes
// back is known by what the kernel says of it.
func TestD16OnlyDescriptorsOfExportsAreTakenIn(t *testing.T) {
	x := newExchange(t)
	token := x.fetch()
	if _, err := unix.Mmap(int(token.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED); err == nil {
		t.Error("the descriptor can be mapped")
	}
	open := func(f *os.File, err error) *os.File {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	memfd, err := unix.MemfdCreate("own", unix.MFD_CLOEXEC)
	own := open(os.NewFile(uintptr(memfd), "memfd"), err)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	a, b := open(os.NewFile(uintptr(pair[0]), "a"), err), open(os.NewFile(uintptr(pair[1]), "b"), err)
	file := open(os.Open("/proc/self/exe"))
	null := open(os.OpenFile("/dev/null", os.O_RDWR, 0))
	path := open(os.OpenFile("/proc/self/exe", unix.O_PATH, 0))
	again := open(os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", token.Fd()), unix.O_PATH, 0))
	withoutCollector(t)
	before := descriptorCount(t)
	for range leakRounds {
		for what, f := range map[string]*os.File{"memfd": own, "socket": a, "its peer": b, "file": file, "device": null, "path": path, "path of an export's": again} {
			c := x.dialSocket()
			if r, _ := x.packet(c, wirePacket(t, uploadPacket), f); reasonOf(r) != "NOT_AN_EXPORT" {
				t.Errorf("%s: %v", what, r)
			}
			c.Close()
		}
	}
	x.settled(before)
}

// leakRounds is how often what must leave no descriptor is done, so that one
// that stays each time is told from those of connections before, which may be
// closing while descriptors are first counted.
const leakRounds = 20

// withoutCollector keeps the collector, which closes files that nobody has any
// more, from tidying up after the code under test.
func withoutCollector(t *testing.T) {
	percent := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
}

// settled waits until the process holds no more descriptors than it did.
func (x *exchange) settled(want int) {
	x.t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		n := descriptorCount(x.t)
		if n <= want {
			return
		}
		if time.Now().After(deadline) {
			x.t.Fatalf("%d descriptors are open, %d were before", n, want)
		}
		<-tick.C
	}
}

func TestPacketsThatAreNoRequests(t *testing.T) {
	x := newExchange(t)
	f := x.fetch()
	withoutCollector(t)
	before := descriptorCount(t)
	fetch, upload := wirePacket(t, fetchPacket(x.name)), wirePacket(t, uploadPacket)
	rows := []struct {
		what  string
		data  []byte
		files int
		field string
	}{
		{"two with an upload", upload, 2, "descriptor"},
		{"three: cut off (MSG_CTRUNC)", upload, 3, "descriptor"},
		{"as many as a packet can have", upload, 253, "descriptor"},
		{"none with an upload", upload, 0, "descriptor"},
		{"one with a fetch", fetch, 1, "descriptor"},
		{"64 KiB of junk", []byte(strings.Repeat("\xff\x00junk", 64<<10/6)), 0, "descriptor"},
		{"junk", []byte("GET / HTTP/1.1"), 0, "request"},
		{"junk with a descriptor", []byte("\xff"), 1, "request"},
		{"an unknown field", []byte{0x7a, 0x00}, 0, "request"},
		{"no byte, but a descriptor", nil, 1, "request"},
		{"nothing asked", []byte{0x0a, 0x00, 0x7a, 0x00}, 1, "request"},
	}
	for _, r := range rows {
		t.Run(r.what, func(t *testing.T) {
			files := make([]*os.File, r.files)
			for i := range files {
				files[i] = f
			}
			for range leakRounds {
				c := x.dialSocket()
				reply, got := x.packet(c, r.data, files...)
				refusal := asRefused(status.FromProto(reply.GetError()).Err())
				if refusal.info.Reason != "FIELD_INVALID" || got != nil || len(refusal.fields) != 1 || refusal.fields[0] != r.field {
					t.Errorf("answered with %v", reply)
				}
				if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
					t.Errorf("the connection is still open: %d, %v", n, err)
				}
				c.Close()
			}
		})
	}
	if got := x.server.DescriptorCounts(); got.Malformed != uint64(len(rows)*leakRounds) || got.Fetched != 1 || got.Uploaded != 0 {
		t.Errorf("counted %+v", got)
	}
	x.settled(before)
}

// A thousand that connect and never speak keep nobody out.
func TestQuietConnectionsStarveNobody(t *testing.T) {
	x := newExchange(t)
	conns := make([]*net.UnixConn, 1000)
	for i := range conns {
		conns[i] = x.dialSocket()
		if i%100 == 99 {
			x.fetch().Close()
		}
	}
	x.fetch().Close()
	deadline := time.Now().Add(5 * time.Second)
	for x.server.DescriptorCounts().Quiet < 700 {
		if time.Now().After(deadline) {
			t.Fatalf("%d quiet connections were closed, want all but some 256", x.server.DescriptorCounts().Quiet)
		}
		runtime.Gosched()
	}
	for _, c := range conns {
		c.Close()
	}
}

// Nobody but the owner and who is named may fetch, and what another uploaded is
// of no use to a thief. Both are in the journal.
func TestOthersAreRefusedAndToldOf(t *testing.T) {
	x := newExchange(t)
	ctx := context.Background()
	file := x.fetch()
	thief := fabric.Caller{Identity: "uid:4242", UID: 4242, GID: 4242, PID: 77, HasPeer: true}
	if _, err := x.fabric.FetchDescriptor(ctx, thief, x.name); asRefused(refusal(err).Err()).info.Reason != "PERMISSION_DENIED" {
		t.Errorf("fetch by another: %v", err)
	}
	r, _ := x.packet(x.dialSocket(), wirePacket(t, uploadPacket), file)
	s := must[fabric.Session](t)(x.fabric.CreateSession(ctx, thief, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n", ID: "thief"}}))
	pd := must[fabric.ProtectionDomain](t)(x.fabric.CreateProtectionDomain(ctx, thief, fabric.CreateProtectionDomain{Create: fabric.Create{Parent: dev1, ID: "thief"}, Session: s.Name}))
	x.awaitEvent(t, "fetch of the descriptor refused to uid:4242, pid 77")
	_, err := x.fabric.CreateMemoryRegion(ctx, thief, fabric.CreateMemoryRegion{Create: fabric.Create{Parent: dev1},
		ProtectionDomain: pd.Name, Import: &fabric.CreateImport{Upload: r.GetUploaded().GetUploadId()}})
	if got := asRefused(refusal(err).Err()); got.info.Reason != "PERMISSION_DENIED" || got.info.Metadata["field"] != "import_source.upload_id" {
		t.Errorf("a stolen upload id: %v", err)
	}
	x.awaitEvent(t, "use of an upload id that is another's refused to uid:4242, pid 77")
}

// awaitEvent waits until the journal has an event about the export with a text.
func (x *exchange) awaitEvent(t *testing.T, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for e, err := range x.fabric.Watch(ctx, self(), fabric.Watch{}) {
		if err != nil {
			t.Fatalf("the journal has no %q: %v", text, err)
		}
		if e.Resource == x.name && strings.Contains(e.Message, text) {
			return
		}
	}
}
