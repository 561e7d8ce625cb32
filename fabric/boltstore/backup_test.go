package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/storetest"
)

// A backup that is taken while commits go on is a whole store, with all that was
// acknowledged before it began and nothing half done.
func TestBackupWhileCommitsGoOn(t *testing.T) {
	dir := t.TempDir()
	s := open(t, filepath.Join(dir, "a.db"), Options{})
	const pairs = 64 // of records that one commit changes together
	var acknowledged atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for round := int64(1); ; round++ {
			select {
			case <-stop:
				return
			default:
			}
			var c fabric.Change
			for id := range uint64(pairs) {
				c.Put = append(c.Put, record(id+1, fmt.Sprint(round)))
			}
			if _, err := s.Commit(context.Background(), c); err != nil {
				t.Error(err)
				return
			}
			acknowledged.Store(round)
		}
	})
	for i := range 5 {
		before := acknowledged.Load()
		var b bytes.Buffer
		n, err := s.Backup(context.Background(), &b)
		if err != nil || n != int64(b.Len()) || n == 0 {
			t.Fatalf("%d bytes of %d, %v", n, b.Len(), err)
		}
		path := filepath.Join(dir, fmt.Sprintf("backup%d", i))
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, fmt.Sprint(i), "b.db")
		if kept, err := Restore(to, path, Options{}, false); err != nil || kept != "" {
			t.Fatalf("%q, %v", kept, err)
		}
		r := open(t, to, Options{})
		got, result := storetest.Records(t, r)
		if result.Damage != "" || len(result.Quarantined) != 0 {
			t.Errorf("%+v", result)
		}
		values := map[string]bool{}
		for _, v := range got {
			values[v] = true
		}
		if before > 0 && (len(got) != pairs || len(values) != 1) {
			t.Errorf("%d records with %d values: a commit was taken in part", len(got), len(values))
		}
		for v := range values {
			var round int64
			if fmt.Sscan(v, &round); round < before {
				t.Errorf("the backup is of round %d; %d was acknowledged before", round, before)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
	if left, err := filepath.Glob(filepath.Join(dir, ".backup-*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// brokenWriter breaks off.
type brokenWriter struct{ after int }

var errBroken = errors.New("broken")

func (w *brokenWriter) Write(p []byte) (int, error) {
	if w.after -= len(p); w.after < 0 {
		return 0, errBroken
	}
	return len(p), nil
}

func TestBackupThatBreaksOff(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "a.db"), Options{})
	if _, err := s.Backup(context.Background(), &brokenWriter{100}); !errors.Is(err, errBroken) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Backup(ctx, &bytes.Buffer{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	commit(t, s, fabric.Change{Put: []fabric.Record{record(1, "a")}})
}

// What cannot be restored changes nothing.
func TestRestoreRefusals(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.db")
	s := open(t, path, Options{})
	commit(t, s, fabric.Change{Put: []fabric.Record{record(1, "old")}})
	var b bytes.Buffer
	if _, err := s.Backup(context.Background(), &b); err != nil {
		t.Fatal(err)
	}
	good, cut, junk := filepath.Join(dir, "good"), filepath.Join(dir, "cut"), filepath.Join(dir, "junk")
	for name, data := range map[string][]byte{good: b.Bytes(), cut: b.Bytes()[:b.Len()/2], junk: bytes.Repeat([]byte("junk"), 1<<14)} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	quick := Options{LockTimeout: 1}
	if _, err := Restore(path, good, quick, true); !errors.Is(err, fabric.ErrStoreLocked) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("while a daemon has it: %v", err)
	}
	commit(t, s, fabric.Change{Put: []fabric.Record{record(1, "new")}})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{good: os.ErrExist, junk: fabric.ErrStoreFailed, filepath.Join(dir, "none"): os.ErrNotExist} {
		if _, err := Restore(path, name, quick, false); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	if _, err := Restore(path, cut, quick, true); !errors.Is(err, fabric.ErrStoreFailed) {
		t.Errorf("a backup that was cut: %v", err)
	}
	value := func() string {
		s := open(t, path, Options{})
		defer s.Close()
		got, _ := storetest.Records(t, s)
		return got[name(1)]
	}
	if got := value(); got != "new" {
		t.Errorf("after refusals the store has %q", got)
	}
	kept, err := Restore(path, good, quick, true)
	if err != nil || value() != "old" {
		t.Errorf("%v: the store has %q", err, value())
	}
	if kept == "" || !strings.HasPrefix(kept, path+".before-") {
		t.Fatalf("kept as %q", kept)
	}
	if err := os.Rename(kept, path); err != nil || value() != "new" {
		t.Errorf("what was kept has %q (%v)", value(), err)
	}
}

// An examination changes nothing and finds what is wrong, with the record's name
// where that can be read.
func TestExamine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	if _, err := Examine(path, Options{}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no store: %v", err)
	}
	if _, err := os.Stat(path + ".lock"); err == nil {
		t.Error("it left a lock file of a store that is not there")
	}
	s := open(t, path, Options{})
	commit(t, s, fabric.Change{Put: []fabric.Record{record(1, "fine"), record(2, "to be broken"), record(3, "fine")}, Events: [][]byte{[]byte("e")}})
	if _, err := Examine(path, Options{LockTimeout: 1}, nil); !errors.Is(err, fabric.ErrStoreLocked) {
		t.Errorf("while a daemon has it: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var names []string
	visit := &Visitor{Record: func(r fabric.Record) error { names = append(names, r.Name+"="+string(r.Value)); return nil }}
	report, err := Examine(path, Options{}, visit)
	if err != nil || report.Records != 3 || report.Events != 1 || len(report.Problems) != 0 || len(names) != 3 {
		t.Errorf("%+v, %v, %v", report, names, err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	broken := bytes.ReplaceAll(b, []byte("to be broken"), []byte("to be brOken"))
	if err := os.WriteFile(path, broken, 0o600); err != nil {
		t.Fatal(err)
	}
	report, err = Examine(path, Options{}, nil)
	if err != nil || len(report.Problems) != 1 || !strings.Contains(report.Problems[0], "record 0000000000000002") {
		t.Errorf("%+v, %v", report, err)
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, broken) {
		t.Error("the file was changed")
	}
}
