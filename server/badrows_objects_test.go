package server

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

func sessionRows(x *fixture) []badRow {
	type create = *pb.CreateSessionRequest
	type update = *pb.UpdateSessionRequest
	type keep = *pb.KeepAliveSessionRequest
	mask := func(paths ...string) *fieldmaskpb.FieldMask { return &fieldmaskpb.FieldMask{Paths: paths} }
	rows := []badRow{
		bad("session", "missing", func(m create) { m.Session = nil }, fabric.FieldRequired),
		bad("session.partition", "not a name", func(m create) { m.Session.Partition = "default" }, fabric.FieldInvalid),
		bad("session.partition", "unknown", func(m create) { m.Session.Partition = "nodes/n/partitions/blue" }, fabric.NotFound),
		bad("session.devices", "not a name", func(m create) { m.Session.Devices = []string{"soft-0"} }, fabric.FieldInvalid, "session.devices[0]"),
		bad("session.devices", "unknown", func(m create) { m.Session.Devices = []string{dev0, "nodes/n/devices/soft-9"} }, fabric.NotFound, "session.devices[1]"),
		bad("session.devices", "twice", func(m create) { m.Session.Devices = []string{dev0, card0} }, fabric.FieldInvalid, "session.devices[1]"),
		bad("session.devices", "missing for exclusive", func(m create) { m.Session.Mode = pb.Session_MODE_EXCLUSIVE }, fabric.FieldRequired),
		bad("session.devices", "busy", func(m create) {
			m.Session.Mode, m.Session.Devices = pb.Session_MODE_EXCLUSIVE, []string{dev0}
		}, fabric.DeviceBusy),
		bad("session.mode", "unknown", func(m create) { m.Session.Mode = 9 }, fabric.FieldInvalid),
		bad("session.ttl", "zero", func(m create) { m.Session.Ttl = durationpb.New(0) }, fabric.FieldInvalid),
		bad("session.ttl", "too short", func(m create) { m.Session.Ttl = durationpb.New(time.Millisecond) }, fabric.FieldInvalid),
		bad("session.ttl", "too long", func(m create) { m.Session.Ttl = durationpb.New(25 * time.Hour) }, fabric.FieldInvalid),
		bad("session.ttl", "negative", func(m create) { m.Session.Ttl = durationpb.New(-time.Second) }, fabric.FieldInvalid),
		bad("session.drain_timeout", "negative", func(m create) { m.Session.DrainTimeout = durationpb.New(-time.Second) }, fabric.FieldInvalid),
		bad("session.drain_timeout", "too long", func(m create) { m.Session.DrainTimeout = durationpb.New(61 * time.Second) }, fabric.FieldInvalid),
		bad("session.ttl", "not a duration", func(m create) { m.Session.Ttl = &durationpb.Duration{Seconds: 1, Nanos: -1} }, fabric.FieldInvalid),

		bad("session", "missing", func(m update) { m.Session = nil }, fabric.FieldRequired),
		bad("session.name", "missing", func(m update) { m.Session.Name = "" }, fabric.FieldRequired),
		bad("session.name", "unknown", func(m update) { m.Session.Name = "nodes/n/sessions/nobody" }, fabric.NotFound),
		bad("session.etag", "of before", func(m update) { m.Session.Etag = "deadbeef-1" }, fabric.ETagMismatch),
		bad("session.ttl", "too long", func(m update) { m.Session.Ttl = durationpb.New(25 * time.Hour) }, fabric.FieldInvalid),
		bad("session.ttl", "zero", func(m update) { m.Session.Ttl = durationpb.New(0) }, fabric.FieldInvalid),
		bad("session.devices", "fixed", func(m update) { m.Session.Devices = []string{dev0} }, fabric.FieldInvalid),
		bad("session.mode", "fixed", func(m update) { m.Session.Mode = pb.Session_MODE_EXCLUSIVE }, fabric.FieldInvalid),
		bad("session.partition", "fixed", func(m update) { m.Session.Partition, m.UpdateMask = "nodes/n/partitions/blue", mask("partition") }, fabric.FieldInvalid),
		bad("update_mask", "unknown path", func(m update) { m.UpdateMask = mask("colour") }, fabric.FieldInvalid),
		bad("update_mask", "one label", func(m update) { m.UpdateMask = mask("labels.a") }, fabric.FieldInvalid),

		bad("session.process.pid", "negative", func(m create) { m.Session.Process = &pb.Session_Process{Pid: -1} }, fabric.FieldInvalid),
		bad("session.process.pid", "no such", func(m create) { m.Session.Process = &pb.Session_Process{Pid: 1<<31 - 1} }, fabric.FieldInvalid),
		bad("session.process.pid", "fixed", func(m update) { m.Session.Process, m.UpdateMask = &pb.Session_Process{Pid: 1}, mask("process") }, fabric.FieldInvalid, "session.process"),
		bad("session.drain_timeout", "fixed", func(m update) { m.Session.DrainTimeout, m.UpdateMask = durationpb.New(0), mask("drain_timeout") }, fabric.FieldInvalid),

		bad("generation", "newer", func(m keep) { m.Generation = 999999 }, fabric.GenerationStale),
		bad("generation", "newer", func(m *pb.KeepAliveSessionsRequest) { m.Generation = 999999 }, fabric.GenerationStale),
		bad("generation", "newer", func(m *pb.ResumeSessionRequest) { m.Generation = 999999 }, fabric.GenerationStale),
		bad("etag", "of before", func(m *pb.ResumeSessionRequest) { m.Etag = "deadbeef-1" }, fabric.ETagMismatch),
		bad("process.pid", "negative", func(m *pb.ResumeSessionRequest) { m.Process = &pb.Session_Process{Pid: -1} }, fabric.FieldInvalid),
		bad("reason", "missing", func(m *pb.ReleaseSessionRequest) { m.Reason = "" }, fabric.FieldRequired),
		bad("reason", "blank", func(m *pb.ReleaseSessionRequest) { m.Reason = " " }, fabric.FieldRequired),
		bad("reason", "two lines", func(m *pb.ReleaseSessionRequest) { m.Reason = "a\nb" }, fabric.FieldInvalid),
		bad("reason", "too long", func(m *pb.ReleaseSessionRequest) { m.Reason = strings.Repeat("x", 257) }, fabric.FieldInvalid),
		bad("etag", "of before", func(m *pb.ReleaseSessionRequest) { m.Etag = "deadbeef-1" }, fabric.ETagMismatch),
		bad("filter", "unknown mode", func(m *pb.ListSessionsRequest) { m.Filter = "mode = BOTH" }, fabric.FieldInvalid),
	}
	rows = append(rows, badLabels("session.labels", func(m create, l labels) { m.Session.Labels = l })...)
	return append(rows, badLabels("session.labels", func(m update, l labels) { m.Session.Labels = l })...)
}

