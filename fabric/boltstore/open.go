package boltstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/accelfab/accelfab/fabric"
)

// format is the newest version of the bucket tree that this program knows.
const format = 1

// Names of the buckets; doc.go says what is in them.
var (
	bucketMeta       = []byte("meta")
	bucketRecords    = []byte("records")
	bucketJournal    = []byte("journal")
	bucketQuarantine = []byte("quarantine")
	keyFormat        = []byte("format")
)

// growBytes is the step by which the file grows. bbolt's own 16 MiB would be
// most of a small file; each step costs one fsync.
const growBytes = 4 << 20

// Options are the choices of Open. The zero value takes every default.
type Options struct {
	// LockTimeout is how long Open waits for another process to give the file
	// up. Default 3 s.
	LockTimeout time.Duration
	// JournalEvents and JournalAge bound the journal. Defaults 100,000 events
	// and 7 days; a negative value is no bound.
	JournalEvents int
	JournalAge    time.Duration
	// CompactAbove is the size in bytes from which a file of which more than
	// half is free is compacted. Default 16 MiB; a negative value leaves
	// compaction to Compact.
	CompactAbove int64
	// Now gives the time of commits. Default time.Now.
	Now func() time.Time

	// fileSystem is what tells the file system of a directory; a test puts
	// its own here.
	fileSystem func(dir string) (magic int64, mountType string, err error)
}

func (o Options) withDefaults() Options {
	if o.LockTimeout == 0 {
		o.LockTimeout = 3 * time.Second
	}
	if o.JournalEvents == 0 {
		o.JournalEvents = 100_000
	}
	if o.JournalAge == 0 {
		o.JournalAge = 7 * 24 * time.Hour
	}
	if o.CompactAbove == 0 {
		o.CompactAbove = 16 << 20
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.fileSystem == nil {
		o.fileSystem = fileSystem
	}
	return o
}

// Open opens the store in the file path, and makes it (0600, its directory
// 0700) if it is not there. The caller closes it.
//
// errors.Is finds fabric.ErrStoreLocked if another process has it, with that
// process in the text; errors.ErrUnsupported if path is on a network file
// system or the file is of a newer format than this program knows; and
// fabric.ErrStoreFailed if nothing of the file can be read.
func Open(path string, options Options) (*Store, error) {
	options = options.withDefaults()
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	magic, mountType, err := options.fileSystem(dir)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if name := networkFileSystem(magic, mountType); name != "" {
		return nil, fmt.Errorf("open store: %s is on %s, a network file system, whose locks and memory maps do not "+
			"keep a store whole; choose a state directory on a local disk: %w", dir, name, errors.ErrUnsupported)
	}
	lock, err := acquireLock(path+".lock", options.LockTimeout)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := newStore(path, options, lock)
	if err := s.openFile(true); err != nil {
		lock.Close()
		return nil, fmt.Errorf("open store: %w", err)
	}
	go s.run()
	return s, nil
}

// openFile makes, checks and opens the file and reads where its counters
// stand. With examine, every page is read first and damage is repaired.
func (s *Store) openFile(examine bool) error {
	// What a process that died in the middle of making a file left.
	if err := os.Remove(s.path + newSuffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	info, err := os.Stat(s.path)
	switch {
	case errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0:
		if err := makeFile(s.path, func(*bbolt.Tx) error { return nil }); err != nil {
			return fmt.Errorf("make %s: %w", s.path, err)
		}
	case err != nil:
		return err
	case examine:
		damage, err := repair(s.path, s.options.Now())
		if err != nil {
			return err
		}
		if damage != "" {
			s.damage = damage
		}
	}
	return guard(s.path, func() error {
		db, file, err := openBolt(s.path, false)
		if err != nil {
			return err
		}
		if err := db.View(s.readCounters); err != nil {
			db.Close()
			return err
		}
		s.db, s.file = db, file
		return nil
	})
}

// openBolt opens a bbolt file and gives the file behind it too, which is the
// only way to let go of a DB that panicked with its locks held. With loose, its
// commits are not synced: for a file that nobody has yet.
func openBolt(path string, loose bool) (*bbolt.DB, *os.File, error) {
	var file *os.File
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout:      200 * time.Millisecond, // the lock file keeps our own away
		FreelistType: bbolt.FreelistMapType,
		NoSync:       loose,
		NoGrowSync:   loose,
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			f, err := os.OpenFile(name, flag, mode)
			file = f
			return f, err
		},
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, nil, fmt.Errorf("%w: a process that is no accelfab daemon has %s open (a bbolt tool?); fuser(1) names it",
			fabric.ErrStoreLocked, path)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	db.AllocSize = growBytes
	return db, file, nil
}

// readCounters checks the format and takes over ids and revisions.
func (s *Store) readCounters(tx *bbolt.Tx) error {
	var version []byte
	if b := tx.Bucket(bucketMeta); b != nil {
		version = b.Get(keyFormat)
	}
	records, journal := tx.Bucket(bucketRecords), tx.Bucket(bucketJournal)
	if len(version) != 4 || records == nil || journal == nil || tx.Bucket(bucketQuarantine) == nil {
		return fmt.Errorf("%s is a bbolt file of another program; choose another state directory", s.path)
	}
	if v := binary.BigEndian.Uint32(version); v > format {
		return fmt.Errorf("%s has format %d, this program knows formats up to %d: use the newer program that wrote it, "+
			"or restore a backup of before: %w", s.path, v, format, errors.ErrUnsupported)
	}
	s.txid = tx.ID()
	s.counters = counters{lastID: records.Sequence(), newest: journal.Sequence()}
	if k, _ := records.Cursor().Last(); len(k) == 8 {
		s.lastID = max(s.lastID, binary.BigEndian.Uint64(k))
	}
	cursor := journal.Cursor()
	if k, _ := cursor.Last(); len(k) == 8 {
		s.newest = max(s.newest, binary.BigEndian.Uint64(k))
	}
	s.oldest = s.newest + 1
	if k, _ := cursor.First(); len(k) == 8 {
		s.oldest = binary.BigEndian.Uint64(k)
	}
	return nil
}

// newSuffix is behind the name of a file that is being made.
const newSuffix = ".new"

// makeFile makes a file with the empty buckets and what fill puts there, and
// moves it to path when all of it is on the disk.
func makeFile(path string, fill func(*bbolt.Tx) error) error {
	db, _, err := openBolt(path+newSuffix, true)
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		if err := makeBuckets(tx); err != nil {
			return err
		}
		return fill(tx)
	})
	return finishFile(db, path, err)
}

// finishFile syncs and closes a file that was made beside path and, if err is
// nil, puts it in the place of path.
func finishFile(db *bbolt.DB, path string, err error) error {
	if err == nil {
		err = db.Sync()
	}
	err = errors.Join(err, db.Close())
	if err == nil {
		err = os.Rename(path+newSuffix, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(path+newSuffix))
	}
	return syncDir(filepath.Dir(path))
}

func makeBuckets(tx *bbolt.Tx) error {
	for _, name := range [][]byte{bucketMeta, bucketRecords, bucketJournal, bucketQuarantine} {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	return tx.Bucket(bucketMeta).Put(keyFormat, binary.BigEndian.AppendUint32(nil, format))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// errPanic is in the error of guard where bbolt panicked.
var errPanic = errors.New("bbolt gave up")

// guard turns a panic of bbolt over what it reads, and a fault of the memory
// map (an I/O error, a file cut short under us), into an error.
func guard(path string, fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %s: %w: %v; the store is examined and repaired when it is opened again",
				fabric.ErrStoreFailed, path, errPanic, p)
		}
	}()
	return fn()
}
