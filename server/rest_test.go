package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/storetest"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

type object = map[string]any

func parse(t *testing.T, body string) object {
	t.Helper()
	var o object
	if err := json.Unmarshal([]byte(body), &o); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return o
}

// restFields gives the fields that an error's BadRequest names.
func restFields(t *testing.T, body string) []string {
	t.Helper()
	var out []string
	details, _ := parse(t, body)["details"].([]any)
	for _, d := range details {
		if vs, ok := d.(object)["fieldViolations"].([]any); ok {
			for _, v := range vs {
				out = append(out, v.(object)["field"].(string))
			}
		}
	}
	return out
}

// The walk of the README, by curl's means.
func TestAWalkByREST(t *testing.T) {
	h := newHouse(t)
	do := func(method, path, body string) object {
		t.Helper()
		code, reply, _ := h.http(method, path, body)
		if code != 200 {
			t.Fatalf("%s %s: %d %s", method, path, code, reply)
		}
		return parse(t, reply)
	}
	devices := do("GET", "/v1/nodes/local/devices", "")["devices"].([]any)
	if len(devices) != 2 || devices[0].(object)["name"] != dev0 || devices[0].(object)["memoryBytes"] != "1048576" {
		t.Errorf("devices are %v", devices)
	}
	do("POST", "/v1/nodes/local/sessions?session_id=job&requestId=r1", `{"labels": {"job": "7"}, "ttl": "3600s"}`)
	do("POST", "/v1/"+dev0+"/protectionDomains?protection_domain_id=p", `{"session": "nodes/local/sessions/job"}`)
	port, _ := h.cable(0)
	q := do("POST", "/v1/"+dev0+"/queuePairs?queue_pair_id=q", `{"protectionDomain": "`+dev0+`/protectionDomains/p", "port": "`+port.Name+`", "type": "TYPE_RC"}`)
	if q["state"] != "STATE_INIT" || q["localEndpoint"].(object)["qpn"].(float64) < 2 {
		t.Errorf("the queue pair is %v", q)
	}
	if q["reconciling"] != false || q["reason"] != "" {
		t.Errorf("fields with their zero value are left out: %v", q)
	}
	if got := do("GET", "/v1/"+dev0+"/queuePairs?filter=labels.x%3Dy", ""); len(got["queuePairs"].([]any)) != 0 {
		t.Errorf("filtered: %v", got)
	}
	if got := do("POST", "/v1/"+dev0+"/queuePairs/q:modify", `{"targetState": "STATE_RESET"}`); got["state"] != "STATE_RESET" {
		t.Errorf("modified: %v", got)
	}
	do("DELETE", "/v1/"+dev0+"/queuePairs/q", "")
	code, body, header := h.http("GET", "/v1/"+dev0+"/queuePairs/q", "")
	if code != 404 || parse(t, body)["code"] != 5.0 || !strings.Contains(body, "NOT_FOUND") {
		t.Errorf("after the delete: %d %s", code, body)
	}
	if header.Get("Grpc-Metadata-Accelfab-Instance") != h.fabric.Node().InstanceID || header.Get("Grpc-Metadata-Accelfab-Node") != "nodes/n" || header.Get("Content-Type") != "application/json" {
		t.Errorf("headers %v", header)
	}
}

// Case R01: 64-bit numbers are strings, both ways, and keep every digit.
func TestR01NumbersOf64BitsAreStrings(t *testing.T) {
	h := newHouse(t)
	h.clients = h.dial(h.tcp) // the same tenant as HTTP's
	h.open("s", dev0)
	code, body, _ := h.http("POST", "/v1/"+dev0+"/buffers", `{"session": "nodes/n/sessions/s", "sizeBytes": "8192"}`)
	b := parse(t, body)
	if code != 200 || b["sizeBytes"] != "8192" {
		t.Fatalf("%d %s", code, body)
	}
	address, ok := b["deviceAddress"].(string)
	read := must[*pb.Buffer](t)(h.memory.GetBuffer(context.Background(), &pb.GetBufferRequest{Name: b["name"].(string)}))
	if !ok || address != fmt.Sprint(read.DeviceAddress) {
		t.Errorf("the device address %v is not %d", b["deviceAddress"], read.DeviceAddress)
	}
	// 2^53+1 is the first that a double cannot hold: it arrives whole.
	code, body, _ = h.http("POST", "/v1/"+dev0+"/buffers", `{"session": "nodes/n/sessions/s", "sizeBytes": "9007199254740993"}`)
	if code != 429 || !strings.Contains(body, "9007199254740993") {
		t.Errorf("%d %s", code, body)
	}
}

