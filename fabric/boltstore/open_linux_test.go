package boltstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelfab/accelfab/fabric"
)

func TestLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fabric.db")
	s := open(t, path, Options{})
	_, err := Open(path, Options{LockTimeout: time.Millisecond})
	if !errors.Is(err, fabric.ErrStoreLocked) {
		t.Fatalf("a second Open gives %v", err)
	}
	for _, want := range []string{fmt.Sprintf("pid %d", os.Getpid()), filepath.Base(os.Args[0]), path + ".lock"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not tell %q", err, want)
		}
	}
	closeStore(t, s)
	closeStore(t, open(t, path, Options{LockTimeout: time.Millisecond}))
}

// TestLockedByStranger has a program that knows nothing of our lock file hold
// bbolt's own lock.
func TestLockedByStranger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fabric.db")
	closeStore(t, open(t, path, Options{}))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := flock(f); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, Options{}); !errors.Is(err, fabric.ErrStoreLocked) || !strings.Contains(err.Error(), path) {
		t.Errorf("Open gives %v", err)
	}
}

// TestNetworkFileSystem (S18) refuses, and makes nothing there but the
// directory.
func TestNetworkFileSystem(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "fabric.db")
	_, err := Open(path, Options{fileSystem: func(string) (int64, string, error) { return unix.NFS_SUPER_MAGIC, "", nil }})
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Fatalf("Open gives %v", err)
	}
	for _, want := range []string{filepath.Dir(path), "NFS", "local disk"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not tell %q", err, want)
		}
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestNetworkFileSystems(t *testing.T) {
	for _, c := range []struct {
		magic int64
		mount string
		want  string
	}{
		{unix.NFS_SUPER_MAGIC, "", "NFS"},
		{unix.SMB_SUPER_MAGIC, "", "SMB"},
		{unix.CIFS_SUPER_MAGIC, "", "CIFS"},
		{unix.SMB2_SUPER_MAGIC, "", "SMB2"},
		{unix.CEPH_SUPER_MAGIC, "", "Ceph"},
		{0x0bd00bd0, "", "Lustre"},
		{unix.FUSE_SUPER_MAGIC, "fuse.sshfs", "fuse.sshfs"},
		{unix.FUSE_SUPER_MAGIC, "fuse.glusterfs", "fuse.glusterfs"},
		{unix.FUSE_SUPER_MAGIC, "fuse.overlayfs", ""},
		{unix.FUSE_SUPER_MAGIC, "virtiofs", ""},
		{unix.FUSE_SUPER_MAGIC, "", ""},
		{unix.EXT4_SUPER_MAGIC, "", ""},
		{unix.XFS_SUPER_MAGIC, "", ""},
		{unix.BTRFS_SUPER_MAGIC, "", ""},
		{unix.TMPFS_MAGIC, "", ""},
		{unix.OVERLAYFS_SUPER_MAGIC, "", ""},
	} {
		if got := networkFileSystem(c.magic, c.mount); got != c.want {
			t.Errorf("%#x %q is %q, want %q", c.magic, c.mount, got, c.want)
		}
	}
}

func TestMountTypeOf(t *testing.T) {
	if got := mountTypeOf("/proc/self"); got != "proc" {
		t.Errorf("/proc/self is on %q", got)
	}
	if got := mountTypeOf("/no/such/directory"); got != "" {
		t.Errorf("a directory that is not there is on %q", got)
	}
	if got := unescapeMount(`/a\040b\134c`); got != `/a b\c` {
		t.Errorf("unescaped: %q", got)
	}
}
