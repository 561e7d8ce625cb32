package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/accelfab/accelfab/fabric"
)

// anonymous is who calls over loopback TCP: the connection tells nothing. All
// anonymous callers are one tenant, which sees and touches what is its own.
const anonymous = "anonymous"

// identify tells who is at the other end of a connection. On a unix socket the
// kernel says it; root and the daemon's own user are operators there. Over TCP
// it is anonymous. What a caller says about itself is not asked.
func identify(conn net.Conn) (fabric.Caller, error) {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return fabric.Caller{Identity: anonymous}, nil
	}
	c, err := peerOf(u)
	if err != nil {
		return fabric.Caller{}, fmt.Errorf("who connects to %s: %w", conn.LocalAddr(), err)
	}
	c.Identity = "uid:" + strconv.FormatUint(uint64(c.UID), 10)
	c.HasPeer = true
	c.Operator = c.UID == 0 || int(c.UID) == os.Geteuid()
	return c, nil
}

// callerInfo carries the caller of a gRPC connection to its calls.
type callerInfo struct {
	credentials.CommonAuthInfo
	caller fabric.Caller
}

// AuthType implements credentials.AuthInfo.
func (callerInfo) AuthType() string { return "peer" }

// peerCredentials is the handshake of a door: it exchanges nothing and notes
// who connects.
type peerCredentials struct{}

func (peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, err := identify(conn)
	if err != nil {
		return nil, nil, err
	}
	level := credentials.NoSecurity
	if c.HasPeer {
		level = credentials.PrivacyAndIntegrity
	}
	return conn, callerInfo{credentials.CommonAuthInfo{SecurityLevel: level}, c}, nil
}

func (peerCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a server's")
}

func (peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "peer"}
}

func (c peerCredentials) Clone() credentials.TransportCredentials { return c }

func (peerCredentials) OverrideServerName(string) error { return nil }

// callerKey finds the caller of an HTTP connection in its contexts.
type callerKey struct{}

// callerOf gives who makes a call; ok is false if no door has established it.
func callerOf(ctx context.Context) (c fabric.Caller, ok bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return c, false
	}
	info, ok := p.AuthInfo.(callerInfo)
	return info.caller, ok
}

// admitted finds the caller in the context of a call that was let in.
type admitted struct{}

// caller gives who makes a call that the interceptors let in, with what the call
// says that the caller believes in.
func caller(ctx context.Context) fabric.Caller {
	c, _ := ctx.Value(admitted{}).(fabric.Caller)
	return c
}
