package server

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// badRow is a request with one fault: a valid request of the method, changed.
type badRow struct {
	method string // "CreateBuffer"
	field  string // that is at fault: "buffer.size_bytes", without indexes of lists
	what   string
	change func(proto.Message)
	reason fabric.Reason
	at     string // the path that the refusal names; "" means field, "-" means none
}

// bad makes a row with the method's own type of request.
func bad[M proto.Message](field, what string, change func(M), reason fabric.Reason, at ...string) badRow {
	var m M
	method := strings.TrimSuffix(string(m.ProtoReflect().Descriptor().Name()), "Request")
	return badRow{method, field, what, func(m proto.Message) { change(m.(M)) }, reason, strings.Join(at, "")}
}

// fine tells for fields without a row why any value of theirs is right.
// Patterns are those of path.Match on "Method/field".
var fine = []struct{ pattern, why string }{
	{"*/validate_only", "both values are"},
	{"PickDevices/allow_degraded", "both values are"},
	{"Create*/*.name", "a create forms the name out of parent and id"},
	{"BatchCreateQueuePairs/requests.queue_pair.name", "a create forms the name out of parent and id"},
	{"Create*/*.etag", "there is nothing yet that it could agree with"},
	{"BatchCreateQueuePairs/requests.queue_pair.etag", "there is nothing yet that it could agree with"},
	{"*/*remote_endpoint.gid_index", "ignored: it is of the other end's table"},
	{"*/*process", "its pid is tried; who may name none has TestOnlyProcessesOfThisMachine"},
	{"*/process", "its pid is tried"},
	{"UpdatePort/port.labels", "what a driver tells cannot be asked for"},
	{"ListEvents/after", "none is wrong while the journal is whole; see TestACursorThatIsGone"},
	{"WatchEvents/after", "a cursor that is gone is told by a gap in the stream"},
	{"PollCompletions/solicited_only", "both values are"},
	{"PostWork/requests.wr_id", "it is the caller's own"},
	{"PostWork/requests.signaled", "both values are"},
	{"PostWork/requests.sges.address", "the device finds a wrong one when it does the work: LOC_PROT_ERR"},
	{"PostWork/requests.destination.qkey", "the receiver decides, by dropping the packet"},
}

// request gives the message and name of a method.
type rpc struct {
	full  string // "/accelfab.v1.MemoryService/CreateBuffer"
	input protoreflect.MessageDescriptor
	reply protoreflect.MessageDescriptor
}

// unaryAndStreams gives every method of the contract by its name.
func unaryAndStreams() map[string]rpc {
	out := map[string]rpc{}
	for _, f := range contract {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				m := s.Methods().Get(j)
				out[string(m.Name())] = rpc{fmt.Sprintf("/%s/%s", s.FullName(), m.Name()), m.Input(), m.Output()}
			}
		}
	}
	return out
}

func newMessage(d protoreflect.MessageDescriptor) proto.Message {
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic(err)
	}
	return t.New().Interface()
}

// inputs lists the paths of all fields of a request that a caller may set.
func inputs(m protoreflect.MessageDescriptor, prefix string) []string {
	var out []string
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		if isOutput(f) {
			continue
		}
		at := prefix + string(f.Name())
		out = append(out, at)
		if f.Message() != nil && !f.IsMap() && f.Message().ParentFile().Package() == "accelfab.v1" {
			out = append(out, inputs(f.Message(), at+".")...)
		}
	}
	return out
}

