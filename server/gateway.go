package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// bodyTimeout is how long a body may take to arrive.
const bodyTimeout = 30 * time.Second

// newHTTPServer bounds what a client may hold. There is no bound on writing:
// streams last.
func newHTTPServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeaders,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			c, err := identify(conn)
			if err != nil { // its calls are refused as UNAUTHENTICATED
				log.Warn("HTTP connection", "error", err)
				return ctx
			}
			return context.WithValue(ctx, callerKey{}, c)
		},
	}
}

// gateway makes the REST door.
func (s *Server) gateway() http.Handler {
	conn := &channel{s, map[string]registered{}}
	s.register(conn)
	routes := newRoutes()
	var mux *runtime.ServeMux
	mux = runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, &jsonLines{runtime.JSONPb{
			MarshalOptions:   protojson.MarshalOptions{EmitDefaultValues: true},
			UnmarshalOptions: protojson.UnmarshalOptions{},
		}}),
		runtime.WithIncomingHeaderMatcher(func(name string) (string, bool) {
			for _, h := range beliefs {
				if strings.EqualFold(name, runtime.MetadataHeaderPrefix+h) {
					return h, true
				}
			}
			return "", false
		}),
		runtime.WithOutgoingHeaderMatcher(func(string) (string, bool) { return "", false }), // see web
		runtime.WithOutgoingTrailerMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithErrorHandler(writeError),
		runtime.WithStreamErrorHandler(func(_ context.Context, err error) *status.Status { return refusal(err) }),
		runtime.WithRoutingErrorHandler(writeRoutingError),
		runtime.WithMiddlewares(routes.check(func(w http.ResponseWriter, r *http.Request, err error) {
			writeError(r.Context(), mux, nil, w, r, err)
		})),
		runtime.WithDisableHTTPMethodOverride(),
		runtime.WithDisablePathLengthFallback(),
	)
	ctx := context.Background()
	for _, err := range []error{
		pb.RegisterNodeServiceHandlerClient(ctx, mux, pb.NewNodeServiceClient(conn)),
		pb.RegisterDeviceServiceHandlerClient(ctx, mux, pb.NewDeviceServiceClient(conn)),
		pb.RegisterSessionServiceHandlerClient(ctx, mux, pb.NewSessionServiceClient(conn)),
		pb.RegisterMemoryServiceHandlerClient(ctx, mux, pb.NewMemoryServiceClient(conn)),
		pb.RegisterQueuePairServiceHandlerClient(ctx, mux, pb.NewQueuePairServiceClient(conn)),
		pb.RegisterEventServiceHandlerClient(ctx, mux, pb.NewEventServiceClient(conn)),
		pb.RegisterTransferServiceHandlerClient(ctx, mux, pb.NewTransferServiceClient(conn)),
	} {
		if err != nil {
			panic(err) // the generated code has no such case
		}
	}
	return web{s, mux, map[string]http.HandlerFunc{
		pathOpenAPI: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(pb.OpenAPI))
		},
		pathAlive:   s.answerAlive,
		pathReady:   s.answerReady,
		pathMetrics: s.answerMetrics,
	}}
}

// web is what every HTTP request goes through before it meets its route.
type web struct {
	*Server
	mux *runtime.ServeMux
	own map[string]http.HandlerFunc // by path: what is not of the contract, to GET and HEAD
}

func (h web) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Body != nil && r.Body != http.NoBody {
		// Until all of it is here: net/http reads on before it sends an answer,
		// a refusal too, and would wait for ever for a body that does not come.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout)) // a recorder of tests has none
	}
	for key, values := range h.header {
		w.Header().Set(runtime.MetadataHeaderPrefix+key, values[0])
	}
	refuse := func(code int, e *fabric.Error) {
		writeError(r.Context(), h.mux, nil, w, r, &runtime.HTTPStatusError{HTTPStatus: code, Err: e})
	}
	c, _ := r.Context().Value(callerKey{}).(fabric.Caller)
	if e := checkOrigin(r, c.HasPeer); e != nil {
		refuse(http.StatusForbidden, e)
		return
	}
	if own := h.own[r.URL.Path]; own != nil && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		own(w, r)
		return
	}
	body, err := readBody(w, r)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		refuse(http.StatusRequestEntityTooLarge, &fabric.Error{Field: "body", Reason: fabric.FieldInvalid,
			Message: fmt.Sprintf("has more than %d bytes; send it in parts", maxRequest)})
		return
	case err != nil:
		refuse(http.StatusBadRequest, &fabric.Error{Field: "body", Reason: fabric.FieldInvalid, Message: "it did not arrive: " + err.Error()})
		return
	case len(body) > 0 && !json.Valid(body):
		var v any
		refuse(http.StatusBadRequest, &fabric.Error{Field: "body", Reason: fabric.FieldInvalid, Message: fmt.Sprintf("is not JSON: %v", json.Unmarshal(body, &v))})
		return
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	h.mux.ServeHTTP(w, r)
}

