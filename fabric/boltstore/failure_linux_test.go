package boltstore

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/storetest"
)

// envAlone says that this process runs one test alone.
const envAlone = "ACCELFAB_TEST_ALONE"

// alone runs the test in a process of its own, because the limit that it sets
// would hit what package testing itself writes. It gives false in the process
// that only waits for the other.
func alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(envAlone) != "" {
		return true
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self, "-test.run=^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), envAlone+"=1")
	out, err := child.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// limitFiles makes the kernel refuse to write beyond size in any file of this
// process (EFBIG), as a full disk does with ENOSPC, until free is called.
func limitFiles(t *testing.T, size int64) (free func()) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(unix.SIGXFSZ)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: uint64(size), Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	free = func() {
		once.Do(func() {
			if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
				t.Error(err)
			}
			signal.Reset(unix.SIGXFSZ)
		})
	}
	t.Cleanup(free)
	return free
}

// TestDiskFull fills the disk, has commits refused, and gives room again.
func TestDiskFull(t *testing.T) {
	if !alone(t) {
		return
	}
	path := filepath.Join(t.TempDir(), "fabric.db")
	s := open(t, path, Options{})
	small := fabric.Change{Put: []fabric.Record{record(1, "small")}, Events: [][]byte{[]byte("e")}}
	commit(t, s, small)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}

	free := limitFiles(t, info.Size())
	big := fabric.Change{Put: []fabric.Record{record(1, "half done"), record(2, strings.Repeat("big", 1<<20))}, Events: [][]byte{[]byte("no")}}
	for range 3 {
		_, err = s.Commit(context.Background(), big)
		if !errors.Is(err, fabric.ErrStoreFailed) || !strings.Contains(err.Error(), "file too large") || !strings.Contains(err.Error(), path) {
			t.Errorf("a commit to a full disk gives %v", err)
		}
		// Readers go on, and see nothing of it.
		if got, result := storetest.Records(t, s); got[name(1)] != "small" || len(got) != 1 || result.Revision != 1 || result.NextID != 2 {
			t.Errorf("after a refused commit: %v, %+v", got, result)
		}
	}
	// What needs no more room is taken.
	small.Put[0].Value = []byte("still small")
	if got := commit(t, s, small); got != 2 {
		t.Errorf("revision is %d, want 2: refused changes leave no hole", got)
	}

	free()
	if got := commit(t, s, big); got != 3 {
		t.Errorf("revision is %d, want 3", got)
	}
	closeStore(t, s)
	checkFile(t, path)
	s = open(t, path, Options{})
	if got, _ := storetest.Records(t, s); len(got) != 2 || got[name(1)] != "half done" {
		t.Errorf("at the end: %d records", len(got))
	}
}

// TestGroupFails has all who share a refused transaction know it.
func TestGroupFails(t *testing.T) {
	if !alone(t) {
		return
	}
	path := filepath.Join(t.TempDir(), "fabric.db")
	s := open(t, path, Options{})
	commit(t, s, fabric.Change{Put: []fabric.Record{record(1000, "before")}})
	free := limitFiles(t, 1<<15)
	var wg sync.WaitGroup
	for id := range uint64(20) {
		wg.Go(func() {
			_, err := s.Commit(context.Background(), fabric.Change{Put: []fabric.Record{record(id+1, strings.Repeat("x", 1<<16))}})
			if !errors.Is(err, fabric.ErrStoreFailed) {
				t.Errorf("record %d: %v", id+1, err)
			}
		})
	}
	wg.Wait()
	free()
	if got, _ := storetest.Records(t, s); len(got) != 1 {
		t.Errorf("%d records after refused commits, want 1", len(got))
	}
}

// TestUndo takes back a commit whose meta page reached the file, as where the
// last fdatasync fails, and goes on from the state before.
func TestUndo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fabric.db")
	for round := range 6 { // both meta pages have their turns
		s, err := Open(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		keep, drop := uint64(2*round+1), uint64(2*round+2)
		commit(t, s, fabric.Change{Put: []fabric.Record{record(keep, "kept")}, Events: [][]byte{[]byte("kept")}})
		var committed uint64
		if err := s.queue.submit(context.Background(), &request{admin: func(tx *bbolt.Tx) error {
			committed = uint64(tx.ID())
			return nil
		}}); err != nil {
			t.Fatal(err)
		}
		commit(t, s, fabric.Change{Put: []fabric.Record{record(drop, "to be undone"), record(keep, "changed")}, Events: [][]byte{[]byte("no")}})
		closeStore(t, s)

		for range 2 { // the second time there is nothing left to do
			if err := undo(path, committed); err != nil {
				t.Fatal(err)
			}
			checkFile(t, path)
		}
		s, err = Open(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		got, result := storetest.Records(t, s)
		if len(got) != round+1 || got[name(keep)] != "kept" || result.Revision != uint64(round+1) || result.Damage != "" {
			t.Errorf("round %d: %v, %+v", round, got, result)
		}
		closeStore(t, s)
	}
	if err := undo(path, 1); err == nil {
		t.Error("undid more than the last commit")
	}
}

// TestLostFile has the file go away under a failed commit: the store says so
// every time and works again when the file is back.
func TestLostFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fabric.db")
	s := open(t, path, Options{})
	commit(t, s, fabric.Change{Put: []fabric.Record{record(1, "v")}})
	if err := os.Rename(path, path+".elsewhere"); err != nil {
		t.Fatal(err)
	}
	s.file.Close() // every write fails from here on
	for range 2 {
		if _, err := s.Commit(context.Background(), fabric.Change{Put: []fabric.Record{record(2, "v")}}); !errors.Is(err, fabric.ErrStoreFailed) {
			t.Errorf("Commit gives %v", err)
		}
		if _, err := s.Events(context.Background(), 0, 1); !errors.Is(err, fabric.ErrStoreFailed) {
			t.Errorf("Events gives %v", err)
		}
	}
	if err := os.Rename(path+".elsewhere", path); err != nil {
		t.Fatal(err)
	}
	commit(t, s, fabric.Change{Put: []fabric.Record{record(3, "v")}})
	if got, _ := storetest.Records(t, s); len(got) != 2 {
		t.Errorf("%v", got)
	}
}

// TestCutShortUnderUs (S15) cuts the file while it is mapped: what is read
// there is a fault of the memory map, and must end neither the process nor the
// store's good manners.
func TestCutShortUnderUs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fabric.db")
	if err := os.WriteFile(path, soundFile(t), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := os.Truncate(path, 2*4096); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(context.Background(), func(fabric.Record) error { return nil }); !errors.Is(err, fabric.ErrStoreFailed) {
		t.Errorf("Load gives %v", err)
	}
	for range 2 {
		if _, err := s.Commit(context.Background(), fabric.Change{Put: []fabric.Record{record(900, "v")}}); !errors.Is(err, fabric.ErrStoreFailed) {
			t.Errorf("Commit gives %v", err)
		}
	}
}
