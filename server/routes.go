package server

import (
	"net/http"
	"regexp"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// routes are the HTTP routes of the contract by verb and template. The gateway
// leaves unheard what a route has no use for, such as a misspelt query
// parameter or a body that a DELETE was given; routes refuses it.
type routes map[string]route

type route struct {
	input protoreflect.MessageDescriptor
	body  string // field that is the body, "*" for all, "" for none
	path  string // field that is in the path
}

// contract are the files of the contract that have services.
var contract = []protoreflect.FileDescriptor{
	pb.File_accelfab_v1_node_proto, pb.File_accelfab_v1_device_proto, pb.File_accelfab_v1_session_proto, pb.File_accelfab_v1_memory_proto,
	pb.File_accelfab_v1_queue_pair_proto, pb.File_accelfab_v1_event_proto, pb.File_accelfab_v1_transfer_proto,
}

func newRoutes() routes {
	rs := routes{}
	for _, f := range contract {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				rule, _ := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule)
				verb, template := httpRule(rule)
				_, variable, _ := strings.Cut(template, "{")
				variable, _, _ = strings.Cut(variable, "=")
				rs[verb+" "+template] = route{m.Input(), rule.GetBody(), variable}
			}
		}
	}
	return rs
}

func httpRule(rule *annotations.HttpRule) (verb, template string) {
	switch p := rule.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		return http.MethodGet, p.Get
	case *annotations.HttpRule_Post:
		return http.MethodPost, p.Post
	case *annotations.HttpRule_Patch:
		return http.MethodPatch, p.Patch
	case *annotations.HttpRule_Delete:
		return http.MethodDelete, p.Delete
	}
	return "", ""
}

// check makes a middleware of the gateway, which refuses by the given func.
func (rs routes) check(refuse func(http.ResponseWriter, *http.Request, error)) runtime.Middleware {
	return func(next runtime.HandlerFunc) runtime.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request, params map[string]string) {
			pattern, _ := runtime.HTTPPattern(r.Context())
			if err := rs.faults(r, pattern.String()).err(); err != nil {
				refuse(w, r, err)
				return
			}
			next(w, r, params)
		}
	}
}

// mapKey is the key of a map in a query parameter, labels[job].
var mapKey = regexp.MustCompile(`\[[^\]]*\]$`)

// faults lists what a request has that its route does not.
func (rs routes) faults(r *http.Request, template string) faults {
	var v faults
	route, ok := rs[r.Method+" "+template]
	if !ok {
		return nil
	}
	if route.body == "" && r.ContentLength > 0 {
		v.invalid("body", "%s takes none; give fields as query parameters", r.Method)
	}
	for _, key := range sorted(r.URL.Query()) {
		field := mapKey.ReplaceAllString(key, "")
		first, _, _ := strings.Cut(field, ".")
		f := fieldOf(route.input, first)
		switch {
		case !hasPath(route.input, field):
			v.invalid(clip(key, maxText), "there is no such query parameter here; /openapi.json tells those that are")
		case route.body == "*":
			v.invalid(clip(key, maxText), "give it in the body")
		case string(f.Name()) == route.body:
			v.invalid(clip(key, maxText), "give it in the body, which is %s", route.body)
		case string(f.Name()) == route.path:
			v.invalid(clip(key, maxText), "it is in the path")
		}
	}
	return v
}

func fieldOf(m protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if f := m.Fields().ByName(protoreflect.Name(name)); f != nil {
		return f
	}
	return m.Fields().ByJSONName(name)
}

// hasPath says whether a message has a field of the given path.
func hasPath(m protoreflect.MessageDescriptor, path string) bool {
	for path != "" {
		var name string
		name, path, _ = strings.Cut(path, ".")
		if m == nil {
			return false
		}
		f := fieldOf(m, name)
		if f == nil {
			return false
		}
		m = f.Message()
	}
	return true
}
