package ib

import "fmt"

// Packet is a packet from its BTH to its payload. Which headers besides the BTH
// count is decided by the opcode; the others are zero after Parse and ignored
// by Append.
type Packet struct {
	BTH
	RETH      RETH
	AETH      AETH
	DETH      DETH
	Imm       ImmDt
	AtomicETH AtomicETH
	AtomicAck AtomicAckETH
	IETH      IETH
	Payload   []byte // without pad
}

// Parse reads a packet from b, which runs from the BTH through the pad, the
// ICRC already cut off. Payload aliases b. The error wraps ErrTruncated,
// ErrOpcode, ErrVersion, ErrPad or ErrTrailing; what p holds then is not
// defined but for the BTH, which is there unless the packet is shorter.
// Lengths that depend on the path MTU are the queue pair's to check.
func (p *Packet) Parse(b []byte) error {
	*p = Packet{}
	rest, err := p.BTH.Parse(b)
	if err != nil {
		return err
	}
	op := p.Opcode
	switch {
	case p.Version != 0:
		return fmt.Errorf("BTH: %w %d", ErrVersion, p.Version)
	case !op.Valid():
		return fmt.Errorf("BTH: %w %#02x", ErrOpcode, uint8(op))
	case len(b) < op.HeaderLen():
		return truncated(op.String(), len(b), op.HeaderLen())
	}
	p.parseExtensions(rest)
	body, pad := b[op.HeaderLen():], int(p.PadCount)
	switch {
	case !op.HasPayload() && len(body) > 0:
		return fmt.Errorf("%v: %w: %d", op, ErrTrailing, len(body))
	case pad > len(body) || len(body)%4 != 0:
		return fmt.Errorf("%v: %w %d for %d bytes of payload and pad", op, ErrPad, pad, len(body))
	}
	p.Payload = body[:len(body)-pad]
	return nil
}

// parseExtensions reads the headers after the BTH from b, which holds them all.
func (p *Packet) parseExtensions(b []byte) {
	op := p.Opcode
	if op.HasDETH() {
		b, _ = p.DETH.Parse(b)
	}
	if op.HasRETH() {
		b, _ = p.RETH.Parse(b)
	}
	if op.HasAtomicETH() {
		b, _ = p.AtomicETH.Parse(b)
	}
	if op.HasAETH() {
		b, _ = p.AETH.Parse(b)
	}
	if op.HasAtomicAck() {
		b, _ = p.AtomicAck.Parse(b)
	}
	if op.HasImm() {
		b, _ = p.Imm.Parse(b)
	}
	if op.HasIETH() {
		p.IETH.Parse(b)
	}
}

// PadCount gives the pad bytes, 0 to 3, after n bytes of payload.
func PadCount(n int) int { return -n & 3 }

// AppendHeaders appends the BTH and its extensions to b, with the pad count for
// payloadLen bytes of payload (p.PadCount and p.Payload do not count). It is
// for senders that gather the payload from elsewhere; PadCount(payloadLen) zero
// bytes and the ICRC go after that.
func (p *Packet) AppendHeaders(b []byte, payloadLen int) []byte {
	bth := p.BTH
	bth.PadCount = uint8(PadCount(payloadLen))
	b = bth.Append(b)
	op := p.Opcode
	if op.HasDETH() {
		b = p.DETH.Append(b)
	}
	if op.HasRETH() {
		b = p.RETH.Append(b)
	}
	if op.HasAtomicETH() {
		b = p.AtomicETH.Append(b)
	}
	if op.HasAETH() {
		b = p.AETH.Append(b)
	}
	if op.HasAtomicAck() {
		b = p.AtomicAck.Append(b)
	}
	if op.HasImm() {
		b = p.Imm.Append(b)
	}
	if op.HasIETH() {
		b = p.IETH.Append(b)
	}
	return b
}

// Append appends the whole packet without its ICRC to b: headers, payload and
// zero bytes of pad, whose count it computes (p.PadCount does not count).
func (p *Packet) Append(b []byte) []byte {
	b = p.AppendHeaders(b, len(p.Payload))
	b = append(b, p.Payload...)
	return append(b, zeros[:PadCount(len(p.Payload))]...)
}

var zeros [3]byte
