package transport_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/soft/transport"
)

func TestUCCarriesEveryOperationInEverySize(t *testing.T) {
	for mtu := ib.MTU256; mtu <= ib.MTU4096; mtu++ {
		n := mtu.Bytes()
		for _, size := range []int{0, 1, n - 1, n, n + 1, 10*n + 3} {
			w := newWire(t, options{typ: ib.UC, mtu: mtu, psn: 1<<24 - 3})
			a, b := w.ends[0], w.ends[1]
			w.seen = func(from int, p *ib.Packet) {
				if from != 0 || p.AckReq || p.Opcode.Type() != ib.UC {
					t.Errorf("end %d sent %v, AckReq %v", from, p.Opcode, p.AckReq)
				}
			}
			local, remote, into := a.memory.add(size+8, all), b.memory.add(size+8, all), b.memory.add(size+8, all)
			for i, op := range []device.WorkOpcode{device.WorkWrite, device.WorkSend, device.WorkSendImm, device.WorkWriteImm} {
				fill(local.data, uint64(i))
				if op != device.WorkWrite {
					b.recv(uint64(i), into.sge(0, size))
				}
				a.send(device.WorkRequest{
					ID: uint64(i), Opcode: op, SGL: local.sge(0, size), RemoteAddr: remote.base, RKey: remote.rkey,
					Imm: 0xfeed, Signaled: true, Solicited: true,
				})
				w.run()
				sent, received := a.take(), b.take()
				wantSent := []device.Completion{{ID: uint64(i), Opcode: ib.WCSend}}
				wantReceived := []device.Completion{{ID: uint64(i), Opcode: ib.WCRecv, Length: uint32(size), Receive: true, Solicited: true}}
				at := into.data
				switch op {
				case device.WorkSendImm:
					wantReceived[0].Imm, wantReceived[0].HasImm = 0xfeed, true
				case device.WorkWrite:
					at, wantReceived = remote.data, nil
					wantSent[0].Opcode = ib.WCRDMAWrite
				case device.WorkWriteImm:
					at = remote.data
					wantSent[0].Opcode = ib.WCRDMAWrite
					wantReceived[0].Opcode, wantReceived[0].Imm, wantReceived[0].HasImm = ib.WCRecvRDMAWithImm, 0xfeed, true
				}
				if !slices.Equal(sent, wantSent) || !slices.Equal(received, wantReceived) {
					t.Errorf("mtu %d size %d operation %d: sent %+v, received %+v", n, size, op, sent, received)
				}
				if !bytes.Equal(at[:size], local.data[:size]) || !bytes.Equal(at[size:], make([]byte, 8)) {
					t.Errorf("mtu %d size %d operation %d: data differ", n, size, op)
				}
			}
			if b.total.AcksSent != 0 {
				t.Errorf("%d acknowledgements", b.total.AcksSent)
			}
		}
	}
}

// ucPacket makes the packet of a SEND or WRITE from text such as "SF 3": Send or
// Write; First, Middle, Last, Only, last with immediate (I); then the PSN.
func ucPacket(t *testing.T, text string, target *region) ib.Packet {
	t.Helper()
	var name string
	var psn int
	if _, err := fmt.Sscanf(text, "%s %d", &name, &psn); err != nil {
		t.Fatal(err)
	}
	op, ok := map[string]ib.Opcode{
		"SF": ib.UCSendFirst, "SM": ib.UCSendMiddle, "SL": ib.UCSendLast, "SO": ib.UCSendOnly,
		"WF": ib.UCRDMAWriteFirst, "WM": ib.UCRDMAWriteMiddle, "WL": ib.UCRDMAWriteLast, "WI": ib.UCRDMAWriteLastImm, "WO": ib.UCRDMAWriteOnly,
		"WOI": ib.UCRDMAWriteOnlyImm,
	}[name]
	if !ok {
		t.Fatalf("no packet %q", name)
	}
	p := ib.Packet{BTH: ib.BTH{Opcode: op, PSN: ib.PSN(psn)}, Payload: make([]byte, 256)}
	if op.IsLast() || op.IsOnly() {
		p.Payload = p.Payload[:4]
	}
	for i := range p.Payload {
		p.Payload[i] = byte(psn)
	}
	p.RETH = ib.RETH{VA: target.base, RKey: target.rkey, Length: 256 + 4}
	if op.IsOnly() {
		p.RETH.Length = 4
	}
	return p
}

