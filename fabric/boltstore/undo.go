package boltstore

import (
	"fmt"
	"os"
)

// undo takes a failed commit back: committed is the number of the last
// transaction that was acknowledged.
//
// A bbolt commit writes its pages to free places and then, into the meta page
// that is not in force, the new root. If that last write reached the kernel but
// its fdatasync failed, the new meta page is in force for everyone who reads
// the file, though its writer was told that it failed. Putting a copy of the
// other meta page over it takes the whole transaction away: no page of the
// state before was touched.
func undo(path string, committed uint64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("undo a failed commit: %w", err)
	}
	defer f.Close()
	metas := readMetas(f)
	if len(metas) == 0 {
		return fmt.Errorf("undo a failed commit: no meta page of %s can be read", path)
	}
	newer := metas[0]
	if newer.txid <= committed {
		return nil // the commit did not come as far as its meta page
	}
	if len(metas) < 2 || metas[1].txid != committed {
		return fmt.Errorf("undo a failed commit: transaction %d is not in %s any more", committed, path)
	}
	size := int64(newer.pageSize)
	page := make([]byte, size)
	if _, err := f.ReadAt(page, int64(metas[1].slot)*size); err != nil {
		return fmt.Errorf("undo a failed commit: %w", err)
	}
	order.PutUint64(page, uint64(newer.slot))
	if _, err := f.WriteAt(page, int64(newer.slot)*size); err != nil {
		return fmt.Errorf("undo a failed commit: %w", err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("undo a failed commit: %w", err)
	}
	return nil
}
