package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// lockName is the file in the run directory that the daemon locks while it runs.
const lockName = "accelfabd.lock"

// lockRunDir makes this process the only daemon of a run directory, until the
// file is closed. Else two would own the same device hosts.
func lockRunDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, fmt.Errorf("run-dir: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		b, _ := io.ReadAll(io.LimitReader(f, 32)) // who it is, if it says so
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("run-dir: %s: another accelfabd (process %s) uses it; end that one, or give another run directory", dir, strings.TrimSpace(string(b)))
		}
		return nil, fmt.Errorf("run-dir: lock %s: %w", path, err)
	}
	if err := errors.Join(f.Truncate(0), func() error { _, err := fmt.Fprintf(f, "%d\n", os.Getpid()); return err }()); err != nil {
		f.Close()
		return nil, fmt.Errorf("run-dir: %s: %w", path, err)
	}
	return f, nil
}
