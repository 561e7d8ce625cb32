package boltstore

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// networkMagic names the file systems, by the magic number of statfs(2), whose
// locks or memory maps do not hold between hosts. The numbers without a
// constant in x/sys are those that coreutils' stat(1) prints.
var networkMagic = map[int64]string{
	unix.NFS_SUPER_MAGIC:   "NFS",
	unix.SMB_SUPER_MAGIC:   "SMB",
	unix.CIFS_SUPER_MAGIC:  "CIFS",
	unix.SMB2_SUPER_MAGIC:  "SMB2",
	unix.CEPH_SUPER_MAGIC:  "Ceph",
	unix.AFS_SUPER_MAGIC:   "AFS",
	unix.AFS_FS_MAGIC:      "AFS",
	unix.CODA_SUPER_MAGIC:  "Coda",
	unix.V9FS_MAGIC:        "9P",
	unix.OCFS2_SUPER_MAGIC: "OCFS2",
	0x01161970:             "GFS2",
	0x0bd00bd0:             "Lustre",
	0x47504653:             "GPFS",
	0x19830326:             "BeeGFS",
}

// networkFUSE names the network file systems behind FUSE, by the part of their
// type after "fuse." in mountinfo. Other FUSE file systems are local.
var networkFUSE = map[string]bool{
	"sshfs": true, "glusterfs": true, "ceph": true, "ceph-fuse": true, "s3fs": true, "goofys": true,
	"rclone": true, "gcsfuse": true, "juicefs": true, "mfs": true, "davfs": true, "curlftpfs": true,
}

// networkFileSystem names the network file system of a statfs magic number and,
// for FUSE, a mount type; "" is a local one.
func networkFileSystem(magic int64, mountType string) string {
	if name, ok := networkMagic[magic]; ok {
		return name
	}
	if sub, ok := strings.CutPrefix(mountType, "fuse."); ok && magic == unix.FUSE_SUPER_MAGIC && networkFUSE[sub] {
		return mountType
	}
	return ""
}

// fileSystem gives the magic number of the file system of dir and, where that
// is FUSE, its mount type.
func fileSystem(dir string) (magic int64, mountType string, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, "", fmt.Errorf("statfs %s: %w", dir, err)
	}
	magic = int64(uint32(st.Type)) // sign-extended on some kernels
	if magic == unix.FUSE_SUPER_MAGIC {
		mountType = mountTypeOf(dir)
	}
	return magic, mountType, nil
}

// mountTypeOf finds the file system type of the mount that holds dir; "" if
// mountinfo does not tell.
func mountTypeOf(dir string) string {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return ""
	}
	if real, err = filepath.Abs(real); err != nil {
		return ""
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	best, found := "", ""
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// proc_pid_mountinfo(5): ... root, mount point, options, optional
		// fields, "-", type, source, ...
		head, tail, ok := strings.Cut(lines.Text(), " - ")
		fields, rest := strings.Fields(head), strings.Fields(tail)
		if !ok || len(fields) < 5 || len(rest) < 1 {
			continue
		}
		point := unescapeMount(fields[4])
		inside := point == "/" || real == point || strings.HasPrefix(real, point+"/")
		if inside && len(point) >= len(best) { // the later of two on one point is on top
			best, found = point, rest[0]
		}
	}
	return found
}

// unescapeMount undoes the octal escapes of mountinfo.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
