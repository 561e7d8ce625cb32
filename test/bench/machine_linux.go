package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// machine is what the figures depend on.
type machine struct {
	Cores      int    `json:"cores"`
	CPU        string `json:"cpu"`
	MemoryMiB  uint64 `json:"memory_mib"`
	Kernel     string `json:"kernel"`
	Go         string `json:"go"`
	FileSystem string `json:"file_system"` // of the stores
}

func (m machine) String() string {
	return fmt.Sprintf("%d cores (%s), %d MiB, Linux %s, %s; stores on %s", m.Cores, m.CPU, m.MemoryMiB, m.Kernel, m.Go, m.FileSystem)
}

func describeMachine(dir string) (machine, error) {
	m := machine{Cores: runtime.NumCPU(), CPU: cpuModel(), Go: runtime.Version()}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return m, fmt.Errorf("uname: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(u.Release[:])
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return m, fmt.Errorf("sysinfo: %w", err)
	}
	m.MemoryMiB = uint64(info.Totalram) * uint64(info.Unit) >> 20
	var err error
	m.FileSystem, err = fileSystem(dir)
	return m, err
}

func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown CPU"
	}
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// fileSystems are magic numbers of statfs(2).
var fileSystems = map[int64]string{
	unix.EXT4_SUPER_MAGIC:      "ext4",
	unix.XFS_SUPER_MAGIC:       "xfs",
	unix.BTRFS_SUPER_MAGIC:     "btrfs",
	unix.TMPFS_MAGIC:           "tmpfs",
	unix.RAMFS_MAGIC:           "ramfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlayfs",
	unix.F2FS_SUPER_MAGIC:      "f2fs",
	0x2fc12fc1:                 "zfs",
}

func fileSystem(dir string) (string, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return "", fmt.Errorf("file system of %s: %w", dir, err)
	}
	if name := fileSystems[int64(s.Type)]; name != "" {
		return name, nil
	}
	return fmt.Sprintf("file system %#x", s.Type), nil
}

func isInMemory(dir string) (bool, error) {
	name, err := fileSystem(dir)
	return name == "tmpfs" || name == "ramfs", err
}

// fdatasync gives the median time of a write of 4 KiB and its fdatasync, to a
// file that has its blocks and to one that grows.
func fdatasync(dir string, n int) (prepared, growing time.Duration, err error) {
	f, err := os.CreateTemp(dir, "fdatasync-")
	if err != nil {
		return 0, 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	page := make([]byte, 4096)
	syncs := func() (time.Duration, error) {
		took := make([]time.Duration, n)
		for i := range took {
			start := time.Now()
			if _, err := f.WriteAt(page, int64(i)*4096); err != nil {
				return 0, err
			}
			if err := unix.Fdatasync(int(f.Fd())); err != nil {
				return 0, fmt.Errorf("fdatasync: %w", err)
			}
			took[i] = time.Since(start)
		}
		slices.Sort(took)
		return took[n/2], nil
	}
	if growing, err = syncs(); err != nil {
		return 0, 0, err
	}
	if err := f.Sync(); err != nil {
		return 0, 0, err
	}
	prepared, err = syncs()
	return prepared, growing, err
}
