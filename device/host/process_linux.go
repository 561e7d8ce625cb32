package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelfab/accelfab/device"
)

// Process names one process for good. A pid alone does not: it is used again.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start_ticks"` // clock ticks from boot to its start
	Boot  string `json:"boot_id"`
}

// Runtime is what a host writes into NAME.json beside its socket.
type Runtime struct {
	Process
	Instance string        `json:"instance"`
	Spec     string        `json:"spec"`
	Version  string        `json:"version"`
	Managed  bool          `json:"managed"` // by a service manager, which starts it again
	Devices  []device.Info `json:"devices"`
}

// write puts the file in place as a whole.
func (r Runtime) write(socket string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	path := beside(socket, ".json")
	if err := os.WriteFile(path+".new", append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// ReadRuntime reads who serves at a socket, or served last. errors.Is finds
// fs.ErrNotExist if nobody did, and ErrStranger if another user says so: who
// believed it would end a process of that user's choice.
func ReadRuntime(socket string) (Runtime, error) {
	path := beside(socket, ".json")
	var r Runtime
	f, err := os.Open(path)
	if err != nil {
		return r, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
			err = ErrStranger
		}
	}
	if err == nil {
		err = json.NewDecoder(f).Decode(&r)
	}
	if err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// BootID is the boot of this machine.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// Self identifies this process.
func Self() (Process, error) { return identify(os.Getpid()) }

// identify reads who has a pid. errors.Is finds os.ErrProcessDone if it is gone,
// or has ended and waits for its parent.
func identify(pid int) (Process, error) {
	boot, err := BootID()
	if err != nil {
		return Process{}, err
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return Process{}, fmt.Errorf("process %d: %w", pid, os.ErrProcessDone)
	}
	if err != nil {
		return Process{}, err
	}
	// The second field is the command in parentheses, with whatever it likes
	// inside; the third is the state and the 22nd the start time (proc(5)).
	fields := strings.Fields(string(stat[max(0, strings.LastIndexByte(string(stat), ')')):]))
	if len(fields) < 21 {
		return Process{}, fmt.Errorf("/proc/%d/stat: %d fields from the command on, want 21 or more", pid, len(fields))
	}
	if state := fields[1]; state == "Z" || state == "X" {
		return Process{}, fmt.Errorf("process %d: %w", pid, os.ErrProcessDone)
	}
	start, err := strconv.ParseUint(fields[20], 10, 64)
	if err != nil {
		return Process{}, fmt.Errorf("/proc/%d/stat: start time: %w", pid, err)
	}
	return Process{PID: pid, Start: start, Boot: boot}, nil
}

// Running tells whether this very process is there and has not ended.
func (p Process) Running() bool {
	now, err := identify(p.PID)
	return err == nil && now == p
}

// End ends the process and returns when it is gone: by SIGTERM, by SIGKILL if it
// is still there after grace. Nothing is done to another process that has the
// pid by now. One that is stopped is ended too.
func (p Process) End(grace time.Duration) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: pidfd_open: %w", p.PID, err)
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	defer file.Close()
	// From here on the descriptor stands for one process. Whether it is the one
	// is asked now, since the pid may have changed hands before.
	if !p.Running() {
		return nil
	}
	for _, step := range []struct {
		signal unix.Signal
		wait   time.Duration
	}{{unix.SIGTERM, grace}, {unix.SIGKILL, 10 * time.Second}} {
		if err := unix.PidfdSendSignal(fd, step.signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("process %d: %v: %w", p.PID, step.signal, err)
		}
		if gone, err := waitPidfd(fd, step.wait); gone || err != nil {
			return err
		}
	}
	return fmt.Errorf("process %d is still there after SIGKILL", p.PID)
}

// waitPidfd waits until the process has ended, which makes its descriptor
// readable.
func waitPidfd(fd int, limit time.Duration) (bool, error) {
	deadline := time.Now().Add(limit)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(0, time.Until(deadline).Milliseconds())))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return n > 0, err
	}
}

// EndAll ends all hosts whose sockets are in dir, and removes what dead ones
// left. It gives the pids of those that it ended.
func EndAll(dir string, grace time.Duration) (ended []int, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, path := range files {
		pid, err := End(strings.TrimSuffix(path, ".json")+".sock", grace)
		if pid != 0 {
			ended = append(ended, pid)
		}
		errs = append(errs, err)
	}
	return ended, errors.Join(errs...)
}

// End ends the host at a socket, and removes what it left, or one that was dead.
// It gives the pid of one that it ended, else 0. errors.Is finds fs.ErrNotExist
// where none was.
func End(socket string, grace time.Duration) (pid int, err error) {
	r, err := ReadRuntime(socket)
	if err != nil {
		return 0, err
	}
	if r.Running() {
		if err := r.End(grace); err != nil {
			return 0, err
		}
		pid = r.PID
	}
	var errs []error
	for _, ending := range []string{".sock", ".fds", ".json"} {
		if err := os.Remove(beside(socket, ending)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return pid, errors.Join(errs...)
}
