package transport_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

func TestEveryOperationArrivesInEverySizeAndMTU(t *testing.T) {
	for mtu := ib.MTU256; mtu <= ib.MTU4096; mtu++ {
		n := mtu.Bytes()
		for _, size := range []int{0, 1, n - 1, n, n + 1, 10 * n, 10*n + 3, 2<<20 + 5} {
			t.Run(fmt.Sprintf("mtu %d size %d", n, size), func(t *testing.T) {
				w := newWire(t, options{mtu: mtu, window: 64})
				a, b := w.ends[0], w.ends[1]
				local, remote := a.memory.add(size+8, all), b.memory.add(size+8, all)
				into := b.memory.add(size+8, all)
				for i, op := range []device.WorkOpcode{
					device.WorkSend, device.WorkSendImm, device.WorkWrite, device.WorkWriteImm, device.WorkRead,
				} {
					fill(local.data, uint64(i))
					fill(remote.data, uint64(i)+100)
					want := slices.Clone(local.data[:size])
					keep := slices.Clone(remote.data)
					id := uint64(10 + i)
					b.recv(id, into.sge(0, size))
					a.send(device.WorkRequest{
						ID: id, Opcode: op, SGL: local.sge(0, size), RemoteAddr: remote.base, RKey: remote.rkey,
						Imm: 0xfeed0000 + uint32(i), Signaled: true,
					})
					w.run()
					sent, received := a.take(), b.take()
					wantSent := device.Completion{ID: id, Opcode: ib.WCSend}
					wantReceived := []device.Completion{{ID: id, Opcode: ib.WCRecv, Length: uint32(size), Receive: true}}
					at := into.data
					switch op {
					case device.WorkSendImm:
						wantReceived[0].Imm, wantReceived[0].HasImm = 0xfeed0001, true
					case device.WorkWrite, device.WorkWriteImm:
						at = remote.data
						wantSent.Opcode = ib.WCRDMAWrite
						wantReceived[0].Opcode = ib.WCRecvRDMAWithImm
						wantReceived[0].Imm, wantReceived[0].HasImm = 0xfeed0003, true
					case device.WorkRead:
						at, want = local.data, keep[:size]
						wantSent.Opcode, wantSent.Length = ib.WCRDMARead, uint32(size)
					}
					if op == device.WorkWrite || op == device.WorkRead {
						wantReceived = nil
						w.reconnect(b) // takes the receive back
						w.reconnect(a)
					}
					if !slices.Equal(sent, []device.Completion{wantSent}) {
						t.Errorf("%d completed at the requester as %+v, want %+v", op, sent, wantSent)
					}
					if !slices.Equal(received, wantReceived) {
						t.Errorf("%d completed at the responder as %+v, want %+v", op, received, wantReceived)
					}
					if !bytes.Equal(at[:size], want) {
						t.Errorf("%d: data differ", op)
					}
					if op != device.WorkRead && op != device.WorkSend && op != device.WorkSendImm && !bytes.Equal(remote.data[size:], keep[size:]) {
						t.Errorf("%d wrote behind the range", op)
					}
				}
				if n := a.total.Retransmits + b.total.Retransmits; n != 0 {
					t.Errorf("%d packets sent again on a wire that loses nothing", n)
				}
			})
		}
	}
}

// reconnect takes an end through RESET to RTS with its first attributes.
func (w *wire) reconnect(e *end) {
	e.Modify(w.now, device.ToReset{})
	e.Modify(w.now, device.ToInit{PKey: ib.DefaultPKey, Access: w.o.access})
	e.Modify(w.now, device.ToRTR{
		Remote: device.Remote{QPN: qpn(1 - e.index), PSN: w.o.psn}, PathMTU: w.o.mtu,
		MaxDestRDAtomic: w.o.destReads, MinRNRTimer: 12,
	})
	e.Modify(w.now, device.ToRTS{
		PSN: w.o.psn, Timeout: w.o.timeout, RetryCount: w.o.retry, RNRRetry: w.o.rnr, MaxRDAtomic: w.o.reads,
	})
}

func TestListsOfSeveralEntriesAreGatheredAndScattered(t *testing.T) {
	w := newWire(t, options{mtu: ib.MTU256})
	a, b := w.ends[0], w.ends[1]
	from, to := a.memory.add(2000, all), b.memory.add(2000, all)
	fill(from.data, 1)
	list := func(r *region, cuts ...int) (sgl []device.SGE) {
		at := 0
		for _, n := range cuts {
			sgl = append(sgl, r.sge(at, n)...)
			at += n
		}
		return sgl
	}
	b.recv(1, list(to, 1, 0, 700, 1299))
	a.send(device.WorkRequest{ID: 1, Opcode: device.WorkSend, SGL: list(from, 255, 2, 1000, 743), Signaled: true})
	w.run()
	a.expect("send 1 SUCCESS")
	b.expect("recv 1 SUCCESS")
	if !bytes.Equal(from.data, to.data) {
		t.Error("data differ after SEND")
	}
	fill(to.data, 2)
	a.send(device.WorkRequest{ID: 2, Opcode: device.WorkRead, SGL: list(from, 3, 252, 1, 1744), RemoteAddr: to.base, RKey: to.rkey, Signaled: true})
	w.run()
	a.expect("send 2 SUCCESS")
	if !bytes.Equal(from.data, to.data) {
		t.Error("data differ after READ")
	}
}

