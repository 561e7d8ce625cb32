package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// What -o json and -o yaml print is the reply as the REST API writes it. 64-bit
// numbers are strings there, and the reply is read back whole (case R01).
func TestDocumentsR01(t *testing.T) {
	completions := &pb.PollCompletionsResponse{Completions: []*pb.Completion{aCompletion}}
	for line, reply := range map[string]proto.Message{
		"node get":                        aNode,
		"topo":                            aTopology,
		"topo pick 2":                     aPick,
		"device get soft-0":               aDevice,
		"device list":                     replies["ListDevices"],
		"port get soft-0/8":               aPort,
		"port list":                       replies["ListPorts"],
		"port enable soft-0/8":            aPort,
		"session create":                  aSession,
		"session get job1":                aSession,
		"session list":                    replies["ListSessions"],
		"pd get soft-0/pd1":               aPD,
		"pd list":                         replies["ListProtectionDomains"],
		"pd delete soft-0/p1 soft-0/p2":   replies["DeleteProtectionDomain"],
		"buffer get soft-0/b1":            aBuffer,
		"buffer list":                     replies["ListBuffers"],
		"mr get soft-0/mr1":               aRegion,
		"mr list":                         replies["ListMemoryRegions"],
		"qp get soft-0/q1":                aQueuePair,
		"qp list":                         replies["ListQueuePairs"],
		"qp poll soft-0/q1 --after 6":     completions,
		"qp connect soft-0/q1 soft-0/q2":  replies["BatchCreateQueuePairs"], // of the same form
		"event list":                      replies["ListEvents"],
		"qp post soft-0/q1 --opcode send": completions,
	} {
		if strings.HasPrefix(line, "qp post") {
			line += " --mr soft-0/mr1"
		}
		t.Run(line, func(t *testing.T) {
			r := newRecorder(t, nil)
			want := documentOf(t, reply)
			args := strings.Fields(line)
			got := r.run(t, append(args, "-o", "json")...)
			if got.status != 0 || got.stderr != "" {
				t.Fatalf("%+v", got)
			}
			if doc := parseJSON(t, got.stdout); !reflect.DeepEqual(doc, want) {
				t.Errorf("JSON\n%s\nis not the reply", got.stdout)
			}
			back := reply.ProtoReflect().New().Interface()
			if err := protojson.Unmarshal([]byte(got.stdout), back); err != nil || !proto.Equal(back, reply) {
				t.Errorf("read back as %v, %v", back, err)
			}
			got = r.run(t, append(args, "-o", "yaml")...)
			var doc any
			if err := yaml.Unmarshal([]byte(got.stdout), &doc); err != nil || got.status != 0 {
				t.Fatalf("%v: %+v", err, got)
			}
			if doc = numbers(doc); !reflect.DeepEqual(doc, want) {
				t.Errorf("YAML\n%s\nis not the reply\n%v", got.stdout, want)
			}
		})
	}
}

// documentOf is a message as the REST API writes it, parsed.
func documentOf(t *testing.T, m proto.Message) any {
	t.Helper()
	b, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return parseJSON(t, string(b))
}

func parseJSON(t *testing.T, text string) any {
	t.Helper()
	var doc any
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return doc
}

// numbers turns the numbers of YAML into those of JSON.
func numbers(doc any) any {
	switch x := doc.(type) {
	case int:
		return float64(x)
	case map[string]any:
		for k, v := range x {
			x[k] = numbers(v)
		}
	case []any:
		for i, v := range x {
			x[i] = numbers(v)
		}
	}
	return doc
}

func TestLargeNumbersAreStringsR01(t *testing.T) {
	r := newRecorder(t, nil)
	for output, wants := range map[string][]string{
		"json": {`"generation": "1152921504606846976"`, `"bufferBytes": "9007199254740993"`},
		"yaml": {`generation: "1152921504606846976"`, `bufferBytes: "9007199254740993"`},
	} {
		got := r.run(t, "session", "get", "job1", "-o", output)
		for _, want := range wants {
			if !strings.Contains(got.stdout, want) {
				t.Errorf("%s lacks %s:\n%s", output, want, got.stdout)
			}
		}
	}
}

