package soft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/accelfab/accelfab/device/ib"
)

const (
	// socketBuffer is what a port asks the kernel for, in bytes, each way. It
	// costs nothing while packets do not wait.
	socketBuffer = 16 << 20
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
// invariant CRC covers. IPv6 has no identification.
type socket struct {
	conn     *net.UDPConn
	addr     netip.Addr  // without zone
	recvRoom int         // bytes of receive buffer that the kernel gave
	segments atomic.Bool // one call sends many datagrams (UDP_SEGMENT)
	oob      [128]byte
}

// openSocket binds the RoCE v2 port of an address, which has its zone if it is
// an IPv6 link-local one. errors.Is finds errHeld where another process has it.
func openSocket(addr netip.Addr) (*socket, error) {
	s := &socket{addr: addr.WithZone("")}
	network := "udp4"
	if addr.Is6() {
		network = "udp6"
	}
	listen := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var op error
		return errors.Join(raw.Control(func(fd uintptr) { op = s.setOptions(int(fd)) }), op)
	}}
	conn, err := listen.ListenPacket(context.Background(), network, netip.AddrPortFrom(addr, ib.UDPPort).String())
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("address %v, UDP port %d: %w, perhaps a second daemon or Soft-RoCE of this machine: end that, or use another address", addr, ib.UDPPort, errHeld)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%w: give the address to an interface of this machine, or use a network inside %v", err, loopbackNet)
	case err != nil:
		return nil, err
	}
	s.conn = conn.(*net.UDPConn)
	return s, nil
}

// option is a socket option that a socket cannot do without.
type option struct {
	name              string
	level, key, value int
}

var (
	optionsIPv4 = []option{
		{"IP_MTU_DISCOVER", unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO},
		{"IP_RECVTOS", unix.IPPROTO_IP, unix.IP_RECVTOS, 1},
		{"IP_RECVTTL", unix.IPPROTO_IP, unix.IP_RECVTTL, 1},
	}
	optionsIPv6 = []option{
		{"IPV6_MTU_DISCOVER", unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO},
		{"IPV6_RECVTCLASS", unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1},
		{"IPV6_RECVHOPLIMIT", unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1},
		// A new address cannot be bound for a second or two, while Linux looks
		// whether somebody else has it.
		{"IPV6_FREEBIND", unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1},
		// Soft-RoCE sends the UDP checksum 0, which IPv6 allows for tunnels
		// alone (RFC 6935): the invariant CRC takes its place.
		{"UDP_NO_CHECK6_RX", unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1},
	}
)

func (s *socket) setOptions(fd int) error {
	options := optionsIPv4
	if s.addr.Is6() {
		options = optionsIPv6
	}
	for _, o := range slices.Concat(options, []option{{"SO_RXQ_OVFL", unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1}}) {
		if err := unix.SetsockoptInt(fd, o.level, o.key, o.value); err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
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
	// Both are faster ways of what also goes without.
	s.segments.Store(unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 0) == nil)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1)
	return nil
}

// arrival is what one call received.
type arrival struct {
	from    netip.AddrPort // without zone
	segment int            // bytes of each datagram but the last
	tos     uint8          // type of service, or traffic class, of the first
	ttl     uint8          // time to live, or hop limit, of the first
	drops   uint32         // datagrams that the kernel had no room for since the socket was opened, as far as told
}

// read receives one datagram, or several that the kernel joined, into b, which
// should have maxDatagrams bytes. One goroutine at a time.
func (s *socket) read(b []byte) (n int, a arrival, err error) {
	n, oobn, _, from, err := s.conn.ReadMsgUDPAddrPort(b, s.oob[:])
	if err != nil {
		return 0, arrival{}, err
	}
	a = arrival{from: netip.AddrPortFrom(from.Addr().WithZone(""), from.Port()), segment: n}
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
		case header.Level == unix.IPPROTO_IPV6 && header.Type == unix.IPV6_TCLASS && len(data) >= 4:
			a.tos = uint8(binary.NativeEndian.Uint32(data))
		case header.Level == unix.IPPROTO_IPV6 && header.Type == unix.IPV6_HOPLIMIT && len(data) >= 4:
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
func appendPath(oob []byte, is6 bool, trafficClass, hopLimit uint8) []byte {
	level, class, limit := unix.IPPROTO_IP, unix.IP_TOS, unix.IP_TTL
	if is6 {
		level, class, limit = unix.IPPROTO_IPV6, unix.IPV6_TCLASS, unix.IPV6_HOPLIMIT
	}
	if trafficClass != 0 {
		oob = appendControl(oob, level, class, uint32(trafficClass), 4)
	}
	if hopLimit != 0 && hopLimit != 64 {
		oob = appendControl(oob, level, limit, uint32(hopLimit), 4)
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
