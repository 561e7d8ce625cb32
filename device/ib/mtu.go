package ib

import (
	"fmt"
	"strconv"
)

// MTU is a path MTU as the specification enumerates it: the largest payload of
// one packet, headers not counted.
type MTU uint8

// The path MTUs.
const (
	MTU256  MTU = 1
	MTU512  MTU = 2
	MTU1024 MTU = 3
	MTU2048 MTU = 4
	MTU4096 MTU = 5
)

// Valid reports whether m is one of the five.
func (m MTU) Valid() bool { return m >= MTU256 && m <= MTU4096 }

// Bytes gives the payload bytes, 0 if m is not valid.
func (m MTU) Bytes() int {
	if !m.Valid() {
		return 0
	}
	return 128 << m
}

// String gives the bytes in decimal.
func (m MTU) String() string {
	if !m.Valid() {
		return fmt.Sprintf("MTU(%d)", uint8(m))
	}
	return strconv.Itoa(m.Bytes())
}

// MTUFromBytes gives the MTU of exactly n payload bytes; ok is false if there
// is none.
func MTUFromBytes(n int) (m MTU, ok bool) {
	m = LargestMTU(n)
	return m, m.Valid() && m.Bytes() == n
}

// LargestMTU gives the largest MTU of at most n payload bytes, and 0, which is
// not valid, for n below 256.
func LargestMTU(n int) MTU {
	m := MTU4096
	for m > 0 && m.Bytes() > n {
		m--
	}
	return m
}
