package soft

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openMemfd makes a sparse memory file of a fixed size, open to this user
// alone, and maps it. The caller owns both; unmap gives the mapping back.
func openMemfd(name string, size uint64) (*os.File, []byte, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("memfd_create: %w", err)
	}
	file := os.NewFile(uintptr(fd), name)
	data, err := mapMemfd(fd, size)
	if err != nil {
		file.Close()
		return nil, nil, fmt.Errorf("memory file of %d bytes: %w", size, err)
	}
	return file, data, nil
}

func mapMemfd(fd int, size uint64) ([]byte, error) {
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return nil, fmt.Errorf("fchmod: %w", err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, fmt.Errorf("ftruncate: %w", err)
	}
	// The size is fixed: a mapping of a file that shrinks would fault.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	data, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	// What jobs keep on a card does not belong in a core dump of the daemon.
	if err := unix.Madvise(data, unix.MADV_DONTDUMP); err != nil {
		unix.Munmap(data)
		return nil, fmt.Errorf("madvise: %w", err)
	}
	return data, nil
}

// punch takes the pages of a range out of a memory file: they read as zeros
// and cost nothing.
func punch(file *os.File, offset, size uint64) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var op error
	err = raw.Control(func(fd uintptr) {
		op = unix.Fallocate(int(fd), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(offset), int64(size))
	})
	return errors.Join(err, op)
}

// dataOf lists what of a range of a memory file is no hole: all of it where the
// kernel does not tell.
func dataOf(file *os.File, offset, size uint64) (list []extent) {
	whole := []extent{{offset, size}}
	raw, err := file.SyscallConn()
	if err != nil {
		return whole
	}
	end := int64(offset + size)
	var op error
	err = raw.Control(func(fd uintptr) {
		for at := int64(offset); at < end; {
			var data, hole int64
			if data, op = unix.Seek(int(fd), at, unix.SEEK_DATA); op != nil || data >= end {
				break
			}
			if hole, op = unix.Seek(int(fd), data, unix.SEEK_HOLE); op != nil {
				break
			}
			hole = min(hole, end)
			list = append(list, extent{uint64(data), uint64(hole - data)})
			at = hole
		}
	})
	if err != nil || op != nil && !errors.Is(op, unix.ENXIO) { // ENXIO: a hole to the end
		return whole
	}
	return list
}

func unmap(data []byte) error { return unix.Munmap(data) }
