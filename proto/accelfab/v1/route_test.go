package accelfabv1

import (
	"context"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// route gives a method's HTTP verb, path template and body.
func route(t *testing.T, m protoreflect.MethodDescriptor) (verb, path, body string) {
	t.Helper()
	rule, _ := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule)
	switch p := rule.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		return "GET", p.Get, rule.Body
	case *annotations.HttpRule_Post:
		return "POST", p.Post, rule.Body
	case *annotations.HttpRule_Patch:
		return "PATCH", p.Patch, rule.Body
	case *annotations.HttpRule_Delete:
		return "DELETE", p.Delete, rule.Body
	}
	t.Fatalf("%s has no HTTP route", m.FullName())
	return "", "", ""
}

var variable = regexp.MustCompile(`\{[^=}]*=([^}]*)\}`)

// A call by each method's route arrives at that method and at no other, also
// where one template is the beginning of another.
func TestEveryRouteLeadsToItsMethod(t *testing.T) {
	ctx := context.Background()
	mux := runtime.NewServeMux()
	for _, err := range []error{
		RegisterNodeServiceHandlerServer(ctx, mux, UnimplementedNodeServiceServer{}),
		RegisterDeviceServiceHandlerServer(ctx, mux, UnimplementedDeviceServiceServer{}),
		RegisterSessionServiceHandlerServer(ctx, mux, UnimplementedSessionServiceServer{}),
		RegisterMemoryServiceHandlerServer(ctx, mux, UnimplementedMemoryServiceServer{}),
		RegisterQueuePairServiceHandlerServer(ctx, mux, UnimplementedQueuePairServiceServer{}),
		RegisterEventServiceHandlerServer(ctx, mux, UnimplementedEventServiceServer{}),
		RegisterTransferServiceHandlerServer(ctx, mux, UnimplementedTransferServiceServer{}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	unary(t, func(t *testing.T, m protoreflect.MethodDescriptor) {
		verb, template, body := route(t, m)
		path := variable.ReplaceAllStringFunc(template, func(v string) string {
			return strings.ReplaceAll(variable.FindStringSubmatch(v)[1], "*", "x1")
		})
		content := ""
		if body != "" {
			content = "{}"
		}
		reply := httptest.NewRecorder()
		mux.ServeHTTP(reply, httptest.NewRequest(verb, path, strings.NewReader(content)))
		want := "method " + string(m.Name()) + " not implemented"
		if m.IsStreamingServer() {
			want = "streaming calls are not yet supported"
		}
		if reply.Code != http.StatusNotImplemented || !strings.Contains(reply.Body.String(), want) {
			t.Errorf("%s %s: %d %s, want %q", verb, path, reply.Code, reply.Body, want)
		}
	})
}
