package server

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// fixture is a house with objects, and a valid request of every method.
type fixture struct {
	port, far      *pb.Port // two ends of a cable
	q, peer        *pb.QueuePair
	connected      *pb.QueuePair
	uc, ud         *pb.QueuePair // not connected
	session, other *pb.Session
	pd, pd1        *pb.ProtectionDomain // of session, on the two cards
	otherBuffer    *pb.Buffer
	export         *pb.MemoryExport
	upload         func() string // of a descriptor of export
	valid          map[string]proto.Message
}

// open makes a session with a domain and a buffer.
func (h *house) open(id, card string) (*pb.Session, *pb.ProtectionDomain, *pb.Buffer) {
	h.t.Helper()
	ctx := context.Background()
	s := must[*pb.Session](h.t)(h.session.CreateSession(ctx, &pb.CreateSessionRequest{Parent: "nodes/n", SessionId: id, Session: &pb.Session{Ttl: durationpb.New(time.Hour)}}))
	return s, h.domain(s, card, id), h.buffer(s, card, id)
}

func (h *house) domain(s *pb.Session, card, id string) *pb.ProtectionDomain {
	h.t.Helper()
	return must[*pb.ProtectionDomain](h.t)(h.memory.CreateProtectionDomain(context.Background(), &pb.CreateProtectionDomainRequest{Parent: card, ProtectionDomainId: id,
		ProtectionDomain: &pb.ProtectionDomain{Session: s.Name}}))
}

func (h *house) buffer(s *pb.Session, card, id string) *pb.Buffer {
	h.t.Helper()
	return must[*pb.Buffer](h.t)(h.memory.CreateBuffer(context.Background(), &pb.CreateBufferRequest{Parent: card, BufferId: id, RequestId: id + "-request",
		Buffer: &pb.Buffer{Session: s.Name, SizeBytes: 8192}}))
}

func (h *house) queuePair(pd *pb.ProtectionDomain, card, id, port string) *pb.QueuePair {
	h.t.Helper()
	return h.queuePairOf(pb.QueuePair_TYPE_RC, pd, card, id, port)
}

func (h *house) queuePairOf(t pb.QueuePair_Type, pd *pb.ProtectionDomain, card, id, port string) *pb.QueuePair {
	h.t.Helper()
	return must[*pb.QueuePair](h.t)(h.qp.CreateQueuePair(context.Background(), &pb.CreateQueuePairRequest{Parent: card, QueuePairId: id, RequestId: id + "-request",
		QueuePair: &pb.QueuePair{ProtectionDomain: pd.Name, Port: port, Type: t}}))
}

// cable gives both ends of a cable between the two cards.
func (h *house) cable(n int) (near, far *pb.Port) {
	h.t.Helper()
	ctx := context.Background()
	ports := must[*pb.ListPortsResponse](h.t)(h.device.ListPorts(ctx, &pb.ListPortsRequest{Parent: "nodes/n/devices/soft-0", Filter: "class=INTERNAL"}))
	for _, p := range ports.Ports {
		if p.Peer.GetPort() != "" {
			if n--; n < 0 {
				return p, must[*pb.Port](h.t)(h.device.GetPort(ctx, &pb.GetPortRequest{Name: p.Peer.Port}))
			}
		}
	}
	h.t.Fatal("the cards have no such cable")
	return nil, nil
}

const (
	dev0 = "nodes/n/devices/soft-0"
	dev1 = "nodes/n/devices/soft-1"
)