// What is lost costs its message: the receive that it had begun to fill is
// there for the next one.
func TestUCDropsWhatIsNotWhole(t *testing.T) {
	for _, tt := range []struct {
		name    string
		packets []string
		fates   []transport.Fate
		want    []string // of the receive queue
		length  uint32
	}{
		{"whole", []string{"SF 0", "SM 1", "SL 2"}, []transport.Fate{0, 0, 0}, []string{"recv 1 SUCCESS"}, 516},
		{"another first PSN", []string{"SF 7", "SL 8", "SO 100"}, []transport.Fate{0, 0, 0}, []string{"recv 1 SUCCESS", "recv 2 SUCCESS"}, 260},
		{"a PSN of the past", []string{"SO 8", "SO 7"}, []transport.Fate{0, 0}, []string{"recv 1 SUCCESS", "recv 2 SUCCESS"}, 4},
		{"FIRST lost", []string{"SM 1", "SL 2", "SO 3"}, []transport.Fate{transport.OutOfSequence, transport.OutOfSequence, 0}, []string{"recv 1 SUCCESS"}, 4},
		{"MIDDLE lost", []string{"SF 0", "SL 2", "SL 3", "SF 4", "SL 5"}, []transport.Fate{0, transport.OutOfSequence, transport.OutOfSequence, 0, 0}, []string{"recv 1 SUCCESS"}, 260},
		{"LAST lost", []string{"SF 0", "SM 1", "SO 3"}, []transport.Fate{0, 0, 0}, []string{"recv 1 SUCCESS"}, 4},
		{"LAST of a SEND and FIRST of a WRITE lost", []string{"SF 0", "WL 3", "SO 4"}, []transport.Fate{0, transport.OutOfSequence, 0}, []string{"recv 1 SUCCESS"}, 4},
		{"WRITE goes on as SEND", []string{"WF 0", "SL 1", "SO 2"}, []transport.Fate{0, transport.OutOfSequence, 0}, []string{"recv 1 SUCCESS"}, 4},
		{"a WRITE needs no receive but its immediate does", []string{"WF 0", "WI 1", "WO 2", "WOI 3"}, []transport.Fate{0, 0, 0, 0}, []string{"recv 1 SUCCESS", "recv 2 SUCCESS"}, 260},
		{"twice the same", []string{"SF 0", "SF 0", "SL 1"}, []transport.Fate{0, 0, 0}, []string{"recv 1 SUCCESS"}, 260},
		{"no receive is left", []string{"SO 0", "SO 1", "SO 2", "SF 3", "SL 4", "WOI 5", "WO 6"},
			[]transport.Fate{0, 0, transport.Unexpected, transport.Unexpected, transport.OutOfSequence, transport.Unexpected, 0}, []string{"recv 1 SUCCESS", "recv 2 SUCCESS"}, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWire(t, options{typ: ib.UC, mtu: ib.MTU256})
			b := w.ends[1]
			target := b.memory.add(4096, all)
			b.recv(1, target.sge(0, 600))
			b.recv(2, target.sge(600, 600))
			for i, text := range tt.packets {
				before := b.total.Packets[tt.fates[i]]
				if answers := w.raw(ucPacket(t, text, target)); len(answers) != 0 {
					t.Errorf("%s is answered by %+v", text, answers)
				}
				if b.total.Packets[tt.fates[i]] != before+1 {
					t.Errorf("%s has another fate than %d: %v", text, tt.fates[i], b.total.Packets)
				}
			}
			done := slices.Clone(b.done)
			b.expect(tt.want...)
			if len(done) > 0 && done[0].Length != tt.length {
				t.Errorf("the first receive has %d bytes, want %d", done[0].Length, tt.length)
			}
			b.expectFailure(ib.Success, "")
		})
	}
}

