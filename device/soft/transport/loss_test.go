package transport_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/soft/transport"
)

func TestALargeTransferArrivesRightOnAWireThatLosesRepeatsAndReorders(t *testing.T) {
	size := 64 << 20
	if raceEnabled {
		size = 8 << 20
	}
	for _, tt := range []struct {
		name string
		op   device.WorkOpcode
		o    options
	}{
		{"WRITE with 3 % loss", device.WorkWrite, options{loss: 0.03}},
		{"WRITE with 3 % loss, copies and reordering", device.WorkWrite, options{loss: 0.03, copies: 0.03, reorder: 0.03}},
		{"READ with 3 % loss", device.WorkRead, options{loss: 0.03}},
		{"READ with 3 % loss, copies and reordering", device.WorkRead, options{loss: 0.03, copies: 0.03, reorder: 0.03}},
		{"SEND with 3 % loss, copies and reordering", device.WorkSend, options{loss: 0.03, copies: 0.03, reorder: 0.03}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := tt.o
			o.mtu, o.window, o.retry, o.seed = ib.MTU4096, 64, 7, 42
			w := newWire(t, o)
			a, b := w.ends[0], w.ends[1]
			local, remote := a.memory.add(size, all), b.memory.add(size, all)
			from, to := local, remote
			if tt.op == device.WorkRead {
				from, to = remote, local
			}
			fill(from.data, 5)
			const message = 1 << 20
			for i := range size / message {
				b.recv(uint64(i), remote.sge(i*message, message))
				a.send(device.WorkRequest{
					ID: uint64(i), Opcode: tt.op, SGL: local.sge(i*message, message),
					RemoteAddr: remote.base + uint64(i*message), RKey: remote.rkey, Signaled: true,
				})
			}
			w.run()
			a.expectFailure(ib.Success, "")
			for i, wc := range a.take() {
				if wc.ID != uint64(i) || wc.Status != ib.Success {
					t.Fatalf("completion %d is %+v", i, wc)
				}
			}
			if !bytes.Equal(from.data, to.data) {
				t.Error("data differ")
			}
			t.Logf("%v of wire time, requester %+v", w.now.Sub(w.start), a.total)
		})
	}
}

// Both ends send, write, read and count at once, in small messages, on a wire
// that does everything wrong; nothing may be done twice or out of order.
func TestMixedTrafficBothWaysOnABadWireIsDoneExactlyOnce(t *testing.T) {
	for seed := range uint64(50) {
		o := options{
			mtu: ib.MTU256, loss: 0.05, copies: 0.05, reorder: 0.1, seed: seed, retry: 7, rnr: 7,
			window: 8 + int(seed%3)*12, reads: 1 + int(seed%4), psn: ib.PSN(1<<24 - 100 + seed),
		}
		w := newWire(t, o)
		type side struct {
			local, remote, counter *region
			into                   [][]byte // where each message must arrive, and what
			want                   [][]byte
			adds                   uint64
			sends                  []string
			recvs                  []string
		}
		var sides [2]side
		const slot, n = 3000, 40
		for i, e := range w.ends {
			peer := w.ends[1-i]
			s := &sides[i]
			s.local, s.remote, s.counter = e.memory.add(slot*n, all), peer.memory.add(slot*n, all), peer.memory.add(8, all)
			fill(s.local.data, seed)
			for k := range n {
				size := int(w.rng.Int64N(slot))
				near, far := s.local.data[k*slot:][:size], s.remote.data[k*slot:][:size]
				into, want := far, near
				wr := device.WorkRequest{
					ID: uint64(k), SGL: s.local.sge(k*slot, size), RemoteAddr: s.remote.base + uint64(k*slot), RKey: s.remote.rkey, Signaled: true,
				}
				switch w.rng.IntN(5) {
				case 0:
					wr.Opcode = device.WorkSend
					peer.recv(uint64(k), s.remote.sge(k*slot, slot))
				case 1:
					wr.Opcode = device.WorkWrite
				case 2:
					wr.Opcode = device.WorkWriteImm
					peer.recv(uint64(k), nil)
				case 3:
					wr.Opcode = device.WorkRead
					fill(far, seed+uint64(k))
					into, want = near, far
				case 4:
					wr.Opcode, wr.Compare = device.WorkFetchAdd, 1
					wr.SGL, wr.RemoteAddr, wr.RKey = s.local.sge(k*slot, 8), s.counter.base, s.counter.rkey
					into, want = s.local.data[k*slot:][:8], binary.NativeEndian.AppendUint64(nil, s.adds)
					s.adds++
				}
				s.into, s.want = append(s.into, into), append(s.want, bytes.Clone(want))
				if wr.Opcode == device.WorkSend || wr.Opcode == device.WorkWriteImm {
					s.recvs = append(s.recvs, fmt.Sprintf("recv %d SUCCESS", k))
				}
				s.sends = append(s.sends, fmt.Sprintf("send %d SUCCESS", k))
				e.send(wr)
			}
		}
		w.run()
		for i, e := range w.ends {
			s := &sides[i]
			var sends, recvs []device.Completion
			for _, wc := range e.take() {
				if wc.Receive {
					recvs = append(recvs, wc)
				} else {
					sends = append(sends, wc)
				}
			}
			check := func(name string, got []device.Completion, want []string) {
				for k, wc := range got {
					if k >= len(want) || fmt.Sprintf("%s %d %v", name, wc.ID, wc.Status) != want[k] {
						t.Fatalf("seed %d end %d: %s completion %d is %+v", seed, i, name, k, wc)
					}
				}
				if len(got) != len(want) {
					t.Fatalf("seed %d end %d: %d %s completions, want %d", seed, i, len(got), name, len(want))
				}
			}
			check("send", sends, s.sends)
			check("recv", recvs, sides[1-i].recvs)
			if got := binary.NativeEndian.Uint64(s.counter.data); got != s.adds {
				t.Errorf("seed %d end %d: counter is %d after %d additions", seed, i, got, s.adds)
			}
			for k := range n {
				if !bytes.Equal(s.into[k], s.want[k]) {
					t.Errorf("seed %d end %d: message %d arrived wrong", seed, i, k)
				}
			}
		}
	}
}

