package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// maxSocketPath is what sockaddr_un holds, without the closing NUL (unix(7)).
const maxSocketPath = 107

// ErrServed is what errors.Is finds when a host serves on the socket already.
var ErrServed = errors.New("a device host serves there already")

// Sockets are the doors of a host. They are closed by Serve, or by Close.
type Sockets struct {
	path        string
	calls       net.Listener
	descriptors *net.UnixListener
	lock        *os.File
}

// A process that was killed holds its files for as long as its last thread needs
// to end.
const (
	dyingLimit = time.Second
	dyingTick  = 5 * time.Millisecond
)

// beside gives the file with another ending beside a socket.
func beside(socket, ending string) string { return strings.TrimSuffix(socket, ".sock") + ending }

// CheckSocket says what is wrong with a path for a host's socket.
func CheckSocket(path string) error {
	switch {
	case !filepath.IsAbs(path) || !strings.HasSuffix(path, ".sock"):
		return fmt.Errorf("socket %q: want an absolute path that ends in .sock", path)
	case len(path) > maxSocketPath:
		return fmt.Errorf("socket %q: the path has %d bytes; a unix socket's has at most %d: choose a shorter run directory", path, len(path), maxSocketPath)
	}
	return nil
}

// Listen opens the sockets of a host at DIR/NAME.sock; DIR is made, for this
// user alone. Files that a dead host left are replaced: a lock tells, so that two
// hosts never share a name. errors.Is finds ErrServed if one lives.
func Listen(path string) (*Sockets, error) {
	if err := CheckSocket(path); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	lock, err := lockFile(beside(path, ".lock"))
	for end := time.Now().Add(dyingLimit); errors.Is(err, errHeld) && time.Now().Before(end); {
		time.Sleep(dyingTick)
		lock, err = lockFile(beside(path, ".lock"))
	}
	if errors.Is(err, errHeld) {
		return nil, fmt.Errorf("%s: %w", path, ErrServed)
	}
	if err != nil {
		return nil, err
	}
	s := &Sockets{path: path, lock: lock}
	s.calls, err = listenAt("unix", path)
	if err == nil {
		var l net.Listener
		if l, err = listenAt("unixpacket", beside(path, ".fds")); err == nil {
			s.descriptors = l.(*net.UnixListener)
		}
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// listenAt listens in the place of a socket that nobody serves, as the lock is
// held.
func listenAt(network, path string) (net.Listener, error) {
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s: there is a file with this name that is no socket; remove it", path)
	case err == nil:
		err = os.Remove(path)
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	}
	if err != nil {
		return nil, err
	}
	l, err := net.Listen(network, path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Close closes the sockets, removes their files, and lets another host have the
// name.
func (s *Sockets) Close() error {
	var errs []error
	closing := func(l net.Listener) {
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if s.calls != nil {
		closing(s.calls)
	}
	if s.descriptors != nil {
		closing(s.descriptors)
	}
	if err := s.lock.Close(); !errors.Is(err, os.ErrClosed) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// guarded accepts connections of this user and of root alone.
type guarded struct {
	net.Listener
	refused func(error)
}

func (g guarded) Accept() (net.Conn, error) {
	for {
		conn, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if err := checkPeer(conn.(*net.UnixConn)); err != nil {
			g.refused(err)
			conn.Close()
			continue
		}
		return conn, nil
	}
}
