package ib

import (
	"strings"
	"testing"
)

// opcodeTable says what each opcode is: number, name, whether requesters (q)
// or responders (r) send it, place in the message (f, m, l, o), the headers
// after the BTH, and P if a payload may follow.
const opcodeTable = `
	00 RC_SEND_FIRST                     qf P
	01 RC_SEND_MIDDLE                    qm P
	02 RC_SEND_LAST                      ql P
	03 RC_SEND_LAST_WITH_IMMEDIATE       ql Imm P
	04 RC_SEND_ONLY                      qo P
	05 RC_SEND_ONLY_WITH_IMMEDIATE       qo Imm P
	06 RC_RDMA_WRITE_FIRST               qf RETH P
	07 RC_RDMA_WRITE_MIDDLE              qm P
	08 RC_RDMA_WRITE_LAST                ql P
	09 RC_RDMA_WRITE_LAST_WITH_IMMEDIATE ql Imm P
	0a RC_RDMA_WRITE_ONLY                qo RETH P
	0b RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE qo RETH Imm P
	0c RC_RDMA_READ_REQUEST              qo RETH
	0d RC_RDMA_READ_RESPONSE_FIRST       rf AETH P
	0e RC_RDMA_READ_RESPONSE_MIDDLE      rm P
	0f RC_RDMA_READ_RESPONSE_LAST        rl AETH P
	10 RC_RDMA_READ_RESPONSE_ONLY        ro AETH P
	11 RC_ACKNOWLEDGE                    ro AETH
	12 RC_ATOMIC_ACKNOWLEDGE             ro AETH AtomicAck
	13 RC_COMPARE_SWAP                   qo AtomicETH
	14 RC_FETCH_ADD                      qo AtomicETH
	16 RC_SEND_LAST_WITH_INVALIDATE      ql IETH P
	17 RC_SEND_ONLY_WITH_INVALIDATE      qo IETH P
	20 UC_SEND_FIRST                     qf P
	21 UC_SEND_MIDDLE                    qm P
	22 UC_SEND_LAST                      ql P
	23 UC_SEND_LAST_WITH_IMMEDIATE       ql Imm P
	24 UC_SEND_ONLY                      qo P
	25 UC_SEND_ONLY_WITH_IMMEDIATE       qo Imm P
	26 UC_RDMA_WRITE_FIRST               qf RETH P
	27 UC_RDMA_WRITE_MIDDLE              qm P
	28 UC_RDMA_WRITE_LAST                ql P
	29 UC_RDMA_WRITE_LAST_WITH_IMMEDIATE ql Imm P
	2a UC_RDMA_WRITE_ONLY                qo RETH P
	2b UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE qo RETH Imm P
	64 UD_SEND_ONLY                      qo DETH P
	65 UD_SEND_ONLY_WITH_IMMEDIATE       qo DETH Imm P
	81 CNP                               -o P`

func TestOpcodes(t *testing.T) {
	lengths := map[string]int{"RETH": 16, "AETH": 4, "DETH": 8, "Imm": 4, "AtomicETH": 28, "AtomicAck": 8, "IETH": 4}
	want := map[string][]string{}
	for line := range strings.Lines(strings.TrimSpace(opcodeTable)) {
		f := strings.Fields(line)
		want[f[0]] = f[1:]
	}
	if len(want) != 38 {
		t.Fatalf("%d opcodes in the table", len(want))
	}
	for i := range 256 {
		op := Opcode(i)
		row, ok := want[hexByte(i)]
		if op.Valid() != ok {
			t.Errorf("%v: valid is %v", op, op.Valid())
			continue
		}
		if !ok {
			if op.Type() != 0 || op.HeaderLen() != 0 || op.HasPayload() || op.IsRequest() || op.IsResponse() ||
				op.String() != "Opcode(0x"+hexByte(i)+")" {
				t.Errorf("%v: an opcode that is not valid has properties", op)
			}
			continue
		}
		typ := map[string]QPType{"RC": RC, "UC": UC, "UD": UD}[row[0][:2]]
		place, headers := row[1], row[2:]
		has := func(h string) bool {
			for _, name := range headers {
				if name == h {
					return true
				}
			}
			return false
		}
		length := 12
		for _, h := range headers {
			length += lengths[h]
		}
		if op.String() != row[0] || op.Type() != typ || op.HeaderLen() != length {
			t.Errorf("%v: type %v, %d bytes; want %v, %v, %d", op, op.Type(), op.HeaderLen(), row[0], typ, length)
		}
		for _, c := range []struct {
			name      string
			got, want bool
		}{
			{"request", op.IsRequest(), place[0] == 'q'}, {"response", op.IsResponse(), place[0] == 'r'},
			{"first", op.IsFirst(), place[1] == 'f'}, {"middle", op.IsMiddle(), place[1] == 'm'},
			{"last", op.IsLast(), place[1] == 'l'}, {"only", op.IsOnly(), place[1] == 'o'},
			{"RETH", op.HasRETH(), has("RETH")}, {"AETH", op.HasAETH(), has("AETH")},
			{"DETH", op.HasDETH(), has("DETH")}, {"Imm", op.HasImm(), has("Imm")},
			{"AtomicETH", op.HasAtomicETH(), has("AtomicETH")}, {"AtomicAck", op.HasAtomicAck(), has("AtomicAck")},
			{"IETH", op.HasIETH(), has("IETH")}, {"payload", op.HasPayload(), has("P")},
		} {
			if c.got != c.want {
				t.Errorf("%v: %s is %v", op, c.name, c.got)
			}
		}
	}
}

