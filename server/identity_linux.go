package server

import (
	"errors"
	"math"
	"net"

	"golang.org/x/sys/unix"

	"github.com/accelfab/accelfab/fabric"
)

// gone is when a process began that is no more: no other began then.
const gone = math.MaxUint64

// peerOf asks the kernel who connected (SO_PEERCRED, unix(7)): the user, groups
// and process at the time of connect(2). When that process began is told too, so
// that later another with its id is not taken for it.
func peerOf(conn *net.UnixConn) (fabric.Caller, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return fabric.Caller{}, err
	}
	var cred *unix.Ucred
	var groups []uint32
	var failure error
	pidfd, there := -1, true
	err = raw.Control(func(fd uintptr) {
		if cred, failure = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); failure == nil {
			groups, failure = peerGroups(int(fd))
		}
		// From Linux 6.5 it stands for the process itself, if that is there still.
		p, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if err == nil {
			pidfd = p
		}
		there = err == nil || errors.Is(err, unix.ENOPROTOOPT)
	})
	if pidfd >= 0 {
		defer unix.Close(pidfd)
	}
	if err == nil {
		err = failure
	}
	if err != nil {
		return fabric.Caller{}, err
	}
	c := fabric.Caller{UID: cred.Uid, GID: cred.Gid, Groups: groups, PID: cred.Pid}
	began, err := fabric.ProcessBegan(cred.Pid)
	switch { // what was read is of this process if that is there still
	case !there || pidfd >= 0 && errors.Is(unix.PidfdSendSignal(pidfd, 0, nil, 0), unix.ESRCH):
		c.Began = gone
	case err == nil:
		c.Began = began
	}
	return c, nil
}