func TestWatchDocuments(t *testing.T) {
	r := newRecorder(t, nil)
	gap := documentOf(t, &pb.WatchEventsResponse{Message: &pb.WatchEventsResponse_Gap{Gap: &pb.Gap{After: 4, Oldest: 40}}})
	event := documentOf(t, &pb.WatchEventsResponse{Message: &pb.WatchEventsResponse_Event{Event: anEvent}})

	got := r.run(t, "event", "watch", "-o", "json")
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	if len(lines) != 2 || !reflect.DeepEqual(parseJSON(t, lines[0]), gap) || !reflect.DeepEqual(parseJSON(t, lines[1]), event) {
		t.Errorf("JSON, one a line:\n%s", got.stdout)
	}
	got = r.run(t, "event", "watch", "-o", "yaml")
	var docs []any
	for d := yaml.NewDecoder(bytes.NewBufferString(got.stdout)); ; {
		var doc any
		if d.Decode(&doc) != nil {
			break
		}
		docs = append(docs, numbers(doc))
	}
	if !reflect.DeepEqual(docs, []any{gap, event}) {
		t.Errorf("YAML, %d documents:\n%s", len(docs), got.stdout)
	}
	if r.watches[0].After != nil {
		t.Errorf("without --since asks for events after %d, want those to come", r.watches[0].GetAfter())
	}
}

func TestHealth(t *testing.T) {
	node := &pb.Node{Name: "nodes/n1", Health: &pb.Health{Status: pb.Health_STATUS_OK, Components: []*pb.Health_Component{
		{Name: "clock", Status: pb.Health_STATUS_UNKNOWN, Reason: "CLOCK_UNSYNCHRONIZED", Message: "run chrony", StartTime: then},
		{Name: "cluster", Status: pb.Health_STATUS_NOT_APPLICABLE, StartTime: then},
		{Name: "devices/soft-1", Status: pb.Health_STATUS_OK, StartTime: then},
	}}}
	r := newRecorder(t, func(string, proto.Message) (proto.Message, error) { return node, nil })
	since := then.AsTime().Local().Format(time.DateTime)
	table := func(lines ...string) string { return strings.Join(lines, "\n") + "\n" }
	squeezed := func(s string) string { return regexp.MustCompile(" +").ReplaceAllString(s, " ") }
	well := table("COMPONENT STATUS REASON SINCE MESSAGE", "clock UNKNOWN CLOCK_UNSYNCHRONIZED "+since+" run chrony",
		"cluster NOT_APPLICABLE - "+since+" -", "devices/soft-1 OK - "+since+" -")
	if got := r.run(t, "node", "health"); got.status != 0 || got.stderr != "" || squeezed(got.stdout) != well {
		t.Errorf("a node that is well: %+v, want\n%s", got, well)
	}
	c := node.Health.Components[2]
	node.Health.Status, c.Status, c.Reason, c.Message = pb.Health_STATUS_FAILED, pb.Health_STATUS_FAILED, "TIMEOUT", "it hangs (and 1 more)"
	node.Health.Problems = []*pb.Health_Problem{
		{Resource: "nodes/n1/devices/soft-1", Component: c.Name, Reason: "TIMEOUT", Message: "it hangs", StartTime: then},
		{Resource: "nodes/n1/devices/soft-1", Component: c.Name, Reason: "INTERNAL", Message: "it smokes", StartTime: then},
	}
	got := r.run(t, "node", "health")
	if want := table("", "RESOURCE REASON SINCE MESSAGE", "soft-1 TIMEOUT "+since+" it hangs", "soft-1 INTERNAL "+since+" it smokes"); got.status != 1 ||
		got.stderr != "accelfab: nodes/n1 is FAILED\n" || !strings.HasSuffix(squeezed(got.stdout), want) || !strings.Contains(got.stdout, "(and 1 more)") {
		t.Errorf("a node that is not well: %+v, want\n%s", got, want)
	}
	node.Health.Problems = node.Health.Problems[:1]
	if got := r.run(t, "node", "health"); strings.Contains(got.stdout, "RESOURCE") {
		t.Errorf("one fault is told twice: %+v", got)
	}
	r = newRecorder(t, nil)
	got = r.run(t, "node", "health", "-o", "json")
	if got.status != 1 || got.stderr != "accelfab: nodes/n1 is DEGRADED\n" || !reflect.DeepEqual(parseJSON(t, got.stdout), documentOf(t, aNode.GetHealth())) {
		t.Errorf("a node that is not well: %+v", got)
	}
}

