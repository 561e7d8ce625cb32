package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/accelfab/accelfab/device/host"
	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/boltstore"
	"github.com/accelfab/accelfab/server"
)

// stopLimit is how long calls may go on after the daemon was told to end.
const stopLimit = 10 * time.Second

// storeName is the store's file in the state directory.
const storeName = "accelfab.db"

// descriptorsName is the descriptor socket in the run directory.
const descriptorsName = "descriptors.sock"

// run opens everything, serves until ctx ends, and closes everything in the
// opposite order.
func run(ctx context.Context, c *Config, logTo io.Writer) (err error) {
	log := logger(c, logTo)
	from, err := startedBy(os.Getenv, os.Getpid())
	if err != nil {
		return err
	}
	if err := makeDirs(c); err != nil {
		return err
	}
	lock, err := lockRunDir(c.RunDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	boot, err := host.BootID()
	if err != nil {
		return err
	}
	store, err := boltstore.Open(filepath.Join(c.StateDir, storeName), boltstore.Options{})
	if err != nil {
		return err
	}
	if c.DeviceHosts == hostsSeparate {
		defer func() {
			if errors.Is(context.Cause(ctx), errInterrupted) {
				ended, failed := host.EndAll(c.hostsDir(), endGrace)
				log.Info("device hosts ended", "pids", ended)
				err = errors.Join(err, failed)
			}
		}()
	}
	var fresh freshHosts
	defer func() { err = errors.Join(err, fresh.end()) }()
	from.say(log, "STATUS=Reaching the devices")
	devices, absent, err := openAll(ctx, c, &fresh, log)
	if err != nil {
		return errors.Join(err, store.Close())
	}
	log.Info("devices are open", "devices", len(devices))
	fab, err := fabric.Open(ctx, fabric.Config{
		NodeID: c.NodeID, BootID: boot, Version: version(),
		Store: store, Devices: devices, Logger: log,
	})
	if err != nil {
		return errors.Join(err, closeDevices(devices), store.Close())
	}
	defer func() { err = errors.Join(err, fab.Close()) }()
	waiting, end := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end()
	for _, a := range absent {
		wg.Go(func() { a.await(waiting, fab, log) })
	}
	return serve(ctx, c, fab, &fresh, from, log)
}

// serve opens the doors, tells where they are, and closes them when ctx ends.
func serve(ctx context.Context, c *Config, fab *fabric.Fabric, fresh *freshHosts, from manager, log *slog.Logger) error {
	srv := server.New(server.Options{Fabric: fab, Logger: log})
	doors, web, err := listen(c)
	if err != nil {
		return err
	}
	exchange, err := server.ListenDescriptors(filepath.Join(c.RunDir, descriptorsName))
	if err != nil {
		for _, l := range doors {
			l.Close()
		}
		if web != nil {
			web.Close()
		}
		return err
	}
	r := ready{Descriptors: exchange.Addr().String(), PID: os.Getpid(), Node: c.NodeID, Instance: fab.Node().InstanceID}
	for _, l := range doors {
		r.GRPC = append(r.GRPC, l.Addr().Network()+"://"+l.Addr().String())
	}
	if web != nil {
		if r.HTTP = web.Addr().String(); web.Addr().Network() == "unix" {
			r.HTTP = "unix://" + r.HTTP
		}
	}
	failed := make(chan error, 2)
	go func() { failed <- srv.Serve(doors, web) }()
	go func() { failed <- srv.ServeDescriptors(exchange) }()
	if err := r.write(c.RunDir); err != nil {
		srv.Stop(context.Background())
		return errors.Join(err, <-failed, <-failed)
	}
	defer r.remove(c.RunDir)
	fresh.keep()
	log.Info("serving", "node", r.Node, "instance", r.Instance, "grpc", strings.Join(r.GRPC, " "), "http", r.HTTP)
	ending := from.serving(log, fab)
	var broken error
	select {
	case broken = <-failed:
		failed <- nil
	case <-ctx.Done():
	}
	ending()
	log.Info("stopping", "limit", stopLimit)
	stop, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	srv.Stop(stop)
	return errors.Join(broken, <-failed, <-failed)
}

// listen opens all doors, or none.
func listen(c *Config) (doors []net.Listener, web net.Listener, err error) {
	defer func() {
		if err != nil {
			for _, l := range doors {
				l.Close()
			}
		}
	}()
	for _, addr := range c.Listen {
		l, err := server.Listen(addr)
		if err != nil {
			return doors, nil, err
		}
		doors = append(doors, l)
	}
	if c.HTTP == "off" {
		return doors, nil, nil
	}
	addr := c.HTTP
	if !strings.HasPrefix(addr, "unix://") {
		addr = "tcp://" + addr
	}
	web, err = server.Listen(addr)
	return doors, web, err
}

func makeDirs(c *Config) error {
	// Others may reach the sockets, whose modes decide; the state is nobody
	// else's business.
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return fmt.Errorf("state-dir: %w", err)
	}
	if err := os.MkdirAll(c.RunDir, 0o755); err != nil {
		return fmt.Errorf("run-dir: %w", err)
	}
	return nil
}

func logger(c *Config, to io.Writer) *slog.Logger {
	level, _ := c.level() // validated
	o := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(to, o))
	}
	return slog.New(slog.NewTextHandler(to, o))
}
