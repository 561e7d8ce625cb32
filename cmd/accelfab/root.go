package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/accelfab/accelfab/client"
)

// app is what all commands share: the global flags and the connection.
type app struct {
	server  string
	output  string
	timeout time.Duration
}

// outputs are the values of -o.
var outputs = []string{"table", "json", "yaml"}

func newRootCmd() *cobra.Command {
	a := &app{}
	root := &cobra.Command{
		Use:   "accelfab",
		Short: "Accelerators and all that jobs build on their fabric",
		Long: `accelfab talks to accelfabd, the daemon that owns a node's accelerators.

Names may be given whole, as nodes/n1/devices/soft-0/queuePairs/q1, or short: the
id of a device or a session, and DEVICE/ID for what is on a device (soft-0/q1,
soft-0/8 for a port). Short names mean the node that is asked. A --filter is for the
daemon and takes whole names; nodes/local is the node that is asked.

Exit status: 0 done, 1 refused or failed (one line says what, why and what to do),
2 usage.`,
		Example: `  accelfab device list
  accelfab session create --id job1 --device soft-0
  accelfab --server unix:///run/accelfab/accelfabd.sock -o json port get soft-0/8`,
		Args:          noArgs,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			switch err := errors.Join(cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups()); {
			case err != nil:
				return usageError{err}
			case !slices.Contains(outputs, a.output):
				return usage("--output %q: want %s", a.output, strings.Join(outputs, ", "))
			case a.timeout <= 0:
				return usage("--timeout %v: want more than 0", a.timeout)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := root.PersistentFlags()
	f.StringVar(&a.server, "server", "", "daemon to ask, unix:///path or host:port\n(default $ACCELFAB_SERVER, else "+client.DefaultSocket()+")")
	f.StringVarP(&a.output, "output", "o", "table", "table, json or yaml")
	f.DurationVar(&a.timeout, "timeout", 30*time.Second, "how long the daemon may take, beside what --wait says")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(
		newDoctorCmd(a), newNodeCmd(a), newDeviceCmd(a), newPortCmd(a), newSessionCmd(a), newPDCmd(a), newBufferCmd(a), newMRCmd(a), newExportCmd(a),
		newQPCmd(a), newEventCmd(a), newTopoCmd(a), newVersionCmd(), newLabCmd(), newDemoCmd(), newPingpongCmd(a), newPerfCmd(a), newConformanceCmd(a),
	)
	check(root)
	return root
}

// check lets a wrong number of arguments be a fault of usage in every command,
// and gives those that only have verbs a refusal for a wrong one.
func check(cmd *cobra.Command) {
	if args := cmd.Args; args != nil && cmd.HasParent() {
		cmd.Args = func(cmd *cobra.Command, given []string) error {
			if err := args(cmd, given); err != nil {
				return usage("%v; usage: %s", err, cmd.UseLine())
			}
			return nil
		}
	}
	if !cmd.Runnable() {
		cmd.Args = noArgs
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	for _, sub := range cmd.Commands() {
		check(sub)
	}
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("%q: no such command; see %s --help", args[0], cmd.CommandPath())
	}
	return nil
}

// call dials and runs fn with the bound of --timeout.
func (a *app) call(cmd *cobra.Command, fn func(context.Context, *client.Client) error) error {
	return a.within(cmd, a.timeout, fn)
}

// within dials and runs fn with a bound.
func (a *app) within(cmd *cobra.Command, limit time.Duration, fn func(context.Context, *client.Client) error) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), limit)
	defer cancel()
	return a.dial(a.server, func(c *client.Client) error { return fn(ctx, c) })
}

func (a *app) dial(server string, fn func(*client.Client) error) error {
	c, err := client.Dial(server)
	if err != nil {
		return usageError{err}
	}
	defer c.Close()
	return fn(c)
}

// version is of the module, or of the commit it was built from. accelfabd tells
// its own in the same words, so that the two can be compared.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "devel-" + s.Value[:12]
		}
	}
	return "devel"
}

func newVersionCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program",
		Example: "  accelfab version",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printReport(cmd, map[string]string{"version": version()}, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, version())
				return err
			})
		},
	}
}
