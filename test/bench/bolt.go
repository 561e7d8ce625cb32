package main

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
)

// recordBytes is the size of a record of the bbolt yardsticks.
const recordBytes = 132

var (
	boltBucket = []byte("records")
	boltRecord = make([]byte, recordBytes)
)

// bolt is a bare bbolt file: no frames, journal or names. Keys ascend.
type bolt struct {
	db   *bbolt.DB
	next atomic.Uint64
}

func openBolt(dir string) (*bolt, error) {
	db, err := bbolt.Open(filepath.Join(dir, "bare.db"), 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType, Timeout: time.Second})
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(boltBucket)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &bolt{db: db}, nil
}

// close closes the file and removes it.
func (y *bolt) close() error {
	path := y.db.Path()
	return errors.Join(y.db.Close(), os.Remove(path))
}

func (y *bolt) put(n int) error {
	return y.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(boltBucket)
		for range n {
			if err := b.Put(binary.BigEndian.AppendUint64(nil, y.next.Add(1)), boltRecord); err != nil {
				return err
			}
		}
		return nil
	})
}

// updates is one Update a call, of per records.
func (y *bolt) updates(ctx context.Context, callers, per int, window time.Duration) (outcome, error) {
	return load(ctx, callers, window, 1<<30, func(context.Context, int) error { return y.put(per) })
}

// groups is group commit: one goroutine takes all callers that wait into one
// Update, and nobody waits for company.
func (y *bolt) groups(ctx context.Context, callers int, window time.Duration) (outcome, error) {
	queue := make(chan chan error, callers)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var group []chan error
		for first := range queue {
			group = append(group[:0], first)
			for more := true; more; {
				select {
				case next, ok := <-queue:
					if more = ok; ok {
						group = append(group, next)
					}
				default:
					more = false
				}
			}
			err := y.put(len(group))
			for _, done := range group {
				done <- err
			}
		}
	}()
	done := make([]chan error, callers)
	for i := range done {
		done[i] = make(chan error, 1)
	}
	o, err := load(ctx, callers, window, 1<<30, func(_ context.Context, caller int) error {
		queue <- done[caller]
		return <-done[caller]
	})
	close(queue)
	<-ended
	return o, err
}