func newFixture(h *house) *fixture {
	h.t.Helper()
	ctx := context.Background()
	x := &fixture{}
	x.port, x.far = h.cable(0)
	var b *pb.Buffer
	x.session, x.pd, b = h.open("s", dev0)
	x.pd1 = h.domain(x.session, dev1, "s1")
	h.buffer(x.session, dev1, "s1")
	x.other, _, x.otherBuffer = h.open("other", dev0)
	x.q = h.queuePair(x.pd, dev0, "q", x.port.Name)
	x.peer = h.queuePair(x.pd1, dev1, "peer", x.far.Name)
	x.connected = h.queuePair(x.pd, dev0, "connected", x.port.Name)
	x.connected = must[*pb.QueuePair](h.t)(h.qp.ConnectQueuePair(ctx, &pb.ConnectQueuePairRequest{Name: x.connected.Name, RemoteEndpoint: x.peer.LocalEndpoint}))
	x.uc = h.queuePairOf(pb.QueuePair_TYPE_UC, x.pd, dev0, "uc", x.port.Name)
	x.ud = h.queuePairOf(pb.QueuePair_TYPE_UD, x.pd, dev0, "ud", x.port.Name)
	// What has nothing on it can be deleted.
	free := h.domain(x.session, dev0, "free")
	must[*pb.Buffer](h.t)(h.memory.CreateBuffer(ctx, &pb.CreateBufferRequest{Parent: dev0, BufferId: "free", Buffer: &pb.Buffer{Session: x.session.Name, SizeBytes: 1}}))
	mr := must[*pb.MemoryRegion](h.t)(h.memory.CreateMemoryRegion(ctx, &pb.CreateMemoryRegionRequest{Parent: dev0, MemoryRegionId: "m", RequestId: "m-request",
		MemoryRegion: &pb.MemoryRegion{ProtectionDomain: x.pd.Name, Buffer: b.Name}}))
	x.export = must[*pb.MemoryExport](h.t)(h.memory.CreateMemoryExport(ctx, &pb.CreateMemoryExportRequest{Parent: dev0, MemoryExportId: "s", RequestId: "e-request",
		MemoryExport: &pb.MemoryExport{Buffer: b.Name}}))
	x.upload = h.uploads(x.export.Name)
	remote := proto.Clone(x.peer.LocalEndpoint).(*pb.QueuePair_Endpoint)
	qp := &pb.QueuePair{ProtectionDomain: x.pd.Name, Port: x.port.Name, Type: pb.QueuePair_TYPE_RC}
	connect := &pb.ConnectQueuePairRequest{Name: x.q.Name, RemoteEndpoint: remote}
	x.valid = map[string]proto.Message{
		"GetNode":                &pb.GetNodeRequest{Name: "nodes/local"},
		"BackupNode":             &pb.BackupNodeRequest{Name: "nodes/local"},
		"GetTopology":            &pb.GetTopologyRequest{Name: "nodes/local/topology"},
		"GetDevice":              &pb.GetDeviceRequest{Name: dev0},
		"ListDevices":            &pb.ListDevicesRequest{Parent: "nodes/n"},
		"GetPort":                &pb.GetPortRequest{Name: x.port.Name},
		"ListPorts":              &pb.ListPortsRequest{Parent: dev0},
		"UpdatePort":             &pb.UpdatePortRequest{Port: &pb.Port{Name: x.port.Name, AdminState: pb.Port_ADMIN_STATE_ENABLED}},
		"CreateSession":          &pb.CreateSessionRequest{Parent: "nodes/n", Session: &pb.Session{}},
		"GetSession":             &pb.GetSessionRequest{Name: x.session.Name},
		"ListSessions":           &pb.ListSessionsRequest{Parent: "nodes/n"},
		"UpdateSession":          &pb.UpdateSessionRequest{Session: &pb.Session{Name: x.session.Name, Labels: map[string]string{"a": "b"}}},
		"KeepAliveSession":       &pb.KeepAliveSessionRequest{Name: x.session.Name},
		"KeepAliveSessions":      &pb.KeepAliveSessionsRequest{Name: x.session.Name},
		"ResumeSession":          &pb.ResumeSessionRequest{Name: x.session.Name},
		"ReleaseSession":         &pb.ReleaseSessionRequest{Name: x.session.Name, Reason: "a test"},
		"DeleteSession":          &pb.DeleteSessionRequest{Name: x.session.Name},
		"CreateProtectionDomain": &pb.CreateProtectionDomainRequest{Parent: dev0, ProtectionDomain: &pb.ProtectionDomain{Session: x.session.Name}},
		"GetProtectionDomain":    &pb.GetProtectionDomainRequest{Name: x.pd.Name},
		"ListProtectionDomains":  &pb.ListProtectionDomainsRequest{Parent: dev0},
		"DeleteProtectionDomain": &pb.DeleteProtectionDomainRequest{Name: free.Name},
		"CreateBuffer":           &pb.CreateBufferRequest{Parent: dev0, Buffer: &pb.Buffer{Session: x.session.Name, SizeBytes: 4096}},
		"GetBuffer":              &pb.GetBufferRequest{Name: b.Name},
		"ListBuffers":            &pb.ListBuffersRequest{Parent: dev0},
		"DeleteBuffer":           &pb.DeleteBufferRequest{Name: dev0 + "/buffers/free"},
		"CreateMemoryRegion":     &pb.CreateMemoryRegionRequest{Parent: dev0, MemoryRegion: &pb.MemoryRegion{ProtectionDomain: x.pd.Name, Buffer: b.Name}},
		"GetMemoryRegion":        &pb.GetMemoryRegionRequest{Name: mr.Name},
		"ListMemoryRegions":      &pb.ListMemoryRegionsRequest{Parent: dev0},
		"DeleteMemoryRegion":     &pb.DeleteMemoryRegionRequest{Name: mr.Name},
		"MoveBuffer":             &pb.MoveBufferRequest{Name: b.Name},
		"CreateMemoryExport":     &pb.CreateMemoryExportRequest{Parent: dev0, MemoryExport: &pb.MemoryExport{Buffer: b.Name}},
		"GetMemoryExport":        &pb.GetMemoryExportRequest{Name: x.export.Name},
		"ListMemoryExports":      &pb.ListMemoryExportsRequest{Parent: dev0},
		"DeleteMemoryExport":     &pb.DeleteMemoryExportRequest{Name: x.export.Name},
		"RevokeMemoryExport":     &pb.RevokeMemoryExportRequest{Name: x.export.Name},
		"ResetDevice":            &pb.ResetDeviceRequest{Name: dev0},
		"PickDevices":            &pb.PickDevicesRequest{Name: "nodes/local", Count: 1, AllowDegraded: true},
		"CheckPeerAccess":        &pb.CheckPeerAccessRequest{Name: "nodes/local", Exporter: dev0, Importer: dev1},
		"CreateQueuePair":        &pb.CreateQueuePairRequest{Parent: dev0, QueuePair: qp},
		"GetQueuePair":           &pb.GetQueuePairRequest{Name: x.q.Name},
		"ListQueuePairs":         &pb.ListQueuePairsRequest{Parent: dev0},
		"DeleteQueuePair":        &pb.DeleteQueuePairRequest{Name: x.q.Name},
		"BatchCreateQueuePairs":  &pb.BatchCreateQueuePairsRequest{Parent: dev0, Requests: []*pb.CreateQueuePairRequest{{QueuePair: qp}, {QueuePair: qp}}},
		"ConnectQueuePair":       connect,
		"BatchConnectQueuePairs": &pb.BatchConnectQueuePairsRequest{Parent: dev0, Requests: []*pb.ConnectQueuePairRequest{connect}},
		"ModifyQueuePair":        &pb.ModifyQueuePairRequest{Name: x.q.Name, TargetState: pb.QueuePair_STATE_RTR, RemoteEndpoint: remote},
		"BatchDeleteQueuePairs":  &pb.BatchDeleteQueuePairsRequest{Parent: dev0, Requests: []*pb.DeleteQueuePairRequest{{Name: x.q.Name}}},
		"ListEvents":             &pb.ListEventsRequest{Parent: "nodes/n"},
		"WatchEvents":            &pb.WatchEventsRequest{Parent: "nodes/n"},
		"PostWork":               &pb.PostWorkRequest{Name: x.q.Name, Requests: []*pb.WorkRequest{{Opcode: pb.WorkRequest_OPCODE_RECV}}},
		"PollCompletions":        &pb.PollCompletionsRequest{Name: x.q.Name},
		"WriteBuffer":            &pb.WriteBufferRequest{Name: b.Name, Data: []byte("x")},
		"ReadBuffer":             &pb.ReadBufferRequest{Name: b.Name},
	}
	return x
}