func TestADeadWireTakesTheQueuePairToErrAndSaysWhy(t *testing.T) {
	for _, op := range []device.WorkOpcode{device.WorkSend, device.WorkWrite, device.WorkRead, device.WorkFetchAdd} {
		w := newWire(t, options{loss: 1, retry: 7, psn: 0x1234})
		a := w.ends[0]
		local := a.memory.add(5000, all)
		sgl := local.sge(0, 5000)
		if op == device.WorkFetchAdd {
			sgl = local.sge(0, 8)
		}
		a.send(device.WorkRequest{ID: 1, Opcode: op, SGL: sgl})
		a.send(device.WorkRequest{ID: 2, Opcode: device.WorkSend, SGL: local.sge(0, 1)})
		a.recv(3, local.sge(0, 1))
		w.run()
		a.expect("send 1 RETRY_EXC_ERR", "send 2 WR_FLUSH_ERR", "recv 3 WR_FLUSH_ERR")
		a.expectFailure(ib.RetryExcErr, "no ACK after 8 tries of PSN 0x001234 to QPN 0x12, timeout code 14")
		if got, want := w.now.Sub(w.start), 8*ib.AckTimeout(14); got != want {
			t.Errorf("gave up after %v, want %v", got, want)
		}
		a.send(device.WorkRequest{ID: 4, Opcode: op, SGL: sgl})
		a.recv(5, nil)
		a.expect("send 4 WR_FLUSH_ERR", "recv 5 WR_FLUSH_ERR")
	}
}

func TestEarlyRetriesDoNotPutTheEndOff(t *testing.T) {
	w := newWire(t, options{retry: 2})
	a, b := w.ends[0], w.ends[1]
	b.recv(1, nil)
	a.send(device.WorkRequest{ID: 1, Opcode: device.WorkSend})
	w.run() // now the round trip is known
	w.o.loss, w.start = 1, w.now
	a.send(device.WorkRequest{ID: 2, Opcode: device.WorkSend})
	w.run()
	a.expect("send 2 RETRY_EXC_ERR")
	if got, want := w.now.Sub(w.start), 3*ib.AckTimeout(14); got != want || a.total.Retransmits < 6 {
		t.Errorf("gave up after %v and %d packets sent again, want %v and some before each time-out", got, a.total.Retransmits, want)
	}
}