func hexByte(i int) string {
	const digits = "0123456789abcdef"
	return string([]byte{digits[i>>4], digits[i&15]})
}

// TestOpcodeConstants ties the constants to the numbers, in order.
func TestOpcodeConstants(t *testing.T) {
	all := []Opcode{
		RCSendFirst, RCSendMiddle, RCSendLast, RCSendLastImm, RCSendOnly, RCSendOnlyImm,
		RCRDMAWriteFirst, RCRDMAWriteMiddle, RCRDMAWriteLast, RCRDMAWriteLastImm, RCRDMAWriteOnly, RCRDMAWriteOnlyImm,
		RCRDMAReadRequest, RCRDMAReadResponseFirst, RCRDMAReadResponseMiddle, RCRDMAReadResponseLast, RCRDMAReadResponseOnly,
		RCAcknowledge, RCAtomicAcknowledge, RCCompareSwap, RCFetchAdd, RCSendLastInvalidate, RCSendOnlyInvalidate,
		UCSendFirst, UCSendMiddle, UCSendLast, UCSendLastImm, UCSendOnly, UCSendOnlyImm,
		UCRDMAWriteFirst, UCRDMAWriteMiddle, UCRDMAWriteLast, UCRDMAWriteLastImm, UCRDMAWriteOnly, UCRDMAWriteOnlyImm,
		UDSendOnly, UDSendOnlyImm, CNP,
	}
	for i, line := range strings.Split(strings.TrimSpace(opcodeTable), "\n") {
		if f := strings.Fields(line); all[i].String() != f[1] || hexByte(int(all[i])) != f[0] {
			t.Errorf("constant %d is %v, want %s %s", i, all[i], f[0], f[1])
		}
	}
}

func TestSyndrome(t *testing.T) {
	tests := []struct {
		s    Syndrome
		raw  uint8
		kind SyndromeKind
		val  uint8
		text string
	}{
		{AckSyndrome(UnlimitedCredits), 0x1f, KindAck, 31, "ACK credits 31"},
		{AckSyndrome(0), 0x00, KindAck, 0, "ACK credits 0"},
		{AckSyndrome(0xff), 0x1f, KindAck, 31, "ACK credits 31"},
		{RNRNak(14), 0x2e, KindRNRNak, 14, "RNR NAK 1.28ms"},
		{RNRNak(0xff), 0x3f, KindRNRNak, 31, "RNR NAK 491.52ms"},
		{Nak(PSNSequenceError), 0x60, KindNak, 0, "NAK PSN sequence error"},
		{Nak(InvalidRequest), 0x61, KindNak, 1, "NAK invalid request"},
		{Nak(RemoteAccessError), 0x62, KindNak, 2, "NAK remote access error"},
		{Nak(RemoteOperationalError), 0x63, KindNak, 3, "NAK remote operational error"},
		{Nak(InvalidRDRequest), 0x64, KindNak, 4, "NAK invalid RD request"},
		{Nak(9), 0x69, KindNak, 9, "NAK NakCode(9)"},
		{0x41, 0x41, KindReserved, 1, "Syndrome(0x41)"},
		{0x9f, 0x9f, KindReserved, 31, "Syndrome(0x9f)"},
		{0xe0, 0xe0, KindReserved, 0, "Syndrome(0xe0)"},
	}
	for _, tt := range tests {
		s := tt.s
		if uint8(s) != tt.raw || s.Kind() != tt.kind || s.String() != tt.text ||
			s.Credits() != tt.val || s.RNRTimer() != tt.val || s.NakCode() != NakCode(tt.val) {
			t.Errorf("%#02x: kind %d, %q, value %d; want %#02x, %d, %q, %d", uint8(s), s.Kind(), s, s.Credits(),
				tt.raw, tt.kind, tt.text, tt.val)
		}
	}
}
