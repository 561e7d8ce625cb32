package boltstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"unicode"
	"unicode/utf8"
)

// A frame is what stands under a key:
//
//	version  1 byte, frameVersion
//	length   2 bytes, big-endian: bytes of name
//	name
//	value
//	checksum 4 bytes, big-endian: CRC-32C of the key and of all before
//
// The key is in the checksum so that a frame at the wrong place is found.
const (
	frameVersion = 1
	frameHead    = 3
	frameTail    = 4
	maxName      = 1<<16 - 1
	maxValue     = 16 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Reasons why a frame cannot be read.
var (
	errFrameShort    = errors.New("shorter than a frame")
	errFrameVersion  = errors.New("unknown frame version")
	errFrameChecksum = errors.New("wrong checksum")
	errFrameName     = errors.New("name longer than the frame")
)

// key gives the 8 bytes of an id or a revision.
func key(n uint64) []byte { return appendKey(nil, n) }

func appendKey(b []byte, n uint64) []byte { return binary.BigEndian.AppendUint64(b, n) }

// frameSize gives the bytes of a frame.
func frameSize(name string, value []byte) int {
	return frameHead + len(name) + len(value) + frameTail
}

// appendFrame appends the frame of name and value, which may come in pieces,
// under key to b. The caller has checked their lengths.
func appendFrame(b, key []byte, name string, value ...[]byte) []byte {
	start := len(b)
	b = append(b, frameVersion)
	b = binary.BigEndian.AppendUint16(b, uint16(len(name)))
	b = append(b, name...)
	for _, piece := range value {
		b = append(b, piece...)
	}
	return binary.BigEndian.AppendUint32(b, checksum(key, b[start:]))
}

func checksum(key, b []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, key), castagnoli, b)
}

// parseFrame takes a frame apart. name and value are parts of b.
func parseFrame(key, b []byte) (name, value []byte, err error) {
	if len(b) < frameHead+frameTail {
		return nil, nil, fmt.Errorf("%w: %d bytes", errFrameShort, len(b))
	}
	// The version comes first: what another version sums up is not known.
	if b[0] != frameVersion {
		return nil, nil, fmt.Errorf("%w %d, this program knows %d", errFrameVersion, b[0], frameVersion)
	}
	body, tail := b[:len(b)-frameTail], b[len(b)-frameTail:]
	if want, is := binary.BigEndian.Uint32(tail), checksum(key, body); want != is {
		return nil, nil, fmt.Errorf("%w: %08x, the bytes give %08x", errFrameChecksum, want, is)
	}
	n := int(binary.BigEndian.Uint16(body[1:]))
	if frameHead+n > len(body) {
		return nil, nil, errFrameName
	}
	return body[frameHead : frameHead+n], body[frameHead+n:], nil
}

// guessName reads the name of a frame that parseFrame refused, if it looks
// like one: it only serves to tell an operator which record it was.
func guessName(b []byte) (string, bool) {
	if len(b) < frameHead+frameTail || b[0] != frameVersion {
		return "", false
	}
	n := int(binary.BigEndian.Uint16(b[1:]))
	if n == 0 || frameHead+n+frameTail > len(b) {
		return "", false
	}
	name := b[frameHead : frameHead+n]
	if !utf8.Valid(name) {
		return "", false
	}
	for _, r := range string(name) {
		if !unicode.IsPrint(r) {
			return "", false
		}
	}
	return string(name), true
}
