package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/accelfab/accelfab/device/host"
)

// daemon is accelfabd itself, with a software HLS-2: eight cards of 24 ports.
type daemon struct {
	cmd    *exec.Cmd
	exited <-chan error
	dir    string
	socket string
}

const devices = "soft:hls-2"

// buildDaemon builds accelfabd. The working directory must be in this module.
func (b *bench) buildDaemon(ctx context.Context) error {
	b.accelfabd = filepath.Join(b.dir, "accelfabd")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", b.accelfabd, "github.com/accelfab/accelfab/cmd/accelfabd")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build accelfabd: %w\n%s", err, out)
	}
	return nil
}

// withDaemon starts a fresh daemon, calls fn when it serves, stops it and
// removes what it stored.
func (b *bench) withDaemon(ctx context.Context, fn func(*daemon) error) (err error) {
	d := &daemon{dir: filepath.Join(b.dir, "daemon")}
	defer func() { err = errors.Join(err, os.RemoveAll(d.dir)) }()
	run := filepath.Join(d.dir, "run")
	d.socket = filepath.Join(run, "accelfabd.sock")
	if err := d.start(ctx, b); err != nil {
		_, left := host.EndAll(filepath.Join(run, "hosts"), 10*time.Second)
		return errors.Join(err, left)
	}
	err = fn(d)
	d.cmd.Process.Signal(syscall.SIGINT) // its device hosts end with it
	return errors.Join(err, <-d.exited)
}

// start starts accelfabd on the daemon's directories and waits until it serves.
func (d *daemon) start(ctx context.Context, b *bench) error {
	run := filepath.Dir(d.socket)
	d.cmd = exec.CommandContext(ctx, b.accelfabd, "--node-id", nodeID, "--device", devices,
		"--state-dir", filepath.Join(d.dir, "state"), "--run-dir", run,
		"--listen", "unix://"+d.socket, "--http", "off", "--log-level", "warn")
	d.cmd.Stderr = b.log
	if err := d.cmd.Start(); err != nil {
		return err
	}
	exited, cmd := make(chan error, 1), d.cmd
	d.exited = exited
	go func() { exited <- cmd.Wait() }()
	if err := waitReady(ctx, filepath.Join(run, "accelfabd.json"), exited); err != nil {
		d.cmd.Process.Kill()
		return err
	}
	return nil
}

// kill ends the daemon at once, and leaves its device hosts.
func (d *daemon) kill() error {
	if err := d.cmd.Process.Kill(); err != nil {
		return err
	}
	<-d.exited
	return os.Remove(filepath.Join(filepath.Dir(d.socket), "accelfabd.json"))
}

// processes are the daemon and its device hosts.
func (d *daemon) processes() ([]int, error) {
	pids := []int{d.cmd.Process.Pid}
	files, err := filepath.Glob(filepath.Join(d.dir, "run", "hosts", "*.sock"))
	if err != nil {
		return nil, err
	}
	for _, socket := range files {
		h, err := host.ReadRuntime(socket)
		if err != nil {
			return nil, err
		}
		pids = append(pids, h.PID)
	}
	return pids, nil
}

// resident gives the bytes of resident memory of the daemon and its device hosts.
func (d *daemon) resident() (memfds, rest uint64, err error) {
	pids, err := d.processes()
	for _, pid := range pids {
		m, r, failed := resident(pid)
		memfds, rest, err = memfds+m, rest+r, errors.Join(err, failed)
	}
	return memfds, rest, err
}

// processorTime gives what the daemon and its device hosts have used of all
// cores.
func (d *daemon) processorTime() (sum time.Duration, err error) {
	pids, err := d.processes()
	for _, pid := range pids {
		t, failed := processorTime(pid)
		sum, err = sum+t, errors.Join(err, failed)
	}
	return sum, err
}

// waitReady waits for the file that a daemon writes once it serves.
func waitReady(ctx context.Context, path string, exited <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case err := <-exited:
			return fmt.Errorf("accelfabd ended before it served: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("accelfabd does not serve: %w", ctx.Err())
		}
	}
}

// resident gives the bytes of a process's resident memory: of its memfds, which
// are the memory of software cards, and of all else.
func resident(pid int) (memfds, rest uint64, err error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	isMemfd := false
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) >= 5 && strings.Contains(fields[0], "-"): // of a mapping
			isMemfd = len(fields) > 5 && strings.HasPrefix(fields[5], "/memfd:")
		case len(fields) == 3 && fields[0] == "Rss:":
			kib, err := strconv.ParseUint(fields[1], 10, 64)
			if err != nil {
				return 0, 0, fmt.Errorf("smaps of %d: %q", pid, lines.Text())
			}
			if isMemfd {
				memfds += kib << 10
			} else {
				rest += kib << 10
			}
		}
	}
	if rest == 0 && lines.Err() == nil {
		return 0, 0, fmt.Errorf("smaps of %d tells nothing", pid)
	}
	return memfds, rest, lines.Err()
}

// processorTime gives what a process has used of all cores, in steps of 10 ms
// (proc_pid_stat(5): utime and stime, in clock ticks of which Linux tells
// programs 100 a second).
func processorTime(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name, in parentheses, may hold spaces.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("stat of %d: %q", pid, b)
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, err
}
