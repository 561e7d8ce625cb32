package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/accelfab/accelfab/device/host"
)

// newDeviceHostCommand gives the command that the daemon runs for itself, and
// that units of a service manager may run in its place.
func newDeviceHostCommand(c *Config, load func(*cobra.Command) error) *cobra.Command {
	var socket, logFile string
	cmd := &cobra.Command{
		Use:   "device-host --socket DIR/NAME.sock --device SPEC...",
		Short: "Own devices in a process that outlives the daemon (the daemon starts it)",
		Long: `device-host opens devices and serves them to the daemon of this node on a unix
socket. It outlives the daemon: traffic of connected queue pairs goes on while the
daemon is restarted or upgraded, and the next one takes over what is there. The
daemon starts its hosts by itself, looks for them at RUN-DIR/hosts/NAME.sock, and
starts them again when they die.

It ends on SIGTERM or SIGINT, and when no daemon was there for --host-linger. All
that is on its devices is lost with it. Of the flags of accelfabd it heeds those
of its devices and of its log.`,
		Example: `  accelfabd device-host --socket /run/accelfab/hosts/soft.sock --node-id n1 --device soft:hls-2`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := load(cmd); err != nil {
				return err
			}
			if err := host.CheckSocket(socket); err != nil {
				return usageError{err}
			}
			return runHost(cmd.Context(), c, socket, logFile, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&socket, "socket", "", "where to serve: an absolute path that ends in .sock; its folder is made for this user alone")
	cmd.Flags().StringVar(&logFile, "log-file", "", "file of the log, which keeps its last 1 to 2 MiB (default: standard error)")
	_ = cmd.MarkFlagRequired("socket") // it is there
	return cmd
}

// runHost opens the devices of a Config and serves them until ctx ends.
func runHost(ctx context.Context, c *Config, socket, logFile string, logTo io.Writer) (err error) {
	if logFile != "" {
		file, err := openBoundedLog(logFile, maxLog, 2)
		if err != nil {
			return err
		}
		defer file.Close()
		logTo = file
	}
	log := logger(c, logTo)
	from, err := startedBy(os.Getenv, os.Getpid())
	if err != nil {
		return err
	}
	boot, err := host.BootID()
	if err != nil {
		return err
	}
	var specs []string
	for _, p := range c.plans() {
		specs = append(specs, p.specs...)
	}
	spec, err := hostSpec(c, specs)
	if err != nil {
		return err
	}
	at, err := host.Listen(socket) // before the devices: a second host must not open them
	if err != nil {
		return err
	}
	devices, err := openDevices(c)
	if err != nil {
		return errors.Join(err, at.Close())
	}
	defer func() { err = errors.Join(err, closeDevices(devices)) }()
	err = host.Serve(ctx, at, host.Served{
		Devices: devices, Spec: spec, Version: version(), BootID: boot, Linger: c.HostLinger, Logger: log,
		Managed: from.socket != "",
		Serving: func() {
			log.Info("device host serves", "socket", socket, "devices", len(devices), "version", version())
			from.say(log, "READY=1", fmt.Sprintf("STATUS=Serving %d devices", len(devices)))
		},
	})
	if errors.Is(err, host.ErrAlone) {
		log.Warn("device host ends by itself, and what is on its devices with it", "why", err)
		err = nil
	} else {
		log.Info("device host ends")
	}
	return err
}

// newStopHostsCommand gives the command that ends what outlives the daemon.
func newStopHostsCommand(c *Config) *cobra.Command {
	return &cobra.Command{
		Use:   "stop-hosts",
		Short: "End the device hosts of a daemon that has ended, and all that is on their devices",
		Long: `stop-hosts ends the device hosts in RUN-DIR/hosts, which outlive the daemon. All
that is on their devices is lost: buffers, exports and connections. While a daemon
runs it refuses, since that would start them again: end the daemon first, with
SIGINT if its hosts are to end with it.`,
		Example: `  accelfabd stop-hosts --run-dir /run/accelfab`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := os.Stat(c.hostsDir()); errors.Is(err, os.ErrNotExist) {
				fmt.Fprintf(cmd.OutOrStdout(), "no device host in %s\n", c.hostsDir())
				return nil
			}
			lock, err := lockRunDir(c.RunDir)
			if err != nil {
				return err
			}
			defer lock.Close()
			ended, err := host.EndAll(c.hostsDir(), endGrace)
			for _, pid := range ended {
				fmt.Fprintf(cmd.OutOrStdout(), "device host of process %d ended\n", pid)
			}
			if len(ended) == 0 && err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "no device host in %s\n", c.hostsDir())
			}
			return err
		},
	}
}
