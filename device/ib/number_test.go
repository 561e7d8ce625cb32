package ib

import (
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
)

func TestPSN(t *testing.T) {
	tests := []struct {
		from PSN
		n    int
		to   PSN
	}{
		{0, 0, 0},
		{0, 1, 1},
		{0, -1, 0xffffff},
		{0xffffff, 1, 0},
		{0xfffffe, 4, 2},
		{2, -4, 0xfffffe},
		{0, 1<<23 - 1, 0x7fffff},
		{0, -1 << 23, 0x800000},
		{0x800000, -1 << 23, 0},
		{0x123456, 0x100, 0x123556},
	}
	for _, tt := range tests {
		if got := tt.from.Add(tt.n); got != tt.to {
			t.Errorf("%#x.Add(%d) = %#x, want %#x", tt.from, tt.n, got, tt.to)
		}
		if got := tt.to.Sub(tt.from); got != tt.n {
			t.Errorf("%#x.Sub(%#x) = %d, want %d", tt.to, tt.from, got, tt.n)
		}
		// Numbers 2^23 apart have no order.
		if got := tt.from.Before(tt.to); got != (tt.n > 0) && tt.n != -1<<23 {
			t.Errorf("%#x.Before(%#x) = %v", tt.from, tt.to, got)
		}
	}
}

func TestPSNProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		p := PSN(r.Uint32N(1 << 24))
		n := r.IntN(1<<24) - 1<<23
		q := p.Add(n)
		if q > 0xffffff || q.Sub(p) != n || q.Add(-n) != p || q.Before(p) != (n < 0) {
			t.Fatalf("p %#x, n %d: q %#x, q-p %d, back %#x, before %v", p, n, q, q.Sub(p), q.Add(-n), q.Before(p))
		}
		if p.Next() != p.Add(1) || p.Add(1<<24) != p || p.Add(n+7) != q.Add(7) {
			t.Fatalf("p %#x, n %d: arithmetic is not modulo 2^24", p, n)
		}
		// Stray bits above the 24 do not matter.
		if (p|0xab000000).Sub(q|0x12000000) != p.Sub(q) || (p|0xab000000).Next() != p.Next() {
			t.Fatalf("p %#x: the upper 8 bits count", p)
		}
	}
}

func TestPKeyMatches(t *testing.T) {
	tests := []struct {
		a, b PKey
		want bool
	}{
		{0xffff, 0xffff, true},
		{0xffff, 0x7fff, true},
		{0x7fff, 0xffff, true},
		{0x7fff, 0x7fff, false}, // two limited members
		{0x8001, 0x8002, false},
		{0x8001, 0x0001, true},
		{0x8000, 0x8000, false}, // names no partition
		{0x8000, 0x0000, false},
		{0x8001, 0x8000, false},
	}
	for _, tt := range tests {
		if got := tt.a.Matches(tt.b); got != tt.want {
			t.Errorf("%#04x.Matches(%#04x) = %v", uint16(tt.a), uint16(tt.b), got)
		}
	}
	if k := PKey(0x8123); k.Base() != 0x123 || !k.FullMember() || k.Base().FullMember() || !k.Valid() {
		t.Errorf("%#x: base %#x, full %v", k, k.Base(), k.FullMember())
	}
}

func TestQKeyControlled(t *testing.T) {
	for k, want := range map[QKey]bool{0x80010000: true, 0x11111111: false, 0x7fffffff: false, 0xffffffff: true} {
		if k.Controlled() != want {
			t.Errorf("%#x.Controlled() = %v", uint32(k), !want)
		}
	}
}

func TestGID(t *testing.T) {
	tests := []struct {
		text, canonical, addr string
		mapped, linkLocal     bool
	}{
		{"::ffff:10.77.0.11", "::ffff:10.77.0.11", "10.77.0.11", true, false},
		{"0000:0000:0000:0000:0000:ffff:0a4d:000b", "::ffff:10.77.0.11", "10.77.0.11", true, false},
		{"fe80:0000:0000:0000:5054:00ff:fe12:3456", "fe80::5054:ff:fe12:3456", "fe80::5054:ff:fe12:3456", false, true},
		{"febf::1", "febf::1", "febf::1", false, true},
		{"fec0::1", "fec0::1", "fec0::1", false, false},
		{"2001:db8::1", "2001:db8::1", "2001:db8::1", false, false},
		{"::", "::", "::", false, false},
	}
	for _, tt := range tests {
		g, err := ParseGID(tt.text)
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		if g.String() != tt.canonical || g.Addr() != netip.MustParseAddr(tt.addr) ||
			g.IsIPv4Mapped() != tt.mapped || g.IsLinkLocal() != tt.linkLocal || g.IsZero() != (tt.text == "::") {
			t.Errorf("%s: %s, address %s, mapped %v, link-local %v", tt.text, g, g.Addr(), g.IsIPv4Mapped(), g.IsLinkLocal())
		}
		family := "IPv6"
		switch {
		case tt.mapped:
			family = "IPv4"
		case tt.linkLocal:
			family = "IPv6 link-local"
		}
		if g.Family() != family {
			t.Errorf("%s: family %s, want %s", tt.text, g.Family(), family)
		}
		if GIDFromAddr(g.Addr()) != g {
			t.Errorf("%s: through its address it became %s", g, GIDFromAddr(g.Addr()))
		}
		j, err := json.Marshal(g)
		var back GID
		if err != nil || string(j) != `"`+tt.canonical+`"` || json.Unmarshal(j, &back) != nil || back != g {
			t.Errorf("%s: through JSON %s it became %s (%v)", g, j, back, err)
		}
	}
	if !GIDFromAddr(netip.Addr{}).IsZero() {
		t.Error("the GID of no address is not zero")
	}
	if g := GIDFromAddr(netip.MustParseAddr("fe80::1%eth0")); g.String() != "fe80::1" {
		t.Errorf("with a zone: %s", g)
	}
}

