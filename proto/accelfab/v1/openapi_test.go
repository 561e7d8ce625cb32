package accelfabv1

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

type document struct {
	OpenAPI string
	Info    struct{ Title, Version, Description string }
	Paths   map[string]map[string]struct {
		OperationID string
		Description string
		Summary     string
	}
	Components struct {
		Schemas map[string]struct {
			Description string
			Properties  map[string]struct {
				Type   any
				Format string
				Items  struct{ Type, Format string }
			}
		}
	}
}

func parseDocument(t *testing.T) document {
	t.Helper()
	var d document
	if err := json.Unmarshal(OpenAPI, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestOpenAPIHasEveryMethod(t *testing.T) {
	d := parseDocument(t)
	if !strings.HasPrefix(d.OpenAPI, "3.1.") || d.Info.Title != "accelfab" {
		t.Errorf("document is %q of %q, want OpenAPI 3.1 of accelfab", d.OpenAPI, d.Info.Title)
	}
	operations := map[string]bool{}
	for path, verbs := range d.Paths {
		for verb, o := range verbs {
			operations[o.OperationID] = true
			if o.Description == "" && o.Summary == "" {
				t.Errorf("%s %s is not described", verb, path)
			}
		}
	}
	unary(t, func(t *testing.T, m protoreflect.MethodDescriptor) {
		if id := string(m.Parent().Name()) + "_" + string(m.Name()); !operations[id] {
			t.Errorf("the document has no operation %s", id)
		}
	})
}

// Case R01: in JSON integers of 64 bits are strings, and the document says so
// for every such field and in words.
func TestR01OpenAPIShows64BitNumbersAsStrings(t *testing.T) {
	d := parseDocument(t)
	if !strings.Contains(d.Info.Description, "64 bits are strings") {
		t.Error("the description does not say that 64-bit integers are strings")
	}
	seen := 0
	messages(func(m protoreflect.MessageDescriptor) {
		schema, ok := d.Components.Schemas[string(m.FullName())]
		if !ok {
			return // a request whose fields are all in the path and query
		}
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			if k := f.Kind(); k != protoreflect.Uint64Kind && k != protoreflect.Int64Kind {
				continue
			}
			seen++
			p, ok := schema.Properties[f.JSONName()]
			if !ok || p.Type != "string" || p.Format != f.Kind().String() {
				t.Errorf("%s: the document has type %v, format %q; want string, %v", f.FullName(), p.Type, p.Format, f.Kind())
			}
		}
	})
	if seen < 20 {
		t.Errorf("saw %d fields of 64 bits, want 20 or more", seen)
	}
}

// Case R01: numbers above 2^53 survive the way through JSON.
func TestR01NumbersAbove53BitsRoundTrip(t *testing.T) {
	in := &Buffer{Name: "nodes/n/devices/d/buffers/b", SizeBytes: 1<<53 + 1, DeviceAddress: math.MaxUint64}
	text, err := protojson.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var loose map[string]any
	if err := json.Unmarshal(text, &loose); err != nil {
		t.Fatal(err)
	}
	if loose["sizeBytes"] != "9007199254740993" || loose["deviceAddress"] != "18446744073709551615" {
		t.Errorf("JSON holds %v and %v, want strings with every digit", loose["sizeBytes"], loose["deviceAddress"])
	}
	out := new(Buffer)
	if err := protojson.Unmarshal(text, out); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(in, out) {
		t.Errorf("came back as %v", out)
	}
}
