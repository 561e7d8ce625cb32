package accelfabv1

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Custom methods that do not change a resource: the data path, which has no
// record to check an etag against, and reading completions.
var dataMethods = []string{"PostWork", "PollCompletions", "WriteBuffer"}

// A request id makes a create repeatable; the batch has one for all.
func isCreate(m string) bool {
	return strings.HasPrefix(m, "Create") || strings.HasPrefix(m, "BatchCreate")
}

// files gives the files of the contract.
func files() []protoreflect.FileDescriptor {
	var fs []protoreflect.FileDescriptor
	protoregistry.GlobalFiles.RangeFilesByPackage("accelfab.v1", func(f protoreflect.FileDescriptor) bool {
		fs = append(fs, f)
		return true
	})
	return fs
}

// methods calls do for every method of the contract, as a subtest.
func methods(t *testing.T, do func(t *testing.T, m protoreflect.MethodDescriptor)) {
	n := 0
	for _, f := range files() {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				m := s.Methods().Get(j)
				t.Run(string(m.Name()), func(t *testing.T) { do(t, m) })
				n++
			}
		}
	}
	if n < 40 {
		t.Errorf("saw %d methods, want 40 or more", n)
	}
}

// messages calls do for every message of the contract, also nested ones.
func messages(do func(protoreflect.MessageDescriptor)) {
	var walk func(protoreflect.MessageDescriptors)
	walk = func(ms protoreflect.MessageDescriptors) {
		for i := range ms.Len() {
			do(ms.Get(i))
			walk(ms.Get(i).Messages())
		}
	}
	for _, f := range files() {
		walk(f.Messages())
	}
}

// resource gives the resource option of a message, nil if it has none.
func resource(m protoreflect.MessageDescriptor) *annotations.ResourceDescriptor {
	r, _ := proto.GetExtension(m.Options(), annotations.E_Resource).(*annotations.ResourceDescriptor)
	return r
}

func needField(t *testing.T, m protoreflect.MessageDescriptor, name string, kind protoreflect.Kind) {
	t.Helper()
	f := m.Fields().ByName(protoreflect.Name(name))
	if f == nil {
		t.Errorf("%s has no field %s", m.Name(), name)
		return
	}
	if f.Kind() != kind {
		t.Errorf("%s.%s is of kind %v, want %v", m.Name(), name, f.Kind(), kind)
	}
}

// resourceField gives the field of a request that holds the resource itself.
func resourceField(m protoreflect.MessageDescriptor) protoreflect.FieldDescriptor {
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		if f.Message() != nil && !f.IsList() && resource(f.Message()) != nil {
			return f
		}
	}
	return nil
}

// unary is methods for those that take one request: HTTP has no stream of them.
func unary(t *testing.T, fn func(t *testing.T, m protoreflect.MethodDescriptor)) {
	t.Helper()
	methods(t, func(t *testing.T, m protoreflect.MethodDescriptor) {
		if !m.IsStreamingClient() {
			fn(t, m)
		}
	})
}

func TestEveryMethodHasAnHTTPRoute(t *testing.T) {
	unary(t, func(t *testing.T, m protoreflect.MethodDescriptor) {
		verb, path, body := route(t, m)
		if !strings.HasPrefix(path, "/v1/") {
			t.Errorf("path %q does not begin with /v1/", path)
		}
		if (verb == "GET" || verb == "DELETE") && body != "" {
			t.Errorf("%s has a body", verb)
		}
	})
}

func TestEveryChangeCanBeChecked(t *testing.T) {
	unary(t, func(t *testing.T, m protoreflect.MethodDescriptor) {
		verb, _, _ := route(t, m)
		if verb == "GET" || slices.Contains(dataMethods, string(m.Name())) {
			return
		}
		needField(t, m.Input(), "validate_only", protoreflect.BoolKind)
		name := string(m.Name())
		switch {
		case isCreate(name):
			needField(t, m.Input(), "request_id", protoreflect.StringKind)
			needField(t, m.Input(), "parent", protoreflect.StringKind)
		case strings.HasPrefix(name, "Update"):
			needField(t, m.Input(), "update_mask", protoreflect.MessageKind)
			if f := resourceField(m.Input()); f == nil {
				t.Error("the request holds no resource")
			} else {
				needField(t, f.Message(), "etag", protoreflect.StringKind)
			}
		case strings.HasPrefix(name, "Batch"):
			// Each entry is the request of the single method, which has it.
			f := m.Input().Fields().ByName("requests")
			if f == nil || !f.IsList() {
				t.Fatal("a batch has no list of requests")
			}
			needField(t, f.Message(), "etag", protoreflect.StringKind)
		case strings.HasPrefix(name, "KeepAlive"):
			needField(t, m.Input(), "generation", protoreflect.Uint64Kind)
		default:
			needField(t, m.Input(), "etag", protoreflect.StringKind)
		}
	})
}

