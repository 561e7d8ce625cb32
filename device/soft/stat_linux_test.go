package soft

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// allocated gives the bytes that a file takes.
func allocated(t *testing.T, f *os.File) uint64 {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	var op error
	if err := raw.Control(func(fd uintptr) { op = unix.Fstat(int(fd), &st) }); err != nil || op != nil {
		t.Fatal(err, op)
	}
	return uint64(st.Blocks) * 512
}
