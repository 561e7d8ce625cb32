package ib

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
)

// goldenOpcodes are the opcodes that Linux was made to send.
var goldenOpcodes = []Opcode{
	RCSendFirst, RCSendMiddle, RCSendLast, RCSendOnly,
	RCRDMAWriteFirst, RCRDMAWriteMiddle, RCRDMAWriteLast, RCRDMAWriteOnly,
	RCRDMAReadRequest, RCRDMAReadResponseFirst, RCRDMAReadResponseMiddle, RCRDMAReadResponseLast,
	RCRDMAReadResponseOnly, RCAcknowledge, RCAtomicAcknowledge, RCFetchAdd,
	UCSendFirst, UCSendMiddle, UCSendLast, UDSendOnly,
}

// A frame is the IP packet of one RoCE v2 packet, without its ICRC.
type frame struct {
	name string
	ip   []byte
	icrc uint32
}

// transport gives the bytes from the BTH through the pad.
func (f frame) transport() []byte {
	if f.ip[0]>>4 == 6 {
		return f.ip[ipv6HeaderLen+udpHeaderLen:]
	}
	return f.ip[ipv4HeaderLen+udpHeaderLen:]
}

// pseudoIPv4 gives the fields of the frame's headers.
func (f frame) pseudoIPv4() PseudoIPv4 {
	return PseudoIPv4{
		Src: [4]byte(f.ip[12:16]), Dst: [4]byte(f.ip[16:20]),
		SrcPort: binary.BigEndian.Uint16(f.ip[20:]), DstPort: binary.BigEndian.Uint16(f.ip[22:]),
		ID: binary.BigEndian.Uint16(f.ip[4:]), DontFragment: f.ip[6]&0x40 != 0,
	}
}

func (f frame) pseudoIPv6() PseudoIPv6 {
	return PseudoIPv6{
		Src: [16]byte(f.ip[8:24]), Dst: [16]byte(f.ip[24:40]),
		SrcPort: binary.BigEndian.Uint16(f.ip[40:]), DstPort: binary.BigEndian.Uint16(f.ip[42:]),
	}
}

// readPcap gives the RoCE v2 packets of a classic little-endian pcap file.
func readPcap(t testing.TB, path string) (frames []frame) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) < 24 || binary.LittleEndian.Uint32(data) != 0xa1b2c3d4 || binary.LittleEndian.Uint32(data[20:]) != 1 {
		t.Fatalf("%s is not a little-endian pcap file of Ethernet frames", path)
	}
	for i, data := 0, data[24:]; len(data) > 0; i++ {
		length, original := binary.LittleEndian.Uint32(data[8:]), binary.LittleEndian.Uint32(data[12:])
		if length != original {
			t.Fatalf("%s: frame %d was cut short", path, i)
		}
		eth := data[16 : 16+length]
		data = data[16+length:]
		ip := eth[14:]
		var udp, ipLen int
		switch etherType := binary.BigEndian.Uint16(eth[12:]); {
		case etherType == 0x0800 && ip[9] == protocolUDP:
			udp, ipLen = ipv4HeaderLen, int(binary.BigEndian.Uint16(ip[2:]))
		case etherType == 0x86dd && ip[6] == protocolUDP:
			udp, ipLen = ipv6HeaderLen, ipv6HeaderLen+int(binary.BigEndian.Uint16(ip[4:]))
		default:
			continue
		}
		if binary.BigEndian.Uint16(ip[udp+2:]) != UDPPort {
			continue
		}
		ip, icrc, _ := CutICRC(ip[:ipLen])
		frames = append(frames, frame{fmt.Sprintf("%s frame %d", filepath.Base(path), i), ip, icrc})
	}
	return frames
}

func readPcaps(t testing.TB, dir string) (frames []frame) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.pcap"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		frames = append(frames, readPcap(t, path)...)
	}
	return frames
}

// TestGolden reads what Linux sent, writes it again and compares.
func TestGolden(t *testing.T) {
	const packets, packetsIPv6 = 515, 32
	frames := readPcaps(t, "testdata")
	opcodes, ipv6 := checkFrames(t, frames)
	if len(frames) != packets || ipv6 != packetsIPv6 {
		t.Errorf("saw %d packets, %d of them IPv6; want %d and %d", len(frames), ipv6, packets, packetsIPv6)
	}
	seen := slices.Sorted(maps.Keys(opcodes))
	if want := slices.Sorted(slices.Values(goldenOpcodes)); !slices.Equal(seen, want) {
		t.Errorf("saw opcodes %v, want %v", seen, want)
	}
}

// TestGoldenDir does the same with all captures below the directory that
// ACCELFAB_PCAP_DIR names, whatever they hold; without it those of testdata.
func TestGoldenDir(t *testing.T) {
	dir := cmp.Or(os.Getenv("ACCELFAB_PCAP_DIR"), "testdata")
	frames := readPcaps(t, dir)
	if len(frames) == 0 {
		t.Fatalf("no RoCE v2 packet in %s", dir)
	}
	opcodes, ipv6 := checkFrames(t, frames)
	t.Logf("%d packets, %d of them IPv6, %d opcodes: %v", len(frames), ipv6, len(opcodes), opcodes)
}

