package server

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// peerGroups asks the kernel for the supplementary groups that the peer had at
// connect(2) (SO_PEERGROUPS, since Linux 4.13; net/core/sock.c). A kernel
// without it knows none.
func peerGroups(fd int) ([]uint32, error) {
	groups := make([]uint32, 32)
	for {
		size := uint32(len(groups)) * 4 // bytes, of what there is after the call
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch errno {
		case 0:
			return groups[:size/4], nil
		case unix.ERANGE: // there are more; size says how many
			groups = make([]uint32, size/4)
		case unix.ENOPROTOOPT, unix.ENODATA:
			return nil, nil
		default:
			return nil, errno
		}
	}
}
