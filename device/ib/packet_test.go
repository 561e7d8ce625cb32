package ib

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

// fullPacket gives a packet of an opcode with every field set that it has.
func fullPacket(op Opcode, payload int) *Packet {
	p := &Packet{BTH: BTH{
		Opcode: op, SolicitedEvent: true, MigReq: true, PKey: 0x8123, FECN: true,
		Reserved6: 0x2a, DestQP: 0xabcdef, AckReq: true, Reserved7: 0x55, PSN: 0x123456,
	}}
	if op.HasRETH() {
		p.RETH = RETH{0x0102030405060708, 0x11121314, 0x21222324}
	}
	if op.HasAETH() {
		p.AETH = AETH{Nak(InvalidRequest), 0x313233}
	}
	if op.HasDETH() {
		p.DETH = DETH{0x41424344, 0x45, 0x464748}
	}
	if op.HasImm() {
		p.Imm = 0x51525354
	}
	if op.HasAtomicETH() {
		p.AtomicETH = AtomicETH{0x6162636465666768, 0x71727374, 0x8182838485868788, 0x9192939495969798}
	}
	if op.HasAtomicAck() {
		p.AtomicAck = AtomicAckETH{0xa1a2a3a4a5a6a7a8}
	}
	if op.HasIETH() {
		p.IETH = IETH{0xb1b2b3b4}
	}
	if op.HasPayload() {
		p.Payload = []byte("payload of a packet")[:payload]
	}
	return p
}