func TestRetryCountZeroGivesUpAtTheFirstTimeout(t *testing.T) {
	w := newWire(t, options{loss: 1, retry: 0})
	a := w.ends[0]
	a.send(device.WorkRequest{ID: 1, Opcode: device.WorkSend})
	w.run()
	a.expect("send 1 RETRY_EXC_ERR")
	a.expectFailure(ib.RetryExcErr, "no ACK after 1 tries of PSN 0x000000 to QPN 0x12, timeout code 14")
}

func TestProgressGivesTheRetriesBack(t *testing.T) {
	w := newWire(t, options{retry: 1})
	a, b := w.ends[0], w.ends[1]
	local := a.memory.add(8, all)
	remote := b.memory.add(8, all)
	lost := 0 // of the request; so many that an ACK timer ends
	w.fate = func(from int, p *ib.Packet) verdict {
		if from == 0 && lost > 0 {
			lost--
			return lose
		}
		return pass
	}
	var want []string
	for id := range 10 {
		if id > 0 { // the round trip is known, and with it when to try early: 2, 4, 8, 16, 32 ms
			lost = 6
		}
		a.send(device.WorkRequest{ID: uint64(id), Opcode: device.WorkWrite, SGL: local.sge(0, 8), RemoteAddr: remote.base, RKey: remote.rkey, Signaled: true})
		w.run()
		want = append(want, fmt.Sprintf("send %d SUCCESS", id))
	}
	a.expect(want...)
	if a.total.AckTimeouts != 9 {
		t.Errorf("%d ACK timers ended, want one for each request but the first", a.total.AckTimeouts)
	}
}

func TestNoStallIsLongerThanOneTimeoutAfterTheLastLoss(t *testing.T) {
	for _, op := range []device.WorkOpcode{device.WorkWrite, device.WorkRead} {
		for seed := range uint64(100) {
			w := newWire(t, options{mtu: ib.MTU256, loss: 0.1, retry: 7, seed: seed})
			a, b := w.ends[0], w.ends[1]
			local, remote := a.memory.add(400*256, all), b.memory.add(400*256, all)
			lossy := 100
			w.fate = func(int, *ib.Packet) verdict {
				if lossy--; lossy > 0 && w.rng.Float64() < w.o.loss {
					return lose
				}
				return pass
			}
			a.send(device.WorkRequest{ID: 1, Opcode: op, SGL: local.sge(0, 400*256), RemoteAddr: remote.base, RKey: remote.rkey, Signaled: true})
			w.run()
			a.expect("send 1 SUCCESS")
			transfer := 400 * 2 * w.o.delay // a round trip for each packet, at worst
			if took, limit := w.now.Sub(w.last), ib.AckTimeout(14)+transfer; took > limit {
				t.Errorf("%d, seed %d: took %v after the last loss, want at most %v", op, seed, took, limit)
			}
		}
	}
}

func TestTheWindowIsNeverExceededAndAdapts(t *testing.T) {
	for _, op := range []device.WorkOpcode{device.WorkWrite, device.WorkRead} {
		for _, window := range []int{1, 2, 5, 32, 100} {
			w := newWire(t, options{mtu: ib.MTU256, window: window, loss: 0.02, seed: 9, retry: 7, psn: 77})
			a, b := w.ends[0], w.ends[1]
			local, remote := a.memory.add(3000*256, all), b.memory.add(3000*256, all)
			most, smallest, largest := 0, window, 0
			w.after = func() { smallest, largest = min(smallest, a.WindowSize()), max(largest, a.WindowSize()) }
			w.seen = func(int, *ib.Packet) { most = max(most, a.Unanswered()) }
			a.send(device.WorkRequest{ID: 1, Opcode: op, SGL: local.sge(0, 3000*256), RemoteAddr: remote.base, RKey: remote.rkey, Signaled: true})
			w.run()
			a.expect("send 1 SUCCESS")
			if most > window || largest > window || most == 0 {
				t.Errorf("%d: %d packets outstanding with a window of %d, want at most %d", op, most, largest, window)
			}
			if window > 8 && smallest > window/2 {
				t.Errorf("%d: the window of %d was never below %d on a wire that loses", op, window, smallest)
			}
			w.o.loss = 0
			small := a.WindowSize()
			for n := 0; n < 20 && a.WindowSize() < window; n++ {
				a.send(device.WorkRequest{ID: 2, Opcode: op, SGL: local.sge(0, 3000*256), RemoteAddr: remote.base, RKey: remote.rkey})
				w.run()
			}
			if a.WindowSize() != window {
				t.Errorf("%d: the window of %d grew from %d to only %d without loss", op, window, small, a.WindowSize())
			}
		}
	}
}

