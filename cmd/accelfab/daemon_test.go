package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/accelfab/accelfab/client/clienttest"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// Times are printed in the user's zone.
func init() { time.Local = time.UTC }

// What the daemon of these tests has.
var (
	then = timestamppb.New(time.Date(2026, 12, 1, 9, 30, 15, 250e6, time.UTC))

	aNode = &pb.Node{
		Name: "nodes/n1", State: pb.Node_STATE_DEGRADED, Reason: "DEVICE_UNAVAILABLE", DeviceCount: 8, Version: "v1.4.0", InstanceId: "i-1", StartTime: then,
		Health: &pb.Health{Status: pb.Health_STATUS_DEGRADED, Problems: []*pb.Health_Problem{
			{Resource: "nodes/n1/devices/soft-1", Component: "devices/soft-1", Reason: "DEVICE_UNAVAILABLE", Message: "it does not answer", StartTime: then},
		}, Components: []*pb.Health_Component{
			{Name: "devices/soft-1", Resource: "nodes/n1/devices/soft-1", Status: pb.Health_STATUS_FAILED, Reason: "DEVICE_UNAVAILABLE", Message: "it does not answer", StartTime: then},
			{Name: "store", Resource: "nodes/n1", Status: pb.Health_STATUS_OK, StartTime: then},
		}},
	}
	aDevice = &pb.Device{
		Name: "nodes/n1/devices/soft-0", State: pb.Device_STATE_READY, Driver: "soft", Model: "HL-225", ModuleId: 3, MemoryBytes: 1 << 30, MemoryFreeBytes: 1<<30 - 4096,
		PortCount: 24, Holders: []*pb.Device_Holder{{Session: "nodes/n1/sessions/job1"}, {Session: "nodes/n1/sessions/job2"}},
	}
	aPort = &pb.Port{
		Name: "nodes/n1/devices/soft-0/ports/8", Class: pb.Port_CLASS_SCALE_OUT, AdminState: pb.Port_ADMIN_STATE_ENABLED, State: pb.Port_STATE_ACTIVE, SpeedMbps: 100000,
		ActiveMtuBytes: 4096, Peer: &pb.Port_Peer{Port: "nodes/n1/devices/soft-3/ports/2"}, Gids: []*pb.Port_Gid{
			{Index: 0, Gid: "fe80::1", Type: pb.GidType_GID_TYPE_ROCE_V2}, {Index: 1, Gid: "::ffff:127.64.0.9", Type: pb.GidType_GID_TYPE_ROCE_V2},
			{Index: 3, Gid: "2001:db8::9", Type: pb.GidType_GID_TYPE_ROCE_V2}},
		ReceiveBufferBytes: 212992, ReceiveBufferAskedBytes: 4 << 20, Counters: &pb.Port_Counters{XmitPackets: 12, Truncated: 1 << 60},
	}
	aSession = &pb.Session{
		Name: "nodes/n1/sessions/job1", State: pb.Session_STATE_ACTIVE, Owner: &pb.Session_Owner{Identity: "uid:1000"}, Mode: pb.Session_MODE_EXCLUSIVE, Generation: 1 << 60,
		Devices: []string{"nodes/n1/devices/soft-0", "nodes/n1/devices/soft-3"}, Ttl: durationpb.New(time.Hour), Labels: map[string]string{"job": "4711", "on": "yes"},
		Usage: &pb.Session_Usage{ProtectionDomains: 1, Buffers: 2, MemoryRegions: 3, QueuePairs: 4, BufferBytes: 1<<53 + 1},
	}
	aPD = &pb.ProtectionDomain{
		Name: "nodes/n1/devices/soft-0/protectionDomains/pd1", State: pb.ProtectionDomain_STATE_READY, Session: "nodes/n1/sessions/job1",
		MemoryRegionCount: 2, QueuePairCount: 3, Labels: map[string]string{"job": "4711"},
	}
	aBuffer = &pb.Buffer{
		Name: "nodes/n1/devices/soft-0/buffers/b1", State: pb.Buffer_STATE_LOST, Reason: "LOST", Session: "nodes/n1/sessions/job1", SizeBytes: 64 << 20,
		DeviceAddress: 0x2000, MemoryRegionCount: 1,
	}
	aRegion = &pb.MemoryRegion{
		Name: "nodes/n1/devices/soft-0/memoryRegions/mr1", State: pb.MemoryRegion_STATE_READY, ProtectionDomain: "nodes/n1/devices/soft-0/protectionDomains/pd1",
		Buffer: "nodes/n1/devices/soft-0/buffers/b1", OffsetBytes: 4096, LengthBytes: 1 << 16, Iova: 0x1000, Lkey: 0xabcd, Rkey: 0xdcba,
		Access: []pb.MemoryRegion_Access{pb.MemoryRegion_ACCESS_LOCAL_WRITE, pb.MemoryRegion_ACCESS_REMOTE_READ},
	}
	aQueuePair = &pb.QueuePair{
		Name: "nodes/n1/devices/soft-0/queuePairs/q1", State: pb.QueuePair_STATE_ERR, Type: pb.QueuePair_TYPE_RC, Port: "nodes/n1/devices/soft-0/ports/8",
		ProtectionDomain: "nodes/n1/devices/soft-0/protectionDomains/pd1", LocalEndpoint: &pb.QueuePair_Endpoint{Gid: "::ffff:127.64.0.9", GidIndex: 1, Qpn: 0x11, Psn: 5},
		Attributes: &pb.QueuePair_Attributes{PathMtuBytes: proto.Uint32(4096), HopLimit: proto.Uint32(64), Qkey: proto.Uint32(0x11111111),
			Access: []pb.MemoryRegion_Access{pb.MemoryRegion_ACCESS_REMOTE_WRITE}},
		Session: "nodes/n1/sessions/job1", Capacities: &pb.QueuePair_Capacities{SendWr: 128, RecvWr: 64, Sge: 1},
		Error: &pb.QueuePair_Error{Message: "the peer is gone"},
	}
	aCompletion = &pb.Completion{Sequence: 7, WrId: 1, Opcode: pb.Completion_OPCODE_RDMA_WRITE, Status: pb.CompletionStatus_COMPLETION_STATUS_SUCCESS}
	anEvent     = &pb.Event{
		Name: "nodes/n1/events/41", Cursor: 41, CreateTime: then, Type: pb.Event_TYPE_CHANGED, Resource: "nodes/n1/devices/soft-0/queuePairs/q1", Actor: "uid:1000",
		Before: "RTS", After: "ERR", Reason: "DEVICE", Message: "retries exhausted",
	}
	aTopology = &pb.Topology{
		Name: "nodes/n1/topology", PortMap: "hls-2",
		Cards: []*pb.Topology_Card{
			{Device: "nodes/n1/devices/soft-0", Ports: []*pb.Topology_Link{{Number: 8, Class: pb.Port_CLASS_SCALE_OUT}, {Number: 9, Class: pb.Port_CLASS_INTERNAL}, {Number: 22, Class: pb.Port_CLASS_SCALE_OUT}}},
			{Device: "nodes/n1/devices/soft-1", Ports: []*pb.Topology_Link{{Number: 8, Class: pb.Port_CLASS_SCALE_OUT}}},
			{Device: "nodes/n1/devices/soft-2"},
		},
		Pairs: []*pb.Topology_Pair{
			{DeviceA: "nodes/n1/devices/soft-0", DeviceB: "nodes/n1/devices/soft-1", Lanes: 3, ActiveLanes: 3},
			{DeviceA: "nodes/n1/devices/soft-1", DeviceB: "nodes/n1/devices/soft-2", Lanes: 3, ActiveLanes: 2},
		},
		Islands: []*pb.Topology_Island{{Devices: []string{"nodes/n1/devices/soft-0", "nodes/n1/devices/soft-1", "nodes/n1/devices/soft-2"}}},
	}
	aPick = &pb.PickDevicesResponse{
		Devices: []string{"nodes/n1/devices/soft-0", "nodes/n1/devices/soft-1"}, Reason: "2 cards of island 0, every pair 3 lanes, 3 lanes in all", MinLanes: 3, Lanes: 3,
		Excluded: []*pb.PickDevicesResponse_Excluded{{Device: "nodes/n1/devices/soft-2", Reason: "DEVICE_BUSY", Message: "held shared by nodes/n1/sessions/job1"}},
	}
)

