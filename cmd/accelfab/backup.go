package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/accelfab/accelfab/client"
)

// backupLimit bounds a backup, whose size is not known before.
const backupLimit = 10 * time.Minute

func newNodeBackupCmd(a *app) *cobra.Command {
	var replace bool
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy the node's store into a file while the node serves (operators)",
		Long: `Copy the node's store into a file while the node serves: all that is recorded at this
moment. "accelfabd store restore" puts it back. The file is there only once all of it is.`,
		Example: "  accelfab node backup accelfab.backup",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.within(cmd, backupLimit, func(ctx context.Context, c *client.Client) error {
				n, err := backup(ctx, c, args[0], replace)
				if err != nil {
					return err
				}
				return a.done(cmd, "backup of %s: %s", bytesText(uint64(n)), args[0])
			})
		},
	}
	cmd.Flags().BoolVar(&replace, "force", false, "replace the file if it is there")
	return cmd
}

// backup puts a backup at path when all of it is on the disk.
func backup(ctx context.Context, c *client.Client, path string, replace bool) (n int64, err error) {
	if _, err := os.Stat(path); err == nil && !replace {
		return 0, fmt.Errorf("%s is there already: give another name, or --force to replace it", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // 0600
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	n, err = c.Backup(ctx, f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return n, err
	}
	if replace {
		return n, os.Rename(f.Name(), path)
	}
	if err := os.Link(f.Name(), path); err != nil { // refuses where somebody was faster
		return n, err
	}
	return n, os.Remove(f.Name())
}
