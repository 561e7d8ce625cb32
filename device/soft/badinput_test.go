package soft

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// besieged are queue pairs of an attack, and who sends to them.
type besieged struct {
	*attack
	t        *testing.T
	stranger *stranger
	victims  map[ib.QPType]*victim
	uids     []device.UID
}

func newBesieged(t *testing.T, a *attack, s *stranger) *besieged {
	b := &besieged{attack: a, t: t, stranger: s, victims: map[ib.QPType]*victim{}}
	victims, uids := a.newVictims(t)
	for _, v := range victims {
		b.victims[v.info.Type] = v
	}
	b.uids = uids
	return b
}

// good makes a packet that does what it is for: 16 bytes to the start of the open
// region, or to a receive.
func (b *besieged) good(op ib.Opcode) ib.Packet {
	r := b.guarded.open
	p := ib.Packet{
		BTH:       ib.BTH{Opcode: op, PKey: ib.DefaultPKey, DestQP: b.victims[op.Type()].info.QPN, PSN: attackPSN, AckReq: op.Type() == ib.RC},
		RETH:      ib.RETH{VA: r.Address, RKey: r.RKey, Length: 16},
		AtomicETH: ib.AtomicETH{VA: r.Address, RKey: r.RKey, Swap: 1},
		DETH:      ib.DETH{QKey: attackKey, SrcQP: 99},
	}
	if op.HasPayload() {
		p.Payload = []byte("sixteen bytes...")
	}
	return p
}

// wire gives the bytes of a packet with their invariant CRC.
func (b *besieged) wire(transport []byte) []byte {
	pseudo := ib.PseudoIPv4{Src: b.peer.As4(), Dst: b.port.ipv4().addr.As4(), SrcPort: ib.UDPPort, DstPort: ib.UDPPort, DontFragment: true}
	return ib.AppendICRC(append([]byte(nil), transport...), pseudo.ICRC(transport))
}

// arrives lets a datagram arrive. It gives the name of the one counter of reasons
// that went up, "" for a packet that did what it is for, and the answer, "" if
// there is none.
func (b *besieged) arrives(d []byte) (reason, answer string) {
	b.t.Helper()
	before, taken := b.port.counters.read(), b.port.accounted()
	b.in.take(d, arrival{from: netip.AddrPortFrom(b.peer, ib.UDPPort), segment: len(d), ttl: 64})
	after := b.port.counters.read()
	if got := b.port.accounted() - taken; got != 1 {
		b.t.Errorf("one packet is accounted for %d times", got)
	}
	was, is := reflect.ValueOf(before), reflect.ValueOf(after)
	for _, name := range []string{
		"WiringViolations", "Truncated", "ICRCErrors", "UnsupportedVersions", "UnknownOpcodes", "Malformed", "CNPsReceived", "UnknownQPs",
		"PKeyViolations", "QKeyViolations", "OutOfSequence", "DuplicateRequests", "RemoteAccessErrors", "InvalidRequests", "UnexpectedPackets",
	} {
		if is.FieldByName(name).Uint() != was.FieldByName(name).Uint() {
			reason += name
		}
	}
	for range after.XmitPackets - before.XmitPackets {
		answer += b.stranger.receive(b.t)
	}
	return reason, answer
}

// receive takes a packet that was sent to the stranger, and says what it is.
func (s *stranger) receive(t *testing.T) string {
	t.Helper()
	d := make([]byte, maxDatagrams)
	if err := s.socket.conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	n, _, err := s.socket.read(d)
	if err != nil {
		t.Fatal(err)
	}
	var p ib.Packet
	body, _, _ := ib.CutICRC(d[:n])
	if err := p.Parse(body); err != nil {
		t.Fatal(err)
	}
	if p.Opcode == ib.RCAcknowledge {
		return fmt.Sprintf("%v of %+d", p.AETH.Syndrome, p.PSN.Sub(attackPSN))
	}
	return fmt.Sprintf("%v of %+d", p.Opcode, p.PSN.Sub(attackPSN))
}

