package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// maxDatagrams is the bytes that one call sends or receives: the length field
// of IPv4 less the headers of IP and UDP.
const maxDatagrams = 65535 - 28

// udpSocket is a plain UDP socket that can send and receive many datagrams in
// one call.
type udpSocket struct {
	*net.UDPConn
	in, out [64]byte // control messages
}

// listenUDP opens a socket. With many set, one call of readMany may give several
// datagrams (UDP_GRO).
func listenUDP(addr netip.AddrPort, many bool) (*udpSocket, error) {
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return nil, err
	}
	if err = receiveBuffer(conn, 4<<20); err == nil {
		err = option(conn, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	}
	if err == nil && many {
		err = option(conn, unix.IPPROTO_UDP, unix.UDP_GRO, 1)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("UDP socket: %w", err)
	}
	return &udpSocket{UDPConn: conn}, nil
}

// addr is where the socket is bound.
func (s *udpSocket) addr() netip.AddrPort { return s.LocalAddr().(*net.UDPAddr).AddrPort() }

// readMany receives one or several datagrams, all of segment bytes but the last.
func (s *udpSocket) readMany(b []byte) (n, segment int, err error) {
	n, control, _, _, err := s.ReadMsgUDPAddrPort(b, s.in[:])
	if err != nil || control == 0 {
		return n, n, err
	}
	header, data, _, err := unix.ParseOneSocketControlMessage(s.in[:control])
	if err != nil {
		return 0, 0, err
	}
	if header.Level != unix.IPPROTO_UDP || header.Type != unix.UDP_GRO || len(data) < 4 {
		return n, n, nil
	}
	return n, int(binary.NativeEndian.Uint32(data)), nil
}

// writeMany sends b as datagrams of segment bytes, the last one perhaps shorter.
func (s *udpSocket) writeMany(b []byte, segment int, to netip.AddrPort) error {
	if len(b) <= segment {
		_, err := s.WriteToUDPAddrPort(b, to)
		return err
	}
	control := s.out[:unix.CmsgSpace(2)]
	binary.NativeEndian.PutUint64(control, uint64(unix.CmsgLen(2)))
	binary.NativeEndian.PutUint32(control[8:], unix.IPPROTO_UDP)
	binary.NativeEndian.PutUint32(control[12:], unix.UDP_SEGMENT)
	binary.NativeEndian.PutUint16(control[unix.CmsgLen(0):], uint16(segment))
	_, _, err := s.WriteMsgUDPAddrPort(b, control, to)
	return err
}

// option sets one of a socket's options.
func option(conn *net.UDPConn, level, name, value int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	return errors.Join(raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), level, name, value) }), set)
}

// receiveBuffer gives a socket a receive buffer, beyond the system's limit
// where the process may.
func receiveBuffer(conn *net.UDPConn, size int) error {
	if option(conn, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size) == nil {
		return nil
	}
	return conn.SetReadBuffer(size)
}
