package boltstore

import (
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/accelfab/accelfab/fabric"
)

// run is the writer goroutine: the only one that writes to the file.
func (s *Store) run() {
	defer close(s.ended)
	for {
		group, more := s.queue.take()
		if !more {
			break
		}
		changes := group[:0:0]
		for _, r := range group {
			if r.admin == nil && r.compact == nil {
				changes = append(changes, r)
			}
		}
		if len(changes) > 0 {
			s.commit(changes)
		}
		for _, r := range group {
			switch {
			case r.admin != nil:
				r.done <- s.administer(r.admin)
			case r.compact != nil:
				r.done <- nil
				s.beginCompaction(r.compact)
			}
		}
		s.mindCompaction()
	}
	s.abortCompaction(fabric.ErrStoreClosed)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db != nil {
		s.err = s.db.Close()
		s.db = nil
	}
	s.err = errors.Join(s.err, s.lock.Close())
}

// commit carries out changes in one transaction and answers them.
func (s *Store) commit(changes []*request) {
	next := s.counters
	var ops []op
	if len(changes) == 1 {
		ops = changes[0].ops
	} else {
		n := 0
		for _, r := range changes {
			n += len(r.ops)
		}
		ops = make([]op, 0, n)
		for _, r := range changes {
			ops = append(ops, r.ops...)
		}
	}
	// In the order of ids the transaction goes through the tree once and
	// touches each page once. Of several operations on an id the last counts.
	byID := func(a, b op) int {
		switch {
		case a.id < b.id:
			return -1
		case a.id > b.id:
			return 1
		}
		return 0
	}
	if !slices.IsSortedFunc(ops, byID) {
		slices.SortStableFunc(ops, byID)
	}
	err := s.update(func(tx *bbolt.Tx) error {
		if err := putRecords(tx, ops, &next); err != nil {
			return err
		}
		return s.appendJournal(tx, changes, &next)
	})
	if err == nil {
		s.counters = next
		if s.compact != nil {
			s.compact.touch(ops)
		}
	}
	for _, r := range changes {
		r.done <- err
	}
}

// putRecords carries out ops, which are sorted by id.
func putRecords(tx *bbolt.Tx, ops []op, next *counters) error {
	if len(ops) == 0 {
		return nil
	}
	records := tx.Bucket(bucketRecords)
	records.FillPercent = recordFill
	var k [8]byte
	last := next.lastID
	for i, o := range ops {
		if o.frame != nil {
			last = max(last, o.id) // counts as stored even where the same group deletes it
		}
		if i+1 < len(ops) && ops[i+1].id == o.id {
			continue
		}
		var err error
		if o.frame == nil {
			err = records.Delete(appendKey(k[:0], o.id))
		} else {
			err = records.Put(appendKey(k[:0], o.id), o.frame)
		}
		if err != nil {
			return fmt.Errorf("record %d: %w", o.id, err)
		}
	}
	if last > next.lastID {
		next.lastID = last
		return records.SetSequence(last)
	}
	return nil
}

// administer runs one of the rare requests in a transaction of its own.
func (s *Store) administer(fn func(*bbolt.Tx) error) error {
	// A compaction under way does not learn what fn does; it begins again later.
	waiting := s.abortCompaction(nil)
	err := s.update(fn)
	for _, w := range waiting {
		s.beginCompaction(w)
	}
	return err
}

// update runs fn in a write transaction and commits it. An error of fn rolls
// back and is given as it is; if the commit fails, the file is put back to what
// it was, and the error is fabric.ErrStoreFailed.
func (s *Store) update(fn func(*bbolt.Tx) error) error {
	if err := s.mend(); err != nil {
		return err
	}
	var (
		txid  int
		size  int64
		fnErr error
	)
	err := guard(s.path, func() error {
		return s.db.Update(func(tx *bbolt.Tx) error {
			txid, size = tx.ID(), tx.Size()
			fnErr = fn(tx)
			return fnErr
		})
	})
	switch {
	case err == nil:
		s.txid, s.size = txid, size
		return nil
	case errors.Is(err, errPanic):
		// bbolt may have kept its locks: it is left alone, and so is the file,
		// until the next Open examines it.
		s.mu.Lock()
		s.file.Close()
		s.db, s.fatal = nil, err
		s.mu.Unlock()
		return err
	case fnErr != nil:
		return err
	}
	err = fmt.Errorf("%w: commit to %s: %w", fabric.ErrStoreFailed, s.path, err)
	s.mu.Lock()
	s.db.Close()
	s.db, s.undo = nil, true
	s.mu.Unlock()
	// Mend now if the disk allows it, for the readers; else the next commit does.
	if mendErr := s.mend(); mendErr != nil {
		return fmt.Errorf("%w; and the file could not be put back: %w", err, mendErr)
	}
	return err
}

// mend opens the file again after a failure, the failed commit undone.
func (s *Store) mend() error {
	if s.db != nil {
		return nil
	}
	if s.fatal != nil {
		return s.fatal
	}
	// What is being copied is copied from a file that is no longer open.
	s.abortCompaction(fabric.ErrStoreFailed)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.undo {
		if err := undo(s.path, uint64(s.txid)); err != nil {
			return fmt.Errorf("%w: %w", fabric.ErrStoreFailed, err)
		}
		s.undo = false
	}
	if err := s.openFile(false); err != nil {
		return fmt.Errorf("%w: open again: %w", fabric.ErrStoreFailed, err)
	}
	return nil
}
