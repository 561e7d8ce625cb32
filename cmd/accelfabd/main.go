// Command accelfabd owns the accelerators of a node and all that jobs build on
// their fabric. It puts the parts together: devices and a store (the one place
// that names them) under the fabric, the fabric behind the doors of the server.
// It runs until SIGTERM or SIGINT, then lets calls finish for a bounded time.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit statuses.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError is a fault of the command line or of the file.
type usageError struct{ error }

// gcPercent lets the heap grow to three times what lives before it is
// collected: a fifth less processor time for creates in batches, for 1 KiB more
// a queue pair (BENCHMARKS.md). The environment's GOGC wins.
const gcPercent = 200

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := untilSignal()
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "accelfabd:", err)
		if errors.As(err, new(usageError)) {
			os.Exit(exitUsage)
		}
		os.Exit(exitFailed)
	}
}

// errInterrupted is why the context ends when a person ends the program, which
// ends its device hosts too.
var errInterrupted = errors.New("interrupted")

// untilSignal gives a context that ends with SIGTERM, which a service manager
// sends to restart, or with SIGINT, and tells the one from the other.
func untilSignal() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		if <-signals == syscall.SIGINT {
			cancel(errInterrupted)
		}
		cancel(nil)
	}()
	return ctx, func() { cancel(nil) }
}

// version is of the module, or of the commit it was built from.
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

func command() *cobra.Command {
	hostname, _ := os.Hostname() // an unknown name gives the node id "node"
	c := defaultConfig(os.Getuid(), os.Getenv, hostname)
	var file string
	root := &cobra.Command{
		Use:   "accelfabd",
		Short: "Own the accelerators of this node and serve them",
		Long: `accelfabd owns the accelerators of this node and everything that jobs build on
their fabric. Each flag is also a key of the YAML file that --config names; a flag
wins over the file. When it serves, it writes RUN-DIR/accelfabd.json with its
process id and the addresses of its doors; one of them is descriptors.sock beside it,
on which descriptors of exported memory come and go.

Devices are in processes of their own, device hosts, which accelfabd starts, or
finds again in RUN-DIR/hosts: SIGTERM leaves them, so that traffic goes on over a
restart or an upgrade; SIGINT ends them, and so does stop-hosts. Software devices of
a node share one host, as they share a bus; the option host=NAME in the text of a
device puts it into another. --device-hosts inside keeps all in the daemon, and
they end with it.

The ports of software devices are on loopback, for nodes on this machine. To
reach Linux with Soft-RoCE, or nodes on other machines, name addresses of this
machine's interfaces, or networks that they are in: --soft-network 10.77.0.1, or
network=10.77.0.1+fd00:77::1 in the text of a device. The scale-out ports get
them in order, an IPv4 address each; an interface's IPv6 addresses go to its first
port. 'accelfab port list' shows which has which, 'accelfab port get' why one is
down. The interface's MTU is the port's limit: 1500 carries a path MTU of 1024,
4400 one of 4096. Without CAP_NET_ADMIN the kernel caps receive buffers at net.core.rmem_max.`,
		Example: `  accelfabd
  accelfabd --node-id n1 --device soft:hls-2,cards=2,memory=64MiB
  accelfabd --device soft:hls-2,cards=1 --soft-network 10.77.0.1,fd00:77::/64
  accelfabd --config /etc/accelfab/accelfabd.yaml --log-format json
  accelfabd check-config --config /etc/accelfab/accelfabd.yaml`,
		Version:       version(),
		Args:          noArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	load := func(cmd *cobra.Command) error {
		if file != "" {
			f, err := os.Open(file)
			if err != nil {
				return usageError{err}
			}
			defer f.Close()
			if err := c.merge(f, cmd.Flags().Changed); err != nil {
				return usageError{fmt.Errorf("%s: %w", file, err)}
			}
		}
		c.complete()
		if err := c.Validate(); err != nil {
			return usageError{fmt.Errorf("the configuration has faults:\n%w", err)}
		}
		return nil
	}
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := load(cmd); err != nil {
			return err
		}
		return run(cmd.Context(), &c, cmd.ErrOrStderr())
	}
	root.PersistentFlags().StringVar(&file, "config", "", "YAML file with any of the other flags as keys")
	c.flags(root.PersistentFlags())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newDeviceHostCommand(&c, load), newStopHostsCommand(&c), newStoreCommand(&c, load), &cobra.Command{
		Use:   "check-config",
		Short: "Validate flags and file, say every fault, and exit",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := load(cmd); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "the configuration is good")
			return nil
		},
	})
	return root
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%q: no such command or argument; see %s --help", args[0], cmd.CommandPath())}
	}
	return nil
}