// What is refused costs its message too. Only what is wrong with a receive ends
// the queue pair.
func TestUCRefusesWithoutAWord(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(p *ib.Packet)
		fate   transport.Fate
		status ib.WCStatus // of the receiver
	}{
		{"wrong R_Key", func(p *ib.Packet) { p.RETH.RKey ^= 1 }, transport.RemoteAccessError, ib.Success},
		{"behind the region", func(p *ib.Packet) { p.RETH.VA += 4093 }, transport.RemoteAccessError, ib.Success},
		{"more than the RETH says", func(p *ib.Packet) { p.RETH.Length = 3 }, transport.InvalidRequest, ib.Success},
		{"less than the RETH says", func(p *ib.Packet) { p.RETH.Length = 5 }, transport.InvalidRequest, ib.Success},
		{"above 2 GiB", func(p *ib.Packet) { p.RETH.Length = 1<<31 + 1 }, transport.InvalidRequest, ib.Success},
		{"above the path MTU", func(p *ib.Packet) { p.Opcode, p.Payload = ib.UCSendOnly, make([]byte, 257) }, transport.Malformed, ib.Success},
		{"RC opcode", func(p *ib.Packet) { p.Opcode = ib.RCSendOnly }, transport.Unexpected, ib.Success},
		{"receive too small", func(p *ib.Packet) { p.Opcode, p.Payload = ib.UCSendOnly, make([]byte, 101) }, transport.InvalidRequest, ib.LocLenErr},
	} {
		w := newWire(t, options{typ: ib.UC, mtu: ib.MTU256})
		b := w.ends[1]
		target := b.memory.add(4096, all)
		b.recv(1, target.sge(0, 100))
		b.recv(2, target.sge(100, 100))
		p := ucPacket(t, "WO 0", target)
		tt.change(&p)
		if answers := w.raw(p); len(answers) != 0 {
			t.Errorf("%s: answers %+v", tt.name, answers)
		}
		if b.total.Packets[tt.fate] != 1 {
			t.Errorf("%s: %v, want fate %d", tt.name, b.total.Packets, tt.fate)
		}
		if tt.status != ib.Success {
			b.expect("recv 1 LOC_LEN_ERR", "recv 2 WR_FLUSH_ERR")
			b.expectFailure(tt.status, "UC_SEND_ONLY of PSN 0x000000 from QPN 0x11: message longer than the receive posted for it")
			continue
		}
		if !bytes.Equal(target.data, make([]byte, 4096)) {
			t.Errorf("%s: memory was written", tt.name)
		}
		w.raw(ucPacket(t, "SO 1", target))
		b.expect("recv 1 SUCCESS")
		b.expectFailure(ib.Success, "")
	}
}

func TestUCThatDoesNotAllowWritesDropsThem(t *testing.T) {
	w := newWire(t, options{typ: ib.UC, mtu: ib.MTU256, access: ib.RemoteRead})
	b := w.ends[1]
	target := b.memory.add(4096, all)
	for _, text := range []string{"WO 0", "WF 1", "WL 2"} {
		w.raw(ucPacket(t, text, target))
	}
	if n := b.total.Packets; n[transport.InvalidRequest] != 2 || n[transport.OutOfSequence] != 1 || !bytes.Equal(target.data, make([]byte, 4096)) {
		t.Errorf("packets %v", n)
	}
}

