package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestALogIsBounded: two files of the size that was asked for at most, the newest
// lines in the first, and what is written past the log, as by a panic, too.
func TestALogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	l, err := openBoundedLog(path, 1000, int(stderr.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	for n := range 100 {
		if _, err := fmt.Fprintf(l, "line %02d of 100 that are written: %s\n", n, strings.Repeat("x", 40)); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprintln(stderr, "panic: at the end")
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	now, err := os.ReadFile(path)
	if err != nil || !bytes.Contains(now, []byte("line 99")) || !bytes.HasSuffix(now, []byte("panic: at the end\n")) {
		t.Errorf("%v: the log ends in %q", err, now)
	}
	before, err := os.ReadFile(path + ".1")
	if err != nil || len(now) > 1100 || len(before) > 1000 || bytes.Contains(before, []byte("line 99")) {
		t.Errorf("%v: %d bytes now and %d before: want 1000 at most", err, len(now), len(before))
	}
	if files, _ := os.ReadDir(filepath.Dir(path)); len(files) != 2 {
		t.Errorf("%d files are there, want 2", len(files))
	}
	// The next run goes on in the same file.
	again, err := openBoundedLog(path, 1000, int(stderr.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if again.size != int64(len(now)) {
		t.Errorf("the next one begins at %d bytes, want %d", again.size, len(now))
	}
}
