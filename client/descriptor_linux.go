package client

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// maxReply bounds an answer; a refusal with its details is far below.
const maxReply = 64 << 10

// trade connects to a descriptor socket, sends a packet, with a descriptor
// unless it is nil, and receives one with at most one.
func trade(ctx context.Context, path string, packet []byte, descriptor *os.File) ([]byte, *os.File, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unixpacket", path)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	u := conn.(*net.UnixConn)
	stop := context.AfterFunc(ctx, func() { _ = u.SetDeadline(time.Now()) })
	defer stop()
	if err := put(u, packet, descriptor); err != nil {
		return nil, nil, err
	}
	data, control := make([]byte, maxReply), make([]byte, unix.CmsgSpace(4))
	n, nc, flags, _, err := u.ReadMsgUnix(data, control)
	if errors.Is(err, io.EOF) {
		// The kernel looks whether the daemon is gone after it has found no packet
		// (unix_dgram_recvmsg, net/unix/af_unix.c): one that came between the two is
		// there at a second look.
		n, nc, flags, _, err = u.ReadMsgUnix(data, control)
	}
	var files []*os.File
	messages, bad := unix.ParseSocketControlMessage(control[:max(nc, 0)])
	for i := range messages {
		fds, _ := unix.ParseUnixRights(&messages[i]) // of another kind: none
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "accelfab export"))
		}
	}
	switch {
	case err == nil && n == 0, errors.Is(err, io.EOF):
		err = errors.New("the daemon ended the connection without an answer")
	case err != nil:
	case bad != nil, len(files) > 1, flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0:
		err = errors.New("the answer was cut off, or this process may open no more descriptors")
	}
	if err != nil {
		for _, f := range files {
			f.Close()
		}
		return nil, nil, err
	}
	if len(files) == 1 {
		return data[:n], files[0], nil
	}
	return data[:n], nil, nil
}

func put(conn *net.UnixConn, packet []byte, descriptor *os.File) error {
	if descriptor == nil {
		_, _, err := conn.WriteMsgUnix(packet, nil, nil)
		return err
	}
	raw, err := descriptor.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) { _, _, sent = conn.WriteMsgUnix(packet, unix.UnixRights(int(fd)), nil) })
	if err == nil {
		err = sent
	}
	return err
}
