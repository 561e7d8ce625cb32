package main

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maxLog is how much a log file holds, in bytes; one more before it is kept.
const maxLog = 1 << 20

// boundedLog is a log file that is put aside when it is full. What the runtime
// says at the end of a process that panics goes to the same file.
type boundedLog struct {
	path string
	most int64
	also int // descriptor that stands for the file too: standard error

	mu   sync.Mutex
	file *os.File
	size int64
}

func openBoundedLog(path string, most int64, also int) (*boundedLog, error) {
	l := &boundedLog{path: path, most: most, also: also}
	if err := l.open(); err != nil {
		return nil, err
	}
	return l, nil
}

// open opens the file and puts it in the place of the other descriptor.
func (l *boundedLog) open() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		err = unix.Dup3(int(f.Fd()), l.also, 0)
	}
	if err != nil {
		f.Close()
		return err
	}
	if l.file != nil {
		l.file.Close()
	}
	l.file, l.size = f, info.Size()
	return nil
}

// Write writes one record of the log.
func (l *boundedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size+int64(len(p)) > l.most && l.size > 0 {
		// A log that cannot be put aside goes on where it is.
		if os.Rename(l.path, l.path+".1") == nil {
			if err := l.open(); err != nil {
				return 0, err
			}
		}
	}
	n, err := l.file.Write(p)
	l.size += int64(n)
	return n, err
}

// Close closes the file; the other descriptor stays open.
func (l *boundedLog) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}