// readBody reads the body, within a bound of size, and takes away that of time.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err == nil {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
	return bytes.TrimSpace(b), err
}

// checkOrigin refuses what a web page from elsewhere sends: by a name that
// leads here (Host), or as itself (Origin). A unix socket has no such callers,
// and any Host.
func checkOrigin(r *http.Request, unix bool) *fabric.Error {
	deny := func(field, value, want string) *fabric.Error {
		return &fabric.Error{Field: field, Reason: fabric.PermissionDenied, Message: fmt.Sprintf("the header is %q: want %s", clip(value, maxText), want),
			Details: map[string]string{"identity": anonymous}}
	}
	if !unix && !isLoopbackHost(r.Host) {
		return deny("Host", r.Host, "localhost or a loopback address, which this door listens on")
	}
	for _, o := range r.Header.Values("Origin") {
		scheme, host, ok := strings.Cut(o, "://")
		if !ok || scheme != "http" && scheme != "https" || !isLoopbackHost(host) {
			return deny("Origin", o, "a page of this machine")
		}
	}
	return nil
}

// isLoopbackHost says whether host, with a port or without, is this machine.
func isLoopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// jsonLines is JSON as the contract has it, and streams of a line each.
type jsonLines struct{ runtime.JSONPb }

// StreamContentType implements runtime.StreamContentType.
func (*jsonLines) StreamContentType(any) string { return "application/x-ndjson" }

// Faults that the gateway finds itself, in its words or those of protojson.
var (
	unknownField = regexp.MustCompile(`unknown field "([^"]+)"`)
	noSuchField  = regexp.MustCompile(`could not find field "([^"]+)"`)
	badField     = regexp.MustCompile(`(?:for|parsing|duplicate)(?: \w+)? field:? "?([\w.\[\]]+)"?`)
)

// gatewayFault gives a fault that the gateway finds the form of all others.
func gatewayFault(text string) *fabric.Error {
	text = strings.Join(strings.Fields(strings.ReplaceAll(text, "\u00a0", " ")), " ")
	text = strings.TrimPrefix(text, "proto: ")
	e := &fabric.Error{Field: "body", Reason: fabric.FieldInvalid, Message: text}
	switch {
	case unknownField.MatchString(text):
		e.Field = unknownField.FindStringSubmatch(text)[1]
		e.Message = "there is no such field here; /openapi.json tells those that are"
	case noSuchField.MatchString(text):
		e.Field = noSuchField.FindStringSubmatch(text)[1]
		e.Message = "there is no such field here; /openapi.json tells those that are"
	case badField.MatchString(text):
		e.Field = badField.FindStringSubmatch(text)[1]
	}
	e.Violations = []fabric.Violation{{Field: e.Field, Reason: e.Reason, Problem: e.Message}}
	return e
}

// writeError writes a refusal as google.rpc.Status.
func writeError(ctx context.Context, mux *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
	var own *runtime.HTTPStatusError
	code := 0
	if errors.As(err, &own) {
		code, err = own.HTTPStatus, own.Err
	}
	st := refusal(err)
	if st.Code() == codes.InvalidArgument && len(st.Proto().GetDetails()) == 0 {
		st = refusal(gatewayFault(st.Message()))
	}
	err = st.Err()
	if code != 0 {
		err = &runtime.HTTPStatusError{HTTPStatus: code, Err: err}
	}
	_, m := runtime.MarshalerForRequest(mux, r)
	runtime.DefaultHTTPErrorHandler(ctx, mux, m, w, r, err)
}

// writeRoutingError answers what has no route.
func writeRoutingError(ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) {
	e := &fabric.Error{Reason: fabric.FieldInvalid, Message: "the path " + clip(r.URL.Path, maxText) + " is not one"}
	switch code {
	case http.StatusNotFound:
		e = &fabric.Error{Reason: fabric.NotFound, Message: "there is no " + clip(r.URL.Path, maxText) + " here; /openapi.json tells what is"}
	case http.StatusMethodNotAllowed:
		e = &fabric.Error{Reason: fabric.Unsupported, Message: r.Method + " is not for " + clip(r.URL.Path, maxText) + "; /openapi.json tells what is"}
	}
	writeError(ctx, mux, m, w, r, &runtime.HTTPStatusError{HTTPStatus: code, Err: e})
}
