// Command inside is what the machine of test/dmabuf runs: a daemon whose cards
// export real dma-bufs, and everything that a user can do with one. It says what
// it saw and ends with status 1 at the first thing that is not so.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"
)

const limit = 5 * time.Minute

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Println("inside:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	daemon := exec.CommandContext(ctx, "/accelfabd", "--node-id", "vm", "--state-dir", "/tmp/state", "--run-dir", "/tmp/run", "--http", "off",
		"--listen", "unix:///tmp/run/accelfabd.sock", "--device", "soft:hls-2,cards=2,memory=128MiB,dmabuf=udmabuf", "--log-level", "warn")
	daemon.Stdout, daemon.Stderr = os.Stdout, os.Stderr
	if err := daemon.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat("/tmp/run/accelfabd.json"); err == nil {
			break
		}
		select {
		case err := <-ended:
			return fmt.Errorf("accelfabd ended: %w", err)
		case <-tick.C:
		}
	}
	j, err := open(ctx)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		run  func(*job, context.Context) error
	}{
		{"export", (*job).export},
		{"importer", (*job).importer},
		{"mapping", (*job).mapping},
		{"holders", (*job).holders},
		{"refusals", (*job).refusals},
		{"import", (*job).imported},
		{"close", (*job).close},
		{"conformance", (*job).conformance},
	} {
		if err := step.run(j, ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}