func checkFrames(t *testing.T, frames []frame) (opcodes map[Opcode]int, ipv6 int) {
	opcodes = map[Opcode]int{}
	for _, f := range frames {
		checkPacket(t, f, opcodes)
		before := bytes.Clone(f.ip)
		got, err := ICRC(f.ip)
		if err != nil || got != f.icrc {
			t.Errorf("%s: ICRC of the packet is %08x, %v; want %08x", f.name, got, err, f.icrc)
		}
		b := f.transport()
		headers, payload := b[:Opcode(b[0]).HeaderLen()], b[Opcode(b[0]).HeaderLen():]
		if f.ip[0]>>4 == 6 {
			ipv6++
			if got := f.pseudoIPv6().ICRC(headers, payload); got != f.icrc {
				t.Errorf("%s: ICRC of the parts is %08x, want %08x", f.name, got, f.icrc)
			}
			continue
		}
		p := f.pseudoIPv4()
		if got := p.ICRC(headers, payload); got != f.icrc {
			t.Errorf("%s: ICRC of the parts is %08x, want %08x", f.name, got, f.icrc)
		}
		if got := p.ICRC(b); got != f.icrc {
			t.Errorf("%s: ICRC of one part is %08x, want %08x", f.name, got, f.icrc)
		}
		hidden := p
		hidden.ID = 0x5a5a
		if id, ok := SolveIPv4ID(hidden, f.icrc, headers, payload); !ok || id != p.ID {
			t.Errorf("%s: solved identification is %d, %v; want %d", f.name, id, ok, p.ID)
		}
		if !bytes.Equal(before, f.ip) {
			t.Errorf("%s: the packet was changed", f.name)
		}
	}
	return opcodes, ipv6
}

func checkPacket(t *testing.T, f frame, opcodes map[Opcode]int) {
	b := f.transport()
	var p Packet
	if err := p.Parse(b); err != nil {
		t.Errorf("%s: %v", f.name, err)
		return
	}
	opcodes[p.Opcode]++
	if got := p.Append(nil); !bytes.Equal(got, b) {
		t.Errorf("%s: wrote %x, want %x", f.name, got, b)
	}
	n := p.Opcode.HeaderLen()
	if got := p.AppendHeaders(nil, len(p.Payload)); !bytes.Equal(got, b[:n]) {
		t.Errorf("%s: headers %x, want %x", f.name, got, b[:n])
	}
	if p.PKey != DefaultPKey || p.Opcode.HasAETH() && p.AETH.Syndrome != AckSyndrome(UnlimitedCredits) {
		t.Errorf("%s: P_Key %#x, syndrome %v", f.name, p.PKey, p.AETH.Syndrome)
	}
	if p.Opcode.IsFirst() || p.Opcode.IsMiddle() {
		if _, ok := MTUFromBytes(len(p.Payload)); !ok {
			t.Errorf("%s: %v with a payload of %d bytes, which is no MTU", f.name, p.Opcode, len(p.Payload))
		}
	}
}

// TestGoldenFields compares the first packet of an opcode with the fields that
// another decoder, tshark, shows for it.
func TestGoldenFields(t *testing.T) {
	bth := func(op Opcode, pad uint8, qp QPN, ack bool, psn PSN) BTH {
		return BTH{Opcode: op, PadCount: pad, PKey: DefaultPKey, DestQP: qp, AckReq: ack, PSN: psn}
	}
	tests := []struct {
		file    string
		want    Packet
		payload int
	}{
		{"rc_1025.pcap", Packet{BTH: bth(RCSendLast, 3, 0x1d, true, 3985534)}, 1},
		{"rc_262144_n2.pcap", Packet{BTH: bth(RCSendMiddle, 0, 0x2f, false, 7015769)}, 1024},
		{"rc_8.pcap", Packet{BTH: bth(RCAcknowledge, 0, 0x11, false, 1909769), AETH: AETH{31, 1}}, 0},
		{"ud_8.pcap", Packet{BTH: bth(UDSendOnly, 0, 0x21, false, 14768689), DETH: DETH{QKey: 0x11111111, SrcQP: 0x17}}, 8},
		{"read_lat_4096.pcap", Packet{
			BTH:  bth(RCRDMAReadRequest, 0, 0x28, true, 12786695),
			RETH: RETH{VA: 0x56384a772000, RKey: 0x1803, Length: 4096},
		}, 0},
		{"write_lat_8.pcap", Packet{
			BTH:  bth(RCRDMAWriteOnly, 0, 0x1d, true, 9505848),
			RETH: RETH{VA: 0x5619d7321000, RKey: 0xd56, Length: 8},
		}, 8},
		{"atomic_lat.pcap", Packet{
			BTH:       bth(RCFetchAdd, 0, 0x2b, true, 11583548),
			AtomicETH: AtomicETH{VA: 0x563fee9e4000, RKey: 0x1ba8, Swap: 1},
		}, 0},
		{"atomic_lat.pcap", Packet{
			BTH:       bth(RCAtomicAcknowledge, 0, 0x21, false, 11583548),
			AETH:      AETH{31, 1},
			AtomicAck: AtomicAckETH{10275932173180998192},
		}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.want.Opcode.String(), func(t *testing.T) {
			frames := readPcap(t, filepath.Join("testdata", tt.file))
			i := slices.IndexFunc(frames, func(f frame) bool { return Opcode(f.transport()[0]) == tt.want.Opcode })
			if i < 0 {
				t.Fatalf("no such packet in %s", tt.file)
			}
			var got Packet
			if err := got.Parse(frames[i].transport()); err != nil {
				t.Fatal(err)
			}
			if len(got.Payload) != tt.payload {
				t.Errorf("payload of %d bytes, want %d", len(got.Payload), tt.payload)
			}
			got.Payload = nil
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}
