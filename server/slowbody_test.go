package server

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelfab/accelfab/fabric"
)

// pipeDoor is a listener with one connection, in memory: its deadlines run on
// the time of the test.
type pipeDoor struct {
	conns chan net.Conn
}

func newPipeDoor() (*pipeDoor, net.Conn) {
	mine, theirs := net.Pipe()
	d := &pipeDoor{make(chan net.Conn, 1)}
	d.conns <- theirs
	return d, mine
}

func (d *pipeDoor) Accept() (net.Conn, error) {
	if c, ok := <-d.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (d *pipeDoor) Close() error   { close(d.conns); return nil }
func (d *pipeDoor) Addr() net.Addr { return &net.UnixAddr{Net: "pipe", Name: "pipe"} }

// A client that never sends the rest of its body is answered, whatever becomes
// of its request, and its connection ends with that.
func TestABodyThatDoesNotArriveIsRefusedInTime(t *testing.T) {
	h := newHouse(t)
	for _, c := range []struct {
		name, request string
		code          int
		reason        fabric.Reason
	}{
		{"to a method", "POST /v1/nodes/local/sessions HTTP/1.1\r\nHost: localhost\r\n", http.StatusBadRequest, fabric.FieldInvalid},
		{"from elsewhere", "POST /v1/nodes/local/sessions HTTP/1.1\r\nHost: elsewhere\r\n", http.StatusForbidden, fabric.PermissionDenied},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				door, conn := newPipeDoor()
				srv := newHTTPServer(h.server.gateway(), h.server.log)
				done := make(chan error, 1)
				go func() { done <- srv.Serve(door) }()
				began := time.Now()
				if _, err := io.WriteString(conn, c.request+"Content-Length: 1000\r\n\r\n{"); err != nil {
					t.Fatal(err)
				}
				conn.SetReadDeadline(began.Add(2 * bodyTimeout))
				from := bufio.NewReader(conn)
				r, err := http.ReadResponse(from, nil)
				if err != nil {
					t.Fatalf("no answer after %v: %v", time.Since(began), err)
				}
				body, _ := io.ReadAll(r.Body)
				if r.StatusCode != c.code || !strings.Contains(string(body), string(c.reason)) {
					t.Errorf("%d %s", r.StatusCode, body)
				}
				if _, err := from.ReadByte(); err != io.EOF {
					t.Errorf("after the answer the connection has %v: want its end", err)
				}
				srv.Close()
				<-done
			})
		})
	}
}
