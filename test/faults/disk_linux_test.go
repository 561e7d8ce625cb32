package faults

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/accelfab/accelfab/test/daemon"
)

const page = 4096

// disk is a file system that fails, delays, and loses what was not synced. What the
// daemon sees is in one directory, below; what would be left after a power cut is
// in memory, as it was at the last fsync of each file.
type disk struct {
	mount, below string
	writes       atomic.Int32 // errno of each write; 0 lets them through
	syncs        atomic.Int32 // errno of each fsync
	delay        atomic.Int64 // of each fsync, nanoseconds
	synced       atomic.Int64 // how many syncs were done

	mu    sync.Mutex
	off   bool // the power is cut: nothing gets through
	files map[string]*medium
}

// medium is one file on the disk: what is certain, and the pages that were written
// since, in order; each of these may or may not be there after a power cut.
type medium struct {
	certain []byte
	pending []written
}

type written struct {
	at   int64
	data []byte
}

// newDisk mounts a disk over an empty directory.
func newDisk(t *testing.T, mount string) *disk {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("to mount a file system of FUSE without fusermount needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skipf("FUSE is not there: %v", err)
	}
	d := &disk{mount: mount, below: t.TempDir(), files: map[string]*medium{}}
	if err := os.Mkdir(mount, 0o700); err != nil {
		t.Fatal(err)
	}
	root := &fs.LoopbackRoot{Path: d.below}
	root.RootNode = &node{LoopbackNode: fs.LoopbackNode{RootData: root}, disk: d}
	server, err := fs.Mount(mount, root.RootNode, &fs.Options{MountOptions: fuse.MountOptions{
		DirectMountStrict: true, FsName: "faults", Name: "faults", Options: []string{"default_permissions"}}})
	if errors.Is(err, syscall.EPERM) {
		t.Skipf("may not mount: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Unmount(); err != nil {
			t.Errorf("unmount %s: %v", mount, err)
			return
		}
		server.Wait()
	})
	return d
}

// startOnDisk starts a daemon whose state is on a disk of its own.
func startOnDisk(t *testing.T, node string) (*daemon.Daemon, *disk) {
	t.Helper()
	dir := t.TempDir()
	k := newDisk(t, filepath.Join(dir, "disk"))
	return daemon.Start(t, daemon.Config{Node: node, Args: []string{"--state-dir", k.mount,
		"--device", "soft:hls-2,cards=1,memory=16MiB"}}), k
}

// cut is a power cut: from now on nothing reaches the disk. It must be called
// before the daemon is killed, as the power goes at one moment.
func (d *disk) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.off = true
}

// restore makes the directory what the disk has after the cut: of each file what
// was synced, and of the pages written since a random part, in any order, of which
// one may be torn at a sector. It counts the pages that were lost and those that
// were not.
func (d *disk) restore(t *testing.T, random *rand.Rand) (lost, kept int) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, m := range d.files {
		share := random.IntN(5) // of four: none, some or all survive
		torn := random.IntN(3) == 0
		random.Shuffle(len(m.pending), func(i, j int) { m.pending[i], m.pending[j] = m.pending[j], m.pending[i] })
		for _, w := range m.pending {
			switch {
			case random.IntN(4) < share:
				m.write(w)
				kept++
			case torn && len(w.data) > 512:
				torn = false
				w.data = w.data[:512*(1+random.IntN(len(w.data)/512))]
				m.write(w)
				lost++
			default:
				lost++
			}
		}
		m.pending = nil
		if err := os.WriteFile(filepath.Join(d.below, name), m.certain, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d.off = false
	return lost, kept
}

func (m *medium) write(w written) {
	if need := int(w.at) + len(w.data); need > len(m.certain) {
		m.certain = append(m.certain, make([]byte, need-len(m.certain))...)
	}
	copy(m.certain[w.at:], w.data)
}

// note records what a file was written.
func (d *disk) note(name string, data []byte, at int64) {
	m := d.file(name)
	for len(data) > 0 { // page by page, as a disk takes them
		n := min(page-int(at%page), len(data))
		m.pending = append(m.pending, written{at, slices.Clone(data[:n])})
		data, at = data[n:], at+int64(n)
	}
}

func (d *disk) file(name string) *medium {
	m := d.files[name]
	if m == nil {
		m = &medium{}
		d.files[name] = m
	}
	return m
}

// node is a file or directory of a disk.
type node struct {
	fs.LoopbackNode
	disk *disk
}

var (
	_ fs.NodeOpener      = (*node)(nil)
	_ fs.NodeCreater     = (*node)(nil)
	_ fs.NodeSetattrer   = (*node)(nil)
	_ fs.NodeRenamer     = (*node)(nil)
	_ fs.NodeUnlinker    = (*node)(nil)
	_ fs.NodeWrapChilder = (*node)(nil)
	_ fs.FileWriter      = (*file)(nil)
	_ fs.FileFsyncer     = (*file)(nil)
	_ fs.FileReader      = (*file)(nil)
)

// WrapChild makes all that is below a node of the disk, too.
func (n *node) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	return &node{LoopbackNode: fs.LoopbackNode{RootData: ops.(*fs.LoopbackNode).RootData}, disk: n.disk}
}