var replies = map[string]proto.Message{
	"GetNode": aNode, "GetTopology": aTopology, "PickDevices": aPick, "GetDevice": aDevice, "GetPort": aPort, "UpdatePort": aPort,
	"CreateSession": aSession, "GetSession": aSession, "KeepAliveSession": aSession, "ResumeSession": aSession, "ReleaseSession": &emptypb.Empty{},
	"CreateProtectionDomain": aPD, "GetProtectionDomain": aPD, "CreateBuffer": aBuffer, "GetBuffer": aBuffer,
	"CreateMemoryRegion": aRegion, "GetMemoryRegion": aRegion, "CreateQueuePair": aQueuePair, "GetQueuePair": aQueuePair,
	"ConnectQueuePair": aQueuePair, "ModifyQueuePair": aQueuePair,
	"BatchCreateQueuePairs": &pb.BatchCreateQueuePairsResponse{QueuePairs: []*pb.QueuePair{aQueuePair, aQueuePair}},
	"ListDevices":           &pb.ListDevicesResponse{Devices: []*pb.Device{aDevice}},
	"ListPorts":             &pb.ListPortsResponse{Ports: []*pb.Port{aPort}},
	"ListSessions":          &pb.ListSessionsResponse{Sessions: []*pb.Session{aSession}},
	"ListProtectionDomains": &pb.ListProtectionDomainsResponse{ProtectionDomains: []*pb.ProtectionDomain{aPD}},
	"ListBuffers":           &pb.ListBuffersResponse{Buffers: []*pb.Buffer{aBuffer}},
	"ListMemoryRegions":     &pb.ListMemoryRegionsResponse{MemoryRegions: []*pb.MemoryRegion{aRegion}},
	"ListQueuePairs":        &pb.ListQueuePairsResponse{QueuePairs: []*pb.QueuePair{aQueuePair}},
	"ListEvents":            &pb.ListEventsResponse{Events: []*pb.Event{anEvent}},
	"DeleteSession":         &emptypb.Empty{}, "DeleteProtectionDomain": &emptypb.Empty{}, "DeleteBuffer": &emptypb.Empty{},
	"DeleteMemoryRegion": &emptypb.Empty{}, "DeleteQueuePair": &emptypb.Empty{},
	"PostWork": &pb.PostWorkResponse{Posted: 1}, "WriteBuffer": &pb.WriteBufferResponse{},
}

