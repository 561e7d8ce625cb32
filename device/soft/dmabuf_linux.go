package soft

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/accelfab/accelfab/device"
)

// Where the kernel makes dma-bufs of memory files, and the bounds of its module.
const (
	udmabufDevice     = "/dev/udmabuf"
	udmabufParameters = "/sys/module/udmabuf/parameters"
)

// dmabuf is a real dma-buf over a range of a card's memory: one memory that both
// see. Who holds a descriptor of it may map it, and keeps what it maps: when the
// range is freed its pages leave the card's memory and stay the holder's.
type dmabuf struct {
	inode
	file *os.File // what is given out are copies of it
}

// inode says which file a descriptor is of. Each dma-buf has one of its own, in a
// file system of its own (since Linux 5.3; drivers/dma-buf/dma-buf.c).
type inode struct{ dev, ino uint64 }

const dmabufMagic = 0x444d4142 // of that file system, include/uapi/linux/magic.h

// openUDMABuf opens what makes dma-bufs. The caller owns it.
func openUDMABuf() (*os.File, error) {
	f, err := os.OpenFile(udmabufDevice, os.O_RDWR, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("dmabuf=udmabuf: this kernel makes no dma-bufs of memory files: load the module (modprobe udmabuf), "+
			"or boot a kernel that has it (CONFIG_UDMABUF), or leave the option out: then exports are tokens: %w", err)
	case err != nil:
		return nil, fmt.Errorf("dmabuf=udmabuf: %w: give this user the right to read and write it, or leave the option out", err)
	}
	return f, nil
}

// newDMABuf makes a dma-buf of a range of the card's memory.
func (c *card) newDMABuf(offset, size uint64) (*dmabuf, error) {
	f, err := udmabuf(c.udmabuf, c.memory.file, offset, size)
	if limit := udmabufLimit(); errors.Is(err, unix.EINVAL) && limit > 0 && size > limit {
		return nil, &device.LimitError{Kind: "dmabuf_bytes", Asked: size, Limit: limit, Available: limit,
			Detail: "of one dma-buf; the kernel's bound is " + udmabufParameters + "/size_limit_mb"}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: dma-buf of %d bytes: %w", udmabufDevice, size, err)
	}
	var fs unix.Statfs_t
	var id inode
	err = control(f, func(fd int) (err error) {
		if id, err = inodeOf(fd); err == nil {
			err = unix.Fstatfs(fd, &fs)
		}
		return err
	})
	if err == nil && fs.Type != dmabufMagic {
		err = fmt.Errorf("the kernel does not tell dma-bufs apart; from Linux 5.3 on it does: %w", errors.ErrUnsupported)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("dma-buf of %d bytes: %w", size, err)
	}
	return &dmabuf{id, f}, nil
}

// udmabufLimit is the size of the largest dma-buf in bytes, 0 if the kernel does
// not tell.
func udmabufLimit() uint64 {
	b, err := os.ReadFile(filepath.Join(udmabufParameters, "size_limit_mb"))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	return n << 20
}

// open gives a descriptor for a holder.
func (d *dmabuf) open() (f *os.File, err error) {
	err = control(d.file, func(fd int) error {
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err == nil {
			f = os.NewFile(uintptr(n), "dma-buf")
		}
		return err
	})
	return f, err
}

// held is how many references there are beside the card's own: descriptors, and
// mappings and attachments made of them. 0 also if the kernel does not tell.
func (d *dmabuf) held() int {
	var info []byte
	err := control(d.file, func(fd int) (err error) {
		info, err = os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
		return err
	})
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(info)) {
		if text, ok := strings.CutPrefix(line, "count:"); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(text))
			return max(0, n-1)
		}
	}
	return 0
}

func inodeOf(fd int) (inode, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return inode{uint64(st.Dev), st.Ino}, err
}

// control calls do with a file's descriptor, which stays open meanwhile.
func control(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var op error
	if err := raw.Control(func(fd uintptr) { op = do(int(fd)) }); err != nil {
		return err
	}
	return op
}
