package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/boltstore"
)

// How a store is worn: records that come, stay for a while and go.
const (
	wornRecords = 500_000
	keptRecords = 1_000
	wearBatch   = 1_000
	wearWrites  = 2_000 // that a p99 is of
	wornBytes   = 256   // about those of a queue pair's record
)

const (
	freshWriteName = "p99 of a write by a caller alone, 1,000 records"
	wornWriteName  = "the same right after 500,000 records more came and went, with the compaction that this causes"
	calmWriteName  = "the same after that compaction"
	wornRatioName  = "the second over the first"
	wornSizeName   = "file after its compaction, over the data in it"
)

// wear measures what 500,000 records leave behind in a store that had them.
func wear(ctx context.Context, b *bench) error {
	if err := b.interleave(ctx, []cell{{"wear", b.worn}}); err != nil {
		return err
	}
	b.goalOf("p99 of a write while a store shrinks after 500,000 deletes, over before", "", b.find(wornRatioName).Values, 2, true)
	b.goalOf("file over the data in it", "", b.find(wornSizeName).Values, 2, true)
	return nil
}

func (b *bench) worn(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp(b.dir, "wear")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "fabric.db")
	s, err := boltstore.Open(path, boltstore.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if _, err := s.Load(ctx, func(fabric.Record) error { return nil }); err != nil {
		return err
	}
	records, writes := wornRecords, wearWrites
	if b.quick {
		records, writes = 5_000, 50
	}
	if err := putRecords(ctx, s, 1, keptRecords); err != nil {
		return err
	}
	id := uint64(1)
	write := func() (time.Duration, error) { // a change of one of those that stay
		id = id%keptRecords + 1
		start := time.Now()
		err := putRecords(ctx, s, id, 1)
		return time.Since(start), err
	}
	before, err := p99(writes, write)
	if err != nil {
		return err
	}
	if err := putRecords(ctx, s, keptRecords+1, records); err != nil {
		return err
	}
	for first := uint64(keptRecords + 1); first <= uint64(keptRecords+records); first += wearBatch {
		var c fabric.Change
		for id := first; id < first+wearBatch; id++ {
			c.Delete, c.Events = append(c.Delete, id), append(c.Events, wearEvent(id))
		}
		if _, err := s.Commit(ctx, c); err != nil {
			return err
		}
	}
	after, err := p99(writes, write)
	if err != nil {
		return err
	}
	if err := s.Compact(ctx); err != nil { // joins the one that may be under way
		return err
	}
	calm, err := p99(writes, write)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	live, err := liveBytes(ctx, s)
	if err != nil {
		return err
	}
	b.add(freshWriteName, "ms", before.Seconds()*1e3)
	b.add(wornWriteName, "ms", after.Seconds()*1e3)
	b.add(calmWriteName, "ms", calm.Seconds()*1e3)
	b.add(wornRatioName, "", after.Seconds()/before.Seconds())
	b.add(wornSizeName, "", float64(info.Size())/float64(live))
	return nil
}

// putRecords writes n records, each with its event.
func putRecords(ctx context.Context, s *boltstore.Store, first uint64, n int) error {
	for done := 0; done < n; done += wearBatch {
		var c fabric.Change
		for id := first + uint64(done); id < first+uint64(min(n, done+wearBatch)); id++ {
			c.Put = append(c.Put, fabric.Record{ID: id, Name: fmt.Sprintf("nodes/n/devices/d/queuePairs/q-%016x", id), Value: []byte(strings.Repeat("r", wornBytes))})
			c.Events = append(c.Events, wearEvent(id))
		}
		if _, err := s.Commit(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

func wearEvent(id uint64) []byte { return fmt.Appendf(nil, "%0192d", id) }

// liveBytes sums the names, values and events that the store holds.
func liveBytes(ctx context.Context, s *boltstore.Store) (int64, error) {
	const key = 8
	live := int64(keptRecords * (key + wornBytes + len("nodes/n/devices/d/queuePairs/q-") + 16))
	for after := uint64(0); ; {
		page, err := s.Events(ctx, after, 10_000)
		if err != nil || len(page.Events) == 0 {
			return live, err
		}
		for _, e := range page.Events {
			live += int64(key + len(e.Value))
			after = e.Revision
		}
	}
}
