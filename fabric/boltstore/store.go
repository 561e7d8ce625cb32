package boltstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/accelfab/accelfab/fabric"
)

// Store is a fabric.Store in a bbolt file.
type Store struct {
	path    string
	options Options
	lock    *os.File // held until Close

	// mu guards what a repair or a compaction replaces: readers hold it for a
	// transaction, the writer takes it to change db. db is nil after a failure
	// until the writer could mend it.
	mu     sync.RWMutex
	db     *bbolt.DB
	file   *os.File // db's own
	damage string   // what repair found, for Load

	// Of the writer goroutine alone.
	counters
	txid    int   // of the last commit
	size    int64 // bytes in use and free, before the last commit
	undo    bool  // a commit failed and is to be undone before the file is opened
	fatal   error // bbolt panicked: nothing goes on before the next Open
	compact *compaction
	rest    time.Time // no compaction by itself before

	queue queue
	ended chan struct{} // closed when the writer has closed the file
	err   error         // of closing; read after ended
}

// counters say where ids and the journal stand.
type counters struct {
	lastID uint64 // highest id ever stored
	oldest uint64 // first revision kept; newest+1 if none is
	newest uint64 // last revision given
}

var _ fabric.Store = (*Store)(nil)

func newStore(path string, options Options, lock *os.File) *Store {
	s := &Store{path: path, options: options, lock: lock, ended: make(chan struct{})}
	s.queue.wake = sync.NewCond(&s.queue.mu)
	return s
}

// view runs fn in a read transaction, unless the store is closed or broken.
func (s *Store) view(ctx context.Context, fn func(*bbolt.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.queue.isClosed() {
		return fabric.ErrStoreClosed
	}
	if s.db == nil {
		return fmt.Errorf("%w: %s could not be opened again after a failed commit; the next commit tries it",
			fabric.ErrStoreFailed, s.path)
	}
	return guard(s.path, func() error { return s.db.View(fn) })
}

// Records are read in pieces, so that no transaction stays open while the
// caller works on what it got.
const (
	loadRecords = 2048
	loadBytes   = 1 << 20
)

// Load is fabric.Store's. Values belong to the caller. Records that cannot be
// read move to quarantine when the others have been given; if the disk refuses
// that, they are found and left out again next time.
func (s *Store) Load(ctx context.Context, fn func(fabric.Record) error) (fabric.LoadResult, error) {
	var (
		result fabric.LoadResult
		bad    []badRecord
		next   = []byte{}
	)
	for next != nil {
		var piece []fabric.Record
		err := s.view(ctx, func(tx *bbolt.Tx) (err error) {
			result.NextID = tx.Bucket(bucketRecords).Sequence() + 1
			result.Revision = tx.Bucket(bucketJournal).Sequence()
			piece, bad, next = readRecords(tx, next, bad)
			return nil
		})
		if err != nil {
			return result, err
		}
		for _, r := range piece {
			if err := fn(r); err != nil {
				return result, err
			}
			result.Records++
		}
	}
	for _, b := range bad {
		result.Quarantined = append(result.Quarantined, b.String())
	}
	if len(bad) > 0 {
		err := s.queue.submit(ctx, &request{admin: func(tx *bbolt.Tx) error {
			for _, b := range bad {
				if err := moveToQuarantine(tx, b.key, b.reason); err != nil {
					return err
				}
			}
			return nil
		}})
		if err != nil && !errors.Is(err, fabric.ErrStoreFailed) {
			return result, err
		}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	result.Damage = s.damage
	return result, nil
}

// badRecord is a record that Load could not read.
type badRecord struct {
	key    []byte
	name   string
	reason string
}

func (b badRecord) String() string {
	if b.name != "" {
		return b.name
	}
	if len(b.key) == 8 {
		return fmt.Sprintf("record %d", binary.BigEndian.Uint64(b.key))
	}
	return fmt.Sprintf("record with the key %x", b.key)
}

// readRecords gives the records from the key from, with values of their own,
// and the key to go on with; nil at the end.
func readRecords(tx *bbolt.Tx, from []byte, bad []badRecord) ([]fabric.Record, []badRecord, []byte) {
	var (
		records []fabric.Record
		slab    []byte
		cursor  = tx.Bucket(bucketRecords).Cursor()
	)
	for k, v := cursor.Seek(from); k != nil; k, v = cursor.Next() {
		if len(records)+len(bad) > 0 && (len(records) >= loadRecords || len(slab)+len(v) > loadBytes) {
			return records, bad, append([]byte(nil), k...)
		}
		name, value, err := parseFrame(k, v)
		if err == nil && len(k) != 8 {
			err = errors.New("key is no id")
		}
		if err != nil {
			guess, _ := guessName(v)
			bad = append(bad, badRecord{append([]byte(nil), k...), guess, err.Error()})
			continue
		}
		if slab == nil {
			slab = make([]byte, 0, max(loadBytes, len(v)))
		}
		at := len(slab)
		slab = append(slab, value...)
		records = append(records, fabric.Record{
			ID:    binary.BigEndian.Uint64(k),
			Name:  string(name),
			Value: slab[at:len(slab):len(slab)],
		})
	}
	return records, bad, nil
}

// Commit is fabric.Store's. ctx may end the wait as long as no transaction has
// taken the change, and then nothing of it is stored; after that Commit waits
// for the outcome, because a commit under way cannot be called back.
//
// Where a change deletes what it puts, the deletion counts.
func (s *Store) Commit(ctx context.Context, change fabric.Change) (uint64, error) {
	r, err := encode(change)
	if err != nil {
		return 0, err
	}
	if err := s.queue.submit(ctx, r); err != nil {
		return 0, err
	}
	return r.revision, nil
}

// Quarantine is fabric.Store's.
func (s *Store) Quarantine(ctx context.Context, id uint64, reason string) error {
	return s.queue.submit(ctx, &request{admin: func(tx *bbolt.Tx) error {
		if tx.Bucket(bucketRecords).Get(key(id)) == nil {
			return fmt.Errorf("quarantine record %d: it is not in the store", id)
		}
		return moveToQuarantine(tx, key(id), reason)
	}})
}

// Close commits what is waiting and closes the file. Calls after it, and those
// that come too late during it, get fabric.ErrStoreClosed.
func (s *Store) Close() error {
	s.queue.close()
	<-s.ended
	return s.err
}

// Compact makes the file as small as its contents allow, while the store goes
// on serving. The store does it by itself (Options.CompactAbove); this is for
// an operator who cannot wait.
func (s *Store) Compact(ctx context.Context) error {
	done := make(chan error, 1)
	if err := s.queue.submit(ctx, &request{compact: done}); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
