package server

import (
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// receive reads one packet. The descriptors that the kernel installed are in
// p.files in any case, also where it returns an error: a control buffer with
// room for one takes two, by its padding, and tells only then that there were
// more (MSG_CTRUNC, cmsg(3)).
func (p *packet) receive(conn *net.UnixConn) error {
	data, control := make([]byte, maxPacket), make([]byte, unix.CmsgSpace(4))
	n, nc, flags, _, err := conn.ReadMsgUnix(data, control) // close-on-exec
	n, nc = max(n, 0), max(nc, 0)                           // -1 with some errors
	p.data = data[:n]
	messages, bad := unix.ParseSocketControlMessage(control[:nc])
	for i := range messages {
		fds, _ := unix.ParseUnixRights(&messages[i]) // of another kind: none
		for _, fd := range fds {
			p.files = append(p.files, os.NewFile(uintptr(fd), "uploaded descriptor"))
		}
	}
	switch {
	case err != nil:
		return err
	case n == 0 && nc == 0:
		return io.EOF
	case bad != nil, flags&unix.MSG_CTRUNC != 0:
		p.fault = "more came than the one that a packet may have, or than this process may hold"
	case flags&unix.MSG_TRUNC != 0:
		p.fault = "the packet is longer than 4096 bytes"
	}
	return nil
}

// send writes one packet, with a descriptor unless file is nil.
func send(conn *net.UnixConn, data []byte, file *os.File) error {
	if file == nil {
		_, _, err := conn.WriteMsgUnix(data, nil, nil)
		return err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) { _, _, sent = conn.WriteMsgUnix(data, unix.UnixRights(int(fd)), nil) })
	if err == nil {
		err = sent
	}
	return err
}