// A list of many pages is one list, in a table and as a document.
func TestPaging(t *testing.T) {
	pages := map[string][2]string{"": {"a", "2"}, "2": {"b", "3"}, "3": {"c", ""}}
	r := newRecorder(t, func(method string, req proto.Message) (proto.Message, error) {
		switch r := req.(type) {
		case *pb.ListBuffersRequest:
			p := pages[r.GetPageToken()]
			return &pb.ListBuffersResponse{Buffers: []*pb.Buffer{{Name: device0 + "/buffers/" + p[0]}}, NextPageToken: p[1]}, nil
		case *pb.ListEventsRequest:
			p := pages[r.GetPageToken()]
			return &pb.ListEventsResponse{Events: []*pb.Event{{Name: "nodes/n1/events/" + p[0]}}, NextPageToken: p[1]}, nil
		}
		return nil, nil
	})
	got := r.run(t, "buffer", "list", "--filter", "f")
	rows := strings.Split(strings.TrimSpace(got.stdout), "\n")
	if len(rows) != 4 || !strings.HasPrefix(rows[1], "soft-0/a ") || !strings.HasPrefix(rows[3], "soft-0/c ") {
		t.Errorf("table:\n%s", got.stdout)
	}
	ask := func(token string) proto.Message {
		return &pb.ListBuffersRequest{Parent: "nodes/local/devices/-", PageSize: 1000, Filter: "f", PageToken: token}
	}
	r.asked(t, ask(""), ask("2"), ask("3"))

	all := &pb.ListBuffersResponse{}
	for _, id := range "abc" {
		all.Buffers = append(all.Buffers, &pb.Buffer{Name: fmt.Sprintf("%s/buffers/%c", device0, id)})
	}
	if got := r.run(t, "buffer", "list", "-o", "json"); !reflect.DeepEqual(parseJSON(t, got.stdout), documentOf(t, all)) {
		t.Errorf("JSON:\n%s", got.stdout)
	}
	r.Calls()

	for _, test := range []struct {
		args []string
		rows int
		asks []proto.Message
	}{
		{nil, 3, []proto.Message{askEvents("", 1000), askEvents("2", 1000), askEvents("3", 1000)}},
		{[]string{"--limit", "2"}, 2, []proto.Message{askEvents("", 2), askEvents("2", 1)}},
	} {
		got := r.run(t, append([]string{"event", "list"}, test.args...)...)
		if n := strings.Count(got.stdout, "\n") - 1; n != test.rows {
			t.Errorf("event list %v: %d rows, want %d:\n%s", test.args, n, test.rows, got.stdout)
		}
		r.asked(t, test.asks...)
	}
}

func askEvents(token string, size int32) proto.Message {
	return &pb.ListEventsRequest{Parent: "nodes/local", PageSize: size, PageToken: token}
}

// Strings that YAML would take for something else are quoted.
func TestYAMLKeepsStrings(t *testing.T) {
	const document = `{"a":"yes","b":"0x10","c":"null","d":"1e5","e":"two\nlines","f":"~","g":true,"h":7,"i":"12:30:45","j":"","k":"2026-12-01"}`
	var out bytes.Buffer
	if err := writeYAML(&out, []byte(document)); err != nil {
		t.Fatal(err)
	}
	var got any
	if err := yaml.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if want := parseJSON(t, document); !reflect.DeepEqual(numbers(got), want) {
		t.Errorf("%s\nis read as %v, want %v", &out, got, want)
	}
}
