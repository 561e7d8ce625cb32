package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

const (
	// labStartLimit bounds the start of one daemon.
	labStartLimit = 60 * time.Second
	// labStopGrace is how long a daemon may take to stop in order.
	labStopGrace = 15 * time.Second
	// readyTick is how often accelfabd.json is looked for.
	readyTick = 20 * time.Millisecond
	// maxLabNodes is the number of /24 that a large machine still serves with
	// ease; the software network has room for more.
	maxLabNodes = 64
)

// findAccelfabd finds the daemon's program: the one given, else the one beside
// this program, else the one in PATH.
func findAccelfabd(given string) (string, error) {
	if given != "" {
		path, err := exec.LookPath(given)
		if err != nil {
			return "", usage("--accelfabd: %w", err)
		}
		return filepath.Abs(path)
	}
	if self, err := os.Executable(); err == nil {
		if self, err = filepath.EvalSymlinks(self); err == nil {
			if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), "accelfabd")); err == nil {
				return path, nil
			}
		}
	}
	path, err := exec.LookPath("accelfabd")
	if err != nil {
		return "", errors.New("accelfabd is neither beside accelfab nor in PATH; say where it is with --accelfabd PATH")
	}
	return filepath.Abs(path)
}

// labConfig is what a lab is made of.
type labConfig struct {
	nodes     int
	devices   []string
	accelfabd string // "" looks for it
	// stderr is told what a daemon that does not serve has logged last.
	stderr io.Writer
}

// newLab makes the directories of a lab in dir and records it, with nothing
// started. A lab that is there already is refused unless all its daemons have
// ended: then it is cleared first. The caller holds the lock that is returned.
func newLab(dir string, cfg labConfig) (*lab, *os.File, error) {
	if cfg.nodes < 1 || cfg.nodes > maxLabNodes {
		return nil, nil, usage("--nodes %d: want 1 to %d", cfg.nodes, maxLabNodes)
	}
	program, err := findAccelfabd(cfg.accelfabd)
	if err != nil {
		return nil, nil, err
	}
	l := &lab{Dir: dir, Accelfabd: program, Devices: cfg.devices, stderr: cfg.stderr}
	for i := range cfg.nodes {
		name := fmt.Sprintf("node-%d", i)
		n := &labNode{Name: name, dir: filepath.Join(dir, name)}
		if len(n.socket()) > maxSocketPath {
			return nil, nil, usage("%s: a socket's path holds at most %d bytes, this one has %d; choose a shorter --dir",
				n.socket(), maxSocketPath, len(n.socket()))
		}
		l.Nodes = append(l.Nodes, n)
	}
	if filepath.Dir(dir) == labBase() {
		if _, err := makeLabBase(); err != nil {
			return nil, nil, err
		}
	}
	err = os.Mkdir(dir, 0o700)
	l.MadeDir = err == nil
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, nil, err
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, nil, err
	}
	if err := l.claim(); err != nil {
		lock.Close()
		return nil, nil, err
	}
	return l, lock, nil
}

// claim records the lab in its directory, which is locked.
func (l *lab) claim() error {
	old, err := readLab(l.Dir)
	switch {
	case err == nil && old.running() > 0:
		return fmt.Errorf("a lab runs in %s; end it with: accelfab lab down --dir %s", l.Dir, l.Dir)
	case err == nil:
		l.MadeDir = l.MadeDir || old.MadeDir
		old.MadeDir = false // it is needed again at once
		if err := old.remove(); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	for _, n := range l.Nodes {
		if _, err := os.Lstat(n.dir); err == nil {
			return fmt.Errorf("%s is there and is no lab's; remove it, or choose another --dir", n.dir)
		}
	}
	// Recorded first: whatever happens from here on, lab down finds it.
	if err := l.save(); err != nil {
		return err
	}
	for _, n := range l.Nodes {
		for _, d := range []string{n.dir, n.runDir(), n.stateDir()} {
			if err := os.Mkdir(d, 0o700); err != nil {
				return err
			}
		}
	}
	return nil
}

// start starts the daemons and returns when all serve.
func (l *lab) start(ctx context.Context) error {
	for _, n := range l.Nodes {
		if err := l.spawn(n); err != nil {
			return err
		}
	}
	for _, n := range l.Nodes {
		if err := l.waitReady(ctx, n); err != nil {
			return err
		}
	}
	return l.save()
}

// restart starts the daemon of one node again, on the state that it left, and
// returns when it serves.
func (l *lab) restart(ctx context.Context, n *labNode) error {
	if err := l.spawn(n); err != nil {
		return err
	}
	if err := l.waitReady(ctx, n); err != nil {
		return err
	}
	return l.save()
}

// spawn starts the daemon of one node and records its process.
func (l *lab) spawn(n *labNode) error {
	if err := os.Remove(filepath.Join(n.runDir(), "accelfabd.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	log, err := os.OpenFile(n.logPath(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{
		"--node-id", n.Name, "--state-dir", n.stateDir(), "--run-dir", n.runDir(),
		"--listen", n.server(), "--listen", "tcp://127.0.0.1:0", "--http", "127.0.0.1:0",
	}
	for _, d := range l.Devices {
		args = append(args, "--device", d)
	}
	cmd := exec.Command(l.Accelfabd, args...)
	cmd.Dir = n.dir // so that it keeps no directory of the caller's in use
	cmd.Stdout, cmd.Stderr = log, log
	if err := detach(cmd); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the daemon of %s: %w", n.Name, err)
	}
	// Before Wait nobody else has the pid. A daemon that has ended by now is
	// seen below.
	n.Process, err = identify(cmd.Process.Pid)
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		cmd.Process.Kill()
		cmd.Wait()
		return err
	}
	n.exited = make(chan struct{})
	go func(exited chan struct{}) {
		cmd.Wait()
		close(exited)
	}(n.exited)
	return l.save()
}

