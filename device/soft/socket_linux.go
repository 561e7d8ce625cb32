package soft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/accelfab/accelfab/device/ib"
)

const (
	// socketBuffer is what a port asks the kernel for, in bytes, each way. It
	// costs nothing while packets do not wait.
	socketBuffer = 4 << 20
	// maxSegments is how many datagrams the kernel takes in one call
	// (UDP_MAX_SEGMENTS in include/linux/udp.h, 64 before Linux 6.9).
	maxSegments = 64
	// maxDatagrams is the bytes of datagrams that one call takes or gives:
	// the length field of IPv4 less the headers of IP and UDP.
	maxDatagrams = 65535 - 28
)

// socket is the UDP socket of a port. It is bound and not connected, and sets
// "do not fragment": then the kernel gives a lone datagram the IP
// identification 0, and segment i of a call the identification i, which the
// invariant CRC covers.
type socket struct {
	conn     *net.UDPConn
	recvRoom int         // bytes of receive buffer that the kernel gave
	segments atomic.Bool // one call sends many datagrams (UDP_SEGMENT)
	oob      [128]byte
}

// openSocket binds the RoCE v2 port of an address. errors.Is finds errHeld
// where another process has it.
func openSocket(addr netip.Addr) (*socket, error) {
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, ib.UDPPort)))
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("%w: %w", err, errHeld)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%w: give the address to an interface of this machine, or use a network inside 127.0.0.0/8", err)
	case err != nil:
		return nil, err
	}
	s := &socket{conn: conn}
	raw, err := conn.SyscallConn()
	if err == nil {
		var op error
		err = errors.Join(raw.Control(func(fd uintptr) { op = s.setOptions(int(fd)) }), op)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("socket %v: %w", conn.LocalAddr(), err)
	}
	return s, nil
}

func (s *socket) setOptions(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO); err != nil {
		return fmt.Errorf("IP_MTU_DISCOVER: %w", err)
	}
	for _, o := range [...]struct{ force, plain int }{
		{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF},
	} {
		// Without CAP_NET_ADMIN the system's limit holds.
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o.force, socketBuffer) == nil {
			continue
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o.plain, socketBuffer); err != nil {
			return fmt.Errorf("socket buffer: %w", err)
		}
	}
	var err error
	if s.recvRoom, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil {
		return fmt.Errorf("SO_RCVBUF: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1); err != nil {
		return fmt.Errorf("SO_RXQ_OVFL: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVTOS, 1); err != nil {
		return fmt.Errorf("IP_RECVTOS: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVTTL, 1); err != nil {
		return fmt.Errorf("IP_RECVTTL: %w", err)
	}
	// Both are faster ways of what also goes without.
	s.segments.Store(unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 0) == nil)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1)
	return nil
}

// arrival is what one call received.
type arrival struct {
	from    netip.AddrPort
	segment int    // bytes of each datagram but the last
	tos     uint8  // type of service of the first
	ttl     uint8  // time to live of the first
	drops   uint32 // datagrams that the kernel had no room for since the socket was opened, as far as told
}

// read receives one datagram, or several that the kernel joined, into b, which
// should have maxDatagrams bytes. One goroutine at a time.
func (s *socket) read(b []byte) (n int, a arrival, err error) {
	n, oobn, _, from, err := s.conn.ReadMsgUDPAddrPort(b, s.oob[:])
	if err != nil {
		return 0, arrival{}, err
	}
	a = arrival{from: netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), segment: n}
	for rest := s.oob[:oobn]; len(rest) >= unix.SizeofCmsghdr; {
		header, data, next, err := unix.ParseOneSocketControlMessage(rest)
		if err != nil {
			break
		}
		rest = next
		switch {
		case header.Level == unix.IPPROTO_UDP && header.Type == unix.UDP_GRO && len(data) >= 4:
			a.segment = int(binary.NativeEndian.Uint32(data))
		case header.Level == unix.SOL_SOCKET && header.Type == unix.SO_RXQ_OVFL && len(data) >= 4:
			a.drops = binary.NativeEndian.Uint32(data)
		case header.Level == unix.IPPROTO_IP && header.Type == unix.IP_TOS && len(data) >= 1:
			a.tos = data[0]
		case header.Level == unix.IPPROTO_IP && header.Type == unix.IP_TTL && len(data) >= 4:
			a.ttl = uint8(binary.NativeEndian.Uint32(data))
		}
	}
	return n, a, nil
}

// write sends b as datagrams of segment bytes each, the last one perhaps
// shorter. oob comes from appendPath and appendSegment.
func (s *socket) write(b, oob []byte, to netip.AddrPort) error {
	_, _, err := s.conn.WriteMsgUDPAddrPort(b, oob, to)
	return err
}

func (s *socket) close() error { return s.conn.Close() }

// appendPath appends the control messages for a traffic class and hop limit.
// Nothing is appended for the defaults, 0 and 64.
func appendPath(oob []byte, trafficClass, hopLimit uint8) []byte {
	if trafficClass != 0 {
		oob = appendControl(oob, unix.IPPROTO_IP, unix.IP_TOS, uint32(trafficClass), 4)
	}
	if hopLimit != 0 && hopLimit != 64 {
		oob = appendControl(oob, unix.IPPROTO_IP, unix.IP_TTL, uint32(hopLimit), 4)
	}
	return oob
}

// appendSegment appends the control message that cuts a call into datagrams.
func appendSegment(oob []byte, segment int) []byte {
	return appendControl(oob, unix.IPPROTO_UDP, unix.UDP_SEGMENT, uint32(segment), 2)
}

// appendControl appends a control message with a value of 2 or 4 bytes, in the
// layout of struct cmsghdr.
func appendControl(oob []byte, level, kind int, value uint32, size int) []byte {
	start := len(oob)
	const lengthSize = unix.SizeofCmsghdr - 8
	if lengthSize == 8 {
		oob = binary.NativeEndian.AppendUint64(oob, uint64(unix.CmsgLen(size)))
	} else {
		oob = binary.NativeEndian.AppendUint32(oob, uint32(unix.CmsgLen(size)))
	}
	oob = binary.NativeEndian.AppendUint32(oob, uint32(level))
	oob = binary.NativeEndian.AppendUint32(oob, uint32(kind))
	if size == 2 {
		oob = binary.NativeEndian.AppendUint16(oob, uint16(value))
	} else {
		oob = binary.NativeEndian.AppendUint32(oob, value)
	}
	for len(oob) < start+unix.CmsgSpace(size) {
		oob = append(oob, 0)
	}
	return oob
}
