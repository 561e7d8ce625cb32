package soft

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile opens or makes the file and locks it for as long as it is open.
// errHeld if another process has it, or the file belongs to another user who
// lets nobody open it. The file holds the process id of whoever locked it last.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o644)
	if errors.Is(err, os.ErrPermission) {
		// Another user's file: reading is enough to lock it.
		f, err = os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
		if errors.Is(err, os.ErrPermission) {
			return nil, fmt.Errorf("%s: %w", path, errHeld)
		}
	}
	if err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	var op error
	err = errors.Join(raw.Control(func(fd uintptr) {
		op = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB)
	}), op)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errHeld
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	// Only for people who look: a file that cannot be written still locks.
	if f.Truncate(0) == nil {
		fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	return f, nil
}
