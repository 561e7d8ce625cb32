package transport_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/soft/transport"
)

const grhLen = 40

func TestADatagramArrivesWithItsHeader(t *testing.T) {
	for _, size := range []int{0, 1, 1023, 1024} {
		w := newWire(t, options{typ: ib.UD, psn: 1<<24 - 1})
		a, b := w.ends[0], w.ends[1]
		local, into := a.memory.add(size, all), b.memory.add(grhLen+size+8, all)
		fill(local.data, uint64(size))
		for i := range uint64(2) {
			b.recv(i, into.sge(0, grhLen+size))
			a.send(device.WorkRequest{ID: i, Opcode: device.WorkSendImm, Imm: 0xfeed, SGL: local.sge(0, size), Dest: to(1), Signaled: true, Solicited: true})
			w.run()
			a.expect([]string{"send 0 SUCCESS", "send 1 SUCCESS"}[i])
			got := b.take()
			if len(got) != 1 || got[0].Source != (device.Datagram{GID: gid(0), QPN: qpn(0)}) {
				t.Fatalf("%d bytes: received %+v", size, got)
			}
			got[0].Source = device.Datagram{}
			want := device.Completion{ID: i, Opcode: ib.WCRecv, Length: uint32(grhLen + size), Imm: 0xfeed, HasImm: true, Receive: true, Solicited: true, HasGRH: true}
			if got[0] != want {
				t.Errorf("%d bytes: received %+v, want %+v", size, got[0], want)
			}
			if !bytes.Equal(into.data[grhLen:grhLen+size], local.data) || !bytes.Equal(into.data[grhLen+size:], make([]byte, 8)) {
				t.Errorf("%d bytes: data differ", size)
			}
		}
	}
}

func TestTheHeaderInFrontIsTheNetworkHeader(t *testing.T) {
	v6 := func(i byte) ib.GID { return ib.GID{0: 0xfe, 1: 0x80, 15: i} }
	for _, tt := range []struct {
		name string
		from transport.Arrival
		want []byte
	}{
		{"IPv4", transport.Arrival{Src: gid(0), Dst: gid(1), TrafficClass: 0x1a, HopLimit: 63, ID: 0x9bdd}, append(make([]byte, 20),
			0x45, 0x1a, 0, 20+8+12+8+8+4, 0x9b, 0xdd, 0x40, 0, 63, 17, 0x8b, 0x09, 10, 77, 0, 11, 10, 77, 0, 12)},
		{"IPv6", transport.Arrival{Src: v6(1), Dst: v6(2), TrafficClass: 0x1a, HopLimit: 63}, []byte{
			0x61, 0xa0, 0, 0, 0, 8 + 12 + 8 + 8 + 4, 17, 63,
			0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
			0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2}},
	} {
		w := newWire(t, options{typ: ib.UD})
		b := w.ends[1]
		into := b.memory.add(100, all)
		b.recv(0, into.sge(0, 100))
		b.Receive(w.now, &ib.Packet{BTH: ib.BTH{Opcode: ib.UDSendOnly}, DETH: ib.DETH{QKey: qkey(1), SrcQP: 5}, Payload: []byte("seven b")}, &tt.from)
		if got := b.take(); len(got) != 1 || got[0].Source.GID != tt.from.Src || got[0].Source.QPN != 5 || got[0].Length != 47 {
			t.Errorf("%s: received %+v", tt.name, got)
		}
		if !bytes.Equal(into.data[:grhLen], tt.want) {
			t.Errorf("%s: header % x, want % x", tt.name, into.data[:grhLen], tt.want)
		}
		if sum := checksum(into.data[20:grhLen]); tt.name == "IPv4" && sum != 0xffff {
			t.Errorf("the IPv4 header sums up to %#x, want 0xffff", sum)
		}
	}
}

// checksum is the one's complement sum of RFC 1071.
func checksum(b []byte) (sum uint32) {
	for ; len(b) > 0; b = b[2:] {
		if sum += uint32(binary.BigEndian.Uint16(b)); sum > 0xffff {
			sum -= 0xffff
		}
	}
	return sum
}

func TestDatagramsAreTurnedAwayByReason(t *testing.T) {
	good := ib.Packet{BTH: ib.BTH{Opcode: ib.UDSendOnly}, DETH: ib.DETH{QKey: qkey(1)}, Payload: make([]byte, 60)}
	for _, tt := range []struct {
		name   string
		change func(p *ib.Packet)
		recvs  int
		fate   transport.Fate
	}{
		{"good", func(*ib.Packet) {}, 1, transport.Taken},
		{"any PSN is good", func(p *ib.Packet) { p.PSN = 0x800000 }, 1, transport.Taken},
		{"wrong Q_Key", func(p *ib.Packet) { p.DETH.QKey ^= 1 }, 1, transport.QKeyViolation},
		{"wrong Q_Key and no receive", func(p *ib.Packet) { p.DETH.QKey ^= 1 }, 0, transport.QKeyViolation},
		{"no receive", func(*ib.Packet) {}, 0, transport.Unexpected},
		{"above the MTU", func(p *ib.Packet) { p.Payload = make([]byte, 1025) }, 1, transport.Malformed},
		{"RC", func(p *ib.Packet) { p.Opcode = ib.RCSendOnly }, 1, transport.Unexpected},
		{"UC", func(p *ib.Packet) { p.Opcode = ib.UCSendOnly }, 1, transport.Unexpected},
		{"answer", func(p *ib.Packet) { p.Opcode = ib.RCAcknowledge }, 1, transport.Unexpected},
	} {
		w := newWire(t, options{typ: ib.UD})
		b := w.ends[1]
		into := b.memory.add(100, all)
		for range tt.recvs {
			b.recv(1, into.sge(0, 100))
		}
		p := good
		tt.change(&p)
		b.Receive(w.now, &p, &transport.Arrival{Src: gid(0), Dst: gid(1)})
		b.collect()
		if b.total.Packets[tt.fate] != 1 {
			t.Errorf("%s: %v, want fate %d", tt.name, b.total.Packets, tt.fate)
		}
		if done := b.take(); len(done) != 0 != (tt.fate == transport.Taken) {
			t.Errorf("%s: completions %+v", tt.name, done)
		}
		if tt.fate != transport.Taken && !bytes.Equal(into.data, make([]byte, 100)) {
			t.Errorf("%s: memory was written", tt.name)
		}
		b.expectFailure(ib.Success, "")
	}
}

