package host

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// ErrStranger is what errors.Is finds when the process at the other end of a
// socket, or what is known of it, is of another user.
var ErrStranger = errors.New("the device host is of another user")

// checkPeer makes sure that the other end of a connection is of this user, or
// root. For a connection that was dialled the kernel says who listens, for one
// that was accepted who connected (SO_PEERCRED, unix(7)).
func checkPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var failure error
	err = raw.Control(func(fd uintptr) {
		cred, failure = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, failure); err != nil {
		return fmt.Errorf("SO_PEERCRED: %w", err)
	}
	if us := os.Geteuid(); cred.Uid != 0 && int(cred.Uid) != us {
		return fmt.Errorf("%w: process %d of uid %d is at the other end of the socket, this one is of uid %d; remove the socket, or give another run directory", ErrStranger, cred.Pid, cred.Uid, us)
	}
	return nil
}

// lockFile locks a file for as long as it is open. It does not wait.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", path, errHeld)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

var errHeld = errors.New("locked by another process")

// receivePacket reads one packet with the descriptors that came with it, which
// are the caller's also when there is an error.
func receivePacket(conn *net.UnixConn) (data []byte, files []*os.File, err error) {
	data, control := make([]byte, maxPacket), make([]byte, unix.CmsgSpace(4))
	n, nc, flags, _, err := conn.ReadMsgUnix(data, control) // close-on-exec
	if errors.Is(err, io.EOF) {
		// The kernel looks whether the peer is gone after it has found no packet
		// (unix_dgram_recvmsg, net/unix/af_unix.c): one that came between the two, just
		// before the peer closed, is there at a second look.
		n, nc, flags, _, err = conn.ReadMsgUnix(data, control)
	}
	n, nc = max(n, 0), max(nc, 0) // -1 with some errors
	messages, bad := unix.ParseSocketControlMessage(control[:nc])
	for i := range messages {
		fds, _ := unix.ParseUnixRights(&messages[i]) // of another kind: none
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "export"))
		}
	}
	switch {
	case err != nil:
	case n == 0 && nc == 0:
		err = io.EOF
	case bad != nil, flags&unix.MSG_CTRUNC != 0, len(files) > 1:
		err = errors.New("more than one descriptor in a packet, or more than this process may hold")
	case flags&unix.MSG_TRUNC != 0:
		err = errors.New("the packet is too long")
	}
	return data[:n], files, err
}

// sendPacket writes one packet, with a descriptor unless file is nil.
func sendPacket(conn *net.UnixConn, data []byte, file *os.File) error {
	if file == nil {
		_, _, err := conn.WriteMsgUnix(data, nil, nil)
		return err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) { _, _, sent = conn.WriteMsgUnix(data, unix.UnixRights(int(fd)), nil) })
	return errors.Join(err, sent)
}
