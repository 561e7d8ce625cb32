package ib

import "encoding/binary"

// The lengths of the extension headers in bytes.
const (
	RETHLen         = 16
	AETHLen         = 4
	DETHLen         = 8
	ImmDtLen        = 4
	AtomicETHLen    = 28
	AtomicAckETHLen = 8
	IETHLen         = 4
)

// RETH says what remote memory a WRITE or READ is about.
type RETH struct {
	VA     uint64 // remote address
	RKey   RKey
	Length uint32 // bytes of the whole message, at most 2^31
}

// Append appends the 16 bytes of the header to b.
func (h *RETH) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, h.VA)
	b = binary.BigEndian.AppendUint32(b, uint32(h.RKey))
	return binary.BigEndian.AppendUint32(b, h.Length)
}

// Parse reads the header from the front of b and returns what follows. The
// error is ErrTruncated or nil.
func (h *RETH) Parse(b []byte) (rest []byte, err error) {
	if len(b) < RETHLen {
		return nil, truncated("RETH", len(b), RETHLen)
	}
	h.VA = binary.BigEndian.Uint64(b)
	h.RKey = RKey(binary.BigEndian.Uint32(b[8:]))
	h.Length = binary.BigEndian.Uint32(b[12:])
	return b[RETHLen:], nil
}

// DETH says whom a datagram comes from and with which key.
type DETH struct {
	QKey     QKey
	Reserved uint8
	SrcQP    QPN
}

// Append appends the 8 bytes of the header to b.
func (h *DETH) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(h.QKey))
	return binary.BigEndian.AppendUint32(b, uint32(h.Reserved)<<24|uint32(h.SrcQP&MaxQPN))
}

// Parse reads the header from the front of b and returns what follows. The
// error is ErrTruncated or nil.
func (h *DETH) Parse(b []byte) (rest []byte, err error) {
	if len(b) < DETHLen {
		return nil, truncated("DETH", len(b), DETHLen)
	}
	h.QKey = QKey(binary.BigEndian.Uint32(b))
	h.Reserved = b[4]
	h.SrcQP = QPN(binary.BigEndian.Uint32(b[4:])) & MaxQPN
	return b[DETHLen:], nil
}

// ImmDt is immediate data, in host order; big-endian on the wire.
type ImmDt uint32

// Append appends the 4 bytes to b.
func (d ImmDt) Append(b []byte) []byte { return binary.BigEndian.AppendUint32(b, uint32(d)) }

// Parse reads the data from the front of b and returns what follows. The error
// is ErrTruncated or nil.
func (d *ImmDt) Parse(b []byte) (rest []byte, err error) {
	if len(b) < ImmDtLen {
		return nil, truncated("ImmDt", len(b), ImmDtLen)
	}
	*d = ImmDt(binary.BigEndian.Uint32(b))
	return b[ImmDtLen:], nil
}

// AtomicETH carries an atomic operation on the 8 bytes at VA, which must be a
// multiple of 8.
type AtomicETH struct {
	VA      uint64
	RKey    RKey
	Swap    uint64 // compare-swap: the new value; fetch-add: the addend
	Compare uint64 // compare-swap: the value expected; fetch-add: unused
}

// Append appends the 28 bytes of the header to b.
func (h *AtomicETH) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, h.VA)
	b = binary.BigEndian.AppendUint32(b, uint32(h.RKey))
	b = binary.BigEndian.AppendUint64(b, h.Swap)
	return binary.BigEndian.AppendUint64(b, h.Compare)
}

// Parse reads the header from the front of b and returns what follows. The
// error is ErrTruncated or nil.
func (h *AtomicETH) Parse(b []byte) (rest []byte, err error) {
	if len(b) < AtomicETHLen {
		return nil, truncated("AtomicETH", len(b), AtomicETHLen)
	}
	h.VA = binary.BigEndian.Uint64(b)
	h.RKey = RKey(binary.BigEndian.Uint32(b[8:]))
	h.Swap = binary.BigEndian.Uint64(b[12:])
	h.Compare = binary.BigEndian.Uint64(b[20:])
	return b[AtomicETHLen:], nil
}

// AtomicAckETH carries the value that was in memory before an atomic operation.
type AtomicAckETH struct {
	Original uint64
}

// Append appends the 8 bytes of the header to b.
func (h *AtomicAckETH) Append(b []byte) []byte { return binary.BigEndian.AppendUint64(b, h.Original) }

// Parse reads the header from the front of b and returns what follows. The
// error is ErrTruncated or nil.
func (h *AtomicAckETH) Parse(b []byte) (rest []byte, err error) {
	if len(b) < AtomicAckETHLen {
		return nil, truncated("AtomicAckETH", len(b), AtomicAckETHLen)
	}
	h.Original = binary.BigEndian.Uint64(b)
	return b[AtomicAckETHLen:], nil
}

// IETH names the key that a SEND with invalidate ends.
type IETH struct {
	RKey RKey
}

// Append appends the 4 bytes of the header to b.
func (h *IETH) Append(b []byte) []byte { return binary.BigEndian.AppendUint32(b, uint32(h.RKey)) }

// Parse reads the header from the front of b and returns what follows. The
// error is ErrTruncated or nil.
func (h *IETH) Parse(b []byte) (rest []byte, err error) {
	if len(b) < IETHLen {
		return nil, truncated("IETH", len(b), IETHLen)
	}
	h.RKey = RKey(binary.BigEndian.Uint32(b))
	return b[IETHLen:], nil
}
