package boltstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/accelfab/accelfab/fabric"
)

// benchValue makes a record of 132 bytes of name and value, as a queue pair's.
var benchValue = make([]byte, 100)

func benchName(id uint64) string { return fmt.Sprintf("sessions/s1/qp-%017d", id) }

// BenchmarkCommit is group commit beside its limits: one bbolt Update a call,
// and bare bbolt whose one goroutine puts as many pairs as there are callers
// into each transaction, without frames, journal or callers to wake.
func BenchmarkCommit(b *testing.B) {
	for _, callers := range []int{1, 16, 64, 256, 1024} {
		b.Run(fmt.Sprintf("store/callers=%d", callers), func(b *testing.B) { benchCommit(b, callers, false) })
		b.Run(fmt.Sprintf("store+event/callers=%d", callers), func(b *testing.B) { benchCommit(b, callers, true) })
		b.Run(fmt.Sprintf("bare/callers=%d", callers), func(b *testing.B) {
			benchBare(b, callers, func(db *bbolt.DB, ids []uint64) error {
				return db.Update(func(tx *bbolt.Tx) error { return putBare(tx, ids) })
			})
		})
	}
	b.Run("one Update a call/callers=64", func(b *testing.B) {
		benchBare(b, 64, func(db *bbolt.DB, ids []uint64) error {
			var wg sync.WaitGroup
			for _, id := range ids {
				wg.Go(func() {
					if err := db.Update(func(tx *bbolt.Tx) error { return putBare(tx, []uint64{id}) }); err != nil {
						b.Error(err)
					}
				})
			}
			wg.Wait()
			return nil
		})
	})
}

// BenchmarkCommitFilled commits into files that already hold records.
func BenchmarkCommitFilled(b *testing.B) {
	for _, records := range []int{1000, 1_000_000} {
		path := filepath.Join(b.TempDir(), "fabric.db")
		fillStore(b, path, records)
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("records=%d/callers=%d", records, callers), func(b *testing.B) {
				benchCommitAt(b, path, callers, true)
			})
		}
	}
}

func benchStore(b *testing.B, path string) *Store {
	b.Helper()
	s, err := Open(path, Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { closeStore(b, s) })
	return s
}

func benchCommit(b *testing.B, callers int, event bool) {
	benchCommitAt(b, filepath.Join(b.TempDir(), "fabric.db"), callers, event)
}

func benchCommitAt(b *testing.B, path string, callers int, event bool) {
	s := benchStore(b, path)
	result, err := s.Load(context.Background(), func(fabric.Record) error { return nil })
	if err != nil {
		b.Fatal(err)
	}
	first := result.NextID
	var next atomic.Uint64
	var wg sync.WaitGroup
	b.ResetTimer()
	for range callers {
		wg.Go(func() {
			for {
				n := next.Add(1)
				if n > uint64(b.N) {
					return
				}
				id := first + n
				c := fabric.Change{Put: []fabric.Record{{ID: id, Name: benchName(id), Value: benchValue}}}
				if event {
					c.Events = [][]byte{benchValue}
				}
				if _, err := s.Commit(context.Background(), c); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
}

func putBare(tx *bbolt.Tx, ids []uint64) error {
	records, err := tx.CreateBucketIfNotExists(bucketRecords)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := records.Put(binary.BigEndian.AppendUint64(nil, id), append([]byte(benchName(id)), benchValue...)); err != nil {
			return err
		}
	}
	return nil
}

func benchBare(b *testing.B, group int, put func(*bbolt.DB, []uint64) error) {
	db, err := bbolt.Open(filepath.Join(b.TempDir(), "bare.db"), 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	b.ResetTimer()
	for n := 0; n < b.N; n += group {
		var ids []uint64
		for i := n; i < min(n+group, b.N); i++ {
			ids = append(ids, uint64(i+1))
		}
		if err := put(db, ids); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
}

// BenchmarkBatch commits a thousand records and one event in one change.
func BenchmarkBatch(b *testing.B) {
	s := benchStore(b, filepath.Join(b.TempDir(), "fabric.db"))
	id := uint64(0)
	for b.Loop() {
		c := fabric.Change{Events: [][]byte{benchValue}}
		for range 1000 {
			id++
			c.Put = append(c.Put, fabric.Record{ID: id, Name: benchName(id), Value: benchValue})
		}
		if _, err := s.Commit(context.Background(), c); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(id)/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkOpen opens and loads a store; examine and load are all of it.
func BenchmarkOpen(b *testing.B) {
	for _, records := range []int{1000, 65_000, 1_000_000} {
		b.Run(fmt.Sprint(records), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "fabric.db")
			fillStore(b, path, records)
			for b.Loop() {
				s, err := Open(path, Options{})
				if err != nil {
					b.Fatal(err)
				}
				result, err := s.Load(context.Background(), func(fabric.Record) error { return nil })
				if err != nil || result.Records != records {
					b.Fatalf("%d records, %v", result.Records, err)
				}
				closeStore(b, s)
			}
		})
	}
}

// fillStore makes a store of records with an event each.
func fillStore(t testing.TB, path string, records int) {
	t.Helper()
	s, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore(t, s)
	for id := uint64(1); id <= uint64(records); {
		var c fabric.Change
		for ; id <= uint64(records) && len(c.Put) < 10_000; id++ {
			c.Put = append(c.Put, fabric.Record{ID: id, Name: benchName(id), Value: benchValue})
			c.Events = append(c.Events, []byte("made"))
		}
		commit(t, s, c)
	}
}