func TestEveryListHasPages(t *testing.T) {
	methods(t, func(t *testing.T, m protoreflect.MethodDescriptor) {
		if !strings.HasPrefix(string(m.Name()), "List") {
			return
		}
		needField(t, m.Input(), "parent", protoreflect.StringKind)
		needField(t, m.Input(), "page_size", protoreflect.Int32Kind)
		needField(t, m.Input(), "page_token", protoreflect.StringKind)
		needField(t, m.Input(), "filter", protoreflect.StringKind)
		needField(t, m.Output(), "next_page_token", protoreflect.StringKind)
	})
}

func TestEveryResourceHasTheCommonFields(t *testing.T) {
	n := 0
	messages(func(m protoreflect.MessageDescriptor) {
		if resource(m) == nil {
			return
		}
		n++
		needField(t, m, "name", protoreflect.StringKind)
		needField(t, m, "uid", protoreflect.StringKind)
		needField(t, m, "create_time", protoreflect.MessageKind)
		needField(t, m, "labels", protoreflect.MessageKind)
		if m.Name() == "Event" { // never changes
			return
		}
		needField(t, m, "etag", protoreflect.StringKind)
		needField(t, m, "reconciling", protoreflect.BoolKind)
		needField(t, m, "reason", protoreflect.StringKind)
		needField(t, m, "state", protoreflect.EnumKind)
		state := m.Fields().ByName("state")
		if state.Enum().Parent() != m {
			t.Errorf("%s.state is not of an enum of its own", m.Name())
		}
		behavior, _ := proto.GetExtension(state.Options(), annotations.E_FieldBehavior).([]annotations.FieldBehavior)
		if !slices.Contains(behavior, annotations.FieldBehavior_OUTPUT_ONLY) {
			t.Errorf("%s.state is not output only", m.Name())
		}
	})
	if n != 10 {
		t.Errorf("saw %d resources, want 10", n)
	}
}

func TestEveryFieldOfAResourceTellsItsBehavior(t *testing.T) {
	messages(func(m protoreflect.MessageDescriptor) {
		if resource(m) == nil {
			return
		}
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			if !proto.HasExtension(f.Options(), annotations.E_FieldBehavior) {
				t.Errorf("%s has no field_behavior", f.FullName())
			}
		}
	})
}

func TestEveryEnumBeginsUnspecified(t *testing.T) {
	check := func(es protoreflect.EnumDescriptors) {
		for i := range es.Len() {
			zero := es.Get(i).Values().ByNumber(0)
			if zero == nil || !strings.HasSuffix(string(zero.Name()), "_UNSPECIFIED") {
				t.Errorf("%s: value 0 is not _UNSPECIFIED", es.Get(i).FullName())
			}
		}
	}
	for _, f := range files() {
		check(f.Enums())
	}
	messages(func(m protoreflect.MessageDescriptor) { check(m.Enums()) })
}

// Sizes of memory and values that count without end have 64 bits, and numbers
// of the specification (QPN, PSN, keys) have 32.
func TestWidthsOfNumbers(t *testing.T) {
	narrow := []string{"qpn", "psn", "lkey", "rkey", "qkey", "pkey"}
	seen := 0
	messages(func(m protoreflect.MessageDescriptor) {
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			if slices.Contains(narrow, string(f.Name())) {
				seen++
				if f.Kind() != protoreflect.Uint32Kind {
					t.Errorf("%s is %v, want uint32", f.FullName(), f.Kind())
				}
			}
			if f.Kind() == protoreflect.DoubleKind || f.Kind() == protoreflect.FloatKind {
				t.Errorf("%s is a floating point number", f.FullName())
			}
		}
	})
	if seen < len(narrow) {
		t.Errorf("saw %d fields, want %d or more", seen, len(narrow))
	}
}
