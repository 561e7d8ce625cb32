package boltstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/accelfab/accelfab/fabric"
)

// Report is what an examination of a store's file found.
type Report struct {
	Records     int
	Events      int
	Quarantined int
	FileBytes   int64
	Problems    []string // empty for a sound file
}

// Visitor gets what is in a store, in ascending order of id and revision. What is
// given is valid during the call. An error of Record is a problem of that record;
// nil functions are not called.
type Visitor struct {
	Record      func(fabric.Record) error
	Event       func(fabric.StoredEvent) error
	Quarantined func(Quarantined)
}

// Examine reads all of a store's file, which no daemon may have open, and changes
// nothing. errors.Is finds fabric.ErrStoreLocked, os.ErrNotExist, and
// fabric.ErrStoreFailed for a file of which nothing can be read.
func Examine(path string, options Options, v *Visitor) (Report, error) {
	if _, err := os.Stat(path); err != nil {
		return Report{}, err
	}
	options = options.withDefaults()
	lock, err := acquireLock(path+".lock", options.LockTimeout)
	if err != nil {
		return Report{}, err
	}
	defer lock.Close()
	return read(path, v)
}

// read is Examine for a file that nobody else writes.
func read(path string, v *Visitor) (r Report, err error) {
	f, err := os.Open(path)
	if err != nil {
		return r, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return r, err
	}
	r.FileBytes = info.Size()
	if v == nil {
		v = &Visitor{}
	}
	metas := readMetas(f)
	switch len(metas) {
	case 0:
		return r, fmt.Errorf("%w: %s: neither of the two meta pages can be read: it is no store, or nothing of it is left", fabric.ErrStoreFailed, path)
	case 1:
		r.Problems = append(r.Problems, "one of the two meta pages cannot be read")
	}
	buckets := map[string]bool{}
	problem := func(format string, args ...any) { r.Problems = append(r.Problems, fmt.Sprintf(format, args...)) }
	lost, err := walk(f, metas[0], func(bucket string, _ uint64, k, value []byte) error {
		buckets[bucket] = true
		if k == nil {
			return nil
		}
		switch bucket {
		case string(bucketRecords):
			r.Records++
			if err := v.record(k, value); err != nil {
				problem("record %x: %v", k, err)
			}
		case string(bucketJournal):
			r.Events++
			e, err := parseEvent(k, value)
			if err == nil && v.Event != nil {
				err = v.Event(e)
			}
			if err != nil {
				problem("event %x: %v", k, err)
			}
		case string(bucketQuarantine):
			r.Quarantined++
			if v.Quarantined != nil {
				v.Quarantined(parseQuarantined(k, value))
			}
		case string(bucketMeta):
			if string(k) == string(keyFormat) && (len(value) != 4 || binary.BigEndian.Uint32(value) > format) {
				problem("format %x: this program knows formats up to %d", value, format)
			}
		}
		return nil
	})
	for _, l := range lost {
		problem("%s", l)
	}
	for _, b := range [][]byte{bucketMeta, bucketRecords, bucketJournal, bucketQuarantine} {
		if !buckets[string(b)] && len(lost) == 0 {
			return r, fmt.Errorf("%w: %s has no %s: it is a bbolt file of another program", fabric.ErrStoreFailed, path, b)
		}
	}
	return r, err
}

func (v *Visitor) record(k, frame []byte) error {
	name, value, err := parseFrame(k, frame)
	if err == nil && len(k) != 8 {
		err = errors.New("its key is no id")
	}
	if err != nil || v.Record == nil {
		return err
	}
	if err := v.Record(fabric.Record{ID: binary.BigEndian.Uint64(k), Name: string(name), Value: value}); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
