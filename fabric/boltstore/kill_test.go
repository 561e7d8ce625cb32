package boltstore

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/accelfab/accelfab/fabric"
)

// Environment of the kill test.
const (
	envKillPath = "ACCELFAB_KILL_PATH" // makes the test binary the child that is killed
	envKills    = "ACCELFAB_KILLS"     // rounds; 20 if not set
	envSeed     = "ACCELFAB_SEED"      // of an earlier run, to kill at the same counts again
)

func TestMain(m *testing.M) {
	if path := os.Getenv(envKillPath); path != "" {
		if err := killedChild(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// killOptions make compactions and trims frequent, so that kills meet them.
var killOptions = Options{CompactAbove: 256 << 10, JournalEvents: 300}

func killValue(id uint64) string { return fmt.Sprintf("value of %d %0200d", id, id) }

// killedChild commits at full speed until it is killed, and writes one line a
// step to its standard output: "+id" when a put is acknowledged, "?id" before a
// delete is asked for, "-id" when it is acknowledged.
func killedChild(path string) error {
	s, err := Open(path, killOptions)
	if err != nil {
		return err
	}
	result, err := s.Load(context.Background(), func(fabric.Record) error { return nil })
	if err != nil {
		return err
	}
	var last atomic.Uint64
	last.Store(result.NextID - 1)
	say := func(sign string, id uint64) { os.Stdout.WriteString(sign + strconv.FormatUint(id, 10) + "\n") }
	failed := make(chan error)
	for caller := range 8 {
		go func() {
			for {
				id := last.Add(1)
				c := fabric.Change{Put: []fabric.Record{record(id, killValue(id))}, Events: [][]byte{[]byte("made")}}
				if _, err := s.Commit(context.Background(), c); err != nil {
					failed <- err
				}
				say("+", id)
				if caller == 0 {
					continue // its records stay
				}
				say("?", id)
				c = fabric.Change{Delete: []uint64{id}, Events: [][]byte{[]byte("gone")}}
				if _, err := s.Commit(context.Background(), c); err != nil {
					failed <- err
				}
				say("-", id)
			}
		}()
	}
	return <-failed
}

// TestKill (S16) kills a process that commits at full speed, again and again on
// one file, and holds what is there against what was acknowledged.
func TestKill(t *testing.T) {
	rounds := 20
	if v := os.Getenv(envKills); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("%s: %v", envKills, err)
		}
		rounds = n
	}
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv(envSeed); v != "" {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", envSeed, err)
		}
		seed = n
	}
	random := rand.New(rand.NewPCG(seed, 0))
	path := filepath.Join(t.TempDir(), "fabric.db")
	there := map[uint64]bool{} // what the round before left
	acknowledged := 0
	for round := range rounds {
		must, may := killOne(t, path, 1+random.IntN(1500))
		acknowledged += len(must) + len(may)
		for id := range there {
			must[id] = true
		}
		there = checkKilled(t, path, must, may)
		if t.Failed() {
			t.Fatalf("round %d of %d, seed %d", round+1, rounds, seed)
		}
	}
	t.Logf("%d kills, seed %d: %d acknowledged records, %d left at the end", rounds, seed, acknowledged, len(there))
}

// killOne runs the child and kills it when it has written so many lines. It
// gives the ids that must be there, and those that may be there or not.
func killOne(t *testing.T, path string, lines int) (must, may map[uint64]bool) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self)
	child.Env = append(os.Environ(), envKillPath+"="+path)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	must, may = map[uint64]bool{}, map[uint64]bool{}
	gone := map[uint64]bool{}
	n := 0
	for scanner := bufio.NewScanner(out); scanner.Scan(); n++ {
		if n == lines {
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		line := scanner.Text()
		id, err := strconv.ParseUint(line[1:], 10, 64)
		if err != nil {
			t.Fatalf("the child wrote %q", line)
		}
		switch line[0] {
		case '+':
			must[id] = true
		case '?':
			delete(must, id)
			may[id] = true
		case '-':
			delete(may, id)
			gone[id] = true
		}
	}
	if err := child.Wait(); err == nil || n < lines {
		t.Fatalf("the child ended by itself after %d lines: %v", n, err)
	}
	for id := range gone {
		if must[id] || may[id] {
			t.Errorf("id %d was given twice", id)
		}
		may[id] = false // must not be there
	}
	return must, may
}

// checkKilled opens what a killed process left.
func checkKilled(t *testing.T, path string, must, may map[uint64]bool) map[uint64]bool {
	t.Helper()
	s, err := Open(path, killOptions)
	if err != nil {
		t.Fatal(err)
	}
	there := map[uint64]bool{}
	result, err := s.Load(context.Background(), func(r fabric.Record) error {
		there[r.ID] = true
		if r.Name != name(r.ID) || string(r.Value) != killValue(r.ID) {
			t.Errorf("record %d is %q, %q", r.ID, r.Name, r.Value)
		}
		return nil
	})
	if err != nil || result.Damage != "" || len(result.Quarantined) > 0 {
		t.Fatalf("Load: %+v, %v", result, err)
	}
	for id := range must {
		if !there[id] {
			t.Errorf("record %d was acknowledged and is lost", id)
		}
	}
	for id, in := range may {
		if !in && there[id] {
			t.Errorf("record %d was acknowledged as deleted and is there", id)
		}
		if id >= result.NextID {
			t.Errorf("next id is %d, though %d was stored", result.NextID, id)
		}
	}
	page, err := s.Events(context.Background(), 0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range page.Events {
		if e.Revision != page.Oldest+uint64(i) {
			t.Fatalf("event %d has revision %d, the journal begins at %d", i, e.Revision, page.Oldest)
		}
	}
	closeStore(t, s)
	checkFile(t, path)
	return there
}

// checkFile runs bbolt's own check and ours.
func checkFile(t testing.TB, path string) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, ReadOnly: true, PreLoadFreelist: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.View(func(tx *bbolt.Tx) error {
		for err := range tx.Check() {
			t.Errorf("bbolt's check: %v", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if damage, err := repair(path, time.Now()); damage != "" || err != nil {
		t.Errorf("our check: %q, %v", damage, err)
	}
}

// TestCloseUnderLoad closes stores while many callers commit.
func TestCloseUnderLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fabric.db")
	var last atomic.Uint64
	for range 10 {
		s, err := Open(path, killOptions)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		begun := make(chan struct{}, 1)
		for range 16 {
			wg.Go(func() {
				for {
					id := last.Add(1)
					if _, err := s.Commit(context.Background(), fabric.Change{Put: []fabric.Record{record(id, killValue(id))}}); err != nil {
						return
					}
					select {
					case begun <- struct{}{}:
					default:
					}
				}
			})
		}
		<-begun
		closeStore(t, s)
		wg.Wait()
	}
	checkFile(t, path)
}
