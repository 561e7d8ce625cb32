package client_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/client"
	"github.com/accelfab/accelfab/client/clienttest"
)

// bubble runs a test with a clock of its own. It fails if a goroutine is left
// when the test and its cleanups have run.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

// connect serves a daemon in memory and gives a client of it.
func connect(t *testing.T, d *clienttest.Daemon) *client.Client {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	t.Cleanup(d.Serve(l).Stop)
	c, err := client.Dial("daemon:1", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// answers serves methods by functions from their requests to their replies.
func answers(methods map[string]func(proto.Message) (proto.Message, error)) *clienttest.Daemon {
	return &clienttest.Daemon{Answer: func(_ context.Context, method string, req proto.Message) (proto.Message, error) {
		if f := methods[method]; f != nil {
			return f(req)
		}
		return nil, status.Errorf(codes.Unimplemented, "%s is not of this test", method)
	}}
}

func methods(calls []clienttest.Call) []string {
	var names []string
	for _, c := range calls {
		names = append(names, c.Method)
	}
	return names
}