func memoryRows(x *fixture) []badRow {
	type domain = *pb.CreateProtectionDomainRequest
	type buffer = *pb.CreateBufferRequest
	type region = *pb.CreateMemoryRegionRequest
	rows := []badRow{
		bad("protection_domain", "missing", func(m domain) { m.ProtectionDomain = nil }, fabric.FieldRequired),
		bad("protection_domain.session", "missing", func(m domain) { m.ProtectionDomain.Session = "" }, fabric.FieldRequired),
		bad("protection_domain.session", "not a name", func(m domain) { m.ProtectionDomain.Session = "s" }, fabric.FieldInvalid),
		bad("protection_domain.session", "unknown", func(m domain) { m.ProtectionDomain.Session = "nodes/n/sessions/nobody" }, fabric.NotFound),
		bad("name", "in use", func(m *pb.DeleteProtectionDomainRequest) { m.Name = x.pd.Name }, fabric.InUse, "-"),

		bad("buffer", "missing", func(m buffer) { m.Buffer = nil }, fabric.FieldRequired),
		bad("buffer.session", "missing", func(m buffer) { m.Buffer.Session = "" }, fabric.FieldRequired),
		bad("buffer.session", "unknown", func(m buffer) { m.Buffer.Session = "nodes/n/sessions/nobody" }, fabric.NotFound),
		bad("buffer.size_bytes", "missing", func(m buffer) { m.Buffer.SizeBytes = 0 }, fabric.FieldRequired),
		bad("buffer.size_bytes", "above the device", func(m buffer) { m.Buffer.SizeBytes = 1 << 50 }, fabric.Exhausted),
		bad("buffer.alignment_bytes", "no power of two", func(m buffer) { m.Buffer.AlignmentBytes = 3 }, fabric.FieldInvalid),
		bad("buffer.alignment_bytes", "too large", func(m buffer) { m.Buffer.AlignmentBytes = 1 << 31 }, fabric.FieldInvalid),
		bad("name", "in use", func(m *pb.DeleteBufferRequest) { m.Name = dev0 + "/buffers/s" }, fabric.InUse, "-"),

		bad("memory_region", "missing", func(m region) { m.MemoryRegion = nil }, fabric.FieldRequired),
		bad("memory_region.protection_domain", "missing", func(m region) { m.MemoryRegion.ProtectionDomain = "" }, fabric.FieldRequired),
		bad("memory_region.protection_domain", "not a name", func(m region) { m.MemoryRegion.ProtectionDomain = "x" }, fabric.FieldInvalid),
		bad("memory_region.protection_domain", "unknown", func(m region) { m.MemoryRegion.ProtectionDomain = dev0 + "/protectionDomains/none" }, fabric.NotFound),
		bad("memory_region.protection_domain", "on another device", func(m region) { m.MemoryRegion.ProtectionDomain = x.pd1.Name }, fabric.FieldInvalid),
		bad("memory_region.buffer", "missing", func(m region) { m.MemoryRegion.Buffer = "" }, fabric.FieldRequired),
		bad("memory_region.buffer", "unknown", func(m region) { m.MemoryRegion.Buffer = dev0 + "/buffers/none" }, fabric.NotFound),
		bad("memory_region.buffer", "of another session", func(m region) { m.MemoryRegion.Buffer = x.otherBuffer.Name }, fabric.FieldInvalid),
		bad("memory_region.offset_bytes", "beyond", func(m region) { m.MemoryRegion.OffsetBytes = 8192 }, fabric.FieldInvalid),
		bad("memory_region.length_bytes", "beyond", func(m region) { m.MemoryRegion.LengthBytes = 8193 }, fabric.FieldInvalid),
		bad("memory_region.length_bytes", "overflow", func(m region) { m.MemoryRegion.OffsetBytes, m.MemoryRegion.LengthBytes = 1, 1<<64-1 }, fabric.FieldInvalid),
		bad("memory_region.access", "unspecified", func(m region) { m.MemoryRegion.Access = []pb.MemoryRegion_Access{0} }, fabric.FieldInvalid, "memory_region.access[0]"),
		bad("memory_region.access", "unknown", func(m region) { m.MemoryRegion.Access = []pb.MemoryRegion_Access{99} }, fabric.FieldInvalid, "memory_region.access[0]"),
		bad("memory_region.access", "twice", func(m region) { m.MemoryRegion.Access = []pb.MemoryRegion_Access{1, 1} }, fabric.FieldInvalid, "memory_region.access[1]"),
		bad("memory_region.access", "remote write alone", func(m region) {
			m.MemoryRegion.Access = []pb.MemoryRegion_Access{pb.MemoryRegion_ACCESS_REMOTE_WRITE}
		}, fabric.FieldInvalid),
	}
	rows = append(rows, badLabels("protection_domain.labels", func(m domain, l labels) { m.ProtectionDomain.Labels = l })...)
	rows = append(rows, badLabels("buffer.labels", func(m buffer, l labels) { m.Buffer.Labels = l })...)
	return append(rows, badLabels("memory_region.labels", func(m region, l labels) { m.MemoryRegion.Labels = l })...)
}

