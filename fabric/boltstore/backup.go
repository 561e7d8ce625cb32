package boltstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"

	"github.com/accelfab/accelfab/fabric"
)

// Backup writes a file of this format with all that is committed by now, while the
// store goes on, and gives its size in bytes. It is first copied beside the store,
// which needs as much room there for the moment: a slow w must keep no commit
// waiting. An error of w is returned as it is.
func (s *Store) Backup(ctx context.Context, w io.Writer) (int64, error) {
	spool, err := os.CreateTemp(filepath.Dir(s.path), ".backup-*")
	if err != nil {
		return 0, fmt.Errorf("%w: backup: %w", fabric.ErrStoreFailed, err)
	}
	defer spool.Close()
	if err := os.Remove(spool.Name()); err != nil { // it ends with its descriptor
		return 0, fmt.Errorf("%w: backup: %w", fabric.ErrStoreFailed, err)
	}
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		if _, err := tx.WriteTo(spool); err != nil {
			return fmt.Errorf("%w: backup: %w", fabric.ErrStoreFailed, err)
		}
		return nil
	})
	if err == nil {
		_, err = spool.Seek(0, io.SeekStart)
	}
	if err != nil {
		return 0, err
	}
	return io.Copy(w, spool)
}

// Restore puts a backup in the place of a store's file, which no daemon may have
// open. The backup is read as a whole before. If there is a store already, it is
// refused (os.ErrExist), or with replace kept beside, and the name of that is given.
func Restore(path, backup string, options Options, replace bool) (kept string, err error) {
	options = options.withDefaults()
	report, err := read(backup, nil)
	if err == nil && len(report.Problems) > 0 {
		err = fmt.Errorf("%w: %s is damaged: %s", fabric.ErrStoreFailed, backup, report.Problems[0])
	}
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	lock, err := acquireLock(path+".lock", options.LockTimeout)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if _, err := os.Stat(path); err == nil {
		if !replace {
			return "", fmt.Errorf("%s: %w: give another state directory, or replace it", path, os.ErrExist)
		}
		kept = path + ".before-" + options.Now().UTC().Format("20060102T150405.000000000Z")
	}
	if err := copyFile(backup, path+newSuffix); err != nil {
		return "", errors.Join(err, ignoreMissing(os.Remove(path+newSuffix)))
	}
	if kept != "" {
		if err := os.Link(path, kept); err != nil {
			return "", errors.Join(err, os.Remove(path+newSuffix))
		}
	}
	if err := os.Rename(path+newSuffix, path); err != nil {
		return "", err
	}
	return kept, syncDir(filepath.Dir(path))
}

// copyFile makes a file (0600) with the contents of another, and has it on the disk.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
