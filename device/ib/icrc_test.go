package ib

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// TestICRCMask changes one bit after the other of a packet and looks whether
// the ICRC sees it.
func TestICRCMask(t *testing.T) {
	tests := []struct {
		file string
		mask map[int]byte // bits by byte that routers may change
		skip map[int]byte // bits that make it another kind of packet
	}{
		{"rc_8.pcap", map[int]byte{1: 0xff, 8: 0xff, 10: 0xff, 11: 0xff, 26: 0xff, 27: 0xff, 32: 0xff}, map[int]byte{0: 0xff, 9: 0xff}},
		{"ud6_64.pcap", map[int]byte{0: 0x0f, 1: 0xff, 2: 0xff, 3: 0xff, 7: 0xff, 46: 0xff, 47: 0xff, 52: 0xff}, map[int]byte{0: 0xf0, 6: 0xff}},
	}
	for _, tt := range tests {
		f := readPcap(t, "testdata/"+tt.file)[0]
		for bit := range len(f.ip) * 8 {
			at, m := bit/8, byte(1)<<(bit%8)
			if tt.skip[at]&m != 0 {
				continue
			}
			ip := bytes.Clone(f.ip)
			ip[at] ^= m
			got, err := ICRC(ip)
			if err != nil || (got == f.icrc) != (tt.mask[at]&m != 0) {
				t.Errorf("%s: byte %d bit %#02x: ICRC %08x, %v; was %08x", f.name, at, m, got, err, f.icrc)
			}
		}
	}
}

// TestICRCOptions has an IPv4 header with options, which no socket here sends,
// beside the definition written out byte by byte.
func TestICRCOptions(t *testing.T) {
	ip := make([]byte, 60+8+12+8)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range ip {
		ip[i] = byte(r.Uint32())
	}
	ip[0], ip[9] = 0x4f, 17
	masked := append(bytes.Repeat([]byte{0xff}, 8), ip...)
	for _, i := range []int{1, 8, 10, 11, 60 + 6, 60 + 7, 68 + 4} {
		masked[8+i] = 0xff
	}
	if got, err := ICRC(ip); err != nil || got != crc32.ChecksumIEEE(masked) {
		t.Errorf("%08x, %v; want %08x", got, err, crc32.ChecksumIEEE(masked))
	}
}

