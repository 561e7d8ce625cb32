package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/boltstore"
)

// The stores of servers.
const (
	boltStore   = "boltstore" // accelfabd's
	updateStore = "update"    // one bare bbolt Update a commit
	withoutOne  = "none"
)

// openStore opens a store in dir.
func openStore(kind, dir string) (fabric.Store, error) {
	switch kind {
	case boltStore:
		return boltstore.Open(filepath.Join(dir, "fabric.db"), boltstore.Options{})
	case updateStore:
		y, err := openBolt(dir)
		return &updates{bolt: y}, err
	case withoutOne:
		return &noStore{}, nil
	}
	return nil, fmt.Errorf("store %q: want %s, %s or %s", kind, boltStore, updateStore, withoutOne)
}

// openFabric opens a fabric, which closes the devices, on a store in dir.
func openFabric(ctx context.Context, kind, dir string, devices []device.Device) (*fabric.Fabric, error) {
	store, err := openStore(kind, dir)
	if err != nil {
		return nil, err
	}
	f, err := fabric.Open(ctx, fabric.Config{NodeID: nodeID, BootID: "bench", Version: "bench", Store: store, Devices: devices})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return f, nil
}

// noStore keeps nothing: what the fabric costs without a store.
type noStore struct {
	revision atomic.Uint64
}

func (s *noStore) Load(context.Context, func(fabric.Record) error) (fabric.LoadResult, error) {
	return fabric.LoadResult{NextID: 1}, nil
}

func (s *noStore) Commit(_ context.Context, c fabric.Change) (uint64, error) {
	return s.revision.Add(uint64(len(c.Events))), nil
}

func (s *noStore) Events(context.Context, uint64, int) (fabric.EventPage, error) {
	return fabric.EventPage{}, nil
}

func (s *noStore) Quarantine(context.Context, uint64, string) error { return nil }

func (s *noStore) Close() error { return nil }

// updates makes of each commit one bbolt Update in the goroutine that asks for
// it: the least that a durable call can take, for a caller alone.
type updates struct {
	noStore
	bolt *bolt
}

func (s *updates) Commit(ctx context.Context, c fabric.Change) (uint64, error) {
	if err := s.bolt.put(len(c.Put)); err != nil {
		return 0, err
	}
	return s.noStore.Commit(ctx, c)
}

func (s *updates) Close() error { return s.bolt.close() }