// On a wire that loses, what arrives is whole messages in order.
func TestUCOnABadWire(t *testing.T) {
	const size, n = 1000, 300
	w := newWire(t, options{typ: ib.UC, mtu: ib.MTU256, loss: 0.05, queue: n, seed: 1})
	a, b := w.ends[0], w.ends[1]
	local, remote := a.memory.add(n*size, all), b.memory.add(n*size, all)
	fill(local.data, 1)
	for i := range n {
		b.recv(uint64(i), remote.sge(i*size, size))
		a.send(device.WorkRequest{ID: uint64(i), Opcode: device.WorkSendImm, Imm: uint32(i), SGL: local.sge(i*size, size), Signaled: true})
	}
	w.run()
	if sent := a.take(); len(sent) != n {
		t.Fatalf("%d of %d sends completed", len(sent), n)
	}
	received := b.take()
	if len(received) < n*3/5 || len(received) == n {
		t.Fatalf("%d of %d messages arrived: what was lost?", len(received), n)
	}
	last := -1
	for i, wc := range received {
		if wc.ID != uint64(i) || wc.Status != ib.Success || wc.Length != size || int(wc.Imm) <= last {
			t.Fatalf("receive %d: %+v after message %d", i, wc, last)
		}
		last = int(wc.Imm)
		if !bytes.Equal(remote.data[i*size:][:size], local.data[last*size:][:size]) {
			t.Fatalf("message %d: data differ", last)
		}
	}
}

func TestUCDrainsWhatHasBegun(t *testing.T) {
	w := newWire(t, options{typ: ib.UC, mtu: ib.MTU256})
	a, b := w.ends[0], w.ends[1]
	local, into := a.memory.add(1000, all), b.memory.add(1000, all)
	for id := range uint64(2) {
		b.recv(id, into.sge(0, 1000))
		a.send(device.WorkRequest{ID: id, Opcode: device.WorkSend, SGL: local.sge(0, 1000), Signaled: true})
	}
	w.sender = 0
	if !a.Transmit(w.now, w, 2) {
		t.Fatal("two packets are all of two messages")
	}
	a.Modify(w.now, device.ToSQD{})
	w.run()
	a.expect("send 0 SUCCESS")
	b.expect("recv 0 SUCCESS")
	a.Modify(w.now, device.ToRTS{})
	w.run()
	a.expect("send 1 SUCCESS")
	b.expect("recv 1 SUCCESS")
}

// A send that fails stops sending alone, until RTS is asked for.
func TestAFailedSendOfUCLeadsToSQE(t *testing.T) {
	w := newWire(t, options{typ: ib.UC, mtu: ib.MTU256})
	a, b := w.ends[0], w.ends[1]
	local, into := a.memory.add(1000, all), b.memory.add(1000, all)
	bad := local.sge(0, 100)
	bad[0].LKey ^= 0x1000
	b.recv(1, into.sge(0, 1000))
	a.recv(7, local.sge(0, 1000))
	a.send(device.WorkRequest{ID: 1, Opcode: device.WorkSend, SGL: local.sge(0, 100), Signaled: true})
	a.send(device.WorkRequest{ID: 2, Opcode: device.WorkSend, SGL: bad})
	a.send(device.WorkRequest{ID: 3, Opcode: device.WorkSend, SGL: local.sge(0, 100)})
	w.run()
	a.send(device.WorkRequest{ID: 4, Opcode: device.WorkSend})
	a.expect("send 1 SUCCESS", "send 2 LOC_PROT_ERR", "send 3 WR_FLUSH_ERR", "send 4 WR_FLUSH_ERR")
	b.expect("recv 1 SUCCESS")
	if status, reason := a.Failure(); a.State() != ib.SQE || status != ib.LocProtErr || reason == "" {
		t.Errorf("%v for %v, %q", a.State(), status, reason)
	}
	b.send(device.WorkRequest{Opcode: device.WorkSend})
	w.run()
	a.expect("recv 7 SUCCESS")
	a.Modify(w.now, device.ToRTS{})
	a.expectFailure(ib.Success, "")
	b.recv(2, into.sge(0, 1000))
	a.send(device.WorkRequest{ID: 5, Opcode: device.WorkSend, SGL: local.sge(0, 1000), Signaled: true})
	w.run()
	a.expect("send 5 SUCCESS")
	b.expect("recv 2 SUCCESS")
}