func TestAtomicsGiveTheOldValue(t *testing.T) {
	w := newWire(t, options{})
	a, b := w.ends[0], w.ends[1]
	result, counter := a.memory.add(24, all), b.memory.add(8, all)
	binary.NativeEndian.PutUint64(counter.data, 40)
	for i, wr := range []device.WorkRequest{
		{Opcode: device.WorkFetchAdd, Compare: 2},
		{Opcode: device.WorkCompareSwap, Compare: 42, Swap: 7},
		{Opcode: device.WorkCompareSwap, Compare: 42, Swap: 8},
	} {
		wr.ID, wr.SGL, wr.Signaled = uint64(i), result.sge(8*i, 8), true
		wr.RemoteAddr, wr.RKey = counter.base, counter.rkey
		a.send(wr)
	}
	w.run()
	want := []device.Completion{
		{ID: 0, Opcode: ib.WCFetchAdd, Length: 8}, {ID: 1, Opcode: ib.WCCompSwap, Length: 8}, {ID: 2, Opcode: ib.WCCompSwap, Length: 8},
	}
	if got := a.take(); !slices.Equal(got, want) {
		t.Errorf("completed as %+v, want %+v", got, want)
	}
	for i, want := range []uint64{40, 42, 7} {
		if got := binary.NativeEndian.Uint64(result.data[8*i:]); got != want {
			t.Errorf("operation %d gave %d, want %d", i, got, want)
		}
	}
	if got := binary.NativeEndian.Uint64(counter.data); got != 7 {
		t.Errorf("counter is %d, want 7", got)
	}
}

func TestUnsignaledWorkCompletesSilentlyAndOrderIsKept(t *testing.T) {
	w := newWire(t, options{mtu: ib.MTU256})
	a, b := w.ends[0], w.ends[1]
	local, remote := a.memory.add(4096, all), b.memory.add(4096, all)
	for id := range uint64(20) {
		op := []device.WorkOpcode{device.WorkWrite, device.WorkRead, device.WorkSend}[id%3]
		if op == device.WorkSend {
			b.recv(id, remote.sge(0, 4096))
		}
		a.send(device.WorkRequest{
			ID: id, Opcode: op, SGL: local.sge(0, int(1+id*37)), RemoteAddr: remote.base, RKey: remote.rkey, Signaled: id%4 == 3,
		})
	}
	w.run()
	a.expect("send 3 SUCCESS", "send 7 SUCCESS", "send 11 SUCCESS", "send 15 SUCCESS", "send 19 SUCCESS")
	b.expect("recv 2 SUCCESS", "recv 5 SUCCESS", "recv 8 SUCCESS", "recv 11 SUCCESS", "recv 14 SUCCESS", "recv 17 SUCCESS")
}

func TestSolicitedEventIsAskedForByTheLastPacketOnly(t *testing.T) {
	w := newWire(t, options{mtu: ib.MTU256})
	a, b := w.ends[0], w.ends[1]
	local, remote := a.memory.add(1000, all), b.memory.add(1000, all)
	solicited := 0
	w.seen = func(_ int, p *ib.Packet) {
		if p.SolicitedEvent {
			solicited++
		}
	}
	for _, op := range []device.WorkOpcode{device.WorkSend, device.WorkWriteImm, device.WorkWrite} {
		b.recv(1, remote.sge(0, 1000))
		a.send(device.WorkRequest{Opcode: op, SGL: local.sge(0, 1000), RemoteAddr: remote.base, RKey: remote.rkey, Solicited: true})
	}
	w.run()
	got := b.take()
	if len(got) != 2 || !got[0].Solicited || !got[1].Solicited || solicited != 2 {
		t.Errorf("completions %+v with %d solicited packets, want two of each", got, solicited)
	}
}

func TestPSNsWrap(t *testing.T) {
	for _, op := range []device.WorkOpcode{device.WorkSend, device.WorkWrite, device.WorkRead} {
		w := newWire(t, options{mtu: ib.MTU256, psn: 1<<24 - 5, loss: 0.02, seed: 3})
		a, b := w.ends[0], w.ends[1]
		local, remote := a.memory.add(100*256, all), b.memory.add(100*256, all)
		fill(local.data, 1)
		if op == device.WorkRead {
			fill(remote.data, 2)
		}
		b.recv(1, remote.sge(0, len(remote.data)))
		a.send(device.WorkRequest{ID: 1, Opcode: op, SGL: local.sge(0, len(local.data)), RemoteAddr: remote.base, RKey: remote.rkey, Signaled: true})
		w.run()
		a.expect("send 1 SUCCESS")
		if !bytes.Equal(local.data, remote.data) {
			t.Errorf("%d: data differ", op)
		}
	}
}