// TestBadInputEndsAsTheSpecificationSays sends a packet to a live queue pair of
// each type and looks at what it counts as, what is answered, in which state it
// leaves the queue pair, and whether all others go on.
func TestBadInputEndsAsTheSpecificationSays(t *testing.T) {
	s := newStranger(t)
	a := newAttackFrom(t, s, 1)
	packet := func(op ib.Opcode, change func(*ib.Packet)) func(*besieged) []byte {
		return func(b *besieged) []byte {
			p := b.good(op)
			if change != nil {
				change(&p)
			}
			return b.wire(p.Append(nil))
		}
	}
	transport := func(op ib.Opcode, change func([]byte) []byte) func(*besieged) []byte {
		return func(b *besieged) []byte {
			p := b.good(op)
			return b.wire(change(p.Append(nil)))
		}
	}
	misdirected := func(op ib.Opcode, to ib.QPType) func(*besieged) []byte {
		return func(b *besieged) []byte {
			p := b.good(op)
			p.DestQP = b.victims[to].info.QPN
			return b.wire(p.Append(nil))
		}
	}
	cut := func(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:n] } }
	flip := func(at int, bits byte) func([]byte) []byte {
		return func(b []byte) []byte { b[at] ^= bits; return b }
	}
	const (
		invalid = "NAK invalid request of +0"
		refused = "NAK remote access error of +0"
		fine    = "ACK credits 31 of +0"
	)
	type row struct {
		name   string
		d      func(*besieged) []byte
		reason string
		answer string
		state  ib.QPState // of the queue pair that it is for
	}
	var rows []row
	// What is wrong before the transport looks at it ends the same for all.
	for _, op := range []ib.Opcode{ib.RCRDMAWriteOnly, ib.UCRDMAWriteOnly, ib.UDSendOnly} {
		name := func(s string) string { return op.String() + ": " + s }
		rows = append(rows,
			row{name("one byte"), func(*besieged) []byte { return []byte{0} }, "Truncated", "", ib.RTS},
			row{name("shorter than a BTH"), func(b *besieged) []byte { return b.wire(make([]byte, 12))[:15] }, "Truncated", "", ib.RTS},
			row{name("BTH alone"), transport(op, cut(12)), "Truncated", "", ib.RTS},
			row{name("extension header cut short"), transport(op, cut(op.HeaderLen()-1)), "Truncated", "", ib.RTS},
			row{name("version 1"), transport(op, flip(1, 1)), "UnsupportedVersions", "", ib.RTS},
			row{name("version 15"), transport(op, flip(1, 15)), "UnsupportedVersions", "", ib.RTS},
			row{name("pad of more than there is"), transport(op, func(b []byte) []byte { b[1] |= 0x30; return b[:op.HeaderLen()] }), "Malformed", "", ib.RTS},
			row{name("length that is no multiple of four"), transport(op, func(b []byte) []byte { return b[:len(b)-1] }), "Malformed", "", ib.RTS},
			row{name("bit of the payload flipped"), func(b *besieged) []byte {
				p := b.good(op)
				d := b.wire(p.Append(nil))
				d[op.HeaderLen()] ^= 1
				d[op.HeaderLen()+9] ^= 0x80
				return d
			}, "ICRCErrors", "", ib.RTS},
			row{name("opcode 0x3f"), packet(op, func(p *ib.Packet) { p.Opcode = 0x3f }), "UnknownOpcodes", "", ib.RTS},
			row{name("opcode 0xff"), packet(op, func(p *ib.Packet) { p.Opcode = 0xff }), "UnknownOpcodes", "", ib.RTS},
			row{name("reliable datagram opcode"), packet(op, func(p *ib.Packet) { p.Opcode = 0x44 }), "UnknownOpcodes", "", ib.RTS},
			row{name("wrong QPN"), packet(op, func(p *ib.Packet) { p.DestQP ^= 0x800000 }), "UnknownQPs", "", ib.RTS},
			row{name("QPN 1"), packet(op, func(p *ib.Packet) { p.DestQP = 1 }), "UnknownQPs", "", ib.RTS},
			row{name("multicast QPN"), packet(op, func(p *ib.Packet) { p.DestQP = 0xffffff }), "UnknownQPs", "", ib.RTS},
			row{name("other partition"), packet(op, func(p *ib.Packet) { p.PKey = 0x8001 }), "PKeyViolations", "", ib.RTS},
			row{name("no partition"), packet(op, func(p *ib.Packet) { p.PKey = 0x8000 }), "PKeyViolations", "", ib.RTS},
			row{name("congestion notification"), packet(op, func(p *ib.Packet) { p.Opcode, p.Payload = ib.CNP, make([]byte, 16) }), "CNPsReceived", "", ib.RTS},
		)
	}
	rows = append(rows, []row{
		{"RC: limited member of the partition", packet(ib.RCRDMAWriteOnly, func(p *ib.Packet) { p.PKey = 0x7fff }), "", fine, ib.RTS},
		{"RC: good WRITE", packet(ib.RCRDMAWriteOnly, nil), "", fine, ib.RTS},
		{"RC: good SEND", packet(ib.RCSendOnly, nil), "", fine, ib.RTS},
		{"RC: wrong R_Key", packet(ib.RCRDMAWriteOnly, func(p *ib.Packet) { p.RETH.RKey ^= 1 }), "RemoteAccessErrors", refused, ib.Err},
		{"RC: R_Key of another domain", packet(ib.RCRDMAWriteOnly, func(p *ib.Packet) { p.RETH.RKey = a.guarded.foreign.RKey; p.RETH.VA = a.guarded.foreign.Address }), "RemoteAccessErrors", refused, ib.Err},
		{"RC: R_Key that is for reading", packet(ib.RCRDMAWriteOnly, func(p *ib.Packet) { p.RETH.RKey = a.guarded.readable.RKey; p.RETH.VA = a.guarded.readable.Address }), "RemoteAccessErrors", refused, ib.Err},
		{"RC: before the region", packet(ib.RCRDMAWriteOnly, func(p *ib.Packet) { p.RETH.VA-- }), "RemoteAccessErrors", refused, ib.Err},
		{"RC: beyond the region", packet(ib.RCRDMAWriteOnly, func(p *ib.Packet) { p.RETH.VA += regionSize - 15 }), "RemoteAccessErrors", refused, ib.Err},
		{"RC: address that wraps", packet(ib.RCRDMAWriteOnly, func(p *ib.Packet) { p.RETH.VA = 1<<64 - 8 }), "RemoteAccessErrors", refused, ib.Err},
		{"RC: READ beyond the region", packet(ib.RCRDMAReadRequest, func(p *ib.Packet) { p.RETH.Length = regionSize + 1 }), "RemoteAccessErrors", refused, ib.Err},
		{"RC: READ of 2 GiB", packet(ib.RCRDMAReadRequest, func(p *ib.Packet) { p.RETH.Length = 1 << 31 }), "RemoteAccessErrors", refused, ib.Err},
		{"RC: READ above 2 GiB", packet(ib.RCRDMAReadRequest, func(p *ib.Packet) { p.RETH.Length = 1<<31 + 1 }), "InvalidRequests", invalid, ib.Err},
		{"RC: READ of nothing, whatever its key", packet(ib.RCRDMAReadRequest, func(p *ib.Packet) { p.RETH = ib.RETH{} }), "", "RC_RDMA_READ_RESPONSE_ONLY of +0", ib.RTS},
		{"RC: READ with bytes behind it", transport(ib.RCRDMAReadRequest, func(b []byte) []byte { return append(b, 0, 0, 0, 0) }), "Malformed", "", ib.RTS},
		{"RC: WRITE of nothing, whatever its key", packet(ib.RCRDMAWriteOnly, func(p *ib.Packet) { p.RETH, p.Payload = ib.RETH{}, nil }), "", fine, ib.RTS},
		{"RC: WRITE FIRST of 2 GiB", packet(ib.RCRDMAWriteFirst, func(p *ib.Packet) { p.RETH.Length, p.Payload = 1<<31, make([]byte, attackMTU) }), "RemoteAccessErrors", refused, ib.Err},
		{"RC: WRITE FIRST of 4 GiB less one", packet(ib.RCRDMAWriteFirst, func(p *ib.Packet) { p.RETH.Length, p.Payload = 1<<32-1, make([]byte, attackMTU) }), "InvalidRequests", invalid, ib.Err},
		{"RC: WRITE of another length than its RETH", packet(ib.RCRDMAWriteOnly, func(p *ib.Packet) { p.RETH.Length++ }), "InvalidRequests", invalid, ib.Err},
		{"RC: above the path MTU", packet(ib.RCSendOnly, func(p *ib.Packet) { p.Payload = make([]byte, attackMTU+1) }), "Malformed", invalid, ib.Err},
		{"RC: FIRST below the path MTU", packet(ib.RCSendFirst, nil), "Malformed", invalid, ib.Err},
		{"RC: MIDDLE of no message", packet(ib.RCSendMiddle, nil), "InvalidRequests", invalid, ib.Err},
		{"RC: SEND that the receive does not hold", packet(ib.RCSendOnly, func(p *ib.Packet) { p.Payload = make([]byte, 101) }), "InvalidRequests", invalid, ib.Err},
		{"RC: SEND with invalidate", packet(ib.RCSendOnlyInvalidate, nil), "InvalidRequests", invalid, ib.Err},
		{"RC: atomic beside a word", packet(ib.RCFetchAdd, func(p *ib.Packet) { p.AtomicETH.VA += 4 }), "InvalidRequests", invalid, ib.Err},
		{"RC: atomic beyond the region", packet(ib.RCFetchAdd, func(p *ib.Packet) { p.AtomicETH.VA += regionSize }), "RemoteAccessErrors", refused, ib.Err},
		{"RC: PSN ahead by one", packet(ib.RCRDMAWriteOnly, func(p *ib.Packet) { p.PSN = p.PSN.Add(1) }), "OutOfSequence", "NAK PSN sequence error of +0", ib.RTS},
		{"RC: PSN far ahead", packet(ib.RCRDMAWriteOnly, func(p *ib.Packet) { p.PSN = p.PSN.Add(1<<23 - 1) }), "OutOfSequence", "NAK PSN sequence error of +0", ib.RTS},
		{"RC: PSN of the past", packet(ib.RCRDMAWriteOnly, func(p *ib.Packet) { p.PSN = p.PSN.Add(-1) }), "DuplicateRequests", "ACK credits 31 of -1", ib.RTS},
		{"RC: PSN of the far past", packet(ib.RCRDMAWriteOnly, func(p *ib.Packet) { p.PSN = p.PSN.Add(-1 << 23) }), "DuplicateRequests", "ACK credits 31 of -1", ib.RTS},
		{"RC: atomic of the past that never was", packet(ib.RCFetchAdd, func(p *ib.Packet) { p.PSN = p.PSN.Add(-1) }), "DuplicateRequests", "", ib.RTS},
		{"RC: READ of the past with a wrong key", packet(ib.RCRDMAReadRequest, func(p *ib.Packet) { p.PSN = p.PSN.Add(-1); p.RETH.RKey ^= 1 }), "DuplicateRequests", "", ib.RTS},
		{"RC: READ response that nobody asked for", packet(ib.RCRDMAReadResponseOnly, nil), "UnexpectedPackets", "", ib.RTS},
		{"RC: READ response in the middle of nothing", packet(ib.RCRDMAReadResponseMiddle, nil), "UnexpectedPackets", "", ib.RTS},
		{"RC: atomic response that nobody asked for", packet(ib.RCAtomicAcknowledge, nil), "UnexpectedPackets", "", ib.RTS},
		{"RC: acknowledgement of nothing", packet(ib.RCAcknowledge, func(p *ib.Packet) { p.AETH.Syndrome = ib.AckSyndrome(31) }), "UnexpectedPackets", "", ib.RTS},
		{"RC: NAK of nothing", packet(ib.RCAcknowledge, func(p *ib.Packet) { p.AETH.Syndrome = ib.Nak(ib.RemoteAccessError) }), "UnexpectedPackets", "", ib.RTS},
		{"RC: opcode of UC", misdirected(ib.UCRDMAWriteOnly, ib.RC), "UnexpectedPackets", "", ib.RTS},
		{"RC: opcode of UD", misdirected(ib.UDSendOnly, ib.RC), "UnexpectedPackets", "", ib.RTS},

		{"UC: good WRITE", packet(ib.UCRDMAWriteOnly, nil), "", "", ib.RTS},
		{"UC: good SEND", packet(ib.UCSendOnly, nil), "", "", ib.RTS},
		{"UC: wrong R_Key", packet(ib.UCRDMAWriteOnly, func(p *ib.Packet) { p.RETH.RKey ^= 1 }), "RemoteAccessErrors", "", ib.RTS},
		{"UC: beyond the region", packet(ib.UCRDMAWriteOnly, func(p *ib.Packet) { p.RETH.VA += regionSize - 15 }), "RemoteAccessErrors", "", ib.RTS},
		{"UC: WRITE of nothing, whatever its key", packet(ib.UCRDMAWriteOnly, func(p *ib.Packet) { p.RETH, p.Payload = ib.RETH{}, nil }), "", "", ib.RTS},
		{"UC: WRITE FIRST of 2 GiB", packet(ib.UCRDMAWriteFirst, func(p *ib.Packet) { p.RETH.Length, p.Payload = 1<<31, make([]byte, attackMTU) }), "RemoteAccessErrors", "", ib.RTS},
		{"UC: WRITE FIRST above 2 GiB", packet(ib.UCRDMAWriteFirst, func(p *ib.Packet) { p.RETH.Length, p.Payload = 1<<31+1, make([]byte, attackMTU) }), "InvalidRequests", "", ib.RTS},
		{"UC: above the path MTU", packet(ib.UCSendOnly, func(p *ib.Packet) { p.Payload = make([]byte, attackMTU+1) }), "Malformed", "", ib.RTS},
		{"UC: MIDDLE of no message", packet(ib.UCSendMiddle, nil), "OutOfSequence", "", ib.RTS},
		{"UC: PSN far ahead", packet(ib.UCRDMAWriteOnly, func(p *ib.Packet) { p.PSN = p.PSN.Add(1<<23 - 1) }), "", "", ib.RTS},
		{"UC: SEND that the receive does not hold", packet(ib.UCSendOnly, func(p *ib.Packet) { p.Payload = make([]byte, 101) }), "InvalidRequests", "", ib.Err},
		{"UC: READ", misdirected(ib.RCRDMAReadRequest, ib.UC), "UnexpectedPackets", "", ib.RTS},
		{"UC: READ response", misdirected(ib.RCRDMAReadResponseOnly, ib.UC), "UnexpectedPackets", "", ib.RTS},

		{"UD: good", packet(ib.UDSendOnly, nil), "", "", ib.RTS},
		{"UD: any PSN", packet(ib.UDSendOnly, func(p *ib.Packet) { p.PSN = p.PSN.Add(1 << 22) }), "", "", ib.RTS},
		{"UD: wrong Q_Key", packet(ib.UDSendOnly, func(p *ib.Packet) { p.DETH.QKey ^= 1 }), "QKeyViolations", "", ib.RTS},
		{"UD: Q_Key with its top bit set", packet(ib.UDSendOnly, func(p *ib.Packet) { p.DETH.QKey |= 1 << 31 }), "QKeyViolations", "", ib.RTS},
		{"UD: above the MTU of the port", packet(ib.UDSendOnly, func(p *ib.Packet) { p.Payload = make([]byte, 4097) }), "Malformed", "", ib.RTS},
		{"UD: datagram that the receive does not hold", packet(ib.UDSendOnly, func(p *ib.Packet) { p.Payload = make([]byte, 61) }), "InvalidRequests", "", ib.Err},
		{"UD: WRITE", misdirected(ib.UCRDMAWriteOnly, ib.UD), "UnexpectedPackets", "", ib.RTS},
		{"UD: acknowledgement", misdirected(ib.RCAcknowledge, ib.UD), "UnexpectedPackets", "", ib.RTS},
	}...)
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			b := newBesieged(t, a, s)
			r := a.guarded.open
			recv := device.WorkRequest{Opcode: device.WorkRecv, SGL: []device.SGE{{Address: r.Address, Length: 100, LKey: r.LKey}}}
			for _, v := range b.victims {
				if err := v.post([]device.WorkRequest{recv}); err != nil {
					t.Fatal(err)
				}
			}
			reason, answer := b.arrives(row.d(b))
			if reason != row.reason || answer != row.answer {
				t.Errorf("counted as %q and answered by %q, want %q and %q", reason, answer, row.reason, row.answer)
			}
			failed := 0
			for typ, v := range b.victims {
				qp := v.read()
				switch {
				case qp.State == ib.RTS:
				case qp.State == row.state && qp.Status != ib.Success && qp.Reason != "":
					failed++
				default:
					t.Errorf("%v: queue pair %+v", typ, qp)
				}
			}
			if failed != 0 != (row.state == ib.Err) || failed > 1 {
				t.Errorf("%d queue pairs failed", failed)
			}
			// All that have not failed go on, and so does the bystander.
			for typ, op := range map[ib.QPType]ib.Opcode{ib.RC: ib.RCSendOnly, ib.UC: ib.UCSendOnly, ib.UD: ib.UDSendOnly} {
				v := b.victims[typ]
				if v.read().State == ib.Err {
					continue
				}
				if err := v.post([]device.WorkRequest{recv}); err != nil {
					t.Fatal(err)
				}
				p := b.good(op)
				if typ == ib.RC && row.reason == "" && strings.HasPrefix(row.name, "RC") {
					p.PSN = p.PSN.Next() // after the one of the row
				}
				if reason, _ := b.arrives(b.wire(p.Append(nil))); reason != "" {
					t.Errorf("a good packet to %v afterwards counts as %s", typ, reason)
				}
			}
			a.guarded.check(t, a.card)
			a.transfer(t)
			a.checkAccounts(t)
			for _, err := range a.card.DestroyQueuePairs(context.Background(), b.uids) {
				if err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// Without a receive RC asks the sender to wait; UC and UD drop.
func TestNoReceiveIsPosted(t *testing.T) {
	s := newStranger(t)
	b := newBesieged(t, newAttackFrom(t, s, 1), s)
	for _, c := range []struct {
		op             ib.Opcode
		reason, answer string
	}{
		{ib.RCSendOnly, "", "RNR NAK 655.36ms of +0"},
		{ib.RCRDMAWriteOnlyImm, "", "RNR NAK 655.36ms of +0"},
		{ib.UCSendOnly, "UnexpectedPackets", ""},
		{ib.UCRDMAWriteOnlyImm, "UnexpectedPackets", ""},
		{ib.UDSendOnly, "UnexpectedPackets", ""},
		{ib.RCRDMAWriteOnly, "", "ACK credits 31 of +0"},
	} {
		p := b.good(c.op)
		if reason, answer := b.arrives(b.wire(p.Append(nil))); reason != c.reason || answer != c.answer {
			t.Errorf("%v counts as %q and is answered by %q, want %q and %q", c.op, reason, answer, c.reason, c.answer)
		}
	}
	if n := b.port.counters.read().RNRNAKsSent; n != 2 {
		t.Errorf("%d RNR NAKs, want 2", n)
	}
	for typ, v := range b.victims {
		if qp := v.read(); qp.State != ib.RTS {
			t.Errorf("%v: %+v", typ, qp)
		}
	}
}
