package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// identify reads who the process with this pid is. Of a process that is gone,
// or that has ended and waits for its parent, errors.Is finds
// os.ErrProcessDone.
func identify(pid int) (process, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return process{}, err
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return process{}, fmt.Errorf("process %d: %w", pid, os.ErrProcessDone)
	}
	if err != nil {
		return process{}, err
	}
	// The second field is the command in parentheses, with whatever it likes
	// inside; the third is the state and the 22nd the start time (proc(5)).
	_, rest, _ := strings.Cut(string(stat[max(0, strings.LastIndexByte(string(stat), ')')):]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 20 {
		return process{}, fmt.Errorf("/proc/%d/stat: %d fields after the command, want 20 or more", pid, len(fields))
	}
	if state := fields[0]; state == "Z" || state == "X" {
		return process{}, fmt.Errorf("process %d: %w", pid, os.ErrProcessDone)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return process{}, fmt.Errorf("/proc/%d/stat: start time: %w", pid, err)
	}
	return process{PID: pid, Start: start, Boot: strings.TrimSpace(string(boot))}, nil
}

// end ends the process and returns when it is gone: by SIGTERM, and by SIGKILL
// if it is still there after grace. A grace of 0 kills at once. Nothing is done
// to another process that has the pid by now.
func (p process) end(grace time.Duration) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: pidfd_open: %w", p.PID, err)
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	defer file.Close()
	// From here on the descriptor stands for one process. Whether it is ours
	// is asked once more, since the pid may have changed hands before.
	if !p.running() {
		return nil
	}
	if grace > 0 {
		if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("process %d: SIGTERM: %w", p.PID, err)
		}
		if gone, err := waitPidfd(fd, grace); gone || err != nil {
			return err
		}
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: SIGKILL: %w", p.PID, err)
	}
	gone, err := waitPidfd(fd, killLimit)
	if err == nil && !gone {
		err = fmt.Errorf("process %d is still there %v after SIGKILL", p.PID, killLimit)
	}
	return err
}

// waitPidfd waits until the process has ended, which makes its descriptor
// readable.
func waitPidfd(fd int, limit time.Duration) (bool, error) {
	deadline := time.Now().Add(limit)
	for {
		left := max(0, time.Until(deadline).Milliseconds())
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return n > 0, err
	}
}

// detach lets cmd outlive the terminal and the command that starts it.
func detach(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return nil
}

// lockDir takes the lock of a directory, which is held until the file is
// closed. It does not wait for another holder.
func lockDir(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another accelfab works on the lab in %s now; try again when it is done", dir)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}

// ours tells whether this user alone can change what a directory holds.
func ours(fi os.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && fi.IsDir() && int(st.Uid) == os.Getuid() && fi.Mode().Perm()&0o022 == 0
}
