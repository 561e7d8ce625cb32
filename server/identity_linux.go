package server

import (
	"net"

	"golang.org/x/sys/unix"

	"github.com/accelfab/accelfab/fabric"
)

// peerOf asks the kernel who connected (SO_PEERCRED, unix(7)): the user, groups
// and process at the time of connect(2).
func peerOf(conn *net.UnixConn) (fabric.Caller, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return fabric.Caller{}, err
	}
	var cred *unix.Ucred
	var groups []uint32
	var failure error
	err = raw.Control(func(fd uintptr) {
		if cred, failure = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); failure == nil {
			groups, failure = peerGroups(int(fd))
		}
	})
	if err == nil {
		err = failure
	}
	if err != nil {
		return fabric.Caller{}, err
	}
	return fabric.Caller{UID: cred.Uid, GID: cred.Gid, Groups: groups, PID: cred.Pid}, nil
}
