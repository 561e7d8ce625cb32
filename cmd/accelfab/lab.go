package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

func newLabCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Run nodes with software devices on this machine",
		Long: `Run nodes with software devices on this machine, to try things and to test.

Each node is a daemon of its own and a device host beside it, with their own state,
sockets and logs below the lab's directory. The software devices of all nodes reach one another.`,
		Example: `  accelfab lab up
  accelfab lab run -- accelfab device list
  accelfab lab down`,
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(newLabUpCmd(), newLabRunCmd(), newLabDownCmd(), newLabListCmd())
	return cmd
}

// labFlags adds the flags that say what a lab is made of.
func labFlags(cmd *cobra.Command, cfg *labConfig) {
	cmd.Flags().IntVar(&cfg.nodes, "nodes", 2, "number of nodes")
	cmd.Flags().StringArrayVar(&cfg.devices, "device", []string{"soft:hls-2"}, "devices of each node, as accelfabd takes them (repeatable)")
	accelfabdFlag(cmd, cfg)
}

func accelfabdFlag(cmd *cobra.Command, cfg *labConfig) {
	cmd.Flags().StringVar(&cfg.accelfabd, "accelfabd", "", "the daemon's program (default: beside accelfab, else in PATH)")
}

func dirFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "dir", "", "directory of the lab (default: below the runtime directory, else the temporary one)")
}

func newLabUpCmd() *cobra.Command {
	var cfg labConfig
	var dir string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a lab in the background",
		Long: `Start a lab in the background and say how to reach each node. The command
returns when all nodes serve; they run until "lab down".`,
		Example: `  accelfab lab up
  accelfab lab up --nodes 4 --device soft:hls-2,cards=2,memory=64MiB --dir /tmp/four`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			dir, err := labDir(dir)
			if err != nil {
				return err
			}
			cfg.stderr = cmd.ErrOrStderr()
			l, lock, err := newLab(dir, cfg)
			if err != nil {
				return err
			}
			defer lock.Close()
			if err := l.start(ctx); err != nil {
				return l.startFailed(ctx, err)
			}
			l.describe(cmd.OutOrStdout())
			return nil
		},
	}
	labFlags(cmd, &cfg)
	dirFlag(cmd, &dir)
	return cmd
}

// describe says how to reach each node.
func (l *lab) describe(w io.Writer) {
	fmt.Fprintf(w, "lab of %d in %s\n", len(l.Nodes), l.Dir)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tPID\tREST\tGRPC")
	for _, n := range l.Nodes {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\n", n.Name, n.Process.PID, n.HTTP, strings.Join(n.GRPC, " "))
	}
	t.Flush()
	fmt.Fprintf(w, "to use %s:  export ACCELFAB_SERVER=%s\n", l.Nodes[0].Name, l.Nodes[0].server())
	fmt.Fprintf(w, "to end it:     accelfab lab down --dir %s\n", l.Dir)
}

func newLabRunCmd() *cobra.Command {
	var cfg labConfig
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG...]",
		Short: "Run a command with a lab that lives as long as it",
		Long: `Start a lab, run a command, end the lab, and exit with the command's status.

The command finds the servers in its environment: ACCELFAB_SERVER is the first
node, ACCELFAB_LAB_0, ACCELFAB_LAB_1, ... are all of them.`,
		Example: `  accelfab lab run -- accelfab device list
  accelfab lab run --nodes 4 -- sh -c 'accelfab --server $ACCELFAB_LAB_3 node get'`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			cfg.stderr = cmd.ErrOrStderr()
			dir, err := tempLabDir("run")
			if err != nil {
				return err
			}
			return withLab(ctx, dir, cfg, func(l *lab) error { return l.command(ctx, cmd, args) })
		},
	}
	labFlags(cmd, &cfg)
	cmd.Flags().SetInterspersed(false) // flags after the command are the command's
	return cmd
}

// withLab runs work with a lab in dir, an empty directory made for it, and
// ends the lab whatever happens. If the lab did not start its logs are kept.
func withLab(ctx context.Context, dir string, cfg labConfig, work func(*lab) error) error {
	l, lock, err := newLab(dir, cfg)
	if err != nil {
		removeEmpty(dir)
		removeEmpty(labBase())
		return err
	}
	defer lock.Close()
	l.MadeDir = true
	if err := l.start(ctx); err != nil {
		return l.startFailed(ctx, err)
	}
	err = work(l)
	var keep *keepLogs
	if errors.As(err, &keep) {
		return errors.Join(err, l.stop())
	}
	if stopped := l.stop(); stopped != nil {
		return errors.Join(err, stopped)
	}
	return errors.Join(err, l.remove())
}

// startFailed ends a lab that did not start as a whole. Its logs are kept,
// unless the user has ended the command.
func (l *lab) startFailed(ctx context.Context, err error) error {
	if stopped := l.stop(); stopped != nil {
		return errors.Join(err, stopped)
	}
	if interrupted(ctx) {
		return errors.Join(err, l.remove())
	}
	return fmt.Errorf("the lab did not start, and its logs stay in %s until \"accelfab lab down --dir %s\": %w", l.Dir, l.Dir, err)
}

// keepLogs is an error after which the logs of the lab are needed.
type keepLogs struct{ error }

func (k *keepLogs) Unwrap() error { return k.error }

// exitStatus is the status of a command that was run for the caller: it has
// said for itself what went wrong.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// command runs a program with the lab's addresses in its environment.
func (l *lab) command(ctx context.Context, cmd *cobra.Command, args []string) error {
	c := exec.Command(args[0], args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	c.Env = append(os.Environ(), "ACCELFAB_SERVER="+l.Nodes[0].server())
	for i, n := range l.Nodes {
		c.Env = append(c.Env, fmt.Sprintf("ACCELFAB_LAB_%d=%s", i, n.server()))
	}
	if err := c.Start(); err != nil {
		return err
	}
	// The signal that ends us ends the command; it may take its time to clean
	// up. From a terminal it has had the signal itself already.
	defer context.AfterFunc(ctx, func() { c.Process.Signal(syscall.SIGTERM) })()
	return statusOf(c.Wait())
}

// statusOf makes of how a program ended the status to end with, as shells say it.
func statusOf(err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return exitStatus(128 + int(ws.Signal()))
	}
	return exitStatus(exit.ExitCode())
}

func newLabDownCmd() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "down",
		Short: "End a lab and remove what it made",
		Long: `End a lab: stop its daemons and their device hosts, by SIGKILL if they do not stop
in order, and remove what the lab made. Where there is no lab there is nothing to do, and the status
is 0.`,
		Example: `  accelfab lab down
  accelfab lab down --dir /tmp/four`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := labDir(dir)
			if err != nil {
				return err
			}
			l, err := down(dir)
			switch {
			case err != nil:
				return err
			case l == nil:
				fmt.Fprintf(cmd.OutOrStdout(), "no lab in %s\n", dir)
			default:
				fmt.Fprintf(cmd.OutOrStdout(), "lab of %d in %s ended and removed\n", len(l.Nodes), dir)
			}
			return nil
		},
	}
	dirFlag(cmd, &dir)
	return cmd
}

// untilSignal ends the context with the signals that ask a program to end.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
}