// TestPacketBytes holds the wire format of every kind of header, written by
// hand.
func TestPacketBytes(t *testing.T) {
	tests := []struct {
		op      Opcode
		payload int
		want    string
	}{
		{RCSendOnly, 4, "04 c0 8123 aaabcdef d5123456 7061796c"},
		{RCSendOnly, 5, "04 f0 8123 aaabcdef d5123456 7061796c6f 000000"},
		{RCSendOnly, 6, "04 e0 8123 aaabcdef d5123456 7061796c6f61 0000"},
		{RCSendOnly, 7, "04 d0 8123 aaabcdef d5123456 7061796c6f6164 00"},
		{RCRDMAWriteOnlyImm, 0, "0b c0 8123 aaabcdef d5123456 0102030405060708 11121314 21222324 51525354"},
		{RCRDMAReadRequest, 0, "0c c0 8123 aaabcdef d5123456 0102030405060708 11121314 21222324"},
		{RCAcknowledge, 0, "11 c0 8123 aaabcdef d5123456 61 313233"},
		{RCAtomicAcknowledge, 0, "12 c0 8123 aaabcdef d5123456 61 313233 a1a2a3a4a5a6a7a8"},
		{RCCompareSwap, 0, "13 c0 8123 aaabcdef d5123456 6162636465666768 71727374 8182838485868788 9192939495969798"},
		{RCSendOnlyInvalidate, 1, "17 f0 8123 aaabcdef d5123456 b1b2b3b4 70 000000"},
		{UDSendOnlyImm, 1, "65 f0 8123 aaabcdef d5123456 41424344 45 464748 51525354 70 000000"},
	}
	for _, tt := range tests {
		want, err := hex.DecodeString(strings.ReplaceAll(tt.want, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got := fullPacket(tt.op, tt.payload).Append(nil); !bytes.Equal(got, want) {
			t.Errorf("%v: got  %x\nwant %x", tt.op, got, want)
		}
	}
	cnp := Packet{BTH: BTH{Opcode: CNP, PKey: DefaultPKey, BECN: true, DestQP: 0x11}, Payload: make([]byte, 16)}
	if got, want := cnp.Append(nil), append([]byte{0x81, 0, 0xff, 0xff, 0x40, 0, 0, 0x11}, make([]byte, 20)...); !bytes.Equal(got, want) {
		t.Errorf("CNP: got  %x\nwant %x", got, want)
	}
}

func TestPacketRoundTrip(t *testing.T) {
	for i := range 256 {
		op := Opcode(i)
		if !op.Valid() {
			continue
		}
		for payload := 0; payload <= 9; payload++ {
			in := fullPacket(op, payload)
			prefix := []byte("before")
			b := in.Append(prefix)[len(prefix):]
			var out Packet
			out.RETH.VA, out.Imm, out.AETH.MSN, out.IETH.RKey = 1, 2, 3, 4 // stale values must go
			if err := out.Parse(b); err != nil {
				t.Fatalf("%v with %d bytes: %v", op, payload, err)
			}
			in.PadCount = uint8(PadCount(len(in.Payload)))
			if !bytes.Equal(out.Payload, in.Payload) {
				t.Errorf("%v: payload %q, want %q", op, out.Payload, in.Payload)
			}
			a, c := *in, out
			a.Payload, c.Payload = nil, nil
			if !equalHeaders(a, c) {
				t.Errorf("%v: got  %+v\nwant %+v", op, c, a)
			}
			if op.HasPayload() && payload > 0 && &out.Payload[0] != &b[op.HeaderLen()] {
				t.Errorf("%v: the payload is a copy", op)
			}
		}
	}
}

func equalHeaders(a, b Packet) bool {
	return a.BTH == b.BTH && a.RETH == b.RETH && a.AETH == b.AETH && a.DETH == b.DETH && a.Imm == b.Imm &&
		a.AtomicETH == b.AtomicETH && a.AtomicAck == b.AtomicAck && a.IETH == b.IETH
}

func TestPacketParseRefuses(t *testing.T) {
	edit := func(p *Packet, at int, v byte) []byte {
		b := p.Append(nil)
		b[at] = v
		return b
	}
	tests := []struct {
		name string
		b    []byte
		want error
	}{
		{"nothing", nil, ErrTruncated},
		{"11 bytes", make([]byte, 11), ErrTruncated},
		{"reserved opcode", edit(fullPacket(RCSendOnly, 4), 0, 0x15), ErrOpcode},
		{"UC with READ", edit(fullPacket(RCRDMAReadRequest, 0), 0, 0x2c), ErrOpcode},
		{"RD transport", edit(fullPacket(RCSendOnly, 4), 0, 0x44), ErrOpcode},
		{"UD SEND FIRST", edit(fullPacket(RCSendOnly, 4), 0, 0x60), ErrOpcode},
		{"version 1", edit(fullPacket(RCSendOnly, 4), 1, 0x01), ErrVersion},
		{"pad of an empty payload", edit(fullPacket(RCSendOnly, 0), 1, 0x10), ErrPad},
		{"pad of an ACK", edit(fullPacket(RCAcknowledge, 0), 1, 0x30), ErrPad},
		{"length no multiple of 4", fullPacket(RCSendOnly, 4).Append(nil)[:15], ErrPad},
		{"ACK with a payload", append(fullPacket(RCAcknowledge, 0).Append(nil), 1, 2, 3, 4), ErrTrailing},
	}
	for i := range 256 {
		op := Opcode(i)
		if op.Valid() && op.HeaderLen() > BTHLen {
			b := fullPacket(op, 0).Append(nil)
			tests = append(tests, struct {
				name string
				b    []byte
				want error
			}{op.String() + " cut", b[:len(b)-1], ErrTruncated})
		}
	}
	for _, tt := range tests {
		var p Packet
		if err := p.Parse(tt.b); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

// TestHeadersRefuseShort gives each header one byte less than it needs.
func TestHeadersRefuseShort(t *testing.T) {
	type header interface {
		Append([]byte) []byte
		Parse([]byte) ([]byte, error)
	}
	for _, h := range []struct {
		name string
		header
		len int
	}{
		{"BTH", &BTH{}, BTHLen}, {"RETH", &RETH{}, RETHLen}, {"AETH", &AETH{}, AETHLen}, {"DETH", &DETH{}, DETHLen},
		{"ImmDt", new(ImmDt), ImmDtLen}, {"AtomicETH", &AtomicETH{}, AtomicETHLen},
		{"AtomicAckETH", &AtomicAckETH{}, AtomicAckETHLen}, {"IETH", &IETH{}, IETHLen},
	} {
		if n := len(h.Append(nil)); n != h.len {
			t.Errorf("%s: appends %d bytes, want %d", h.name, n, h.len)
		}
		if _, err := h.Parse(make([]byte, h.len-1)); !errors.Is(err, ErrTruncated) || !strings.HasPrefix(err.Error(), h.name) {
			t.Errorf("%s: %v", h.name, err)
		}
		if rest, err := h.Parse(make([]byte, h.len+3)); err != nil || len(rest) != 3 {
			t.Errorf("%s: %d bytes left, %v", h.name, len(rest), err)
		}
	}
}

// FuzzPacket: what parses is written again byte for byte, but for a pad that
// was not zero.
func FuzzPacket(f *testing.F) {
	for i := range 256 {
		if op := Opcode(i); op.Valid() {
			f.Add(fullPacket(op, 5).Append(nil))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p Packet
		if p.Parse(b) != nil {
			return
		}
		got := p.Append(nil)
		body := len(b) - int(p.PadCount)
		if len(got) != len(b) || !bytes.Equal(got[:body], b[:body]) {
			t.Fatalf("wrote %x, want %x", got, b)
		}
		var again Packet
		if err := again.Parse(got); err != nil || !equalHeaders(p, again) || !bytes.Equal(p.Payload, again.Payload) {
			t.Fatalf("second time: %v, %+v, want %+v", err, again, p)
		}
	})
}
