package ib

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// What errors.Is finds in the errors of Parse.
var (
	ErrTruncated = errors.New("packet too short")
	ErrOpcode    = errors.New("unknown opcode")
	ErrVersion   = errors.New("unknown transport header version")
	ErrPad       = errors.New("wrong pad count")
	ErrTrailing  = errors.New("bytes after a packet without payload")
)

// UDPPort is the destination port of RoCE v2.
const UDPPort = 4791

// BTHLen is the length of a BTH in bytes.
const BTHLen = 12

// BTH is the base transport header, which begins every packet. Reserved bits
// are kept, so that what was parsed is appended byte for byte.
type BTH struct {
	Opcode         Opcode
	SolicitedEvent bool
	MigReq         bool
	PadCount       uint8 // 0 to 3
	Version        uint8 // 4 bits; 0 is the only version there is
	PKey           PKey
	FECN, BECN     bool // congestion seen forward, to be told backward; not under the ICRC
	Reserved6      uint8
	DestQP         QPN
	AckReq         bool
	Reserved7      uint8
	PSN            PSN
}

// Append appends the 12 bytes of the header to b.
func (h *BTH) Append(b []byte) []byte {
	flags := h.PadCount&3<<4 | h.Version&0xf
	if h.SolicitedEvent {
		flags |= 1 << 7
	}
	if h.MigReq {
		flags |= 1 << 6
	}
	qp := uint32(h.Reserved6&0x3f)<<24 | uint32(h.DestQP&MaxQPN)
	if h.FECN {
		qp |= 1 << 31
	}
	if h.BECN {
		qp |= 1 << 30
	}
	psn := uint32(h.Reserved7&0x7f)<<24 | uint32(h.PSN&psnMask)
	if h.AckReq {
		psn |= 1 << 31
	}
	b = append(b, byte(h.Opcode), flags)
	b = binary.BigEndian.AppendUint16(b, uint16(h.PKey))
	b = binary.BigEndian.AppendUint32(b, qp)
	return binary.BigEndian.AppendUint32(b, psn)
}

// Parse reads the header from the front of b and returns what follows. It
// accepts every opcode and version; the error is ErrTruncated or nil.
func (h *BTH) Parse(b []byte) (rest []byte, err error) {
	if len(b) < BTHLen {
		return nil, truncated("BTH", len(b), BTHLen)
	}
	qp, psn := binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	*h = BTH{
		Opcode:         Opcode(b[0]),
		SolicitedEvent: b[1]&(1<<7) != 0,
		MigReq:         b[1]&(1<<6) != 0,
		PadCount:       b[1] >> 4 & 3,
		Version:        b[1] & 0xf,
		PKey:           PKey(binary.BigEndian.Uint16(b[2:])),
		FECN:           qp&(1<<31) != 0,
		BECN:           qp&(1<<30) != 0,
		Reserved6:      uint8(qp >> 24 & 0x3f),
		DestQP:         QPN(qp) & MaxQPN,
		AckReq:         psn&(1<<31) != 0,
		Reserved7:      uint8(psn >> 24 & 0x7f),
		PSN:            PSN(psn & psnMask),
	}
	return b[BTHLen:], nil
}

func truncated(header string, have, want int) error {
	return fmt.Errorf("%s: %w: %d bytes, want %d", header, ErrTruncated, have, want)
}