// commonRows are those of fields that many requests have in the same way.
func commonRows(methods map[string]rpc, x *fixture) []badRow {
	var rows []badRow
	for _, method := range sorted(methods) {
		fields := methods[method].input.Fields()
		add := func(field, what string, value any, reason fabric.Reason, at string) {
			rows = append(rows, badRow{method, field, what, func(m proto.Message) {
				m.ProtoReflect().Set(fields.ByName(protoreflect.Name(field)), protoreflect.ValueOf(value))
			}, reason, at})
		}
		for _, field := range []string{"parent", "name"} {
			if fields.ByName(protoreflect.Name(field)) == nil {
				continue
			}
			valid := x.valid[method].ProtoReflect().Get(fields.ByName(protoreflect.Name(field))).String()
			add(field, "missing", "", fabric.FieldRequired, "")
			add(field, "not a name", "x", fabric.FieldInvalid, "")
			add(field, "too long", valid+strings.Repeat("/x", 1000), fabric.FieldInvalid, "")
			if strings.HasPrefix(valid, dev0) {
				unknown := strings.Replace(valid, "soft-0", "soft-9", 1)
				add(field, "unknown device", unknown, fabric.NotFound, "")
			}
			if field == "name" && strings.HasPrefix(valid, "nodes/n/sessions/") {
				add(field, "unknown", "nodes/n/sessions/nobody", fabric.NotFound, "")
			}
			if strings.HasPrefix(valid, "nodes/n/") {
				add(field, "another node", strings.Replace(valid, "nodes/n/", "nodes/m/", 1), fabric.FieldInvalid, "")
			}
		}
		for field, rule := range map[string]struct {
			what  string
			value any
			want  fabric.Reason
		}{
			"page_size":  {"negative", int32(-1), fabric.FieldInvalid},
			"page_token": {"of nobody", "AAAA", fabric.FieldInvalid},
			"filter":     {"unknown field", `color = "red"`, fabric.FieldInvalid},
			"etag":       {"of before", "deadbeef-1", fabric.ETagMismatch},
			"request_id": {"not printable", "a\x00", fabric.FieldInvalid},
		} {
			if fields.ByName(protoreflect.Name(field)) != nil {
				add(field, rule.what, rule.value, rule.want, "")
			}
		}
		if fields.ByName("request_id") != nil {
			add("request_id", "too long", strings.Repeat("r", 65), fabric.FieldInvalid, "")
			add("request_id", "used for another", "s-request", fabric.RequestIDReused, "")
		}
		if strings.HasPrefix(method, "List") {
			add("filter", "no value", "state =", fabric.FieldInvalid, "")
		}
		for i := range fields.Len() {
			name := string(fields.Get(i).Name())
			if id, ok := strings.CutSuffix(name, "_id"); ok && fields.ByName(protoreflect.Name(id)) != nil {
				add(name, "upper case", "X", fabric.FieldInvalid, "")
				add(name, "too long", strings.Repeat("a", 64), fabric.FieldInvalid, "")
				taken := map[string]string{"memory_region": "m", "queue_pair": "q"}[id]
				if taken == "" {
					taken = "s"
				}
				add(name, "taken", taken, fabric.AlreadyExists, "")
			}
		}
	}
	return rows
}