func TestWhatRESTRefusesByName(t *testing.T) {
	h := newHouse(t)
	h.clients = h.dial(h.tcp) // the same tenant as HTTP's
	_, pd, _ := h.open("s", dev0)
	port, _ := h.cable(0)
	h.queuePair(pd, dev0, "q", port.Name)
	buffers, qp := "/v1/"+dev0+"/buffers", "/v1/"+dev0+"/queuePairs/q"
	before := h.everything()
	for _, c := range []struct {
		what, method, path, body string
		code                     int
		field                    string
	}{
		{"misspelt field", "POST", buffers, `{"session": "nodes/n/sessions/s", "sizeByte": "1"}`, 400, "sizeByte"},
		{"misspelt field of all", "POST", qp + ":modify", `{"targetStat": "STATE_ERR"}`, 400, "targetStat"},
		{"misspelt nested field", "POST", qp + ":modify", `{"targetState": "STATE_ERR", "attributes": {"time_out": 1}}`, 400, "time_out"},
		{"misspelt field of a patch", "PATCH", "/v1/nodes/n/sessions/s", `{"label": {}}`, 400, "label"},
		{"wrong type", "POST", buffers, `{"session": 5}`, 400, "session"},
		{"no number", "POST", buffers, `{"sizeBytes": "many"}`, 400, "sizeBytes"},
		{"negative", "POST", buffers, `{"sizeBytes": "-1"}`, 400, "sizeBytes"},
		{"beyond 64 bits", "POST", buffers, `{"sizeBytes": "18446744073709551616"}`, 400, "sizeBytes"},
		{"unknown enum value", "POST", qp + ":modify", `{"targetState": "READY"}`, 400, "targetState"},
		{"field twice", "POST", buffers, `{"sizeBytes": "1", "sizeBytes": "2"}`, 400, "sizeBytes"},
		{"no JSON", "POST", buffers, `{"session": `, 400, "body"},
		{"more after the JSON", "POST", buffers, `{} {}`, 400, "body"},
		{"a list", "POST", buffers, `[]`, 400, "body"},
		{"missing field", "POST", buffers, `{"session": "nodes/n/sessions/s"}`, 400, "buffer.size_bytes"},
		{"misspelt query", "GET", buffers + "?pagesize=1", "", 400, "pagesize"},
		{"query of a get", "GET", qp + "?view=FULL", "", 400, "view"},
		{"query of a create", "POST", buffers + "?buffer-id=x", `{}`, 400, "buffer-id"},
		{"query where all is body", "POST", qp + ":modify?target_state=STATE_ERR", `{}`, 400, "target_state"},
		{"query of what is body", "POST", buffers + "?buffer.size_bytes=1", `{}`, 400, "buffer.size_bytes"},
		{"query of what is path", "GET", buffers + "?parent=x", "", 400, "parent"},
		{"query of a wrong type", "GET", buffers + "?page_size=many", "", 400, "page_size"},
		{"query twice", "GET", buffers + "?page_size=1&page_size=2", "", 400, "page_size"},
		{"query in two spellings", "GET", buffers + "?page_size=1&pageSize=2", "", 400, ""},
		{"body of a delete", "DELETE", qp, `{"etag": "x"}`, 400, "body"},
		{"mask of another field", "PATCH", "/v1/nodes/n/sessions/s?update_mask=labels.a", `{}`, 400, "update_mask"},
		{"fixed field", "PATCH", "/v1/nodes/n/sessions/s", `{"devices": ["` + dev0 + `"]}`, 400, "session.devices"},
		{"no such path", "GET", "/v1/nothing", "", 404, ""},
		{"no such path", "GET", "/", "", 404, ""},
		{"wrong verb", "PUT", buffers, `{}`, 501, ""},
	} {
		code, body, _ := h.http(c.method, c.path, c.body)
		if want := c.code; code != want && !(want == 501 && code == 405) {
			t.Errorf("%s: %d %s", c.what, code, body)
			continue
		}
		if fields := restFields(t, body); c.field != "" && !slices.Contains(fields, c.field) {
			t.Errorf("%s: names %q, want %s (%s)", c.what, fields, c.field, body)
		}
		if !strings.Contains(body, `"reason":`) {
			t.Errorf("%s: no ErrorInfo: %s", c.what, body)
		}
	}
	if h.everything() != before {
		t.Error("a refused request has changed something")
	}
}

