package boltstore

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelfab/accelfab/fabric"
)

// lockRetry is the time between two tries for a lock. flock(2) cannot wait
// with a time-out.
const lockRetry = 20 * time.Millisecond

// acquireLock takes the lock file of a store, and writes into it who has it.
// The lock is on a file of its own because the store's file is replaced by
// compaction and repair, and a lock stays with the file that was replaced.
// After wait it gives fabric.ErrStoreLocked and the holder, as the lock file
// records it. Closing the file gives the lock back.
func acquireLock(path string, wait time.Duration) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(wait)
	for {
		err := flock(f)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if time.Now().After(deadline) {
			holder := readHolder(f)
			f.Close()
			return nil, fmt.Errorf("%w: held by %s, as %s records; stop that process, or give this one another state directory",
				fabric.ErrStoreLocked, holder, path)
		}
		time.Sleep(lockRetry)
	}
	command := strings.Join(os.Args, " ")
	if len(command) > 200 {
		command = command[:200] + "..."
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt(fmt.Appendf(nil, "pid %d (%s)\n", os.Getpid(), command), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("write holder into %s: %w", path, err)
	}
	return f, nil
}

func flock(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var lockErr error
	if err := conn.Control(func(fd uintptr) {
		lockErr = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB)
	}); err != nil {
		return err
	}
	return lockErr
}

func readHolder(f *os.File) string {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 512))
	if holder := strings.TrimSpace(string(b)); err == nil && holder != "" {
		return holder
	}
	return "a process that did not record itself"
}