func TestOneLostPacketCostsOneNAKAndOneWindow(t *testing.T) {
	w := newWire(t, options{mtu: ib.MTU256, window: 32})
	a, b := w.ends[0], w.ends[1]
	local, remote := a.memory.add(30*256, all), b.memory.add(30*256, all)
	lost := false
	w.fate = func(from int, p *ib.Packet) verdict {
		if from == 0 && p.PSN == 5 && !lost {
			lost = true
			return lose
		}
		return pass
	}
	a.send(device.WorkRequest{ID: 1, Opcode: device.WorkWrite, SGL: local.sge(0, 30*256), RemoteAddr: remote.base, RKey: remote.rkey, Signaled: true})
	w.run()
	a.expect("send 1 SUCCESS")
	if b.total.NAKsSent != 1 || b.total.Packets[transport.OutOfSequence] != 24 || a.total.Retransmits != 25 || a.total.AckTimeouts != 0 {
		t.Errorf("%+v and %+v, want one NAK for 24 packets and 25 sent again", a.total, b.total)
	}
	if took := w.now.Sub(w.start); took > time.Millisecond {
		t.Errorf("took %v of wire time", took)
	}
}

func TestAGapIsToldOnce(t *testing.T) {
	w := newWire(t, options{rnr: 7})
	b := w.ends[1]
	for range 10 {
		b.recv(0, nil)
	}
	step := func(psn ib.PSN, want ...string) {
		t.Helper()
		var got []string
		for _, p := range w.raw(ib.Packet{BTH: ib.BTH{Opcode: ib.RCSendOnly, PSN: psn}}) {
			got = append(got, fmt.Sprintf("%d %v", p.PSN, p.AETH.Syndrome))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("PSN %d is answered by %q, want %q", psn, got, want)
		}
	}
	step(2, "0 NAK PSN sequence error")
	step(3)
	step(1)
	step(0, "0 ACK credits 31")
	step(2, "1 NAK PSN sequence error")
	step(0, "0 ACK credits 31")
	step(2)
	step(1, "1 ACK credits 31")
	for psn := ib.PSN(2); psn < 10; psn++ {
		step(psn, fmt.Sprintf("%d ACK credits 31", psn))
	}
	step(10, "10 RNR NAK 640µs")
	step(11)
	step(10, "10 RNR NAK 640µs")

	// A NAK that has not left when the packet comes does not leave.
	w = newWire(t, options{})
	b = w.ends[1]
	b.recv(0, nil)
	b.Receive(w.now, &ib.Packet{BTH: ib.BTH{Opcode: ib.RCSendOnly, PSN: 1}}, nil)
	step(0, "0 ACK credits 31")
}

// On a wire that loses 1 % of the packets of both directions there is progress
// again before an ACK timer could end, whatever is lost: a packet, its NAK, the
// packet that was sent again, the last of all.
func TestOnePercentLossStallsForNoTimeOut(t *testing.T) {
	const size = 8 << 20
	for seed := range uint64(8) {
		w := newWire(t, options{mtu: ib.MTU1024, window: 455, loss: 0.01, retry: 7, seed: seed})
		a, b := w.ends[0], w.ends[1]
		local, remote := a.memory.add(size, all), b.memory.add(size, all)
		fill(local.data, seed)
		moved, una, longest := w.now, a.Una(), time.Duration(0)
		w.after = func() {
			if a.Una() != una {
				longest = max(longest, w.now.Sub(moved))
				moved, una = w.now, a.Una()
			}
		}
		a.send(device.WorkRequest{ID: 1, Opcode: device.WorkWrite, SGL: local.sge(0, size), RemoteAddr: remote.base, RKey: remote.rkey, Signaled: true})
		w.run()
		a.expect("send 1 SUCCESS")
		if !bytes.Equal(local.data, remote.data) {
			t.Errorf("seed %d: data differ", seed)
		}
		if most := ib.AckTimeout(14); longest >= most {
			t.Errorf("seed %d: no progress for %v, want less than one time-out, %v", seed, longest, most)
		}
		if a.total.AckTimeouts != 0 {
			t.Errorf("seed %d: %d ACK timers ended", seed, a.total.AckTimeouts)
		}
	}
}

