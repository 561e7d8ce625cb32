package soft

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// createUDMABuf is struct udmabuf_create of include/uapi/linux/udmabuf.h.
type createUDMABuf struct {
	memfd  uint32
	flags  uint32
	offset uint64 // bytes, whole pages
	size   uint64
}

const (
	udmabufCreate  = 1<<30 | 24<<16 | 'u'<<8 | 0x42 // UDMABUF_CREATE, _IOW('u', 0x42, struct udmabuf_create)
	udmabufCloexec = 1                              // UDMABUF_FLAGS_CLOEXEC
)

// udmabuf makes a dma-buf of a part of a memory file that can no longer shrink.
// The caller owns it.
func udmabuf(device, memory *os.File, offset, size uint64) (made *os.File, err error) {
	raw, err := device.SyscallConn()
	if err != nil {
		return nil, err
	}
	ofMemory, err := memory.SyscallConn()
	if err != nil {
		return nil, err
	}
	var errno unix.Errno
	err = raw.Control(func(fd uintptr) {
		err := ofMemory.Control(func(memfd uintptr) {
			ask := createUDMABuf{memfd: uint32(memfd), flags: udmabufCloexec, offset: offset, size: size}
			var got uintptr
			if got, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, udmabufCreate, uintptr(unsafe.Pointer(&ask))); errno == 0 {
				made = os.NewFile(got, "dma-buf")
			}
		})
		if err != nil {
			errno = unix.EBADF
		}
	})
	if err == nil && errno != 0 {
		err = errno
	}
	return made, err
}
