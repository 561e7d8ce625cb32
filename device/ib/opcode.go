package ib

import "fmt"

// Opcode is the first byte of the BTH: three bits of transport, five of
// operation.
type Opcode uint8

// The opcodes (enum in include/rdma/ib_pack.h).
const (
	RCSendFirst              Opcode = 0x00
	RCSendMiddle             Opcode = 0x01
	RCSendLast               Opcode = 0x02
	RCSendLastImm            Opcode = 0x03
	RCSendOnly               Opcode = 0x04
	RCSendOnlyImm            Opcode = 0x05
	RCRDMAWriteFirst         Opcode = 0x06
	RCRDMAWriteMiddle        Opcode = 0x07
	RCRDMAWriteLast          Opcode = 0x08
	RCRDMAWriteLastImm       Opcode = 0x09
	RCRDMAWriteOnly          Opcode = 0x0a
	RCRDMAWriteOnlyImm       Opcode = 0x0b
	RCRDMAReadRequest        Opcode = 0x0c
	RCRDMAReadResponseFirst  Opcode = 0x0d
	RCRDMAReadResponseMiddle Opcode = 0x0e
	RCRDMAReadResponseLast   Opcode = 0x0f
	RCRDMAReadResponseOnly   Opcode = 0x10
	RCAcknowledge            Opcode = 0x11
	RCAtomicAcknowledge      Opcode = 0x12
	RCCompareSwap            Opcode = 0x13
	RCFetchAdd               Opcode = 0x14
	RCSendLastInvalidate     Opcode = 0x16
	RCSendOnlyInvalidate     Opcode = 0x17

	UCSendFirst        Opcode = 0x20
	UCSendMiddle       Opcode = 0x21
	UCSendLast         Opcode = 0x22
	UCSendLastImm      Opcode = 0x23
	UCSendOnly         Opcode = 0x24
	UCSendOnlyImm      Opcode = 0x25
	UCRDMAWriteFirst   Opcode = 0x26
	UCRDMAWriteMiddle  Opcode = 0x27
	UCRDMAWriteLast    Opcode = 0x28
	UCRDMAWriteLastImm Opcode = 0x29
	UCRDMAWriteOnly    Opcode = 0x2a
	UCRDMAWriteOnlyImm Opcode = 0x2b

	UDSendOnly    Opcode = 0x64
	UDSendOnlyImm Opcode = 0x65

	// CNP is the congestion notification packet. It belongs to no transport
	// service and is neither request nor response; the 16 reserved bytes
	// after its BTH are its payload.
	CNP Opcode = 0x81
)

type opFlags uint16

const (
	opValid opFlags = 1 << iota
	opRequest
	opResponse
	opFirst
	opMiddle
	opLast
	opOnly
	opPayload
	opRETH
	opAETH
	opDETH
	opImm
	opAtomicETH
	opAtomicAck
	opIETH
)

// operations says what the lower five bits mean. Extension headers follow the
// BTH in the order DETH, RETH, AtomicETH, AETH, AtomicAckETH, ImmDt, IETH; no
// opcode has more than two.
var operations = [...]struct {
	name  string
	flags opFlags
}{
	0x00: {"SEND_FIRST", opRequest | opFirst | opPayload},
	0x01: {"SEND_MIDDLE", opRequest | opMiddle | opPayload},
	0x02: {"SEND_LAST", opRequest | opLast | opPayload},
	0x03: {"SEND_LAST_WITH_IMMEDIATE", opRequest | opLast | opPayload | opImm},
	0x04: {"SEND_ONLY", opRequest | opOnly | opPayload},
	0x05: {"SEND_ONLY_WITH_IMMEDIATE", opRequest | opOnly | opPayload | opImm},
	0x06: {"RDMA_WRITE_FIRST", opRequest | opFirst | opPayload | opRETH},
	0x07: {"RDMA_WRITE_MIDDLE", opRequest | opMiddle | opPayload},
	0x08: {"RDMA_WRITE_LAST", opRequest | opLast | opPayload},
	0x09: {"RDMA_WRITE_LAST_WITH_IMMEDIATE", opRequest | opLast | opPayload | opImm},
	0x0a: {"RDMA_WRITE_ONLY", opRequest | opOnly | opPayload | opRETH},
	0x0b: {"RDMA_WRITE_ONLY_WITH_IMMEDIATE", opRequest | opOnly | opPayload | opRETH | opImm},
	0x0c: {"RDMA_READ_REQUEST", opRequest | opOnly | opRETH},
	0x0d: {"RDMA_READ_RESPONSE_FIRST", opResponse | opFirst | opPayload | opAETH},
	0x0e: {"RDMA_READ_RESPONSE_MIDDLE", opResponse | opMiddle | opPayload},
	0x0f: {"RDMA_READ_RESPONSE_LAST", opResponse | opLast | opPayload | opAETH},
	0x10: {"RDMA_READ_RESPONSE_ONLY", opResponse | opOnly | opPayload | opAETH},
	0x11: {"ACKNOWLEDGE", opResponse | opOnly | opAETH},
	0x12: {"ATOMIC_ACKNOWLEDGE", opResponse | opOnly | opAETH | opAtomicAck},
	0x13: {"COMPARE_SWAP", opRequest | opOnly | opAtomicETH},
	0x14: {"FETCH_ADD", opRequest | opOnly | opAtomicETH},
	0x16: {"SEND_LAST_WITH_INVALIDATE", opRequest | opLast | opPayload | opIETH},
	0x17: {"SEND_ONLY_WITH_INVALIDATE", opRequest | opOnly | opPayload | opIETH},
}

