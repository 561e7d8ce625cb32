package ib

import (
	"encoding/binary"
	"fmt"
)

// AETH is the acknowledge extension header.
type AETH struct {
	Syndrome Syndrome
	MSN      uint32 // 24 bits: messages completed by the responder
}

// Append appends the 4 bytes of the header to b.
func (h *AETH) Append(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, uint32(h.Syndrome)<<24|h.MSN&(1<<24-1))
}

// Parse reads the header from the front of b and returns what follows. The
// error is ErrTruncated or nil.
func (h *AETH) Parse(b []byte) (rest []byte, err error) {
	if len(b) < AETHLen {
		return nil, truncated("AETH", len(b), AETHLen)
	}
	h.Syndrome = Syndrome(b[0])
	h.MSN = binary.BigEndian.Uint32(b) & (1<<24 - 1)
	return b[AETHLen:], nil
}

// Syndrome says what an AETH means: two bits of kind and five of value (the
// AETH masks in drivers/infiniband/sw/rxe/rxe_hdr.h).
type Syndrome uint8

// SyndromeKind tells acknowledgements apart.
type SyndromeKind uint8

// The kinds of syndromes. All others are KindReserved, which a requester drops.
const (
	KindReserved SyndromeKind = iota
	KindAck
	KindRNRNak // receiver not ready: try again after a while
	KindNak
)

const (
	syndromeRNR = 0x20
	syndromeNak = 0x60
	valueMask   = 0x1f
)

// UnlimitedCredits is the credit code of a responder that does not count
// credits.
const UnlimitedCredits = 31

// AckSyndrome makes a positive acknowledgement; credits is the specification's
// code of 0 to 31, of which UnlimitedCredits turns end-to-end flow control off.
func AckSyndrome(credits uint8) Syndrome { return Syndrome(credits & valueMask) }

// RNRNak makes a receiver-not-ready answer with a timer code of 0 to 31.
func RNRNak(timer uint8) Syndrome { return syndromeRNR | Syndrome(timer&valueMask) }

// Nak makes a negative acknowledgement.
func Nak(code NakCode) Syndrome { return syndromeNak | Syndrome(code&valueMask) }

// Kind tells which of the other methods has a meaning.
func (s Syndrome) Kind() SyndromeKind {
	switch s &^ valueMask {
	case 0:
		return KindAck
	case syndromeRNR:
		return KindRNRNak
	case syndromeNak:
		return KindNak
	}
	return KindReserved
}

// Credits gives the credit code of a KindAck.
func (s Syndrome) Credits() uint8 { return uint8(s & valueMask) }

// RNRTimer gives the timer code of a KindRNRNak; the function RNRTimer says how
// long that is.
func (s Syndrome) RNRTimer() uint8 { return uint8(s & valueMask) }

// NakCode gives the reason of a KindNak.
func (s Syndrome) NakCode() NakCode { return NakCode(s & valueMask) }

// String gives the kind and its value.
func (s Syndrome) String() string {
	switch s.Kind() {
	case KindAck:
		return fmt.Sprintf("ACK credits %d", s.Credits())
	case KindRNRNak:
		return fmt.Sprintf("RNR NAK %v", RNRTimer(s.RNRTimer()))
	case KindNak:
		return fmt.Sprintf("NAK %v", s.NakCode())
	}
	return fmt.Sprintf("Syndrome(%#02x)", uint8(s))
}

// NakCode is the reason of a negative acknowledgement, 5 bits.
type NakCode uint8

// The NAK codes.
const (
	PSNSequenceError       NakCode = 0 // a gap; the PSN of the NAK is the one expected
	InvalidRequest         NakCode = 1
	RemoteAccessError      NakCode = 2 // R_Key, range or permission
	RemoteOperationalError NakCode = 3
	InvalidRDRequest       NakCode = 4
)

// String gives the specification's words.
func (c NakCode) String() string {
	switch c {
	case PSNSequenceError:
		return "PSN sequence error"
	case InvalidRequest:
		return "invalid request"
	case RemoteAccessError:
		return "remote access error"
	case RemoteOperationalError:
		return "remote operational error"
	case InvalidRDRequest:
		return "invalid RD request"
	}
	return fmt.Sprintf("NakCode(%d)", uint8(c))
}