// call sends a request and gives the refusal.
func (h *house) call(m rpc, request proto.Message) error {
	ctx := context.Background()
	if m.input.Name() == "WatchEventsRequest" {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := h.event.WatchEvents(ctx, request.(*pb.WatchEventsRequest))
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	if r, ok := request.(*pb.BackupNodeRequest); ok {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := h.node.BackupNode(ctx, r)
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	if r, ok := request.(*pb.KeepAliveSessionsRequest); ok {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := h.session.KeepAliveSessions(ctx)
		if err == nil {
			err = stream.Send(r)
		}
		if err != nil {
			return err
		}
		reply, err := stream.Recv()
		if err == nil {
			err = status.ErrorProto(reply.GetError())
		}
		return err
	}
	return h.conn.Invoke(ctx, m.full, request, newMessage(m.reply))
}

// everything reads all that a bad request could have changed.
func (h *house) everything() string {
	h.t.Helper()
	ctx := context.Background()
	all := "nodes/local/devices/-"
	var out []proto.Message
	sessions := must[*pb.ListSessionsResponse](h.t)(h.session.ListSessions(ctx, &pb.ListSessionsRequest{Parent: "nodes/local"}))
	out = append(out, sessions,
		must[*pb.ListProtectionDomainsResponse](h.t)(h.memory.ListProtectionDomains(ctx, &pb.ListProtectionDomainsRequest{Parent: all})),
		must[*pb.ListBuffersResponse](h.t)(h.memory.ListBuffers(ctx, &pb.ListBuffersRequest{Parent: all})),
		must[*pb.ListMemoryRegionsResponse](h.t)(h.memory.ListMemoryRegions(ctx, &pb.ListMemoryRegionsRequest{Parent: all})),
		must[*pb.ListMemoryExportsResponse](h.t)(h.memory.ListMemoryExports(ctx, &pb.ListMemoryExportsRequest{Parent: all})),
		must[*pb.ListQueuePairsResponse](h.t)(h.qp.ListQueuePairs(ctx, &pb.ListQueuePairsRequest{Parent: all})))
	for _, e := range must[*pb.ListEventsResponse](h.t)(h.event.ListEvents(ctx, &pb.ListEventsRequest{Parent: "nodes/local", PageSize: 1000})).Events {
		if e.Actor != "system" { // which tells what was before, in its own time
			out = append(out, e)
		}
	}
	ports := must[*pb.ListPortsResponse](h.t)(h.device.ListPorts(ctx, &pb.ListPortsRequest{Parent: all}))
	for _, p := range ports.Ports {
		out = append(out, &pb.Port{Name: p.Name, AdminState: p.AdminState})
	}
	var b strings.Builder
	for _, m := range out {
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			h.t.Fatal(err)
		}
		b.Write(text)
	}
	return b.String()
}

func TestEveryBadInputIsRefusedByName(t *testing.T) {
	h := newHouse(t)
	x := newFixture(h)
	methods := unaryAndStreams()
	rows := slices.Concat(commonRows(methods, x), sessionRows(x), memoryRows(x), exportRows(x), queuePairRows(x), batchRows(x), transferRows(x), otherRows(x))
	covered := map[string]bool{}
	before := h.everything()
	for _, r := range rows {
		m, ok := methods[r.method]
		if !ok {
			t.Fatalf("there is no method %s", r.method)
		}
		covered[r.method+"/"+r.field] = true
		t.Run(r.method+"/"+r.field+"/"+r.what, func(t *testing.T) {
			request := proto.Clone(x.valid[r.method])
			r.change(request)
			got := asRefused(h.call(m, request))
			if want := reasons[r.reason].code; got.code != want || got.info.Reason != string(r.reason) || got.info.Domain != "accelfab" {
				t.Fatalf("got %v %s %q, want %v %s", got.code, got.info.Reason, got.message, want, r.reason)
			}
			at := r.at
			if at == "" {
				at = r.field
			}
			if at != "-" && !slices.Contains(got.fields, at) && got.info.Metadata["field"] != at {
				t.Errorf("fields %q, metadata %v: want %s named (%s)", got.fields, got.info.Metadata, at, got.message)
			}
			if strings.Contains(got.message, "\n") || got.message == "" || len(got.message) > maxMessage {
				t.Errorf("message %q: want one line", got.message)
			}
			if after := h.everything(); after != before {
				before = after
				t.Error("the refused request has changed something")
			}
		})
	}
	seen := map[string]bool{}
	for name, m := range methods {
		if x.valid[name] == nil {
			t.Errorf("no valid request of %s: its rows could be refused for another reason", name)
		}
		for _, field := range inputs(m.input, "") {
			key := name + "/" + field
			seen[key] = true
			excused := slices.ContainsFunc(fine, func(f struct{ pattern, why string }) bool {
				ok, err := path.Match(f.pattern, key)
				return ok && err == nil
			})
			if !covered[key] && !excused {
				t.Errorf("%s: no bad input is tried, and nothing says why any value is fine", key)
			}
			if covered[key] && excused {
				t.Errorf("%s: said to be always fine, but there is a row", key)
			}
		}
	}
	for key := range covered {
		if !seen[key] {
			t.Errorf("%s is no field of a request", key)
		}
	}
}

// The valid requests that rows begin with are valid: checked, or done.
func TestTheRequestsThatRowsChangeAreValid(t *testing.T) {
	h := newHouse(t)
	x := newFixture(h)
	methods := unaryAndStreams()
	for _, name := range sorted(x.valid) {
		request := proto.Clone(x.valid[name])
		if f := request.ProtoReflect().Descriptor().Fields().ByName("validate_only"); f != nil {
			request.ProtoReflect().Set(f, protoreflect.ValueOfBool(true))
		}
		if name == "BackupNode" {
			continue // the store is in memory; TestBackupOfANode has one in a file
		}
		if name == "PickDevices" {
			continue // sessions have all devices; TestPickDevices has free ones
		}
		if err := h.call(methods[name], request); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// One answer names all that is wrong, what the door finds and what the domain
// finds.
func TestAllFaultsOfARequestAreNamed(t *testing.T) {
	h := newHouse(t)
	_, err := h.qp.CreateQueuePair(context.Background(), &pb.CreateQueuePairRequest{Parent: card0, QueuePairId: "Q", QueuePair: &pb.QueuePair{
		Port: "port 1", Type: 9, TargetState: pb.QueuePair_STATE_LOST, Labels: map[string]string{"": ""},
		Attributes: &pb.QueuePair_Attributes{Timeout: proto.Uint32(32), PathMtuBytes: proto.Uint32(1500)}}})
	got := asRefused(err)
	for _, field := range []string{"queue_pair_id", "queue_pair.port", "queue_pair.type", "queue_pair.target_state", "queue_pair.labels",
		"queue_pair.attributes.timeout", "queue_pair.attributes.path_mtu_bytes", "queue_pair.protection_domain"} {
		if !slices.Contains(got.fields, field) {
			t.Errorf("%s is not named: %q", field, got.fields)
		}
	}
	if n := len(got.fields); n != 8 {
		t.Errorf("%d fields are named: %q", n, got.fields)
	}
}