type opInfo struct {
	name      string
	flags     opFlags
	typ       QPType
	headerLen uint8
}

var opcodes = func() (t [256]opInfo) {
	add := func(op Opcode, name string, typ QPType, flags opFlags) {
		n := BTHLen
		for _, h := range [...]struct {
			flag opFlags
			len  int
		}{
			{opRETH, RETHLen}, {opAETH, AETHLen}, {opDETH, DETHLen}, {opImm, ImmDtLen},
			{opAtomicETH, AtomicETHLen}, {opAtomicAck, AtomicAckETHLen}, {opIETH, IETHLen},
		} {
			if flags&h.flag != 0 {
				n += h.len
			}
		}
		t[op] = opInfo{name, flags | opValid, typ, uint8(n)}
	}
	for i, o := range operations {
		op := Opcode(i)
		if o.name == "" {
			continue
		}
		add(op, "RC_"+o.name, RC, o.flags)
		if op <= RCRDMAWriteOnlyImm {
			add(op|0x20, "UC_"+o.name, UC, o.flags)
		}
		if op == RCSendOnly || op == RCSendOnlyImm {
			add(op|0x60, "UD_"+o.name, UD, o.flags|opDETH)
		}
	}
	add(CNP, "CNP", 0, opOnly|opPayload)
	return t
}()

func (o Opcode) has(f opFlags) bool { return opcodes[o].flags&f != 0 }

// Valid reports whether this package knows the opcode.
func (o Opcode) Valid() bool { return o.has(opValid) }

// Type gives the transport service, 0 for CNP and for opcodes that are not valid.
func (o Opcode) Type() QPType { return opcodes[o].typ }

// String gives the name of include/rdma/ib_pack.h without its prefix, such as
// RC_SEND_FIRST.
func (o Opcode) String() string {
	if !o.Valid() {
		return fmt.Sprintf("Opcode(%#02x)", uint8(o))
	}
	return opcodes[o].name
}

// IsRequest reports whether requesters send it.
func (o Opcode) IsRequest() bool { return o.has(opRequest) }

// IsResponse reports whether responders send it.
func (o Opcode) IsResponse() bool { return o.has(opResponse) }

// IsFirst reports whether it begins a message of several packets.
func (o Opcode) IsFirst() bool { return o.has(opFirst) }

// IsMiddle reports whether it neither begins nor ends a message.
func (o Opcode) IsMiddle() bool { return o.has(opMiddle) }

// IsLast reports whether it ends a message of several packets.
func (o Opcode) IsLast() bool { return o.has(opLast) }

// IsOnly reports whether it is a whole message in one packet. READ requests,
// atomics and acknowledgements are that too.
func (o Opcode) IsOnly() bool { return o.has(opOnly) }

// HasPayload reports whether bytes may follow the headers; there may be none.
func (o Opcode) HasPayload() bool { return o.has(opPayload) }

// HasRETH reports whether a RETH follows.
func (o Opcode) HasRETH() bool { return o.has(opRETH) }

// HasAETH reports whether an AETH follows.
func (o Opcode) HasAETH() bool { return o.has(opAETH) }

// HasDETH reports whether a DETH follows.
func (o Opcode) HasDETH() bool { return o.has(opDETH) }

// HasImm reports whether immediate data follows.
func (o Opcode) HasImm() bool { return o.has(opImm) }

// HasAtomicETH reports whether an AtomicETH follows.
func (o Opcode) HasAtomicETH() bool { return o.has(opAtomicETH) }

// HasAtomicAck reports whether an AtomicAckETH follows.
func (o Opcode) HasAtomicAck() bool { return o.has(opAtomicAck) }

// HasIETH reports whether an IETH follows.
func (o Opcode) HasIETH() bool { return o.has(opIETH) }

// HeaderLen gives the bytes of the BTH and its extensions, 0 if not valid.
func (o Opcode) HeaderLen() int { return int(opcodes[o].headerLen) }