func TestANAKThatComesTwiceIsHonouredOnce(t *testing.T) {
	w := newWire(t, options{mtu: ib.MTU256, window: 64, retry: 7})
	a := w.ends[0]
	local := a.memory.add(2560, all)
	sent := 0
	w.fate = func(int, *ib.Packet) verdict { sent++; return lose }
	transmit := func(want int) {
		t.Helper()
		sent = 0
		for a.Transmit(w.now, w, 100) {
		}
		if sent != want {
			t.Errorf("%d packets sent, want %d", sent, want)
		}
	}
	answer := func(op ib.Opcode, psn ib.PSN, s ib.Syndrome, payload int) {
		a.Receive(w.now, &ib.Packet{BTH: ib.BTH{Opcode: op, PSN: psn}, AETH: ib.AETH{Syndrome: s}, Payload: make([]byte, payload)}, nil)
	}
	nak := ib.Nak(ib.PSNSequenceError)
	a.send(device.WorkRequest{Opcode: device.WorkWrite, SGL: local.sge(0, 2560)})
	transmit(10)
	answer(ib.RCAcknowledge, 4, nak, 0)
	transmit(6)
	answer(ib.RCAcknowledge, 4, nak, 0)
	transmit(0)
	answer(ib.RCAcknowledge, 6, nak, 0)
	transmit(4)
	answer(ib.RCAcknowledge, 4, nak, 0) // is done
	transmit(0)
	w.now = a.Deadline() // the next NAK is for what is sent now
	a.Expire(w.now)
	transmit(4)
	answer(ib.RCAcknowledge, 6, nak, 0)
	transmit(4)
	answer(ib.RCAcknowledge, 9, ib.AckSyndrome(31), 0)
	a.send(device.WorkRequest{Opcode: device.WorkRead, SGL: local.sge(0, 2560)})
	transmit(1)
	answer(ib.RCRDMAReadResponseMiddle, 11, 0x1f, 256) // the one before is lost
	transmit(1)
	answer(ib.RCRDMAReadResponseMiddle, 12, 0x1f, 256)
	answer(ib.RCRDMAReadResponseMiddle, 13, 0x1f, 256)
	transmit(0)
	a.expectFailure(ib.Success, "")
}

func TestALostReadResponseIsAskedForAgainFromThere(t *testing.T) {
	w := newWire(t, options{mtu: ib.MTU256, window: 40, reads: 1})
	a, b := w.ends[0], w.ends[1]
	local, remote := a.memory.add(30*256, all), b.memory.add(30*256, all)
	fill(remote.data, 1)
	lost := false
	var requests []ib.RETH
	w.fate = func(from int, p *ib.Packet) verdict {
		if from == 0 {
			requests = append(requests, p.RETH)
		} else if p.PSN == 7 && !lost {
			lost = true
			return lose
		}
		return pass
	}
	a.send(device.WorkRequest{ID: 1, Opcode: device.WorkRead, SGL: local.sge(0, 30*256), RemoteAddr: remote.base, RKey: remote.rkey, Signaled: true})
	w.run()
	a.expect("send 1 SUCCESS")
	if !bytes.Equal(local.data, remote.data) {
		t.Error("data differ")
	}
	want := []ib.RETH{{VA: remote.base, RKey: remote.rkey, Length: 30 * 256}, {VA: remote.base + 7*256, RKey: remote.rkey, Length: 23 * 256}}
	if fmt.Sprint(requests) != fmt.Sprint(want) || a.total.AckTimeouts != 0 {
		t.Errorf("requests %+v with %d time-outs, want %+v without", requests, a.total.AckTimeouts, want)
	}
}