// doors is what a daemon writes into accelfabd.json once it serves.
type doors struct {
	PID  int      `json:"pid"`
	GRPC []string `json:"grpc"`
	HTTP string   `json:"http"`
}

// waitReady waits until the daemon has told its doors and says that it serves.
func (l *lab) waitReady(ctx context.Context, n *labNode) error {
	ctx, cancel := context.WithTimeout(ctx, labStartLimit)
	defer cancel()
	// A daemon that ends ends the wait too.
	ctx, ended := context.WithCancelCause(ctx)
	defer ended(nil)
	go func() {
		select {
		case <-n.exited:
			ended(errors.New("it ended before it served"))
		case <-ctx.Done():
		}
	}()
	err := n.readDoors(ctx)
	if err == nil {
		err = serving(ctx, n.server())
	}
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("it did not serve within %v", labStartLimit)
	}
	if !errors.Is(err, context.Canceled) {
		fmt.Fprintf(l.stderr, "the last lines of %s:\n%s\n", n.logPath(), lastLines(n.logPath(), 10))
	}
	return fmt.Errorf("daemon of %s, log %s: %w", n.Name, n.logPath(), err)
}

// readDoors waits for accelfabd.json, which a daemon puts in place as a whole.
func (n *labNode) readDoors(ctx context.Context) error {
	path := filepath.Join(n.runDir(), "accelfabd.json")
	tick := time.NewTicker(readyTick)
	defer tick.Stop()
	for {
		data, err := os.ReadFile(path)
		if err == nil {
			d := doors{}
			if err := json.Unmarshal(data, &d); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			if d.PID != n.Process.PID {
				return fmt.Errorf("%s is of process %d, not of %d", path, d.PID, n.Process.PID)
			}
			n.GRPC, n.HTTP = d.GRPC, d.HTTP
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// serving waits until the server says SERVING.
func serving(ctx context.Context, target string) error {
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
	for err == nil {
		var r *healthpb.HealthCheckResponse
		if r, err = stream.Recv(); err == nil && r.Status == healthpb.HealthCheckResponse_SERVING {
			return nil
		}
	}
	return fmt.Errorf("health of %s: %w", target, err)
}

// lastLines are the last lines of a file, as far as it can be read.
func lastLines(path string, count int) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if end, err := f.Seek(0, io.SeekEnd); err == nil {
		f.Seek(max(0, end-16<<10), io.SeekStart)
	}
	data, _ := io.ReadAll(f)
	data = bytes.TrimSpace(data)
	if len(data) == 0 {
		return "  (nothing)"
	}
	lines := strings.Split(string(data), "\n")
	return "  " + strings.Join(lines[max(0, len(lines)-count):], "\n  ")
}

// stop ends the daemons, all at the same time, and then their device hosts.
func (l *lab) stop() error {
	errs := make(chan error)
	for _, n := range l.Nodes {
		go func() {
			if n.Process == (process{}) {
				errs <- nil
				return
			}
			err := n.Process.end(labStopGrace)
			if err == nil && n.exited != nil {
				<-n.exited
			}
			if err == nil {
				err = n.endHosts()
			}
			errs <- err
		}()
	}
	var all []error
	for range l.Nodes {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// down ends the lab in dir and removes what it made. It tells what it found;
// nil means that there was no lab.
func down(dir string) (*lab, error) {
	lock, err := lockDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	l, err := readLab(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := l.stop(); err != nil {
		return l, err
	}
	return l, l.remove()
}
