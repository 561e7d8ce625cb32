package boltstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/accelfab/accelfab/fabric"
)

// bbolt gives free pages to new data and never back to the file system. A
// compaction copies what lives into a new file while the store goes on: the
// copy is made in short read transactions (a long one would keep the writer
// from enlarging its memory map), and what is committed meanwhile is noted by
// id and copied again, at last by the writer itself, who then puts the new file
// in the place of the old one. So no commit waits for more than that last part.

// compactRest is how long the store leaves a compaction that failed alone.
const compactRest = time.Minute

// Bounds of one step of the copy and of what is left for the writer.
const (
	copyBytes   = 256 << 10
	copyRounds  = 4
	copyTouched = 1000
)

type compaction struct {
	db      *bbolt.DB // the new file
	stop    context.CancelFunc
	done    chan error // 1: the copy ended
	waiting []chan<- error

	// Of the goroutine that copies, and of the writer after done.
	event uint64 // journal copied up to here

	mu      sync.Mutex
	touched map[uint64]struct{} // ids to be copied again
}

// touch notes what a commit changed.
func (c *compaction) touch(ops []op) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range ops {
		c.touched[o.id] = struct{}{}
	}
}

func (c *compaction) takeTouched() []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := slices.Sorted(maps.Keys(c.touched))
	c.touched = map[uint64]struct{}{}
	return ids
}

