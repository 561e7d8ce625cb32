package soft

import (
	"net/netip"
	"testing"

	"github.com/accelfab/accelfab/device/ib"
)

// TestIdentifications gives an ingress packets with the identifications that
// senders have, one after the other, and wants to know which it foresaw.
func TestIdentifications(t *testing.T) {
	ipv4 := newHeader(netip.MustParseAddrPort("10.0.0.1:50000"), netip.MustParseAddrPort("10.0.0.2:4791"))
	ipv6 := newHeader(netip.MustParseAddrPort("[fd00::1]:50000"), netip.MustParseAddrPort("[fd00::2]:4791"))
	packet := ib.Packet{BTH: ib.BTH{Opcode: ib.RCSendOnly, PKey: ib.DefaultPKey, DestQP: 7}, Payload: []byte("whatever it is")}
	body := packet.Append(nil)
	in := ingress{port: new(port)}
	var predicted, solved uint64
	for _, c := range []struct {
		name   string
		header *header
		index  uint16 // in the batch that arrived
		id     uint16
		solved bool
	}{
		{"lone", &ipv4, 0, 0, false},
		{"first of a call", &ipv4, 0, 0, false},
		{"second of a call", &ipv4, 1, 1, false},
		{"third of a call", &ipv4, 2, 2, false},
		{"lone, arrived with others", &ipv4, 3, 0, false},
		{"a sender that counts begins", &ipv4, 0, 0xfffe, true},
		{"and goes on", &ipv4, 0, 0xffff, false},
		{"and wraps around", &ipv4, 0, 0, false},
		{"and goes on again", &ipv4, 0, 1, false},
		{"and one of its packets is lost", &ipv4, 0, 3, true},
		{"a call between", &ipv4, 5, 5, false},
	} {
		if !in.checkICRC(body, c.header.icrc(c.id, body), c.index, c.header) {
			t.Fatalf("%s: refused", c.name)
		}
		if c.solved {
			solved++
		} else {
			predicted++
		}
		if n := in.port.counters.read(); n.IDsPredicted != predicted || n.IDsSolved != solved || in.lastID != c.id {
			t.Errorf("%s: %d predicted and %d solved, the last %d; want %d, %d and %d", c.name, n.IDsPredicted, n.IDsSolved, in.lastID, predicted, solved, c.id)
		}
	}
	if !in.checkICRC(body, ipv6.icrc(0, body), 4, &ipv6) {
		t.Error("IPv6 refused")
	}
	if n := in.port.counters.read(); n.IDsPredicted != predicted || n.IDsSolved != solved {
		t.Error("an identification of IPv6 is counted")
	}
	for _, h := range []*header{&ipv4, &ipv6} {
		if in.checkICRC(body, h.icrc(0, body)^0x00400000, 0, h) {
			t.Error("a wrong ICRC is taken")
		}
	}
}