type labels = map[string]string

// badLabels are rows of a labels field.
func badLabels[M proto.Message](field string, set func(M, labels)) []badRow {
	row := func(what string, l labels) badRow {
		return bad(field, what, func(m M) { set(m, l) }, fabric.FieldInvalid)
	}
	many := labels{}
	for _, c := range "abcdefghijklm" {
		for _, d := range "nopqr" {
			many[string([]rune{c, d})] = ""
		}
	}
	return []badRow{row("key empty", labels{"": "x"}), row("key upper case", labels{"Job": "x"}), row("key too long", labels{strings.Repeat("k", 64): ""}),
		row("value too long", labels{"k": strings.Repeat("v", 256)}), row("too many", many)}
}

func otherRows(x *fixture) []badRow {
	type update = *pb.UpdatePortRequest
	return []badRow{
		bad("port", "missing", func(m update) { m.Port = nil }, fabric.FieldRequired),
		bad("port.name", "missing", func(m update) { m.Port.Name = "" }, fabric.FieldRequired),
		bad("port.name", "not a number", func(m update) { m.Port.Name = dev0 + "/ports/x" }, fabric.FieldInvalid),
		bad("port.name", "unknown", func(m update) { m.Port.Name = dev0 + "/ports/99" }, fabric.NotFound),
		bad("port.admin_state", "missing", func(m update) { m.Port.AdminState = 0 }, fabric.FieldRequired),
		bad("port.admin_state", "unknown", func(m update) { m.Port.AdminState = 7 }, fabric.FieldInvalid),
		bad("port.etag", "of before", func(m update) { m.Port.Etag = "deadbeef-0" }, fabric.ETagMismatch),
		bad("update_mask", "unknown path", func(m update) { m.UpdateMask = &fieldmaskpb.FieldMask{Paths: []string{"speed"}} }, fabric.FieldInvalid),
		bad("name", "unknown port", func(m *pb.GetPortRequest) { m.Name = dev0 + "/ports/99" }, fabric.NotFound),
		bad("name", "without topology", func(m *pb.GetTopologyRequest) { m.Name = "nodes/n" }, fabric.FieldInvalid),
		bad("count", "none", func(m *pb.PickDevicesRequest) { m.Count = 0 }, fabric.FieldRequired),
		bad("count", "negative", func(m *pb.PickDevicesRequest) { m.Count = -1 }, fabric.FieldInvalid),
		bad("count", "too many", func(m *pb.PickDevicesRequest) { m.Count = 17 }, fabric.FieldInvalid),
		bad("count", "more than are free", func(m *pb.PickDevicesRequest) { m.Count = 1 }, fabric.Exhausted),
		bad("name", "another node", func(m *pb.GetNodeRequest) { m.Name = "nodes/m" }, fabric.NotFound),
		bad("filter", "unknown state", func(m *pb.ListDevicesRequest) { m.Filter = "state=BROKEN" }, fabric.FieldInvalid),
		bad("after", "beyond", func(m *pb.PollCompletionsRequest) { m.After = 1 << 63 }, fabric.FieldInvalid),
	}
}