// What the gateway would leave unheard, or hear, by headers of its own.
func TestHeadersThatCountForNothing(t *testing.T) {
	h := newHouse(t)
	h.open("s", dev0)
	set := func(kv ...string) func(*http.Request) {
		return func(r *http.Request) {
			for i := 0; i < len(kv); i += 2 {
				r.Header.Set(kv[i], kv[i+1])
			}
		}
	}
	code, body, _ := h.http("POST", "/v1/nodes/local/sessions/s", "", set("X-HTTP-Method-Override", "DELETE", "Content-Type", "application/x-www-form-urlencoded"))
	if code == 200 {
		t.Errorf("a verb by a header: %d %s", code, body)
	}
	must[*pb.Session](t)(h.session.GetSession(context.Background(), &pb.GetSessionRequest{Name: "nodes/n/sessions/s"}))
	// curl says this of its -d.
	code, body, _ = h.http("POST", "/v1/nodes/local/sessions", `{"labels": {"a": "b"}}`, set("Content-Type", "application/x-www-form-urlencoded",
		"Grpc-Metadata-Accelfab-Identity", "uid:0", "Authorization", "Bearer x", "X-Forwarded-For", "10.0.0.1"))
	if owner := parse(t, body)["owner"]; code != 200 || owner.(object)["identity"] != "anonymous" {
		t.Errorf("%d %s", code, body)
	}
	code, body, _ = h.http("GET", "/v1/nodes/local", "", set("Grpc-Metadata-Accelfab-Instance", "before"))
	if code != 400 || !strings.Contains(body, "INSTANCE_MISMATCH") {
		t.Errorf("another instance: %d %s", code, body)
	}
}

func TestPagesOfOtherPlacesAreRefused(t *testing.T) {
	h := newHouse(t)
	host := func(v string) func(*http.Request) { return func(r *http.Request) { r.Host = v } }
	origin := func(v string) func(*http.Request) { return func(r *http.Request) { r.Header.Set("Origin", v) } }
	for _, c := range []struct {
		what   string
		change func(*http.Request)
		ok     bool
	}{
		{"localhost", host("localhost:7471"), true},
		{"LOCALHOST", host("LocalHost"), true},
		{"IPv6", host("[::1]:7471"), true},
		{"loopback", host("127.1.2.3"), true},
		{"rebound name", host("evil.example:7471"), false},
		{"name that begins well", host("localhost.evil.example"), false},
		{"address that begins well", host("127.0.0.1.evil.example"), false},
		{"the wide address", host("0.0.0.0:7471"), false},
		{"own page", origin("http://127.0.0.1:7471"), true},
		{"page of this machine", origin("http://localhost:3000"), true},
		{"page from elsewhere", origin("https://evil.example"), false},
		{"page without a place", origin("null"), false},
		{"no scheme", origin("localhost"), false},
	} {
		for _, path := range []string{"/v1/nodes/local", "/openapi.json"} {
			code, body, _ := h.http("GET", path, "", c.change)
			if c.ok && code != 200 {
				t.Errorf("%s: %d %s", c.what, code, body)
			}
			if !c.ok && (code != 403 || !strings.Contains(body, "PERMISSION_DENIED") || !strings.Contains(body, "the header is")) {
				t.Errorf("%s: %d %s", c.what, code, body)
			}
		}
	}
}

func TestHTTPOnAUnixSocketHasAPeer(t *testing.T) {
	h := openHouseAt(t, Options{}, fabric.Config{Devices: softDevices(t, device.Limits{}), Store: storetest.NewMemory(storetest.Limits{})}, "unix://DIR/web")
	code, body, _ := h.http("POST", "/v1/nodes/local/sessions", "{}")
	owner, _ := parse(t, body)["owner"].(object)
	if code != 200 || owner["identity"] != fmt.Sprintf("uid:%d", os.Geteuid()) || owner["pid"] != float64(os.Getpid()) {
		t.Errorf("%d %s", code, body)
	}
}

func TestBodiesHaveABound(t *testing.T) {
	h := newHouse(t)
	_, _, b := h.open("s", dev0)
	code, body, _ := h.http("POST", "/v1/"+b.Name+":write", `{"data": "`+strings.Repeat("A", 4<<20)+`"}`)
	if code != 413 || !strings.Contains(body, "FIELD_INVALID") {
		t.Errorf("%d %.200s", code, body)
	}
	data := bytes.Repeat([]byte("x"), 8192)
	text, _ := json.Marshal(object{"data": data})
	if code, body, _ := h.http("POST", "/v1/"+b.Name+":write", string(text)); code == 200 {
		t.Errorf("an anonymous caller writes to another's buffer: %s", body)
	}
	code, body, _ = h.http("POST", "/v1/nodes/local/sessions?session_id=web", "{}")
	if code != 200 {
		t.Fatal(body)
	}
	code, body, _ = h.http("POST", "/v1/"+dev0+"/buffers?buffer_id=web", `{"session": "nodes/n/sessions/web", "sizeBytes": "524288"}`)
	if code != 200 {
		t.Fatal(body)
	}
	big, _ := json.Marshal(object{"data": bytes.Repeat([]byte("y"), 524288)})
	if code, body, _ = h.http("POST", "/v1/"+dev0+"/buffers/web:write", string(big)); code != 200 {
		t.Errorf("%d %s", code, body)
	}
	code, body, _ = h.http("GET", "/v1/"+dev0+"/buffers/web:read?length_bytes=3&offsetBytes=524285", "")
	if code != 200 || parse(t, body)["data"] != "eXl5" {
		t.Errorf("%d %s", code, body)
	}
}