func transferRows(x *fixture) []badRow {
	type post = *pb.PostWorkRequest
	type poll = *pb.PollCompletionsRequest
	one := func(field, what string, w *pb.WorkRequest, reason fabric.Reason, at string) badRow {
		return bad("requests"+field, what, func(m post) { m.Requests = []*pb.WorkRequest{w} }, reason, "requests[0]"+at)
	}
	const send, recv, read, write = pb.WorkRequest_OPCODE_SEND, pb.WorkRequest_OPCODE_RECV, pb.WorkRequest_OPCODE_RDMA_READ, pb.WorkRequest_OPCODE_RDMA_WRITE
	sges := func(n int) []*pb.WorkRequest_Sge {
		out := make([]*pb.WorkRequest_Sge, n)
		for i := range out {
			out[i] = &pb.WorkRequest_Sge{Lkey: 1}
		}
		return out
	}
	to := func(d *pb.WorkRequest_Destination) *pb.WorkRequest {
		return &pb.WorkRequest{Opcode: send, Destination: d}
	}
	// on is of a queue pair of another type.
	on := func(q *pb.QueuePair, field, what string, w *pb.WorkRequest, reason fabric.Reason, at string) badRow {
		return bad("requests"+field, what, func(m post) { m.Name, m.Requests = q.Name, []*pb.WorkRequest{w} }, reason, "requests[0]"+at)
	}
	return []badRow{
		bad("requests", "missing", func(m post) { m.Requests = nil }, fabric.FieldInvalid),
		bad("requests", "too many", func(m post) {
			for len(m.Requests) <= 1024 {
				m.Requests = append(m.Requests, m.Requests[0])
			}
		}, fabric.FieldInvalid),
		one(".opcode", "missing", &pb.WorkRequest{}, fabric.FieldRequired, ".opcode"),
		one(".opcode", "unknown", &pb.WorkRequest{Opcode: 99}, fabric.FieldInvalid, ".opcode"),
		on(x.uc, ".opcode", "of RC", &pb.WorkRequest{Opcode: read}, fabric.FieldInvalid, ".opcode"),
		on(x.uc, ".opcode", "atomic", &pb.WorkRequest{Opcode: pb.WorkRequest_OPCODE_FETCH_ADD}, fabric.FieldInvalid, ".opcode"),
		on(x.ud, ".opcode", "RDMA", &pb.WorkRequest{Opcode: write}, fabric.FieldInvalid, ".opcode"),
		one(".sges", "too many", &pb.WorkRequest{Opcode: recv, Sges: sges(20)}, fabric.FieldInvalid, ".sges"),
		one(".sges.lkey", "missing", &pb.WorkRequest{Opcode: recv, Sges: []*pb.WorkRequest_Sge{{}}}, fabric.FieldRequired, ".sges[0].lkey"),
		bad("requests.sges.length_bytes", "too long", func(m post) {
			m.Name = x.connected.Name
			m.Requests = []*pb.WorkRequest{{Opcode: write, Sges: []*pb.WorkRequest_Sge{{Lkey: 1, LengthBytes: 1<<32 - 1}}}}
		}, fabric.FieldInvalid, "requests[0].sges"),
		one(".remote_address", "of a send", &pb.WorkRequest{Opcode: send, RemoteAddress: 1}, fabric.FieldInvalid, ".remote_address"),
		one(".rkey", "of a receive", &pb.WorkRequest{Opcode: recv, Rkey: 1}, fabric.FieldInvalid, ".rkey"),
		one(".imm_data", "of a read", &pb.WorkRequest{Opcode: read, ImmData: 1}, fabric.FieldInvalid, ".imm_data"),
		one(".compare_add", "of a write", &pb.WorkRequest{Opcode: write, CompareAdd: 1}, fabric.FieldInvalid, ".compare_add"),
		one(".swap", "of an addition", &pb.WorkRequest{Opcode: pb.WorkRequest_OPCODE_FETCH_ADD, Swap: 1}, fabric.FieldInvalid, ".swap"),
		one(".solicited", "of a read", &pb.WorkRequest{Opcode: read, Solicited: true}, fabric.FieldInvalid, ".solicited"),
		one(".destination", "of a write", &pb.WorkRequest{Opcode: write, Destination: &pb.WorkRequest_Destination{Gid: "::1", Qpn: 2}}, fabric.FieldInvalid, ".destination"),
		one(".destination", "of RC", to(&pb.WorkRequest_Destination{Gid: "::1", Qpn: 2}), fabric.FieldInvalid, ".destination"),
		on(x.uc, ".destination", "of UC", to(&pb.WorkRequest_Destination{Gid: "::1", Qpn: 2}), fabric.FieldInvalid, ".destination"),
		on(x.ud, ".destination", "missing", to(nil), fabric.FieldRequired, ".destination"),
		on(x.ud, ".destination", "of a receive", &pb.WorkRequest{Opcode: recv, Destination: &pb.WorkRequest_Destination{Gid: "::1", Qpn: 2}}, fabric.FieldInvalid, ".destination"),
		on(x.ud, ".destination.gid", "no cable leads there", to(&pb.WorkRequest_Destination{Gid: "::ffff:192.0.2.1", Qpn: 2}), fabric.FieldInvalid, ".destination.gid"),
		on(x.ud, ".destination.qpn", "missing", to(&pb.WorkRequest_Destination{Gid: x.far.Gids[len(x.far.Gids)-1].Gid}), fabric.FieldInvalid, ".destination.qpn"),
		one(".destination.gid", "missing", to(&pb.WorkRequest_Destination{Qpn: 2}), fabric.FieldRequired, ".destination.gid"),
		one(".destination.gid", "not a GID", to(&pb.WorkRequest_Destination{Gid: "10.0.0.1", Qpn: 2}), fabric.FieldInvalid, ".destination.gid"),
		one(".destination.qpn", "too large", to(&pb.WorkRequest_Destination{Gid: "::1", Qpn: 1 << 24}), fabric.FieldInvalid, ".destination.qpn"),
		one(".destination.qpn", "multicast", to(&pb.WorkRequest_Destination{Gid: "::1", Qpn: 0xffffff}), fabric.FieldInvalid, ".destination.qpn"),

		bad("max_completions", "too many", func(m poll) { m.MaxCompletions = 1025 }, fabric.FieldInvalid),
		bad("wait", "too long", func(m poll) { m.Wait = durationpb.New(61 * time.Second) }, fabric.FieldInvalid),
		bad("wait", "negative", func(m poll) { m.Wait = durationpb.New(-1) }, fabric.FieldInvalid),
		bad("wait", "not a duration", func(m poll) { m.Wait = &durationpb.Duration{Nanos: 2e9} }, fabric.FieldInvalid),

		bad("offset_bytes", "beyond", func(m *pb.WriteBufferRequest) { m.OffsetBytes = 8192 }, fabric.FieldInvalid),
		bad("data", "missing", func(m *pb.WriteBufferRequest) { m.Data = nil }, fabric.FieldRequired),
		bad("data", "too long", func(m *pb.WriteBufferRequest) { m.Data = make([]byte, 1<<20+1) }, fabric.FieldInvalid),
		bad("data", "beyond the end", func(m *pb.WriteBufferRequest) { m.OffsetBytes, m.Data = 8000, make([]byte, 193) }, fabric.FieldInvalid),
		bad("offset_bytes", "beyond", func(m *pb.ReadBufferRequest) { m.OffsetBytes = 1 << 63 }, fabric.FieldInvalid),
		bad("length_bytes", "too long", func(m *pb.ReadBufferRequest) { m.LengthBytes = 1<<20 + 1 }, fabric.FieldInvalid),
		bad("length_bytes", "beyond the end", func(m *pb.ReadBufferRequest) { m.LengthBytes = 8193 }, fabric.FieldInvalid),
		bad("filter", "unknown type", func(m *pb.ListEventsRequest) { m.Filter = "type = NEW" }, fabric.FieldInvalid),
	}
}
