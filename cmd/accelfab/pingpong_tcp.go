package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"
)

// tcpPeer is the TCP connection to the other end, over which two ends find each
// other.
type tcpPeer struct {
	conn  net.Conn
	limit time.Duration // of one step
}

// until lets the end of ctx end what waits for the peer, up to the call of what
// it returns.
func (p tcpPeer) until(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, p.giveUp)
}

// giveUp ends the step under way.
func (p tcpPeer) giveUp() { _ = p.conn.SetDeadline(time.Unix(1, 0)) }

// begin begins a step, unless ctx has ended. One that ends later is after the
// deadline that is set here, and has its own way.
func (p tcpPeer) begin(ctx context.Context, limit time.Duration) error {
	var deadline time.Time
	if limit > 0 {
		deadline = time.Now().Add(limit)
	}
	_ = p.conn.SetDeadline(deadline) // a connection that is gone says so in what follows
	return ctx.Err()
}

// send writes at once: ibv_*_pingpong reads once.
func (p tcpPeer) send(ctx context.Context, b []byte) error {
	if err := p.begin(ctx, p.limit); err != nil {
		return err
	}
	if _, err := p.conn.Write(b); err != nil {
		return p.fault(ctx, err)
	}
	return nil
}

func (p tcpPeer) receive(ctx context.Context, size int) ([]byte, error) {
	if err := p.begin(ctx, p.limit); err != nil {
		return nil, err
	}
	b := make([]byte, size)
	switch n, err := io.ReadFull(p.conn, b); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("the peer closed the connection after %d of %d bytes (%q): what does it say", n, size, b[:n])
	case err != nil:
		return nil, p.fault(ctx, err)
	}
	return b, nil
}

// fault says what an error of the connection means.
func (p tcpPeer) fault(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the peer says nothing for %v (--timeout)", p.limit)
	}
	return fmt.Errorf("the connection to the peer: %w", err)
}

// checkPlace refuses a TCP port, a host or a port of a device that cannot be.
func checkPlace(port int, place jobPlace, args []string, given func(flag string) bool) error {
	lowest := 0 // lets a server take a free one
	if len(args) == 1 {
		lowest = 1
	}
	switch {
	case len(args) == 1 && args[0] == "":
		return usage("HOST is empty: want a name or an address")
	case port < lowest || port > 65535:
		return usage("--port %d: want %d to 65535", port, lowest)
	case given("ib-port") && place.ibPort == 0:
		return usage("--ib-port 0: want 1 or more")
	}
	if place.device != "" {
		_, err := deviceKind.name(place.device)
		return err
	}
	return nil
}

// tcpListen listens on all addresses of the machine. Port 0 takes a free one.
func tcpListen(ctx context.Context, port int) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("--port %d: %w", port, err)
	}
	return l, nil
}

// tcpAccept waits for one client, as long as it takes, and listens no more.
func tcpAccept(ctx context.Context, l net.Listener) (net.Conn, error) {
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	conn, err := l.Accept()
	if ctx.Err() != nil {
		if err == nil {
			conn.Close()
		}
		return nil, ctx.Err()
	}
	return conn, err
}

// tcpDial connects to a server.
func tcpDial(ctx context.Context, host string, port int, limit time.Duration) (net.Conn, error) {
	call, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(call, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, fmt.Errorf("no server to talk to: %w; is it started there, with this --port", err)
	}
	return conn, nil
}
