// Package daemon runs accelfabd as a process of its own for tests that need
// one: to kill it, to put it into a network namespace, to look at its memory.
// A Daemon keeps its directories over Kill and Start, so what it had stored is
// there again.
package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device/host"
)

// hostGrace is how long a device host may take to end in order.
const hostGrace = 10 * time.Second

// startLimit bounds how long a start may take on a busy machine.
const startLimit = 60 * time.Second

var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "accelfab-test-")
	if err != nil {
		return "", err
	}
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	cmd := exec.Command("go", "build", "-o", dir+"/", "./cmd/...")
	cmd.Dir = strings.TrimSpace(string(root))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/...: %w\n%s", err, out)
	}
	return dir, nil
})

// Binary gives the path of a program of this project, built once a process.
// Remove is to be called from TestMain when all tests are done.
func Binary(t testing.TB, name string) string {
	t.Helper()
	dir, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// Remove removes what Binary has built.
func Remove() {
	if dir, err := build(); err == nil {
		os.RemoveAll(dir)
	}
}

// Config says how to run a daemon.
type Config struct {
	Node  string
	Args  []string // after --node-id, --state-dir, --run-dir, --http and --listen
	Netns string   // name of the network namespace to run in; "" for this one
}

// Info is what a daemon writes into accelfabd.json once it serves.
type Info struct {
	PID      int      `json:"pid"`
	Node     string   `json:"node"`
	Instance string   `json:"instance"`
	GRPC     []string `json:"grpc"`
	HTTP     string   `json:"http"`
}

// Daemon is one accelfabd and its directories.
type Daemon struct {
	Info
	Dir    string
	Target string // of the unix socket, for client.Dial

	t       testing.TB
	cfg     Config
	cmd     *exec.Cmd
	log     lockedBuffer
	exited  chan struct{}
	exitErr error
}

// Start starts a daemon and waits until it serves. It ends with the test.
func Start(t testing.TB, cfg Config) *Daemon {
	t.Helper()
	// Not t.TempDir: with a long test name the socket's path would not fit.
	dir, err := os.MkdirTemp("", "afd-")
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{t: t, cfg: cfg, Dir: dir, Target: "unix://" + filepath.Join(dir, "run", "accelfabd.sock")}
	t.Cleanup(func() {
		d.Kill()
		if _, err := host.EndAll(d.hosts(), hostGrace); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("log of %s:\n%s", cfg.Node, d.Log())
			d.logHosts()
		}
		os.RemoveAll(dir)
	})
	d.Start()
	return d
}

// Start starts the daemon again after Kill or Stop.
func (d *Daemon) Start() {
	d.t.Helper()
	state, run := filepath.Join(d.Dir, "state"), filepath.Join(d.Dir, "run")
	ready := filepath.Join(run, "accelfabd.json")
	os.Remove(ready)
	args := append([]string{
		Binary(d.t, "accelfabd"), "--node-id", d.cfg.Node, "--state-dir", state, "--run-dir", run,
		"--http", "127.0.0.1:0", "--listen", d.Target,
	}, d.cfg.Args...)
	if d.cfg.Netns != "" {
		args = append([]string{"ip", "netns", "exec", d.cfg.Netns}, args...)
	}
	d.cmd = exec.Command(args[0], args[1:]...)
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		d.exitErr = cmd.Wait()
		close(exited)
	}(d.cmd, d.exited)
	d.waitReady(ready)
}

// waitReady looks for the file that a daemon renames into place once it serves.
func (d *Daemon) waitReady(path string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if b, err := os.ReadFile(path); err == nil {
			if err := json.Unmarshal(b, &d.Info); err != nil {
				d.t.Fatalf("%s: %v", path, err)
			}
			return
		}
		select {
		case <-d.exited:
			d.t.Fatalf("accelfabd ended before it served: %v\n%s", d.exitErr, d.Log())
		case <-ctx.Done():
			d.t.Fatalf("accelfabd did not serve within %v\n%s", startLimit, d.Log())
		case <-tick.C:
		}
	}
}

// Kill ends the daemon at once, as kill -9 does, and waits until it is gone.
func (d *Daemon) Kill() {
	if d.exited == nil {
		return // it never started
	}
	d.cmd.Process.Kill()
	<-d.exited
}

// Stop ends the daemon in order, as a service manager does, and returns how it
// ended.
func (d *Daemon) Stop() error { return d.signal(syscall.SIGTERM) }

// Interrupt ends the daemon in order, as a person at a terminal does.
func (d *Daemon) Interrupt() error { return d.signal(syscall.SIGINT) }

func (d *Daemon) signal(s os.Signal) error {
	d.cmd.Process.Signal(s)
	<-d.exited
	return d.exitErr
}

func (d *Daemon) hosts() string { return filepath.Join(d.Dir, "run", "hosts") }

// Host gives the device host with a name, that serves now or did last.
func (d *Daemon) Host(name string) host.Runtime {
	d.t.Helper()
	r, err := host.ReadRuntime(filepath.Join(d.hosts(), name+".sock"))
	if err != nil {
		d.t.Fatal(err)
	}
	return r
}

func (d *Daemon) logHosts() {
	files, _ := filepath.Glob(filepath.Join(d.hosts(), "*.log")) // the pattern is right
	for _, path := range files {
		if b, err := os.ReadFile(path); err == nil {
			d.t.Logf("%s:\n%s", path, b)
		}
	}
}

// PID is the process that runs now.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Log is what all runs of the daemon have written.
func (d *Daemon) Log() string { return d.log.String() }

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