func (n *node) name() string { return n.Path(n.Root()) }

// file is a descriptor of a file of a disk. Embedding the loopback's as a whole
// would pass its descriptor to the kernel, around Write.
type file struct {
	loop *fs.LoopbackFile
	node *node
}

func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, f, errno := n.LoopbackNode.Open(ctx, flags)
	if errno != 0 {
		return nil, 0, errno
	}
	if flags&syscall.O_TRUNC != 0 {
		n.disk.mu.Lock()
		n.disk.file(n.name()).resize(0)
		n.disk.mu.Unlock()
	}
	return &file{h.(*fs.LoopbackFile), n}, f, 0
}

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	in, h, f, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	if errno != 0 {
		return nil, nil, 0, errno
	}
	return in, &file{h.(*fs.LoopbackFile), in.Operations().(*node)}, f, 0
}

// resize is taken as certain at once: a file that has another length than was
// synced is the business of truncated files, which the store's own tests are about.
func (m *medium) resize(size int) {
	if size <= len(m.certain) {
		m.certain = m.certain[:size]
	} else {
		m.certain = append(m.certain, make([]byte, size-len(m.certain))...)
	}
	m.pending = slices.DeleteFunc(m.pending, func(w written) bool { return w.at+int64(len(w.data)) > int64(size) })
}

func (n *node) Setattr(ctx context.Context, h fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	if n.disk.off {
		return syscall.EIO
	}
	if size, ok := in.GetSize(); ok {
		if errno := syscall.Errno(n.disk.writes.Load()); errno != 0 {
			return errno
		}
		n.disk.file(n.name()).resize(int(size))
	}
	return n.LoopbackNode.Setattr(ctx, nil, in, out)
}

func (n *node) Rename(ctx context.Context, name string, parent fs.InodeEmbedder, to string, flags uint32) syscall.Errno {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	if n.disk.off {
		return syscall.EIO
	}
	errno := n.LoopbackNode.Rename(ctx, name, parent, to, flags)
	if errno == 0 {
		dir, target := n.name(), parent.EmbeddedInode().Path(parent.EmbeddedInode().Root())
		n.disk.files[filepath.Join(target, to)] = n.disk.file(filepath.Join(dir, name))
		delete(n.disk.files, filepath.Join(dir, name))
	}
	return errno
}

func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	if n.disk.off {
		return syscall.EIO
	}
	delete(n.disk.files, filepath.Join(n.name(), name))
	return n.LoopbackNode.Unlink(ctx, name)
}

func (f *file) Read(ctx context.Context, p []byte, at int64) (fuse.ReadResult, syscall.Errno) {
	return f.loop.Read(ctx, p, at)
}

func (f *file) Release(ctx context.Context) syscall.Errno { return f.loop.Release(ctx) }

func (f *file) Write(ctx context.Context, data []byte, at int64) (uint32, syscall.Errno) {
	d := f.node.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.off {
		return 0, syscall.EIO
	}
	if errno := syscall.Errno(d.writes.Load()); errno != 0 {
		return 0, errno
	}
	n, errno := f.loop.Write(ctx, data, at)
	if errno == 0 {
		d.note(f.node.name(), data[:n], at)
	}
	return n, errno
}

func (f *file) Fsync(ctx context.Context, flags uint32) syscall.Errno {
	d := f.node.disk
	if wait := time.Duration(d.delay.Load()); wait > 0 {
		<-time.After(wait) // whatever signals the caller gets: no disk gives up a sync for them
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.off {
		return syscall.EIO
	}
	if errno := syscall.Errno(d.syncs.Load()); errno != 0 {
		return errno
	}
	m := d.file(f.node.name())
	for _, w := range m.pending {
		m.write(w)
	}
	m.pending = nil
	d.synced.Add(1)
	return 0
}