// A patch changes what it names, and nothing else.
func TestAPatchChangesOneField(t *testing.T) {
	h := newHouse(t)
	get := func() object {
		_, body, _ := h.http("GET", "/v1/nodes/n/sessions/web", "")
		return parse(t, body)
	}
	h.http("POST", "/v1/nodes/local/sessions?session_id=web", `{"labels": {"a": "b"}, "ttl": "100s"}`)
	if code, body, _ := h.http("PATCH", "/v1/nodes/local/sessions/web", `{"ttl": "200s"}`); code != 200 {
		t.Fatal(body)
	}
	if s := get(); s["ttl"] != "200s" || s["labels"].(object)["a"] != "b" {
		t.Errorf("after the ttl: %v", s)
	}
	if code, body, _ := h.http("PATCH", "/v1/nodes/local/sessions/web?update_mask=labels", `{"ttl": "300s"}`); code != 200 {
		t.Fatal(body)
	}
	if s := get(); s["ttl"] != "200s" || len(s["labels"].(object)) != 0 {
		t.Errorf("with a mask: %v", s)
	}
	if code, body, _ := h.http("PATCH", "/v1/nodes/local/sessions/web", `{"labels": {"c": "d"}}`); code != 200 {
		t.Fatal(body)
	}
	if s := get(); s["labels"].(object)["c"] != "d" || s["ttl"] != "200s" {
		t.Errorf("after the labels: %v", s)
	}
	// What was read can be given back whole.
	whole, _ := json.Marshal(get())
	if code, body, _ := h.http("PATCH", "/v1/nodes/local/sessions/web", string(whole)); code != 200 {
		t.Errorf("%d %s", code, body)
	}
	if code, body, _ := h.http("PATCH", "/v1/nodes/local/sessions/web", `{"etag": "deadbeef-1", "ttl": "5s"}`); code != 409 || !strings.Contains(body, "ETAG_MISMATCH") {
		t.Errorf("%d %s", code, body)
	}
}

func TestOpenAPIIsServed(t *testing.T) {
	h := newHouse(t)
	code, body, header := h.http("GET", "/openapi.json", "")
	if code != 200 || body != string(pb.OpenAPI) || header.Get("Content-Type") != "application/json" {
		t.Errorf("%d, %d bytes, %v", code, len(body), header)
	}
}

// A stream is a line for each message, and its last line says why it ended.
func TestAStreamIsLinesAndTellsItsEnd(t *testing.T) {
	h := newHouse(t)
	code, body, _ := h.http("GET", "/v1/nodes/local/events:watch?filter=nonsense", "")
	if code != 400 || !strings.Contains(body, `"error"`) || !strings.Contains(body, "FIELD_INVALID") {
		t.Errorf("a stream that cannot begin: %d %s", code, body)
	}
	reply, err := http.Get("http://" + h.web + "/v1/nodes/local/events:watch?after=0")
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	if reply.StatusCode != 200 || reply.Header.Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("%d %v", reply.StatusCode, reply.Header)
	}
	lines := bufio.NewScanner(reply.Body)
	next := func() object {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("the stream ends: %v", lines.Err())
		}
		return parse(t, lines.Text())
	}
	for { // until it has caught up
		m := next()["result"].(object)
		if m["bookmark"] != nil {
			break
		}
		if _, ok := m["event"].(object)["cursor"].(string); !ok {
			t.Errorf("event %v", m)
		}
	}
	h.http("POST", "/v1/nodes/local/sessions?session_id=web", "{}")
	if e := next()["result"].(object)["event"].(object); e["resource"] != "nodes/n/sessions/web" || e["type"] != "TYPE_CREATED" || e["actor"] != "anonymous" {
		t.Errorf("event %v", e)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	go h.stop(ctx)
	var last object
	for lines.Scan() {
		last = parse(t, lines.Text())
	}
	if err := lines.Err(); err != nil {
		t.Errorf("the stream is broken: %v", err)
	}
	end, _ := last["error"].(object)
	if end["code"] != 14.0 || !strings.Contains(fmt.Sprint(end["details"]), "DEVICE_UNAVAILABLE") {
		t.Errorf("the last line is %v", last)
	}
}
