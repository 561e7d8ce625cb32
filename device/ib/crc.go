package ib

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
)

// crcInit is the register of a CRC-32 before its first byte. A register is the
// complement of the CRC that package hash/crc32 speaks of.
const crcInit = ^uint32(0)

// crcTables[i][b] is the register after byte b and i zero bytes.
var crcTables = func() (t [8][256]uint32) {
	t[0] = *crc32.IEEETable
	for b, v := range t[0] {
		for i := range t[1:] {
			v = t[0][v&0xff] ^ v>>8
			t[i+1][b] = v
		}
	}
	return t
}()

// crcShort moves a register over b, eight bytes a step. It is for headers built
// on the stack: what goes to package hash/crc32 moves to the heap, as that
// calls by a function variable.
func crcShort(reg uint32, b []byte) uint32 {
	t := &crcTables
	for len(b) >= 8 {
		v := binary.LittleEndian.Uint64(b) ^ uint64(reg)
		reg = t[7][v&0xff] ^ t[6][v>>8&0xff] ^ t[5][v>>16&0xff] ^ t[4][v>>24&0xff] ^
			t[3][v>>32&0xff] ^ t[2][v>>40&0xff] ^ t[1][v>>48&0xff] ^ t[0][v>>56]
		b = b[8:]
	}
	for _, c := range b {
		reg = t[0][byte(reg)^c] ^ reg>>8
	}
	return reg
}

// SolveIPv4ID finds the IP identification with which a packet has the given
// invariant CRC, for receivers whose socket hides it; p.ID does not count. parts
// are as in PseudoIPv4.ICRC. ok is false if no identification fits, and at most
// one does.
//
// A packet accepted this way is checked by 16 of the CRC's 32 bits only: of all
// corrupted packets, one in 65,536 finds an identification to go with it. Try
// the identification that is expected first.
func SolveIPv4ID(p PseudoIPv4, icrc uint32, parts ...[]byte) (id uint16, ok bool) {
	// A CRC is affine in the message. With two messages of one length that
	// differ in two bytes, the registers differ by what those two bytes leave
	// when a zero register runs over them and the k - 2 bytes behind them; that
	// is the register that starts with the two bytes and runs over k zero
	// bytes, which is a product with x^8k. So multiply by its inverse.
	const behindID = ipv4HeaderLen - 6 + udpHeaderLen
	p.ID = 0
	diff := p.ICRC(parts...) ^ icrc
	k := uint(2 + behindID + partsLen(parts))
	diff = polyMul(diff, backOne[k&0xff])
	diff = polyMul(diff, back256[k>>8&0xff])
	return bits.ReverseBytes16(uint16(diff)), diff <= 0xffff
}

// backOne[i] is x^-8i and back256[i] is x^-(8*256*i) modulo the polynomial of the
// CRC: factors that take a register back over i and 256*i zero bytes. Bit 31 of
// a value is the coefficient of 1, bit 0 that of x^31.
var backOne, back256 = func() (one, many [256]uint32) {
	one[0], many[0] = 1<<31, 1<<31
	for i := range one[1:] {
		one[i+1] = polyDivX8(one[i])
	}
	step := polyDivX8(one[255])
	for i := range many[1:] {
		many[i+1] = polyMul(many[i], step)
	}
	return one, many
}()

// polyDivX8 divides by x^8.
func polyDivX8(v uint32) uint32 {
	for range 8 {
		odd := v >> 31 // not divisible as it is: add the polynomial, which is 0
		v = (v^crc32.IEEE&-odd)<<1 | odd
	}
	return v
}

// polyMul multiplies modulo the polynomial.
func polyMul(a, b uint32) (r uint32) {
	for range 32 {
		r ^= a & -(b >> 31)
		a = a>>1 ^ crc32.IEEE&-(a&1)
		b <<= 1
	}
	return r
}
