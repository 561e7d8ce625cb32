package boltstore

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"time"

	"go.etcd.io/bbolt"

	"github.com/accelfab/accelfab/fabric"
)

// How full bbolt leaves a page behind new keys at its end. An event is never
// changed, so its page can be full. A record is: some room lets it grow
// without splitting its page.
const (
	journalFill = 1.0
	recordFill  = 0.9
)

// trimStep is how many events a transaction removes beyond one for each it
// adds: enough to catch up after the bounds were lowered, too few to be felt. A
// full journal is cut by a step below its bound, so that not every commit has
// to write the page at its beginning too.
const trimStep = 64

const timeSize = 8

// appendJournal gives the events of changes their revisions, stores them and
// removes what the bounds no longer allow.
func (s *Store) appendJournal(tx *bbolt.Tx, changes []*request, next *counters) error {
	journal := tx.Bucket(bucketJournal)
	journal.FillPercent = journalFill
	now := s.options.Now()
	stamp := binary.BigEndian.AppendUint64(nil, uint64(now.UnixNano()))
	before := next.newest
	for _, r := range changes {
		for _, e := range r.events {
			next.newest++
			k := key(next.newest)
			frame := make([]byte, 0, frameSize("", e)+timeSize)
			if err := journal.Put(k, appendFrame(frame, k, "", stamp, e)); err != nil {
				return err
			}
		}
		r.revision = next.newest
	}
	added := next.newest - before
	if added > 0 {
		if err := journal.SetSequence(next.newest); err != nil {
			return err
		}
	}
	slack := uint64(0)
	if next.kept() > s.maxEvents() {
		slack = min(trimStep, s.maxEvents()/16)
	}
	for range added + trimStep {
		if next.oldest > next.newest || next.kept()+slack <= s.maxEvents() && !s.tooOld(journal, next.oldest, now) {
			break
		}
		if err := journal.Delete(key(next.oldest)); err != nil {
			return err
		}
		next.oldest++
	}
	return nil
}

func (c *counters) kept() uint64 { return c.newest - c.oldest + 1 }

func (s *Store) maxEvents() uint64 {
	if s.options.JournalEvents < 0 {
		return math.MaxUint64 / 2
	}
	return uint64(s.options.JournalEvents)
}

// tooOld tells whether an event has passed its age; one that cannot be read or
// is not there has.
func (s *Store) tooOld(journal *bbolt.Bucket, revision uint64, now time.Time) bool {
	if s.options.JournalAge < 0 {
		return false
	}
	k := key(revision)
	e, err := parseEvent(k, journal.Get(k))
	return err != nil || now.Sub(e.Time) > s.options.JournalAge
}

// parseEvent reads a journal entry. Value is a part of frame.
func parseEvent(k, frame []byte) (fabric.StoredEvent, error) {
	_, value, err := parseFrame(k, frame)
	if err == nil && (len(value) < timeSize || len(k) != 8) {
		err = errors.New("no journal entry")
	}
	if err != nil {
		return fabric.StoredEvent{}, err
	}
	return fabric.StoredEvent{
		Revision: binary.BigEndian.Uint64(k),
		Time:     time.Unix(0, int64(binary.BigEndian.Uint64(value))),
		Value:    value[timeSize:],
	}, nil
}

// Events is fabric.Store's. An event that cannot be read counts as trimmed,
// with all before it, for a reader that comes from before it: the page begins
// after it, and its Oldest says so.
func (s *Store) Events(ctx context.Context, after uint64, limit int) (fabric.EventPage, error) {
	var page fabric.EventPage
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		journal := tx.Bucket(bucketJournal)
		page = fabric.EventPage{Newest: journal.Sequence()}
		cursor := journal.Cursor()
		first, _ := cursor.First()
		if len(first) != 8 || after == ^uint64(0) {
			return nil
		}
		page.Oldest = binary.BigEndian.Uint64(first)
		expect := max(after+1, page.Oldest)
		for k, v := cursor.Seek(key(expect)); k != nil && len(page.Events) < limit; k, v = cursor.Next() {
			e, err := parseEvent(k, v)
			if err != nil {
				continue // the next one finds the hole
			}
			if e.Revision != expect {
				page.Events, page.Oldest = nil, e.Revision
			}
			e.Value = append([]byte(nil), e.Value...)
			page.Events = append(page.Events, e)
			expect = e.Revision + 1
		}
		return nil
	})
	return page, err
}
