package boltstore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB) storetest.Opener {
		path := filepath.Join(t.TempDir(), "state", "fabric.db")
		return func(t testing.TB, limits storetest.Limits) fabric.Store {
			s := open(t, path, Options{
				JournalEvents: limits.JournalEvents,
				JournalAge:    limits.JournalAge,
				Now:           limits.Now,
			})
			return s
		}
	})
}

// open opens a store and has the test close it.
func open(t testing.TB, path string, o Options) *Store {
	t.Helper()
	s, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeStore(t, s) })
	return s
}

func closeStore(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func commit(t testing.TB, s *Store, c fabric.Change) uint64 {
	t.Helper()
	revision, err := s.Commit(context.Background(), c)
	if err != nil {
		t.Fatalf("Commit: %v", err)
	}
	return revision
}

func name(id uint64) string { return fmt.Sprintf("records/%d", id) }

func record(id uint64, value string) fabric.Record {
	return fabric.Record{ID: id, Name: name(id), Value: []byte(value)}
}

func TestModes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b", "fabric.db")
	closeStore(t, open(t, path, Options{}))
	for p, want := range map[string]os.FileMode{
		path: 0o600, path + ".lock": 0o600, filepath.Dir(path): 0o700,
	} {
		info, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", p, got, want)
		}
	}
}
