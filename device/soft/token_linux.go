package soft

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// token is a descriptor of an export: an end of a socket pair, which can be
// passed on and closed, and nothing else. It cannot be mapped, nor opened again
// by way of /proc, nothing comes out of it and what is written to it fails, as
// the end that is kept here has stopped receiving.
type token struct {
	export *export
	mark   mark
	kept   *os.File // the other end, which sees the last close of the one given
}

// mark is what the kernel says of a descriptor, whoever asks and by whichever copy
// of it: of a socket all but the inode, of anything else that alone. No two sockets since the machine was started have one cookie
// (net/core/sock_diag.c); the rest is for the case that they are counted by
// network namespace, as kernels before 5.10 do.
type mark struct {
	cookie, netns          uint64
	domain, kind, protocol int
	pid                    int32 // of the process that made the pair
	uid, gid               uint32
	inode                  inode
}

// newToken makes a pair. The caller owns both ends.
func newToken() (given *os.File, t *token, err error) {
	// Reading fails at once instead of waiting for what never comes.
	const kind = unix.SOCK_SEQPACKET | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	pair, err := unix.Socketpair(unix.AF_UNIX, kind, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("descriptor of an export: socketpair: %w", err)
	}
	// The end that is kept needs no place in the runtime's poller.
	err = errors.Join(unix.Shutdown(pair[0], unix.SHUT_RD), unix.SetNonblock(pair[0], false))
	given = os.NewFile(uintptr(pair[1]), "export")
	t = &token{kept: os.NewFile(uintptr(pair[0]), "export, kept end")}
	if err == nil {
		t.mark, err = readMark(given)
	}
	if err != nil {
		given.Close()
		t.kept.Close()
		return nil, nil, fmt.Errorf("descriptor of an export: %w", err)
	}
	return given, t, nil
}

// readMark reads what the kernel says of a descriptor.
func readMark(f *os.File) (m mark, err error) {
	err = control(f, func(fd int) (err error) {
		m, err = markOf(fd)
		return err
	})
	return m, err
}

func markOf(fd int) (m mark, err error) {
	number := func(option int) (n int) {
		if err == nil {
			n, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, option)
		}
		return n
	}
	m.domain, m.kind, m.protocol = number(unix.SO_DOMAIN), number(unix.SO_TYPE), number(unix.SO_PROTOCOL)
	switch {
	case errors.Is(err, unix.EBADF): // opened with O_PATH, it names a file and stands for nothing
		return mark{}, nil
	case errors.Is(err, unix.ENOTSOCK):
		id, err := inodeOf(fd)
		return mark{inode: id}, err
	}
	if err == nil {
		m.cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	}
	if err != nil {
		return mark{}, fmt.Errorf("getsockopt: %w", err)
	}
	if m.domain != unix.AF_UNIX {
		return m, nil
	}
	// Before Linux 5.14 there is no such option.
	m.netns, _ = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	maker, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return mark{}, fmt.Errorf("SO_PEERCRED: %w", err)
	}
	m.pid, m.uid, m.gid = maker.Pid, maker.Uid, maker.Gid
	return m, nil
}

// keeper waits for the last close of the tokens of the process, with one epoll
// descriptor and one goroutine, which holds no thread.
type keeper struct {
	epoll *os.File
	most  int // tokens at a time: half of the descriptors that the process may have
	done  chan struct{}
}

// openKeeper calls gone with the cookie of each token that is let go.
func openKeeper(gone func(cookie uint64)) (*keeper, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	// An epoll descriptor can be waited for by another: the one of the runtime,
	// which takes what does not block.
	err = unix.SetNonblock(fd, true)
	k := &keeper{epoll: os.NewFile(uintptr(fd), "epoll of exports"), done: make(chan struct{})}
	var files unix.Rlimit
	err = errors.Join(err, unix.Getrlimit(unix.RLIMIT_NOFILE, &files))
	k.most = int(min(files.Cur/2, 1<<20))
	if err != nil {
		k.epoll.Close()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	raw, err := k.epoll.SyscallConn()
	if err != nil {
		k.epoll.Close()
		return nil, err
	}
	go func() {
		defer close(k.done)
		var events [64]unix.EpollEvent
		for {
			n := 0
			if err := raw.Read(func(fd uintptr) bool {
				n, _ = unix.EpollWait(int(fd), events[:], 0)
				return n > 0
			}); err != nil {
				return // closed
			}
			for _, e := range events[:n] {
				gone(uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32)
			}
		}
	}()
	return k, nil
}

// watch waits for the last close of a token's given end, or its shutdown by a
// holder, which is as good. Closing the kept end ends it.
func (k *keeper) watch(t *token) error {
	raw, err := t.kept.SyscallConn()
	if err != nil {
		return err
	}
	epoll, err := k.epoll.SyscallConn()
	if err != nil {
		return err
	}
	var op, op2 error
	err = raw.Control(func(fd uintptr) {
		op = epoll.Control(func(efd uintptr) {
			// EPOLLHUP is always among the events.
			ev := unix.EpollEvent{Events: unix.EPOLLET, Fd: int32(t.mark.cookie), Pad: int32(t.mark.cookie >> 32)}
			op2 = unix.EpollCtl(int(efd), unix.EPOLL_CTL_ADD, int(fd), &ev)
		})
	})
	return errors.Join(err, op, op2)
}

// close ends the goroutine.
func (k *keeper) close() {
	k.epoll.Close()
	<-k.done
}
