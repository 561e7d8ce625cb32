package machine

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Config says what to boot.
type Config struct {
	Kernel, Initrd string   // paths
	MemoryMiB      int      // at least what the initrd unpacks to, twice
	Append         string   // to the kernel's command line
	Netns          string   // network namespace that qemu runs in; "" for this one
	Args           []string // more for qemu
}

// Machine is a Linux that runs. Its methods may be called concurrently.
type Machine struct {
	Console Console
	PID     int           // of qemu
	Exited  chan struct{} // closed when it has ended
	end     context.CancelFunc
}

// Start boots a machine. The caller closes it.
func Start(cfg Config) (*Machine, error) {
	ctx, end := context.WithCancel(context.Background())
	m := &Machine{Exited: make(chan struct{}), end: end}
	args := append([]string{"qemu-system-x86_64",
		"-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1", "-m", strconv.Itoa(cfg.MemoryMiB),
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio",
		"-kernel", cfg.Kernel, "-initrd", cfg.Initrd, "-append", "console=ttyS0 quiet panic=-1 mitigations=off " + cfg.Append}, cfg.Args...)
	if cfg.Netns != "" {
		args = append([]string{"ip", "netns", "exec", cfg.Netns}, args...)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &m.Console, &m.Console
	// The machine ends with the thread that started it, also when this process is
	// killed; so the thread must live as long.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait()
		}
		close(m.Exited)
	}()
	if err := <-started; err != nil {
		end()
		return nil, err
	}
	m.PID = cmd.Process.Pid
	return m, nil
}

// Await waits until a line is on the console, at most for limit.
func (m *Machine) Await(line string, limit time.Duration) error {
	late := time.NewTimer(limit)
	defer late.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !m.Console.Says(line) {
		select {
		case <-tick.C:
		case <-m.Exited:
			if m.Console.Says(line) {
				return nil
			}
			return fmt.Errorf("the machine ended before it said %q:\n%s", line, &m.Console)
		case <-late.C:
			return fmt.Errorf("the machine has not said %q after %v:\n%s", line, limit, &m.Console)
		}
	}
	return nil
}

// Close ends the machine at once.
func (m *Machine) Close() {
	m.end()
	<-m.Exited
}

// Console holds what a machine has written on its console.
type Console struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (c *Console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b.Write(p)
}

// String gives it with the line ends of a file.
func (c *Console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.ReplaceAll(c.b.String(), "\r", "")
}

// Says reports whether a line is on the console.
func (c *Console) Says(line string) bool { return strings.Contains("\n"+c.String(), "\n"+line+"\n") }
