package softroce

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// shell runs a script in the machine and gives what it wrote and its status.
func (p *peer) shell(t *testing.T, script string) (out string, status int) {
	t.Helper()
	c := p.command(t, script)
	return c.finish(t)
}

// command is a script that runs in the machine. Writes go to its standard input.
type command struct {
	net.Conn
	lines *bufio.Reader
}

// command starts a script in the machine.
func (p *peer) command(t *testing.T, script string) *command {
	t.Helper()
	conn, err := p.dial(peerAddress + ":9999")
	if err != nil {
		t.Fatalf("the machine does not answer: %v\n%s", err, &p.Console)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(commandLimit))
	if _, err := fmt.Fprintln(conn, base64.StdEncoding.EncodeToString([]byte(script))); err != nil {
		t.Fatal(err)
	}
	return &command{conn, bufio.NewReader(conn)}
}

var statusLine = regexp.MustCompile(`(?m)^status (\d+)\n\z`)

// finish waits until the script ends.
func (c *command) finish(t *testing.T) (out string, status int) {
	t.Helper()
	b, err := io.ReadAll(c.lines)
	c.Close()
	at := statusLine.FindSubmatchIndex(b)
	if at == nil {
		t.Fatalf("the machine broke off: %v\n%s", err, b)
	}
	status, _ = strconv.Atoi(string(b[at[2]:at[3]]))
	return string(b[:at[0]]), status
}
