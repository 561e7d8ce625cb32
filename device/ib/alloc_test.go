package ib

import "testing"

// sinks keep the compiler from dropping what is measured.
var (
	sinkICRC  uint32
	sinkID    uint16
	sinkBytes []byte
)

// hotPath are the calls that a port makes for every packet.
func hotPath(tb testing.TB) []struct {
	name  string
	bytes int64
	call  func()
} {
	payload := make([]byte, 4096)
	p := Packet{
		BTH:     BTH{Opcode: RCRDMAWriteFirst, PKey: DefaultPKey, DestQP: 0x11, PSN: 42},
		RETH:    RETH{VA: 1 << 40, RKey: 7, Length: 1 << 20},
		Payload: payload,
	}
	wire := p.Append(nil)
	headers := p.AppendHeaders(nil, len(payload))
	buf := make([]byte, 0, len(wire))
	v4 := PseudoIPv4{Src: [4]byte{127, 64, 0, 1}, Dst: [4]byte{127, 64, 0, 2}, SrcPort: 50000, DstPort: UDPPort, DontFragment: true}
	v6 := PseudoIPv6{Src: [16]byte{0xfe, 0x80}, Dst: [16]byte{0xfe, 0x80, 15: 1}, SrcPort: 50000, DstPort: UDPPort}
	icrc := v4.ICRC(wire)
	ip := make([]byte, ipv4HeaderLen+udpHeaderLen, 5000)
	ip[0], ip[9] = 0x45, protocolUDP
	ip = append(ip, wire...)
	ack := Packet{BTH: BTH{Opcode: RCAcknowledge, PKey: DefaultPKey}, AETH: AETH{AckSyndrome(UnlimitedCredits), 1}}
	ackWire := ack.Append(nil)
	n := int64(len(wire))
	var in Packet
	return []struct {
		name  string
		bytes int64
		call  func()
	}{
		{"Append", n, func() { sinkBytes = p.Append(buf) }},
		{"AppendHeaders", 0, func() { sinkBytes = p.AppendHeaders(buf, len(payload)) }},
		{"Parse", 0, func() {
			if err := in.Parse(wire); err != nil {
				tb.Fatal(err)
			}
		}},
		{"ParseACK", 0, func() {
			if err := in.Parse(ackWire); err != nil {
				tb.Fatal(err)
			}
		}},
		{"ICRC", n, func() { sinkICRC, _ = ICRC(ip) }},
		{"PseudoIPv4", n, func() { sinkICRC = v4.ICRC(headers, payload) }},
		{"PseudoIPv4ACK", 0, func() { sinkICRC = v4.ICRC(ackWire) }},
		{"PseudoIPv6", n, func() { sinkICRC = v6.ICRC(headers, payload) }},
		{"SolveIPv4ID", n, func() { sinkID, _ = SolveIPv4ID(v4, icrc, wire) }},
		{"CheckTransition", 0, func() {
			if err := CheckTransition(UC, RTR, RTS, AttrSQPSN); err != nil {
				tb.Fatal(err)
			}
		}},
	}
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	for _, h := range hotPath(t) {
		if n := testing.AllocsPerRun(100, h.call); n != 0 {
			t.Errorf("%s allocates %v times a call", h.name, n)
		}
	}
}

func BenchmarkHotPath(b *testing.B) {
	for _, h := range hotPath(b) {
		b.Run(h.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(h.bytes)
			for b.Loop() {
				h.call()
			}
		})
	}
}
