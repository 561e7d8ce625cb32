package server

import (
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// badAttributes are rows of a field of attributes; set puts them into a
// request.
func badAttributes[M proto.Message](field string, set func(M, *pb.QueuePair_Attributes), at string) []badRow {
	type attributes = *pb.QueuePair_Attributes
	n := proto.Uint32
	var rows []badRow
	for _, r := range []struct {
		field, what string
		value       attributes
		at          string
	}{
		{"path_mtu_bytes", "zero", &pb.QueuePair_Attributes{PathMtuBytes: n(0)}, ""},
		{"path_mtu_bytes", "no MTU", &pb.QueuePair_Attributes{PathMtuBytes: n(1500)}, ""},
		{"timeout", "too large", &pb.QueuePair_Attributes{Timeout: n(32)}, ""},
		{"retry_count", "too large", &pb.QueuePair_Attributes{RetryCount: n(8)}, ""},
		{"rnr_retry", "too large", &pb.QueuePair_Attributes{RnrRetry: n(8)}, ""},
		{"min_rnr_timer", "too large", &pb.QueuePair_Attributes{MinRnrTimer: n(32)}, ""},
		{"max_rd_atomic", "above the device", &pb.QueuePair_Attributes{MaxRdAtomic: n(1000)}, ""},
		{"max_dest_rd_atomic", "above the device", &pb.QueuePair_Attributes{MaxDestRdAtomic: n(1<<32 - 1)}, ""},
		{"traffic_class", "too large", &pb.QueuePair_Attributes{TrafficClass: n(256)}, ""},
		{"hop_limit", "zero", &pb.QueuePair_Attributes{HopLimit: n(0)}, ""},
		{"hop_limit", "too large", &pb.QueuePair_Attributes{HopLimit: n(256)}, ""},
		{"gid_index", "not in the table", &pb.QueuePair_Attributes{GidIndex: n(200)}, ""},
		{"psn", "too large", &pb.QueuePair_Attributes{Psn: n(1 << 24)}, ""},
		{"qkey", "of RC", &pb.QueuePair_Attributes{Qkey: n(1)}, ""},
		{"access", "unspecified", &pb.QueuePair_Attributes{Access: []pb.MemoryRegion_Access{0}}, "access[0]"},
		{"access", "local", &pb.QueuePair_Attributes{Access: []pb.MemoryRegion_Access{pb.MemoryRegion_ACCESS_LOCAL_WRITE}}, "access"},
		{"access", "twice", &pb.QueuePair_Attributes{Access: []pb.MemoryRegion_Access{3, 3}}, "access[1]"},
	} {
		where := at + "." + r.field
		if r.at != "" {
			where = at + "." + r.at
		}
		rows = append(rows, bad(field+"."+r.field, r.what, func(m M) { set(m, r.value) }, fabric.FieldInvalid, where))
	}
	return rows
}

// rcAttributes are right for RC, and no other type has them.
var rcAttributes = map[string]*pb.QueuePair_Attributes{
	"timeout":            {Timeout: proto.Uint32(14)},
	"retry_count":        {RetryCount: proto.Uint32(7)},
	"rnr_retry":          {RnrRetry: proto.Uint32(7)},
	"min_rnr_timer":      {MinRnrTimer: proto.Uint32(12)},
	"max_rd_atomic":      {MaxRdAtomic: proto.Uint32(1)},
	"max_dest_rd_atomic": {MaxDestRdAtomic: proto.Uint32(1)},
}

// badEndpoint are rows of a remote endpoint.
func badEndpoint[M proto.Message](field string, get func(M) *pb.QueuePair_Endpoint, at string) []badRow {
	row := func(sub, what string, change func(*pb.QueuePair_Endpoint), reason fabric.Reason) badRow {
		return bad(field+"."+sub, what, func(m M) { change(get(m)) }, reason, at+"."+sub)
	}
	oldRoCE := row("gid_type", "RoCE v1", func(e *pb.QueuePair_Endpoint) { e.GidType = pb.GidType_GID_TYPE_ROCE_V1 }, fabric.GIDFamilyMismatch)
	oldRoCE.at = at + ".gid"
	return []badRow{
		oldRoCE,
		row("gid", "missing", func(e *pb.QueuePair_Endpoint) { e.Gid = "" }, fabric.FieldRequired),
		row("gid", "not a GID", func(e *pb.QueuePair_Endpoint) { e.Gid = "127.0.0.1" }, fabric.FieldInvalid),
		row("gid", "no cable leads there", func(e *pb.QueuePair_Endpoint) { e.Gid = "::ffff:192.0.2.1" }, fabric.PathNotCabled),
		row("qpn", "missing", func(e *pb.QueuePair_Endpoint) { e.Qpn = 0 }, fabric.FieldInvalid),
		row("qpn", "of management", func(e *pb.QueuePair_Endpoint) { e.Qpn = 1 }, fabric.FieldInvalid),
		row("qpn", "too large", func(e *pb.QueuePair_Endpoint) { e.Qpn = 1 << 24 }, fabric.FieldInvalid),
		row("psn", "too large", func(e *pb.QueuePair_Endpoint) { e.Psn = 1 << 24 }, fabric.FieldInvalid),
		row("gid_type", "unknown", func(e *pb.QueuePair_Endpoint) { e.GidType = 9 }, fabric.FieldInvalid),
		row("pkey", "too large", func(e *pb.QueuePair_Endpoint) { e.Pkey = 1 << 16 }, fabric.FieldInvalid),
		row("pkey", "of another partition", func(e *pb.QueuePair_Endpoint) { e.Pkey = 0x8001 }, fabric.PKeyMismatch),
		row("active_mtu_bytes", "no MTU", func(e *pb.QueuePair_Endpoint) { e.ActiveMtuBytes = 1500 }, fabric.FieldInvalid),
		row("port", "not a name", func(e *pb.QueuePair_Endpoint) { e.Port = "port 1" }, fabric.FieldInvalid),
	}
}

// badQueuePair are rows of a queue pair that is asked for.
func badQueuePair[M proto.Message](x *fixture, field string, get func(M) *pb.QueuePair, at string) []badRow {
	row := func(sub, what string, change func(*pb.QueuePair), reason fabric.Reason) badRow {
		return bad(field+"."+sub, what, func(m M) { change(get(m)) }, reason, at+"."+sub)
	}
	connect := func(q *pb.QueuePair) *pb.QueuePair_Endpoint {
		q.TargetState, q.RemoteEndpoint = pb.QueuePair_STATE_RTS, proto.Clone(x.peer.LocalEndpoint).(*pb.QueuePair_Endpoint)
		return q.RemoteEndpoint
	}
	rows := []badRow{
		row("protection_domain", "missing", func(q *pb.QueuePair) { q.ProtectionDomain = "" }, fabric.FieldRequired),
		row("protection_domain", "not a name", func(q *pb.QueuePair) { q.ProtectionDomain = "p" }, fabric.FieldInvalid),
		row("protection_domain", "unknown", func(q *pb.QueuePair) { q.ProtectionDomain = dev0 + "/protectionDomains/none" }, fabric.NotFound),
		row("protection_domain", "on another device", func(q *pb.QueuePair) { q.ProtectionDomain = x.pd1.Name }, fabric.FieldInvalid),
		row("port", "missing", func(q *pb.QueuePair) { q.Port = "" }, fabric.FieldRequired),
		row("port", "not a name", func(q *pb.QueuePair) { q.Port = "1" }, fabric.FieldInvalid),
		row("port", "of another device", func(q *pb.QueuePair) { q.Port = x.far.Name }, fabric.FieldInvalid),
		row("port", "not there", func(q *pb.QueuePair) { q.Port = dev0 + "/ports/99" }, fabric.FieldInvalid),
		row("type", "missing", func(q *pb.QueuePair) { q.Type = 0 }, fabric.FieldRequired),
		row("type", "unknown", func(q *pb.QueuePair) { q.Type = 9 }, fabric.FieldInvalid),
		row("capacities", "too large", func(q *pb.QueuePair) { q.Capacities = &pb.QueuePair_Capacities{Sge: 1 << 31} }, fabric.FieldInvalid),
		row("capacities.send_wr", "too large", func(q *pb.QueuePair) { q.Capacities = &pb.QueuePair_Capacities{SendWr: 1 << 30} }, fabric.FieldInvalid),
		row("capacities.recv_wr", "too large", func(q *pb.QueuePair) { q.Capacities = &pb.QueuePair_Capacities{RecvWr: 1<<32 - 1} }, fabric.FieldInvalid),
		row("capacities.sge", "too large", func(q *pb.QueuePair) { q.Capacities = &pb.QueuePair_Capacities{Sge: 1000} }, fabric.FieldInvalid),
		row("target_state", "unknown", func(q *pb.QueuePair) { q.TargetState = 99 }, fabric.FieldInvalid),
		row("target_state", "not asked for", func(q *pb.QueuePair) { q.TargetState = pb.QueuePair_STATE_DELETING }, fabric.FieldInvalid),
		row("target_state", "not of a create", func(q *pb.QueuePair) { q.TargetState = pb.QueuePair_STATE_SQD }, fabric.FieldInvalid),
		row("attributes", "wrong", func(q *pb.QueuePair) { q.Attributes = &pb.QueuePair_Attributes{Timeout: proto.Uint32(99)} }, fabric.FieldInvalid),
		row("remote_endpoint", "missing for RTS", func(q *pb.QueuePair) { q.TargetState = pb.QueuePair_STATE_RTS }, fabric.FieldRequired),
	}
	for i := range rows {
		switch {
		case strings.HasSuffix(rows[i].field, ".capacities"):
			rows[i].at += ".sge"
		case strings.HasSuffix(rows[i].field, ".attributes"):
			rows[i].at += ".timeout"
		case strings.HasSuffix(rows[i].field, ".remote_endpoint"):
			rows[i].at += ".gid"
		}
	}
	rows = append(rows,
		row("remote_endpoint", "of UD", func(q *pb.QueuePair) { connect(q); q.Type = pb.QueuePair_TYPE_UD }, fabric.FieldInvalid))
	for name, a := range rcAttributes {
		rows = append(rows,
			row("attributes."+name, "of UC", func(q *pb.QueuePair) { q.Type, q.Attributes = pb.QueuePair_TYPE_UC, a }, fabric.FieldInvalid),
			row("attributes."+name, "of UD", func(q *pb.QueuePair) { q.Type, q.Attributes = pb.QueuePair_TYPE_UD, a }, fabric.FieldInvalid))
	}
	for name, a := range map[string]*pb.QueuePair_Attributes{"path_mtu_bytes": {PathMtuBytes: proto.Uint32(1024)}, "access": {Access: []pb.MemoryRegion_Access{pb.MemoryRegion_ACCESS_REMOTE_WRITE}}} {
		rows = append(rows, row("attributes."+name, "of UD", func(q *pb.QueuePair) { q.Type, q.Attributes = pb.QueuePair_TYPE_UD, a }, fabric.FieldInvalid))
	}
	for name, a := range map[string]*pb.QueuePair_Attributes{"qkey": {Qkey: proto.Uint32(1)}, "access": {Access: []pb.MemoryRegion_Access{pb.MemoryRegion_ACCESS_REMOTE_READ}}} {
		rows = append(rows, row("attributes."+name, "of UC", func(q *pb.QueuePair) { q.Type, q.Attributes = pb.QueuePair_TYPE_UC, a }, fabric.FieldInvalid))
	}
	rows = append(rows, badAttributes(field+".attributes", func(m M, a *pb.QueuePair_Attributes) { get(m).Attributes = a }, at+".attributes")...)
	rows = append(rows, badEndpoint(field+".remote_endpoint", func(m M) *pb.QueuePair_Endpoint { return connect(get(m)) }, at+".remote_endpoint")...)
	for _, r := range badLabels(field+".labels", func(m M, l labels) { get(m).Labels = l }) {
		r.at = at + ".labels"
		rows = append(rows, r)
	}
	return rows
}

func queuePairRows(x *fixture) []badRow {
	type create = *pb.CreateQueuePairRequest
	type connect = *pb.ConnectQueuePairRequest
	type modify = *pb.ModifyQueuePairRequest
	rows := []badRow{
		bad("queue_pair", "missing", func(m create) { m.QueuePair = nil }, fabric.FieldRequired),
		bad("remote_endpoint", "missing", func(m connect) { m.RemoteEndpoint = nil }, fabric.FieldRequired),
		bad("remote_endpoint", "another one", func(m connect) {
			m.Name, m.RemoteEndpoint.Qpn = x.connected.Name, 0x1234
		}, fabric.StateInvalid),
		bad("attributes", "wrong", func(m connect) { m.Attributes = &pb.QueuePair_Attributes{HopLimit: proto.Uint32(0)} }, fabric.FieldInvalid, "attributes.hop_limit"),
		bad("remote_endpoint", "of UD", func(m connect) { m.Name = x.ud.Name }, fabric.FieldInvalid),
		bad("remote_endpoint", "of UD", func(m modify) { m.Name, m.TargetState = x.ud.Name, pb.QueuePair_STATE_RTS }, fabric.FieldInvalid),
		bad("attributes.retry_count", "of UC", func(m connect) {
			m.Name, m.Attributes = x.uc.Name, &pb.QueuePair_Attributes{RetryCount: proto.Uint32(7)}
		}, fabric.FieldInvalid),
		bad("attributes.rnr_retry", "of UD", func(m modify) {
			m.Name, m.RemoteEndpoint, m.TargetState, m.Attributes = x.ud.Name, nil, pb.QueuePair_STATE_INIT, &pb.QueuePair_Attributes{RnrRetry: proto.Uint32(7)}
		}, fabric.FieldInvalid),
		bad("attributes.qkey", "too late", func(m modify) {
			m.Name, m.RemoteEndpoint, m.TargetState, m.Attributes = x.ud.Name, nil, pb.QueuePair_STATE_SQD, &pb.QueuePair_Attributes{Qkey: proto.Uint32(7)}
		}, fabric.StateInvalid),
		bad("attributes.hop_limit", "too late", func(m modify) {
			m.Name, m.RemoteEndpoint, m.TargetState, m.Attributes = x.connected.Name, nil, pb.QueuePair_STATE_SQD, &pb.QueuePair_Attributes{HopLimit: proto.Uint32(7)}
		}, fabric.StateInvalid),
		bad("attributes", "wrong", func(m modify) { m.Attributes = &pb.QueuePair_Attributes{HopLimit: proto.Uint32(0)} }, fabric.FieldInvalid, "attributes.hop_limit"),
		bad("remote_endpoint", "missing for RTR", func(m modify) { m.RemoteEndpoint = nil }, fabric.FieldRequired, "remote_endpoint.gid"),
		bad("remote_endpoint", "not for INIT", func(m modify) { m.TargetState = pb.QueuePair_STATE_RESET }, fabric.FieldInvalid),
		bad("target_state", "missing", func(m modify) { m.TargetState = 0 }, fabric.FieldRequired),
		bad("target_state", "unknown", func(m modify) { m.TargetState = 99 }, fabric.FieldInvalid),
		bad("target_state", "only the device's", func(m modify) { m.TargetState = pb.QueuePair_STATE_SQE }, fabric.FieldInvalid),
		bad("target_state", "not to be asked for", func(m modify) { m.TargetState = pb.QueuePair_STATE_PENDING }, fabric.FieldInvalid),
		bad("target_state", "forbidden from INIT", func(m modify) { m.TargetState, m.RemoteEndpoint = pb.QueuePair_STATE_SQD, nil }, fabric.StateInvalid),
		bad("filter", "unknown type", func(m *pb.ListQueuePairsRequest) { m.Filter = "type = RD" }, fabric.FieldInvalid),
	}
	rows = append(rows, badQueuePair(x, "queue_pair", create.GetQueuePair, "queue_pair")...)
	rows = append(rows, badAttributes("attributes", func(m connect, a *pb.QueuePair_Attributes) { m.Attributes = a }, "attributes")...)
	rows = append(rows, badEndpoint("remote_endpoint", connect.GetRemoteEndpoint, "remote_endpoint")...)
	rows = append(rows, badAttributes("attributes", func(m modify, a *pb.QueuePair_Attributes) { m.Attributes = a }, "attributes")...)
	return append(rows, badEndpoint("remote_endpoint", modify.GetRemoteEndpoint, "remote_endpoint")...)
}

func batchRows(x *fixture) []badRow {
	type create = *pb.BatchCreateQueuePairsRequest
	type connect = *pb.BatchConnectQueuePairsRequest
	type remove = *pb.BatchDeleteQueuePairsRequest
	const other = dev1 + "/queuePairs/peer"
	rows := []badRow{
		bad("requests", "missing", func(m create) { m.Requests = nil }, fabric.FieldInvalid),
		bad("requests", "too many", func(m create) {
			for len(m.Requests) <= 1000 {
				m.Requests = append(m.Requests, m.Requests[0])
			}
		}, fabric.FieldInvalid),
		bad("requests.parent", "another", func(m create) { m.Requests[1].Parent = dev1 }, fabric.FieldInvalid, "requests[1].parent"),
		bad("requests.queue_pair_id", "upper case", func(m create) { m.Requests[1].QueuePairId = "Q" }, fabric.FieldInvalid, "requests[1].queue_pair_id"),
		bad("requests.queue_pair_id", "taken", func(m create) { m.Requests[1].QueuePairId = "q" }, fabric.AlreadyExists, "requests[1].queue_pair_id"),
		bad("requests.queue_pair_id", "twice", func(m create) { m.Requests[0].QueuePairId, m.Requests[1].QueuePairId = "two", "two" }, fabric.AlreadyExists, "requests[1].queue_pair_id"),
		bad("requests.queue_pair", "missing", func(m create) { m.Requests[1].QueuePair = nil }, fabric.FieldRequired, "requests[1].queue_pair"),
		bad("requests.request_id", "given", func(m create) { m.Requests[1].RequestId = "x" }, fabric.FieldInvalid, "requests[1].request_id"),
		bad("requests.validate_only", "given", func(m create) { m.Requests[1].ValidateOnly = true }, fabric.FieldInvalid, "requests[1].validate_only"),

		bad("requests", "missing", func(m connect) { m.Requests = nil }, fabric.FieldInvalid),
		bad("requests", "one twice", func(m connect) { m.Requests = append(m.Requests, m.Requests[0]) }, fabric.FieldInvalid, "requests[1].name"),
		bad("requests.name", "missing", func(m connect) { m.Requests[0].Name = "" }, fabric.FieldRequired, "requests[0].name"),
		bad("requests.name", "another device", func(m connect) { m.Requests[0].Name = other }, fabric.FieldInvalid, "requests[0].name"),
		bad("requests.name", "unknown", func(m connect) { m.Requests[0].Name = dev0 + "/queuePairs/none" }, fabric.NotFound, "requests[0].name"),
		bad("requests.remote_endpoint", "missing", func(m connect) { m.Requests[0].RemoteEndpoint = nil }, fabric.FieldRequired, "requests[0].remote_endpoint"),
		bad("requests.attributes", "wrong", func(m connect) { m.Requests[0].Attributes = &pb.QueuePair_Attributes{HopLimit: proto.Uint32(0)} }, fabric.FieldInvalid, "requests[0].attributes.hop_limit"),
		bad("requests.etag", "of before", func(m connect) { m.Requests[0].Etag = "deadbeef-1" }, fabric.ETagMismatch, "requests[0].etag"),
		bad("requests.validate_only", "given", func(m connect) { m.Requests[0].ValidateOnly = true }, fabric.FieldInvalid, "requests[0].validate_only"),

		bad("requests", "missing", func(m remove) { m.Requests = nil }, fabric.FieldInvalid),
		bad("requests", "one twice", func(m remove) { m.Requests = append(m.Requests, m.Requests[0]) }, fabric.FieldInvalid, "requests[1].name"),
		bad("requests.name", "missing", func(m remove) { m.Requests[0].Name = "" }, fabric.FieldRequired, "requests[0].name"),
		bad("requests.name", "another device", func(m remove) { m.Requests[0].Name = other }, fabric.FieldInvalid, "requests[0].name"),
		bad("requests.etag", "of before", func(m remove) { m.Requests[0].Etag = "deadbeef-1" }, fabric.ETagMismatch, "requests[0].etag"),
		bad("requests.validate_only", "given", func(m remove) { m.Requests[0].ValidateOnly = true }, fabric.FieldInvalid, "requests[0].validate_only"),
	}
	rows = append(rows, badQueuePair(x, "requests.queue_pair", func(m create) *pb.QueuePair {
		m.Requests[1].QueuePair = proto.Clone(m.Requests[1].QueuePair).(*pb.QueuePair)
		return m.Requests[1].QueuePair
	}, "requests[1].queue_pair")...)
	rows = append(rows, badAttributes("requests.attributes", func(m connect, a *pb.QueuePair_Attributes) { m.Requests[0].Attributes = a }, "requests[0].attributes")...)
	return append(rows, badEndpoint("requests.remote_endpoint", func(m connect) *pb.QueuePair_Endpoint { return m.Requests[0].RemoteEndpoint }, "requests[0].remote_endpoint")...)
}