// recorder is a daemon that has what is above.
type recorder struct {
	clienttest.Daemon
	target  string
	watches []*pb.WatchEventsRequest
}

// newRecorder starts one; answer, if not nil, comes before what is above where
// it gives a reply or an error.
func newRecorder(t *testing.T, answer func(method string, req proto.Message) (proto.Message, error)) *recorder {
	t.Helper()
	r := &recorder{}
	r.Answer = func(_ context.Context, method string, req proto.Message) (proto.Message, error) {
		if answer != nil {
			if reply, err := answer(method, req); reply != nil || err != nil {
				return reply, err
			}
		}
		switch m := req.(type) {
		case *pb.PollCompletionsRequest:
			if m.GetAfter() == 0 && m.GetWait() == nil {
				return &pb.PollCompletionsResponse{}, nil // nothing from before
			}
			return &pb.PollCompletionsResponse{Completions: []*pb.Completion{aCompletion}}, nil
		case *pb.ReadBufferRequest:
			return &pb.ReadBufferResponse{Data: bytes.Repeat([]byte{'x'}, int(m.GetLengthBytes()))}, nil
		}
		if reply := replies[method]; reply != nil {
			return reply, nil
		}
		return nil, status.Errorf(codes.Unimplemented, "%s is not of this test", method)
	}
	r.Watch = func(req *pb.WatchEventsRequest, s grpc.ServerStreamingServer[pb.WatchEventsResponse]) error {
		r.watches = append(r.watches, req)
		for _, m := range []*pb.WatchEventsResponse{
			{Message: &pb.WatchEventsResponse_Gap{Gap: &pb.Gap{After: 4, Oldest: 40}}},
			{Message: &pb.WatchEventsResponse_Event{Event: anEvent}},
		} {
			if err := s.Send(m); err != nil {
				return err
			}
		}
		return errEnough
	}
	r.target = r.Start(t)
	return r
}

// errEnough ends a watch.
var errEnough = clienttest.Refusal{Code: codes.Internal, Reason: pb.ErrorReason_ERROR_REASON_INTERNAL, Message: "that is all"}.Err()

// result is what a command line came to.
type result struct {
	status         int
	stdout, stderr string
}

// runWith runs a command line without a daemon, or with the one it names.
func runWith(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	status := run(t.Context(), args, strings.NewReader(stdin), &out, &errs)
	return result{status, out.String(), errs.String()}
}

func (r *recorder) run(t *testing.T, args ...string) result {
	t.Helper()
	return runWith(t, "from the standard input", append([]string{"--server", r.target}, args...)...)
}