func TestAReceiveThatDoesNotHoldADatagramEndsTheQueuePair(t *testing.T) {
	for _, tt := range []struct {
		name   string
		sgl    func(r *region) []device.SGE
		status ib.WCStatus
		reason string
	}{
		{"too small", func(r *region) []device.SGE { return r.sge(0, grhLen+9) }, ib.LocLenErr, "message longer than the receive posted for it"},
		{"too small for the header", func(r *region) []device.SGE { return r.sge(0, 0) }, ib.LocLenErr, "message longer than the receive posted for it"},
		{"not writable", func(r *region) []device.SGE { r.access = 0; return r.sge(0, 100) }, ib.LocProtErr, "memory of the receive not writable in this protection domain"},
	} {
		w := newWire(t, options{typ: ib.UD})
		a, b := w.ends[0], w.ends[1]
		local, into := a.memory.add(10, all), b.memory.add(100, all)
		b.recv(1, tt.sgl(into))
		b.recv(2, nil)
		a.send(device.WorkRequest{ID: 3, Opcode: device.WorkSend, SGL: local.sge(0, 10), Dest: to(1), Signaled: true})
		w.run()
		a.expect("send 3 SUCCESS")
		b.expect("recv 1 "+tt.status.String(), "recv 2 WR_FLUSH_ERR")
		b.expectFailure(tt.status, "UD_SEND_ONLY from QPN 0x11 of ::ffff:10.77.0.11: "+tt.reason)
	}
}

func TestAKeyOfPrivilegedUsersStandsForTheOwnKey(t *testing.T) {
	w := newWire(t, options{typ: ib.UD})
	a := w.ends[0]
	var keys []ib.QKey
	w.seen = func(_ int, p *ib.Packet) { keys = append(keys, p.DETH.QKey) }
	for _, key := range []ib.QKey{5, 0x7fffffff, 0x80000000, 0x80010000} {
		a.send(device.WorkRequest{Opcode: device.WorkSend, Dest: &device.Datagram{GID: gid(1), QPN: qpn(1), QKey: key}})
	}
	w.run()
	if len(keys) != 4 || keys[0] != 5 || keys[1] != 0x7fffffff || keys[2] != qkey(0) || keys[3] != qkey(0) {
		t.Errorf("keys %#x", keys)
	}
}

// destinations takes down where packets go.
type destinations []device.Datagram

func (d *destinations) Send(_ *ib.Packet, to *device.Datagram) { *d = append(*d, *to) }

func TestEachDatagramHasItsDestination(t *testing.T) {
	w := newWire(t, options{typ: ib.UD})
	a := w.ends[0]
	want := []device.Datagram{*to(1), *to(0), {GID: gid(7), QPN: 0xfffffe, QKey: 3}}
	dest := new(device.Datagram)
	for _, d := range want {
		*dest = d // it is the caller's again once it is posted
		a.send(device.WorkRequest{Opcode: device.WorkSend, Dest: dest})
	}
	*dest = device.Datagram{}
	var got destinations
	for a.Transmit(w.now, &got, 1) {
	}
	if len(got) != 3 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("destinations %+v, want %+v", got, want)
	}
}

func TestWhatDoesNotSuitTheTransportIsRefused(t *testing.T) {
	for _, tt := range []struct {
		typ   ib.QPType
		field string
		wr    device.WorkRequest
	}{
		{ib.UC, "opcode", device.WorkRequest{Opcode: device.WorkRead}},
		{ib.UC, "opcode", device.WorkRequest{Opcode: device.WorkCompareSwap, SGL: []device.SGE{{Length: 8}}}},
		{ib.UC, "destination", device.WorkRequest{Opcode: device.WorkSend, Dest: to(1)}},
		{ib.RC, "destination", device.WorkRequest{Opcode: device.WorkSend, Dest: to(1)}},
		{ib.UD, "destination", device.WorkRequest{Opcode: device.WorkSend}},
		{ib.UD, "opcode", device.WorkRequest{Opcode: device.WorkWrite, Dest: to(1)}},
		{ib.UD, "opcode", device.WorkRequest{Opcode: device.WorkRead, Dest: to(1)}},
		{ib.UD, "sgl", device.WorkRequest{Opcode: device.WorkSend, SGL: []device.SGE{{Length: 1025}}, Dest: to(1)}},
	} {
		w := newWire(t, options{typ: tt.typ})
		a := w.ends[0]
		var field *device.FieldError
		if err := a.PostSend(&tt.wr); !errors.As(err, &field) || field.Field != tt.field {
			t.Errorf("%v %+v: error %v, want one of %s", tt.typ, tt.wr, err, tt.field)
		}
		if a.Queued() != 0 {
			t.Errorf("%v %+v: it is queued", tt.typ, tt.wr)
		}
	}
}