func TestParseGIDRefuses(t *testing.T) {
	for text, hint := range map[string]string{
		"":             "want an IPv6 address",
		"10.0.0.1":     "::ffff:10.0.0.1",
		"fe80::1%eth0": "write fe80::1",
		"fe80::12345":  "want an IPv6 address",
		"zzz":          "want an IPv6 address",
	} {
		g := GID{1}
		err := g.UnmarshalText([]byte(text))
		if err == nil || !strings.Contains(err.Error(), hint) || !strings.Contains(err.Error(), `"`+text+`"`) {
			t.Errorf("%q: %v, want a hint of %q", text, err, hint)
		}
		if g != (GID{1}) {
			t.Errorf("%q: a refused text changed the GID", text)
		}
	}
}

func TestMTU(t *testing.T) {
	for m, bytes := range map[MTU]int{MTU256: 256, MTU512: 512, MTU1024: 1024, MTU2048: 2048, MTU4096: 4096, 0: 0, 6: 0, 255: 0} {
		if m.Bytes() != bytes || m.Valid() != (bytes > 0) {
			t.Errorf("%v: %d bytes, valid %v", m, m.Bytes(), m.Valid())
		}
	}
	tests := []struct {
		n       int
		largest MTU
		exact   bool
	}{
		{-1, 0, false}, {0, 0, false}, {255, 0, false}, {256, MTU256, true}, {257, MTU256, false},
		{1023, MTU512, false}, {1024, MTU1024, true}, {1444, MTU1024, false}, {4096, MTU4096, true}, {9000, MTU4096, false},
	}
	for _, tt := range tests {
		if got := LargestMTU(tt.n); got != tt.largest {
			t.Errorf("LargestMTU(%d) = %v, want %v", tt.n, got, tt.largest)
		}
		if _, ok := MTUFromBytes(tt.n); ok != tt.exact {
			t.Errorf("MTUFromBytes(%d) is %v", tt.n, ok)
		}
	}
	if MTU2048.String() != "2048" || MTU(6).String() != "MTU(6)" {
		t.Errorf("%s %s", MTU2048, MTU(6))
	}
}

func TestAccess(t *testing.T) {
	if got := (LocalWrite | RemoteAtomic | 0x40).String(); got != "LOCAL_WRITE|REMOTE_ATOMIC|0x40" {
		t.Error(got)
	}
	for a := range Access(32) {
		writes := a&(RemoteWrite|RemoteAtomic) != 0
		want := a < 16 && (!writes || a&LocalWrite != 0)
		if err := a.CheckRegion(); (err == nil) != want {
			t.Errorf("%v: %v", a, err)
		}
	}
}

// TestNames holds the names and numbers of the verbs.
func TestNames(t *testing.T) {
	for s, name := range map[WCStatus]string{
		0: "SUCCESS", 1: "LOC_LEN_ERR", 2: "LOC_QP_OP_ERR", 3: "WCStatus(3)", 4: "LOC_PROT_ERR", 5: "WR_FLUSH_ERR",
		6: "MW_BIND_ERR", 7: "BAD_RESP_ERR", 8: "LOC_ACCESS_ERR", 9: "REM_INV_REQ_ERR", 10: "REM_ACCESS_ERR",
		11: "REM_OP_ERR", 12: "RETRY_EXC_ERR", 13: "RNR_RETRY_EXC_ERR", 16: "REM_ABORT_ERR", 19: "FATAL_ERR",
		20: "RESP_TIMEOUT_ERR", 21: "GENERAL_ERR", 22: "WCStatus(22)",
	} {
		if s.String() != name {
			t.Errorf("status %d is %s, want %s", uint8(s), s, name)
		}
	}
	for o, name := range map[WCOpcode]string{
		0: "SEND", 1: "RDMA_WRITE", 2: "RDMA_READ", 3: "COMP_SWAP", 4: "FETCH_ADD",
		128: "RECV", 129: "RECV_RDMA_WITH_IMM", 5: "WCOpcode(5)",
	} {
		if o.String() != name {
			t.Errorf("opcode %d is %s, want %s", uint8(o), o, name)
		}
	}
	for typ, name := range map[QPType]string{2: "RC", 3: "UC", 4: "UD", 0: "QPType(0)"} {
		if typ.String() != name || typ.Valid() != (typ != 0) {
			t.Errorf("type %d is %s, want %s", uint8(typ), typ, name)
		}
	}
	for i, name := range []string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR", "QPState(7)"} {
		if s := QPState(i); s.String() != name || s.Valid() != (i < 7) {
			t.Errorf("state %d is %s, want %s", i, s, name)
		}
	}
	for typ, name := range map[GIDType]string{IB: "IB", RoCEv1: "RoCE v1", RoCEv2: "RoCE v2", 3: "GIDType(3)"} {
		if typ.String() != name {
			t.Errorf("GID type %d is %s, want %s", uint8(typ), typ, name)
		}
	}
}
