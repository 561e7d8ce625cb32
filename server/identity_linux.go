package server

import (
	"net"

	"golang.org/x/sys/unix"

	"github.com/accelfab/accelfab/fabric"
)

// peerOf asks the kernel who connected (SO_PEERCRED, unix(7)): the user, group
// and process at the time of connect(2).
func peerOf(conn *net.UnixConn) (fabric.Caller, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return fabric.Caller{}, err
	}
	var cred *unix.Ucred
	var failure error
	err = raw.Control(func(fd uintptr) {
		cred, failure = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err == nil {
		err = failure
	}
	if err != nil {
		return fabric.Caller{}, err
	}
	return fabric.Caller{UID: cred.Uid, GID: cred.Gid, PID: cred.Pid}, nil
}
