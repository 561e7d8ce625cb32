package server

import (
	"context"
	"os"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// self is the caller that a client of the test's own process is.
func self() fabric.Caller {
	return fabric.Caller{Identity: "uid:" + utoa(uint64(os.Geteuid())), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), PID: int32(os.Getpid()), HasPeer: true}
}

// uploads fetches a descriptor of an export, and gives a func that uploads it.
func (h *house) uploads(export string) func() string {
	h.t.Helper()
	file := must[*os.File](h.t)(h.fabric.FetchDescriptor(context.Background(), self(), export))
	h.t.Cleanup(func() { file.Close() })
	return func() string {
		fd, err := syscall.Dup(int(file.Fd()))
		if err != nil {
			h.t.Fatal(err)
		}
		syscall.CloseOnExec(fd)
		return must[fabric.Upload](h.t)(h.fabric.UploadDescriptor(context.Background(), self(), os.NewFile(uintptr(fd), "upload"))).ID
	}
}

func exportRows(x *fixture) []badRow {
	type export = *pb.CreateMemoryExportRequest
	type region = *pb.CreateMemoryRegionRequest
	type peer = *pb.CheckPeerAccessRequest
	fetchers := func(f *pb.MemoryExport_Fetcher) func(m export) {
		return func(m export) { m.MemoryExport.Fetchers = []*pb.MemoryExport_Fetcher{f} }
	}
	// from is an import of the fixture's export.
	from := func(field, what string, change func(*pb.MemoryRegion_ImportSource), reason fabric.Reason) badRow {
		return bad("memory_region.import_source"+field, what, func(m region) {
			m.MemoryRegion.Buffer, m.MemoryRegion.ImportSource = "", &pb.MemoryRegion_ImportSource{UploadId: x.upload()}
			change(m.MemoryRegion.ImportSource)
		}, reason)
	}
	type source = *pb.MemoryRegion_ImportSource
	rows := []badRow{
		bad("memory_export", "missing", func(m export) { m.MemoryExport = nil }, fabric.FieldRequired),
		bad("memory_export.buffer", "missing", func(m export) { m.MemoryExport.Buffer = "" }, fabric.FieldRequired),
		bad("memory_export.buffer", "not a name", func(m export) { m.MemoryExport.Buffer = "b" }, fabric.FieldInvalid),
		bad("memory_export.buffer", "unknown", func(m export) { m.MemoryExport.Buffer = dev0 + "/buffers/none" }, fabric.NotFound),
		bad("memory_export.buffer", "on another device", func(m export) { m.MemoryExport.Buffer = dev1 + "/buffers/s1" }, fabric.FieldInvalid),
		bad("memory_export.offset_bytes", "D03 misaligned", func(m export) { m.MemoryExport.OffsetBytes = 512 }, fabric.FieldInvalid),
		bad("memory_export.offset_bytes", "beyond", func(m export) { m.MemoryExport.OffsetBytes = 8192 }, fabric.FieldInvalid),
		bad("memory_export.length_bytes", "D03 no whole page", func(m export) { m.MemoryExport.LengthBytes = 100 }, fabric.FieldInvalid),
		bad("memory_export.length_bytes", "beyond", func(m export) { m.MemoryExport.LengthBytes = 12288 }, fabric.FieldInvalid),
		bad("memory_export.length_bytes", "overflow", func(m export) {
			m.MemoryExport.OffsetBytes, m.MemoryExport.LengthBytes = 4096, 1<<64-4096
		}, fabric.FieldInvalid),
		bad("memory_export.length_bytes", "D03 an odd buffer to its end", func(m export) { m.MemoryExport.Buffer = dev0 + "/buffers/free" }, fabric.FieldInvalid),
		bad("memory_export.ttl", "zero", func(m export) { m.MemoryExport.Ttl = durationpb.New(0) }, fabric.FieldInvalid),
		bad("memory_export.ttl", "negative", func(m export) { m.MemoryExport.Ttl = durationpb.New(-time.Second) }, fabric.FieldInvalid),
		bad("memory_export.ttl", "too long", func(m export) { m.MemoryExport.Ttl = durationpb.New(25 * time.Hour) }, fabric.FieldInvalid),
		bad("memory_export.ttl", "not a duration", func(m export) { m.MemoryExport.Ttl = &durationpb.Duration{Seconds: 1, Nanos: -1} }, fabric.FieldInvalid),
		bad("memory_export.fetchers", "nobody", fetchers(&pb.MemoryExport_Fetcher{}), fabric.FieldRequired, "memory_export.fetchers[0]"),
		bad("memory_export.fetchers", "too many", func(m export) { m.MemoryExport.Fetchers = make([]*pb.MemoryExport_Fetcher, 65) }, fabric.FieldInvalid),
		bad("memory_export.fetchers.uid", "of nobody", fetchers(&pb.MemoryExport_Fetcher{Who: &pb.MemoryExport_Fetcher_Uid{Uid: 1<<32 - 1}}),
			fabric.FieldInvalid, "memory_export.fetchers[0]"),
		bad("memory_export.fetchers.gid", "of nobody", fetchers(&pb.MemoryExport_Fetcher{Who: &pb.MemoryExport_Fetcher_Gid{Gid: 1<<32 - 1}}),
			fabric.FieldInvalid, "memory_export.fetchers[0]"),
		bad("memory_export.fetchers.session", "unknown", fetchers(&pb.MemoryExport_Fetcher{Who: &pb.MemoryExport_Fetcher_Session{Session: "nodes/n/sessions/nobody"}}),
			fabric.FieldInvalid, "memory_export.fetchers[0].session"),
		bad("memory_export.fetchers.session", "missing", fetchers(&pb.MemoryExport_Fetcher{Who: &pb.MemoryExport_Fetcher_Session{}}),
			fabric.FieldRequired, "memory_export.fetchers[0].session"),
		bad("filter", "unknown state", func(m *pb.ListMemoryExportsRequest) { m.Filter = "state=HELD" }, fabric.FieldInvalid),
		bad("name", "exported", func(m *pb.DeleteBufferRequest) { m.Name = x.export.Buffer }, fabric.InUse, "-"),

		bad("memory_region.import_source", "and a buffer", func(m region) {
			m.MemoryRegion.ImportSource = &pb.MemoryRegion_ImportSource{UploadId: x.upload()}
		}, fabric.FieldInvalid),
		bad("memory_region.offset_bytes", "of an import", func(m region) {
			m.MemoryRegion.Buffer, m.MemoryRegion.ImportSource = "", &pb.MemoryRegion_ImportSource{UploadId: x.upload()}
			m.MemoryRegion.OffsetBytes = 1
		}, fabric.FieldInvalid),
		from(".upload_id", "missing", func(s source) { s.UploadId = "" }, fabric.FieldRequired),
		from(".upload_id", "of nobody", func(s source) { s.UploadId = "00000000000000000000000000000000" }, fabric.NotFound),
		from(".offset_bytes", "D13 beyond the window", func(s source) { s.OffsetBytes = 8192 }, fabric.OutOfRange),
		from(".length_bytes", "D13 beyond the window", func(s source) { s.OffsetBytes, s.LengthBytes = 4096, 4097 }, fabric.OutOfRange),
		from(".length_bytes", "overflow", func(s source) { s.OffsetBytes, s.LengthBytes = 1, 1<<64-1 }, fabric.OutOfRange),
		from(".iova", "D08 another place in the page", func(s source) { s.Iova = 0x1000_0010 }, fabric.FieldInvalid),
		from(".iova", "overflow", func(s source) { s.Iova = 1<<64 - 4096 }, fabric.FieldInvalid),

		bad("exporter", "missing", func(m peer) { m.Exporter = "" }, fabric.FieldRequired),
		bad("exporter", "unknown", func(m peer) { m.Exporter = "nodes/n/devices/soft-9" }, fabric.NotFound),
		bad("importer", "missing", func(m peer) { m.Importer = "" }, fabric.FieldRequired),
		bad("importer", "not a name", func(m peer) { m.Importer = "soft-0" }, fabric.FieldInvalid),
		bad("importer", "unknown", func(m peer) { m.Importer = "nodes/n/devices/soft-9" }, fabric.NotFound),
	}
	return append(rows, badLabels("memory_export.labels", func(m export, l labels) { m.MemoryExport.Labels = l })...)
}
