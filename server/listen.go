package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"
)

// socketMode is that of a unix socket that Listen makes: the daemon's user and
// group may connect. Give others a way in by the group of the daemon, or by
// the folder.
const socketMode = 0o660

// maxSocketPath is what sockaddr_un holds, without the closing NUL (unix(7)).
const maxSocketPath = 107

// Listen opens a door at unix:///path or at tcp://host:port (host:port means
// TCP too; port 0 takes a free one). A TCP host must be localhost or a
// loopback address: what would be heard from elsewhere is refused, since
// nothing tells there who calls.
//
// A socket file that is there already is removed if nobody listens on it,
// which a connect shows, and refused otherwise. Closing the listener removes
// the file.
func Listen(addr string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(addr, "unix://"); ok {
		return listenUnix(addr, path)
	}
	rest, ok := strings.CutPrefix(addr, "tcp://")
	if !ok && strings.Contains(addr, "://") {
		return nil, fmt.Errorf("listen on %q: want unix:///path or tcp://host:port", addr)
	}
	host, port, err := net.SplitHostPort(rest)
	if !ok {
		host, port, err = net.SplitHostPort(addr)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %q: want unix:///path or tcp://host:port: %w", addr, err)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: host %q: want localhost or a loopback address such as 127.0.0.1", addr, host)
	}
	if !ip.Unmap().IsLoopback() {
		return nil, fmt.Errorf("listen on %q: %w", addr, errWide)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", addr, err)
	}
	return l, nil
}

var errWide = errors.New("only loopback addresses: callers from elsewhere cannot be told apart without TLS; listen on 127.0.0.1 or a unix socket")

// checkDoor refuses a listener that is heard off this machine.
func checkDoor(l net.Listener) error {
	a, ok := l.Addr().(*net.TCPAddr)
	if ok && !a.IP.IsLoopback() {
		return fmt.Errorf("listen on %v: %w", a, errWide)
	}
	return nil
}

func listenUnix(addr, path string) (net.Listener, error) {
	return listenSocket("unix", addr, path, socketMode)
}

// listenSocket listens on a unix socket of a type that net knows.
func listenSocket(network, addr, path string, mode fs.FileMode) (net.Listener, error) {
	switch {
	case !strings.HasPrefix(path, "/"):
		return nil, fmt.Errorf("listen on %q: want an absolute path, unix:///path", addr)
	case len(path) > maxSocketPath:
		return nil, fmt.Errorf("listen on %q: the path has %d bytes; a unix socket's has at most %d: choose a shorter run directory", addr, len(path), maxSocketPath)
	}
	if err := removeStale(network, path); err != nil {
		return nil, fmt.Errorf("listen on %q: %w", addr, err)
	}
	l, err := net.Listen(network, path)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", addr, err)
	}
	if err := os.Chmod(path, mode); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen on %q: %w", addr, err)
	}
	return l, nil
}

// removeStale removes a socket that nobody listens on.
func removeStale(network, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return errors.New("there is a file with this name that is no socket; remove it, or choose another path")
	}
	conn, err := net.DialTimeout(network, path, time.Second)
	switch {
	case err == nil:
		conn.Close()
		return errors.New("another process listens on it; stop that one, or choose another path")
	case !errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("cannot tell whether somebody listens on the socket that is there: %w", err)
	}
	return os.Remove(path)
}