func TestICRCRefuses(t *testing.T) {
	good := readPcap(t, "testdata/rc_8.pcap")[0].ip
	edit := func(at int, v byte) []byte {
		b := bytes.Clone(good)
		b[at] = v
		return b
	}
	ipv6 := edit(0, 0x60)
	ipv6[6] = protocolUDP // next header
	for name, tt := range map[string]struct {
		ip        []byte
		truncated bool
	}{
		"nothing":          {nil, true},
		"19 bytes":         {good[:19], true},
		"BTH cut":          {good[:39], true},
		"IPv6 cut":         {ipv6[:39], true},
		"options cut":      {edit(0, 0x4f), true},
		"IP version 5":     {edit(0, 0x55), false},
		"TCP":              {edit(9, 6), false},
		"IPv4 header of 4": {edit(0, 0x41), false},
	} {
		_, err := ICRC(tt.ip)
		if err == nil || errors.Is(err, ErrTruncated) != tt.truncated {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCutICRC(t *testing.T) {
	b := AppendICRC([]byte{1, 2}, 0x11223344)
	if !bytes.Equal(b, []byte{1, 2, 0x44, 0x33, 0x22, 0x11}) {
		t.Errorf("appended %x", b)
	}
	if rest, icrc, ok := CutICRC(b); !ok || icrc != 0x11223344 || !bytes.Equal(rest, []byte{1, 2}) {
		t.Errorf("cut %x %08x %v", rest, icrc, ok)
	}
	if _, _, ok := CutICRC(b[:3]); ok {
		t.Error("3 bytes have an ICRC")
	}
}

// TestSolveIPv4ID solves packets of all sizes, some of which need the upper
// half of the table of lengths.
func TestSolveIPv4ID(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	buf := make([]byte, 9000)
	for i := range buf {
		buf[i] = byte(r.Uint32())
	}
	sizes := []int{12, 13, 195, 196, 197, 200, 207, 208, 209, 210, 211, 255, 256, 257, 1036, 4108, 4124, 8999, 9000}
	for len(sizes) < 500 {
		sizes = append(sizes, 12+r.IntN(len(buf)-12))
	}
	for i, n := range sizes {
		id := uint16(r.Uint32())
		if edge := []uint16{0, 1, 0x00ff, 0x0100, 0x8000, 0xffff}; i < len(edge) {
			id = edge[i]
		}
		p := PseudoIPv4{Src: [4]byte{127, 64, 0, byte(i)}, Dst: [4]byte{127, 65, 1, 2}, SrcPort: 50000, DstPort: UDPPort, ID: id, DontFragment: i%2 == 0}
		icrc := p.ICRC(buf[:n])
		p.ID = uint16(r.Uint32())
		if got, ok := SolveIPv4ID(p, icrc, buf[:12], buf[12:n]); !ok || got != id {
			t.Errorf("%d bytes: solved %#04x, %v; want %#04x", n, got, ok, id)
		}
	}
}

// TestSolveIPv4IDCorrupt: no single flipped bit has a solution, and of random
// ICRCs about one in 65,536 has. A solution is always a true one.
func TestSolveIPv4IDCorrupt(t *testing.T) {
	f := readPcap(t, "testdata/rc_8.pcap")[0]
	p, b := f.pseudoIPv4(), f.transport()
	for bit := range len(b) * 8 {
		if bit/8 == 4 {
			continue // masked
		}
		bad := bytes.Clone(b)
		bad[bit/8] ^= 1 << (bit % 8)
		if id, ok := SolveIPv4ID(p, f.icrc, bad); ok {
			t.Errorf("bit %d flipped: solved %#04x", bit, id)
		}
	}
	r := rand.New(rand.NewPCG(7, 8))
	const tries = 1 << 20
	solved := 0
	for range tries {
		icrc := r.Uint32()
		id, ok := SolveIPv4ID(p, icrc, b)
		if !ok {
			continue
		}
		solved++
		p.ID = id
		if got := p.ICRC(b); got != icrc {
			t.Fatalf("solved %#04x for %08x, which gives %08x", id, icrc, got)
		}
	}
	if solved < 4 || solved > 40 {
		t.Errorf("%d of %d random ICRCs were solved, want about 16", solved, tries)
	}
}

// FuzzSolveIPv4ID: the pieces agree with the whole packet, and the solver finds
// the identification.
func FuzzSolveIPv4ID(f *testing.F) {
	f.Add([]byte("twelve bytes"), uint16(0), uint16(12), uint32(0))
	f.Add(bytes.Repeat([]byte{0xa5}, 300), uint16(0xffff), uint16(40), uint32(0x7f400001))
	f.Fuzz(func(t *testing.T, b []byte, id, cut uint16, src uint32) {
		if len(b) < BTHLen || len(b) > 9000 {
			return
		}
		p := PseudoIPv4{Dst: [4]byte{10, 0, 0, 1}, SrcPort: uint16(src), DstPort: UDPPort, ID: id, DontFragment: src&1 != 0}
		binary.BigEndian.PutUint32(p.Src[:], src)
		ip := make([]byte, 28, 28+len(b))
		ip[0], ip[8], ip[9] = 0x45, 64, 17
		if p.DontFragment {
			ip[6] = 0x40
		}
		binary.BigEndian.PutUint16(ip[2:], uint16(28+len(b)+4))
		binary.BigEndian.PutUint16(ip[4:], id)
		copy(ip[12:], p.Src[:])
		copy(ip[16:], p.Dst[:])
		binary.BigEndian.PutUint16(ip[20:], p.SrcPort)
		binary.BigEndian.PutUint16(ip[22:], p.DstPort)
		binary.BigEndian.PutUint16(ip[24:], uint16(8+len(b)+4))
		whole, err := ICRC(append(ip, b...))
		at := max(BTHLen, min(int(cut), len(b)))
		if parts := p.ICRC(b[:at], b[at:]); err != nil || parts != whole {
			t.Fatalf("parts %08x, whole %08x, %v", parts, whole, err)
		}
		p.ID = ^id
		if got, ok := SolveIPv4ID(p, whole, b[:at], b[at:]); !ok || got != id {
			t.Fatalf("solved %#04x, %v; want %#04x", got, ok, id)
		}
	})
}