// beginCompaction starts one, or joins the one under way. done gets the outcome
// and may be nil.
func (s *Store) beginCompaction(done chan<- error) {
	if s.compact != nil {
		if done != nil {
			s.compact.waiting = append(s.compact.waiting, done)
		}
		return
	}
	c := &compaction{done: make(chan error, 1), touched: map[uint64]struct{}{}}
	if done != nil {
		c.waiting = append(c.waiting, done)
	}
	err := s.mend()
	if err == nil {
		c.db, _, err = openBolt(s.path+newSuffix, true)
	}
	if err != nil {
		s.rest = s.options.Now().Add(compactRest)
		c.answer(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.stop = cancel
	s.compact = c
	go func() {
		c.done <- c.copy(ctx, s)
		s.queue.nudge()
	}()
}

func (c *compaction) answer(err error) {
	for _, w := range c.waiting {
		w <- err
	}
}

// copy fills the new file with all but the last changes.
func (c *compaction) copy(ctx context.Context, s *Store) error {
	if err := c.db.Update(makeBuckets); err != nil {
		return err
	}
	for _, bucket := range [][]byte{bucketRecords, bucketJournal, bucketQuarantine} {
		for from := []byte{}; from != nil; {
			var pairs [][2][]byte
			err := s.view(ctx, func(tx *bbolt.Tx) error {
				pairs, from = readPairs(tx.Bucket(bucket), from)
				return nil
			})
			if err != nil {
				return err
			}
			err = c.db.Update(func(tx *bbolt.Tx) error { return putPairs(tx.Bucket(bucket), pairs) })
			if err != nil {
				return err
			}
			if n := len(pairs); n > 0 && string(bucket) == string(bucketJournal) {
				c.event = binary.BigEndian.Uint64(pairs[n-1][0])
			}
		}
	}
	for range copyRounds {
		ids := c.takeTouched()
		err := s.view(ctx, func(from *bbolt.Tx) error {
			return c.db.Update(func(to *bbolt.Tx) error { return c.catchUp(to, from, ids) })
		})
		if err != nil {
			return err
		}
		if len(ids) < copyTouched {
			break
		}
	}
	return c.db.Sync() // so that little is left for the sync that the writer waits for
}

// readPairs copies some pairs out of a bucket, and gives the key to go on with;
// nil at the end.
func readPairs(b *bbolt.Bucket, from []byte) (pairs [][2][]byte, next []byte) {
	size := 0
	cursor := b.Cursor()
	for k, v := cursor.Seek(from); k != nil; k, v = cursor.Next() {
		if size > copyBytes {
			return pairs, slices.Clone(k)
		}
		size += len(k) + len(v)
		pairs = append(pairs, [2][]byte{slices.Clone(k), slices.Clone(v)})
	}
	return pairs, nil
}

func putPairs(b *bbolt.Bucket, pairs [][2][]byte) error {
	b.FillPercent = journalFill
	for _, p := range pairs {
		if err := b.Put(p[0], p[1]); err != nil {
			return err
		}
	}
	return nil
}

// catchUp copies the records ids, as they are now or are not, and the events
// that came since.
func (c *compaction) catchUp(to, from *bbolt.Tx, ids []uint64) error {
	records, source := to.Bucket(bucketRecords), from.Bucket(bucketRecords)
	records.FillPercent = recordFill
	for _, id := range ids {
		k := key(id)
		var err error
		if v := source.Get(k); v != nil {
			err = records.Put(k, slices.Clone(v))
		} else {
			err = records.Delete(k)
		}
		if err != nil {
			return err
		}
	}
	journal, events := to.Bucket(bucketJournal), from.Bucket(bucketJournal)
	journal.FillPercent = journalFill
	cursor := events.Cursor()
	for k, v := cursor.Seek(key(c.event + 1)); k != nil; k, v = cursor.Next() {
		if err := journal.Put(slices.Clone(k), slices.Clone(v)); err != nil {
			return err
		}
		c.event = binary.BigEndian.Uint64(k)
	}
	return nil
}

// mindCompaction begins a compaction if the file asks for one, and ends one
// whose copy is made.
func (s *Store) mindCompaction() {
	if c := s.compact; c != nil {
		select {
		case err := <-c.done:
			s.compact = nil
			c.stop()
			s.endCompaction(c, err)
		default:
		}
		return
	}
	above := s.options.CompactAbove
	if s.db == nil || above < 0 || s.size < above {
		return
	}
	free := int64(s.db.Stats().FreePageN) * int64(s.db.Info().PageSize)
	if 2*free > s.size && !s.options.Now().Before(s.rest) {
		s.beginCompaction(nil)
	}
}

// endCompaction lets the new file take the place of the old one, unless the
// copy failed.
func (s *Store) endCompaction(c *compaction, err error) {
	if err == nil {
		err = s.mend()
	}
	if err == nil {
		err = guard(s.path, func() error {
			return s.db.View(func(from *bbolt.Tx) error {
				return c.db.Update(func(to *bbolt.Tx) error { return c.last(s, to, from) })
			})
		})
	}
	if err != nil {
		err = errors.Join(err, c.db.Close(), os.Remove(s.path+newSuffix))
		s.rest = s.options.Now().Add(compactRest)
		c.answer(fmt.Errorf("compact %s: %w", s.path, err))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Nothing is lost if the process dies between these steps: the old file is
	// whole until the rename, the new one from then on.
	closeErr := s.db.Close()
	s.db = nil
	err = errors.Join(closeErr, finishFile(c.db, s.path, nil))
	if openErr := s.openFile(false); openErr != nil {
		err = errors.Join(err, fmt.Errorf("%w: open again: %w", fabric.ErrStoreFailed, openErr))
	}
	if err != nil {
		s.rest = s.options.Now().Add(compactRest)
		err = fmt.Errorf("compact %s: %w", s.path, err)
	}
	s.size = 0
	c.answer(err)
}

// last brings the new file to where the old one is. The writer runs it, so
// nothing changes meanwhile.
func (c *compaction) last(s *Store, to, from *bbolt.Tx) error {
	if err := c.catchUp(to, from, c.takeTouched()); err != nil {
		return err
	}
	// Events that were trimmed since they were copied.
	journal := to.Bucket(bucketJournal)
	var gone [][]byte
	cursor := journal.Cursor()
	for k, _ := cursor.First(); k != nil && binary.BigEndian.Uint64(k) < s.oldest; k, _ = cursor.Next() {
		gone = append(gone, slices.Clone(k))
	}
	for _, k := range gone {
		if err := journal.Delete(k); err != nil {
			return err
		}
	}
	if err := journal.SetSequence(s.newest); err != nil {
		return err
	}
	return to.Bucket(bucketRecords).SetSequence(s.lastID)
}

// abortCompaction drops a compaction under way, with the reason for those who
// wait for it. With a nil reason it gives them back, for the next compaction.
func (s *Store) abortCompaction(reason error) (waiting []chan<- error) {
	c := s.compact
	if c == nil {
		return nil
	}
	s.compact = nil
	c.stop()
	<-c.done
	err := errors.Join(c.db.Close(), os.Remove(s.path+newSuffix))
	if reason == nil {
		return c.waiting
	}
	c.answer(errors.Join(reason, err))
	return nil
}
