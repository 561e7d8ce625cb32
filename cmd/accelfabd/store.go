package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/boltstore"
)

// newStoreCommand looks after a store whose daemon is stopped.
func newStoreCommand(c *Config, load func(*cobra.Command) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Check, compact, dump or restore the store of a daemon that is stopped",
		Long: `Check, compact, dump or restore the store of a daemon that is stopped. The store is
accelfab.db in --state-dir. While a daemon has it, each of these says which. A backup
of a running daemon is "accelfab node backup".`,
		Example: "  accelfabd store check --state-dir /var/lib/accelfab",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	sub := func(use, short, example string, args cobra.PositionalArgs, run func(cmd *cobra.Command, path string, args []string) error) *cobra.Command {
		s := &cobra.Command{Use: use, Short: short, Example: "  " + example, Args: args, RunE: func(cmd *cobra.Command, args []string) error {
			if err := load(cmd); err != nil {
				return err
			}
			return run(cmd, filepath.Join(c.StateDir, storeName), args)
		}}
		cmd.AddCommand(s)
		return s
	}
	sub("check", "Read all of the store, change nothing, and say every fault", "accelfabd store check", noArgs, checkStore)
	sub("compact", "Make the file as small as its contents allow", "accelfabd store compact", noArgs, compactStore)
	sub("dump", "Print records, journal and quarantine as JSON, one line each", "accelfabd store dump | jq .name", noArgs, dumpStore)
	var replace bool
	restore := sub("restore FILE", "Put a backup in the place of the store", "accelfabd store restore accelfab.backup", exactly("FILE"), func(cmd *cobra.Command, path string, args []string) error {
		return restoreStore(cmd, path, args[0], replace)
	})
	restore.Flags().BoolVar(&replace, "force", false, "if there is a store already, keep it beside")
	return cmd
}

// exactly wants one argument.
func exactly(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usageError{fmt.Errorf("want one argument, %s", what)}
		}
		return nil
	}
}

func checkStore(cmd *cobra.Command, path string, _ []string) error {
	report, err := boltstore.Examine(path, boltstore.Options{}, &boltstore.Visitor{
		Record: func(r fabric.Record) error {
			_, err := fabric.DescribeRecord(r)
			return err
		},
		Event: func(e fabric.StoredEvent) error {
			_, err := fabric.DescribeEvent(e)
			return err
		},
		Quarantined: func(q boltstore.Quarantined) {
			fmt.Fprintf(cmd.OutOrStdout(), "in quarantine: record %d: %s\n", q.ID, q.Reason)
		},
	})
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	for _, p := range report.Problems {
		fmt.Fprintln(out, "fault:", p)
	}
	fmt.Fprintf(out, "%s: %d records, %d events, %d in quarantine, %d bytes\n", path, report.Records, report.Events, report.Quarantined, report.FileBytes)
	if n := len(report.Problems); n > 0 {
		return fmt.Errorf("%d faults; the daemon mends the file when it starts and keeps the damaged one beside; a backup can be put in its place by store restore", n)
	}
	return nil
}

func compactStore(cmd *cobra.Command, path string, _ []string) error {
	before, err := os.Stat(path)
	if err != nil {
		return err
	}
	s, err := boltstore.Open(path, boltstore.Options{CompactAbove: -1})
	if err != nil {
		return err
	}
	if err := errors.Join(s.Compact(cmd.Context()), s.Close()); err != nil {
		return err
	}
	after, err := os.Stat(path)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %d bytes before, %d after\n", path, before.Size(), after.Size())
	return nil
}

// The lines of a dump. Each has one of the fields.
type dumpLine struct {
	Record      *fabric.RecordText `json:"record,omitempty"`
	Event       *dumpEvent         `json:"event,omitempty"`
	Quarantined *dumpQuarantined   `json:"quarantined,omitempty"`
	Fault       string             `json:"fault,omitempty"`
}

type dumpEvent struct {
	Cursor   uint64           `json:"cursor"`
	Time     time.Time        `json:"time"`
	Type     fabric.EventType `json:"type"`
	Resource string           `json:"resource"`
	Actor    string           `json:"actor"`
	Before   string           `json:"before,omitempty"`
	After    string           `json:"after,omitempty"`
	Reason   fabric.Reason    `json:"reason,omitempty"`
	Message  string           `json:"message,omitempty"`
}

type dumpQuarantined struct {
	ID     uint64 `json:"id"`
	Reason string `json:"reason"`
	Bytes  string `json:"bytes"` // hexadecimal
}

func dumpStore(cmd *cobra.Command, path string, _ []string) error {
	return dump(cmd.Context(), cmd.OutOrStdout(), path)
}

func dump(ctx context.Context, out io.Writer, path string) error {
	enc := json.NewEncoder(out)
	var broken error // of writing
	line := func(l dumpLine) {
		if broken == nil {
			broken = errors.Join(enc.Encode(l), ctx.Err())
		}
	}
	report, err := boltstore.Examine(path, boltstore.Options{}, &boltstore.Visitor{
		Record: func(r fabric.Record) error {
			t, err := fabric.DescribeRecord(r)
			if err == nil {
				line(dumpLine{Record: &t})
			}
			return err
		},
		Event: func(se fabric.StoredEvent) error {
			e, err := fabric.DescribeEvent(se)
			if err == nil {
				line(dumpLine{Event: &dumpEvent{e.Cursor, e.Time.UTC(), e.Type, e.Resource, e.Actor, e.Before, e.After, e.Reason, e.Message}})
			}
			return err
		},
		Quarantined: func(q boltstore.Quarantined) {
			line(dumpLine{Quarantined: &dumpQuarantined{q.ID, q.Reason, hex.EncodeToString(q.Bytes)}})
		},
	})
	for _, p := range report.Problems {
		line(dumpLine{Fault: p})
	}
	return errors.Join(err, broken)
}

func restoreStore(cmd *cobra.Command, path, backup string, replace bool) error {
	kept, err := boltstore.Restore(path, backup, boltstore.Options{}, replace)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%w; --force keeps it beside", err)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s is that of %s\n", path, backup)
	if kept != "" {
		fmt.Fprintf(cmd.OutOrStdout(), "what was there before is kept as %s\n", kept)
	}
	return nil
}
