package ib

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// ICRCLen is the length of the invariant CRC, which ends every packet.
const ICRCLen = 4

// AppendICRC appends the invariant CRC to b as it goes on the wire, which is
// little-endian.
func AppendICRC(b []byte, icrc uint32) []byte { return binary.LittleEndian.AppendUint32(b, icrc) }

// CutICRC takes the invariant CRC from the end of b, a packet as received; ok
// is false if b is shorter than that.
func CutICRC(b []byte) (rest []byte, icrc uint32, ok bool) {
	if len(b) < ICRCLen {
		return nil, 0, false
	}
	n := len(b) - ICRCLen
	return b[:n], binary.LittleEndian.Uint32(b[n:]), true
}

const (
	ipv4HeaderLen = 20
	ipv6HeaderLen = 40
	udpHeaderLen  = 8
	protocolUDP   = 17
)

// maskedLRH stands where native InfiniBand has its link header: eight bytes ff.
const maskedLRH = 8

// ICRC computes the invariant CRC over a whole IPv4 or IPv6 packet with UDP
// inside, from the IP header through the pad, the ICRC already cut off. It does
// not look at whether the CRC was right: compare. The error wraps ErrTruncated
// where b is too short for its headers and a BTH, and says so where it is no
// UDP over IP.
//
// What routers may change counts as all ones: of IPv4 the type of service, time
// to live and checksum; of IPv6 the traffic class, flow label and hop limit;
// the UDP checksum; byte 4 of the BTH. All else is covered, also the IPv4
// identification and total length.
func ICRC(ip []byte) (uint32, error) {
	var buf [maskedLRH + 60 + udpHeaderLen + BTHLen]byte
	if len(ip) < ipv4HeaderLen {
		return 0, truncated("IP", len(ip), ipv4HeaderLen)
	}
	var ipLen int
	var protocol byte
	switch ip[0] >> 4 {
	case 4:
		ipLen, protocol = int(ip[0]&0xf)*4, ip[9]
	case 6:
		ipLen, protocol = ipv6HeaderLen, ip[6]
	default:
		return 0, fmt.Errorf("IP version %d, want 4 or 6", ip[0]>>4)
	}
	if protocol != protocolUDP {
		return 0, fmt.Errorf("IP protocol %d, want %d (UDP)", protocol, protocolUDP)
	}
	if ipLen < ipv4HeaderLen {
		return 0, fmt.Errorf("IPv4 header of %d bytes, want at least %d", ipLen, ipv4HeaderLen)
	}
	n := ipLen + udpHeaderLen + BTHLen
	if len(ip) < n {
		return 0, truncated("IP, UDP and BTH", len(ip), n)
	}
	h := buf[maskedLRH:][:n]
	copy(h, ip)
	if ip[0]>>4 == 4 {
		h[1], h[8], h[10], h[11] = 0xff, 0xff, 0xff, 0xff
	} else {
		h[0] |= 0xf
		h[1], h[2], h[3], h[7] = 0xff, 0xff, 0xff, 0xff
	}
	h[ipLen+6], h[ipLen+7] = 0xff, 0xff
	h[ipLen+udpHeaderLen+4] = 0xff
	binary.LittleEndian.PutUint64(buf[:], ^uint64(0))
	return crc32.Update(^crcShort(crcInit, buf[:maskedLRH+n]), crc32.IEEETable, ip[n:]), nil
}

// PseudoIPv4 has the fields of the IPv4 and UDP headers that the invariant CRC
// covers, for ends that leave the making of these headers to a socket. Ports
// are in host order.
type PseudoIPv4 struct {
	Src, Dst         [4]byte
	SrcPort, DstPort uint16
	ID               uint16 // the identification that the packet will have, or had
	DontFragment     bool
}

// ICRC computes the invariant CRC of a packet whose bytes from the BTH through
// the pad are parts, one after the other; the first part must hold at least the
// BTH, else it panics. It allocates nothing.
func (p PseudoIPv4) ICRC(parts ...[]byte) uint32 {
	var buf [maskedLRH + ipv4HeaderLen + udpHeaderLen]byte
	n := partsLen(parts)
	binary.LittleEndian.PutUint64(buf[:], ^uint64(0))
	h := buf[maskedLRH:]
	h[0], h[1] = 0x45, 0xff
	binary.BigEndian.PutUint16(h[2:], uint16(ipv4HeaderLen+udpHeaderLen+n+ICRCLen))
	binary.BigEndian.PutUint16(h[4:], p.ID)
	if p.DontFragment {
		h[6] = 0x40
	}
	h[8], h[9], h[10], h[11] = 0xff, protocolUDP, 0xff, 0xff
	copy(h[12:16], p.Src[:])
	copy(h[16:20], p.Dst[:])
	putUDP(h[ipv4HeaderLen:], p.SrcPort, p.DstPort, n)
	return crcTransport(crcShort(crcInit, buf[:]), parts)
}

// PseudoIPv6 is PseudoIPv4 for IPv6, whose header has no more that is covered.
type PseudoIPv6 struct {
	Src, Dst         [16]byte
	SrcPort, DstPort uint16
}

// ICRC computes the invariant CRC as PseudoIPv4.ICRC does.
func (p PseudoIPv6) ICRC(parts ...[]byte) uint32 {
	var buf [maskedLRH + ipv6HeaderLen + udpHeaderLen]byte
	n := partsLen(parts)
	binary.LittleEndian.PutUint64(buf[:], ^uint64(0))
	h := buf[maskedLRH:]
	h[0], h[1], h[2], h[3] = 0x6f, 0xff, 0xff, 0xff
	binary.BigEndian.PutUint16(h[4:], uint16(udpHeaderLen+n+ICRCLen))
	h[6], h[7] = protocolUDP, 0xff
	copy(h[8:24], p.Src[:])
	copy(h[24:40], p.Dst[:])
	putUDP(h[ipv6HeaderLen:], p.SrcPort, p.DstPort, n)
	return crcTransport(crcShort(crcInit, buf[:]), parts)
}

func partsLen(parts [][]byte) (n int) {
	for _, b := range parts {
		n += len(b)
	}
	return n
}

// putUDP writes a UDP header over n bytes of transport and an ICRC, with its
// checksum masked.
func putUDP(h []byte, src, dst uint16, n int) {
	binary.BigEndian.PutUint16(h, src)
	binary.BigEndian.PutUint16(h[2:], dst)
	binary.BigEndian.PutUint16(h[4:], uint16(udpHeaderLen+n+ICRCLen))
	h[6], h[7] = 0xff, 0xff
}

// crcTransport goes on from the register after the IP and UDP headers and gives
// the CRC. Of the BTH, byte 4 is masked.
func crcTransport(reg uint32, parts [][]byte) uint32 {
	var bth [BTHLen]byte
	copy(bth[:], parts[0][:BTHLen])
	bth[4] = 0xff
	crc := ^crcShort(reg, bth[:])
	crc = crc32.Update(crc, crc32.IEEETable, parts[0][BTHLen:])
	for _, b := range parts[1:] {
		crc = crc32.Update(crc, crc32.IEEETable, b)
	}
	return crc
}
