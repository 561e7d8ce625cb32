package boltstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/accelfab/accelfab/fabric"
)

// repair reads every page of the file path and, if one is damaged, puts a new
// file with all that can be read in its place and keeps the old one beside it.
// It gives what was found, "" for a sound file. The error wraps
// fabric.ErrStoreFailed where nothing can be read.
//
// It takes the state that loses least: the newest if only the list of free
// pages is broken, else the one before if that is whole (bbolt keeps the two
// last ones), else what is left of the newest. A disk that lost the pages of
// the newest shows pages of long ago in their places; the sequences tell, which
// never fall.
func repair(path string, now time.Time) (damage string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	metas := readMetas(f)
	if len(metas) == 0 {
		return "", fmt.Errorf("%w: neither of the two meta pages of %s can be read, so nothing in it can be found; "+
			"put a backup in its place, or move it away to begin with an empty store", fabric.ErrStoreFailed, path)
	}
	state := metas[0]
	lost, newest := examine(f, state)
	if len(lost) == 0 {
		if len(metas) == 2 {
			return "", nil
		}
		return fmt.Sprintf("one of the two meta pages of %s cannot be read: if it was the newer, "+
			"the changes of the last commit are lost (transaction %d is in force); the next commit writes it again",
			path, state.txid), nil
	}
	found := describe(lost)
	if len(metas) == 2 {
		olderLost, older := examine(f, metas[1])
		if len(olderLost) == 0 && (losesKeys(lost) || !newest.follows(older)) {
			state = metas[1]
			found += "; the state before the last commit is whole and was taken"
		}
	}
	copied, err := salvage(f, state, path)
	if err != nil {
		return "", fmt.Errorf("repair %s (%s): %w", path, found, err)
	}
	aside := path + ".damaged-" + now.UTC().Format("20060102T150405.000000000Z")
	if err := os.Link(path, aside); err != nil {
		return "", errors.Join(fmt.Errorf("repair %s: keep the damaged file: %w", path, err), os.Remove(path+newSuffix))
	}
	if err := os.Rename(path+newSuffix, path); err != nil {
		return "", fmt.Errorf("repair %s: %w", path, err)
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return "", fmt.Errorf("repair %s: %w", path, err)
	}
	return fmt.Sprintf("%s was damaged: %s; %d records and %d events were read into a new file; the damaged one is kept as %s",
		path, found, copied.records, copied.events, aside), nil
}

// sequences are those of the buckets of one state, by name.
type sequences map[string]uint64

// follows tells whether a state can come after an older one.
func (s sequences) follows(older sequences) bool {
	for bucket, n := range older {
		if is, there := s[bucket]; !there || is < n {
			return false
		}
	}
	return true
}

// examine reads all of a state.
func examine(r io.ReaderAt, m meta) ([]lost, sequences) {
	found := sequences{}
	lost, _ := walk(r, m, func(bucket string, sequence uint64, k, _ []byte) error {
		if k == nil {
			found[bucket] = sequence
		}
		return nil
	})
	return lost, found
}

// losesKeys tells whether more is lost than the list of free pages.
func losesKeys(pieces []lost) bool {
	for _, l := range pieces {
		if !l.freelist {
			return true
		}
	}
	return false
}

// describe names the first losses and counts the others.
func describe(pieces []lost) string {
	const most = 5
	var names []string
	for _, l := range pieces[:min(len(pieces), most)] {
		names = append(names, l.String())
	}
	if more := len(pieces) - most; more > 0 {
		names = append(names, fmt.Sprintf("and %d more pieces", more))
	}
	return strings.Join(names, ", ")
}

type copied struct{ records, events int }

// salvage copies what can be read of a state into a file beside path.
func salvage(r io.ReaderAt, state meta, path string) (copied, error) {
	var n copied
	to, err := newBulk(path)
	if err != nil {
		return n, err
	}
	known, version := false, uint32(0)
	_, err = walk(r, state, func(bucket string, sequence uint64, k, v []byte) error {
		switch bucket {
		case string(bucketMeta):
			if string(k) == string(keyFormat) && len(v) == 4 {
				version = binary.BigEndian.Uint32(v)
			}
			return nil // a new file has its own
		case string(bucketRecords), string(bucketJournal), string(bucketQuarantine):
			known = true
		default:
			return nil
		}
		if k == nil {
			return to.sequence(bucket, sequence)
		}
		if len(k) == 8 && bucket != string(bucketQuarantine) {
			if err := to.sequence(bucket, binary.BigEndian.Uint64(k)); err != nil {
				return err
			}
		}
		switch bucket {
		case string(bucketRecords):
			n.records++
		case string(bucketJournal):
			n.events++
		}
		return to.put(bucket, k, v)
	})
	switch {
	case err != nil:
	case version > format:
		err = fmt.Errorf("it has format %d, this program knows formats up to %d; use the newer program that wrote it: %w",
			version, format, errors.ErrUnsupported)
	case !known:
		err = fmt.Errorf("%w: nothing of a store can be found in it; put a backup in its place, "+
			"or move it away to begin with an empty store", fabric.ErrStoreFailed)
	}
	return n, to.finish(err)
}

// bulk fills a new file in transactions of some megabytes.
type bulk struct {
	db   *bbolt.DB
	path string
	tx   *bbolt.Tx
	size int
}

const bulkBytes = 4 << 20

func newBulk(path string) (*bulk, error) {
	db, _, err := openBolt(path+newSuffix, true)
	if err != nil {
		return nil, err
	}
	b := &bulk{db: db, path: path}
	if b.tx, err = db.Begin(true); err == nil {
		err = makeBuckets(b.tx)
	}
	if err != nil {
		return nil, b.finish(err)
	}
	return b, nil
}

// put takes k and v, which must not change before the next put or finish.
func (b *bulk) put(bucket string, k, v []byte) error {
	if b.size > bulkBytes {
		if err := b.tx.Commit(); err != nil {
			return err
		}
		b.size = 0
		tx, err := b.db.Begin(true)
		if err != nil {
			return err
		}
		b.tx = tx
	}
	b.size += len(k) + len(v)
	to := b.tx.Bucket([]byte(bucket))
	to.FillPercent = journalFill
	return to.Put(k, v)
}

// sequence raises the sequence of a bucket.
func (b *bulk) sequence(bucket string, n uint64) error {
	to := b.tx.Bucket([]byte(bucket))
	if to.Sequence() >= n {
		return nil
	}
	return to.SetSequence(n)
}

// finish commits and syncs, or after err removes, the file beside path; it does
// not put it in the place of path.
func (b *bulk) finish(err error) error {
	if b.tx != nil {
		if err == nil {
			err = b.tx.Commit()
		} else {
			err = errors.Join(err, ignoreClosed(b.tx.Rollback()))
		}
	}
	if err == nil {
		err = b.db.Sync()
	}
	err = errors.Join(err, b.db.Close())
	if err != nil {
		err = errors.Join(err, os.Remove(b.path+newSuffix))
	}
	return err
}

// ignoreClosed passes over the error of rolling back what already ended.
func ignoreClosed(err error) error {
	if errors.Is(err, bolterrors.ErrTxClosed) {
		return nil
	}
	return err
}
