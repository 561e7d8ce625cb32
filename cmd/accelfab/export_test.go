package main

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

var (
	export1 = device0 + "/memoryExports/e1"

	anExport = &pb.MemoryExport{
		Name: "nodes/n1/devices/soft-0/memoryExports/e1", State: pb.MemoryExport_STATE_REVOKED, Reason: "EXPORT_REVOKED",
		Buffer: "nodes/n1/devices/soft-0/buffers/b1", OffsetBytes: 4096, LengthBytes: 1 << 16, FetchCount: 2, OpenDescriptorCount: 1, Mappable: true,
		Segments: []*pb.MemoryExport_Segment{{DeviceAddress: 0x1000, BusAddress: 0x4000001000, LengthBytes: 1 << 16}},
		Attachments: []*pb.MemoryExport_Attachment{{Device: "nodes/n1/devices/soft-1", MemoryRegion: "nodes/n1/devices/soft-1/memoryRegions/i1",
			Dynamic: true, LengthBytes: 4096, SinceTime: then}},
	}
	aPeerAccess = &pb.PeerAccess{Exporter: "nodes/n1/devices/soft-0", Importer: "nodes/n1/devices/soft-1", Obstacle: "root port 00:01.0"}
)

const (
	exportTable = `
EXPORT     STATE                     BUFFER     OFFSET  LENGTH  FETCHED  OPEN  ATTACHED  ORPHAN
soft-0/e1  REVOKED (EXPORT_REVOKED)  soft-0/b1  4KiB    64KiB   2        1     1         -
`
	exportAbout = `
DEVICE ADDRESS  BUS ADDRESS   LENGTH
0x1000          0x4000001000  64KiB

IMPORTER  MR         OFFSET  LENGTH  DYNAMIC  SINCE
soft-1    soft-1/i1  0       4KiB    true     2026-12-01 09:30:15

mappable: its holders may map the memory, and it cannot be revoked
`
)

func init() {
	for method, reply := range map[string]proto.Message{"CreateMemoryExport": anExport, "GetMemoryExport": anExport, "RevokeMemoryExport": anExport,
		"ListMemoryExports": &pb.ListMemoryExportsResponse{MemoryExports: []*pb.MemoryExport{anExport}}, "DeleteMemoryExport": &emptypb.Empty{},
		"CheckPeerAccess": aPeerAccess, "MoveBuffer": aBuffer, "ResetDevice": aDevice} {
		replies[method] = reply
	}
	type row = struct {
		line   string
		asks   []proto.Message
		prints string
		status int
	}
	commandTests = append(commandTests,
		row{line: "export create soft-0 --buffer soft-0/b1 --offset 4KiB --length 64KiB --ttl 10m --fetcher uid:7 --fetcher gid:8 --fetcher session:job1" + creates,
			asks: []proto.Message{&pb.CreateMemoryExportRequest{Parent: device0, MemoryExportId: "x1", RequestId: "r1", ValidateOnly: true, MemoryExport: &pb.MemoryExport{
				Labels: labels, Buffer: device0 + "/buffers/b1", OffsetBytes: 4096, LengthBytes: 1 << 16, Ttl: durationpb.New(10 * time.Minute),
				Fetchers: []*pb.MemoryExport_Fetcher{{Who: &pb.MemoryExport_Fetcher_Uid{Uid: 7}}, {Who: &pb.MemoryExport_Fetcher_Gid{Gid: 8}},
					{Who: &pb.MemoryExport_Fetcher_Session{Session: job1}}}}}}, prints: exportTable},
		row{line: "export create soft-0 --buffer soft-0/b1 --ttl 0s" + creates, asks: []proto.Message{&pb.CreateMemoryExportRequest{Parent: device0, MemoryExportId: "x1", RequestId: "r1", ValidateOnly: true,
			MemoryExport: &pb.MemoryExport{Labels: labels, Buffer: device0 + "/buffers/b1", Ttl: durationpb.New(0)}}}, prints: exportTable}, // which the daemon refuses
		row{line: "export list", asks: []proto.Message{&pb.ListMemoryExportsRequest{Parent: "nodes/local/devices/-", PageSize: 1000}}, prints: exportTable},
		row{line: "export get soft-0/e1", asks: []proto.Message{&pb.GetMemoryExportRequest{Name: export1}}, prints: exportTable + exportAbout},
		row{line: "export revoke soft-0/e1 --etag x --validate-only", asks: []proto.Message{&pb.RevokeMemoryExportRequest{Name: export1, Etag: "x", ValidateOnly: true}}, prints: exportTable},
		row{line: "export delete soft-0/e1", asks: []proto.Message{&pb.DeleteMemoryExportRequest{Name: export1}}, prints: "\nexport soft-0/e1: deleted\n"},
		// The node of these tests has no descriptor socket.
		row{line: "export fetch soft-0/e1 -- true", asks: []proto.Message{&pb.GetNodeRequest{Name: "nodes/local"}}, status: 1},
		row{line: "mr create soft-0 --pd soft-0/pd1 --import-export soft-0/e1", asks: []proto.Message{&pb.GetNodeRequest{Name: "nodes/local"}}, status: 1},
		row{line: "topo peer-access soft-0 soft-1", asks: []proto.Message{&pb.CheckPeerAccessRequest{Name: "nodes/local", Exporter: device0, Importer: "nodes/local/devices/soft-1"}}, prints: `
EXPORTER  IMPORTER  REACHABLE  BY  OBSTACLE
soft-0    soft-1    false      -   root port 00:01.0
`},
		row{line: "buffer move soft-0/b1 --etag x --validate-only", asks: []proto.Message{&pb.MoveBufferRequest{Name: device0 + "/buffers/b1", Etag: "x", ValidateOnly: true}}, prints: bufferTable},
		row{line: "device reset soft-0 --etag x --validate-only", asks: []proto.Message{&pb.ResetDeviceRequest{Name: device0, Etag: "x", ValidateOnly: true}}, prints: deviceTable},
	)
}
