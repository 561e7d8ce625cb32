package transport_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/soft/transport"
)

// datagram is a RoCE v2 packet of a capture, from the BTH through the pad.
type datagram struct {
	src, dst  ib.GID
	transport []byte
}

// readCapture gives the RoCE v2 packets of a capture of device/ib/testdata, whose
// README says where they are from.
func readCapture(t *testing.T, name string) (list []datagram) {
	t.Helper()
	b, err := os.ReadFile("../../ib/testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	const ethernet, udp = 14, 8
	for b = b[24:]; len(b) > 0; {
		n := binary.LittleEndian.Uint32(b[8:])
		frame := b[16 : 16+n]
		b = b[16+n:]
		ip := frame[ethernet:]
		d := datagram{}
		switch {
		case ip[0]>>4 == 4 && ip[9] == 17:
			d.src, d.dst = ib.GID{10: 0xff, 11: 0xff}, ib.GID{10: 0xff, 11: 0xff}
			copy(d.src[12:], ip[12:16])
			copy(d.dst[12:], ip[16:20])
			ip = ip[20:binary.BigEndian.Uint16(ip[2:])]
		case ip[0]>>4 == 6 && ip[6] == 17:
			d.src, d.dst = ib.GID(ip[8:24]), ib.GID(ip[24:40])
			ip = ip[40 : 40+binary.BigEndian.Uint16(ip[4:])]
		default:
			continue
		}
		if binary.BigEndian.Uint16(ip[2:]) != ib.UDPPort {
			continue
		}
		d.transport, _, _ = ib.CutICRC(ip[udp:])
		list = append(list, d)
	}
	return list
}

// recorder keeps the bytes of packets.
type recorder [][]byte

func (r *recorder) Send(p *ib.Packet, _ *device.Datagram) { *r = append(*r, p.Append(nil)) }

// What Linux Soft-RoCE sent is sent here for the same work, byte for byte, and
// what it sent is understood.
func TestMessagesOfLinux(t *testing.T) {
	for _, tt := range []struct {
		file     string
		typ      ib.QPType
		messages int
		size     int
	}{
		{"rc_8.pcap", ib.RC, 8, 8},
		{"rc_4096.pcap", ib.RC, 2, 4096},
		{"rc_10000.pcap", ib.RC, 2, 10000},
		{"uc_4096.pcap", ib.UC, 2, 4096},
		{"ud_8.pcap", ib.UD, 8, 8},
		{"ud_1024.pcap", ib.UD, 4, 1024},
		{"ud6_64.pcap", ib.UD, 8, 64},
	} {
		t.Run(tt.file, func(t *testing.T) {
			messages := 0
			var message []datagram
			var payload []byte
			var first ib.Packet
			for _, d := range readCapture(t, tt.file) {
				var p ib.Packet
				if err := p.Parse(d.transport); err != nil {
					t.Fatal(err)
				}
				if p.Opcode.IsResponse() || p.DestQP == 1 {
					continue
				}
				if p.Opcode.IsFirst() || p.Opcode.IsOnly() {
					message, payload, first = nil, nil, p
				}
				message, payload = append(message, d), append(payload, p.Payload...)
				if p.Opcode.IsLast() || p.Opcode.IsOnly() {
					messages++
					if len(payload) != tt.size {
						t.Fatalf("a message of %d bytes, want %d", len(payload), tt.size)
					}
					replay(t, tt.typ, first, message, payload)
				}
			}
			if messages < tt.messages {
				t.Errorf("%d messages, want at least %d", messages, tt.messages)
			}
		})
	}
}

func replay(t *testing.T, typ ib.QPType, first ib.Packet, message []datagram, payload []byte) {
	t.Helper()
	w := newWire(t, options{typ: typ})
	a, b := w.ends[0], w.ends[1]
	local, into := a.memory.add(len(payload), all), b.memory.add(grhLen+len(payload), all)
	copy(local.data, payload)
	for _, e := range []*end{a, b} {
		e.QueuePair = transport.New(transport.Config{Type: typ, Memory: &e.memory, PD: pd, QPN: first.DETH.SrcQP, SendWR: 1, RecvWR: 1, SGE: 1, Window: 64})
		e.Modify(w.now, device.ToInit{PKey: first.PKey, QKey: first.DETH.QKey, Access: all})
		e.Modify(w.now, device.ToRTR{Remote: device.Remote{QPN: first.DestQP, PSN: first.PSN}, PathMTU: ib.MTU1024})
		e.Modify(w.now, device.ToRTS{PSN: first.PSN})
	}
	wr := device.WorkRequest{ID: 1, Opcode: device.WorkSend, SGL: local.sge(0, len(payload)), Signaled: true}
	if typ == ib.UD {
		wr.Dest = &device.Datagram{GID: message[0].dst, QPN: first.DestQP, QKey: first.DETH.QKey}
	}
	a.send(wr)
	var sent recorder
	for a.Transmit(w.now, &sent, 1) {
	}
	if len(sent) != len(message) {
		t.Fatalf("%d packets, Linux sent %d", len(sent), len(message))
	}
	for i := range sent {
		if !bytes.Equal(sent[i], message[i].transport) {
			t.Errorf("packet %d of %d: % x, Linux sent % x", i, len(sent), sent[i][:28], message[i].transport[:28])
		}
	}

	b.recv(2, into.sge(0, len(into.data)))
	for _, d := range message {
		var p ib.Packet
		if err := p.Parse(d.transport); err != nil {
			t.Fatal(err)
		}
		b.Receive(w.now, &p, &transport.Arrival{Src: d.src, Dst: d.dst, HopLimit: 64})
	}
	got := b.take()
	offset := 0
	if typ == ib.UD {
		offset = grhLen
	}
	if len(got) != 1 || got[0].Status != ib.Success || int(got[0].Length) != offset+len(payload) || !bytes.Equal(into.data[offset:][:len(payload)], payload) {
		t.Errorf("received %+v", got)
	}
	if typ == ib.UD && (got[0].Source.GID != message[0].src || got[0].Source.QPN != first.DETH.SrcQP) {
		t.Errorf("source %+v", got[0].Source)
	}
}
