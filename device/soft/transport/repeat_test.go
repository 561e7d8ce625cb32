package transport_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

func TestARepeatedReadIsExecutedAgain(t *testing.T) {
	w := newWire(t, options{mtu: ib.MTU256, reads: 2})
	b := w.ends[1]
	target := b.memory.add(4*256+100, all)
	fill(target.data, 1)
	read := func(psn ib.PSN, offset, length int) string {
		var text string
		for _, p := range w.raw(ib.Packet{
			BTH:  ib.BTH{Opcode: ib.RCRDMAReadRequest, PSN: psn},
			RETH: ib.RETH{VA: target.base + uint64(offset), RKey: target.rkey, Length: uint32(length)},
		}) {
			if !bytes.Equal(p.Payload, target.data[offset:][:len(p.Payload)]) {
				t.Errorf("PSN %d carries other bytes than those at %d", p.PSN, offset)
			}
			offset += len(p.Payload)
			text += fmt.Sprintf("%d:%c:%d ", p.PSN, "FMLO"[p.Opcode-ib.RCRDMAReadResponseFirst], len(p.Payload))
		}
		return text
	}
	for _, step := range []struct {
		name           string
		psn            ib.PSN
		offset, length int
		want           string
	}{
		{"a new READ", 0, 0, 1124, "0:F:256 1:M:256 2:M:256 3:M:256 4:L:100 "},
		{"all of it again", 0, 0, 1124, "0:F:256 1:M:256 2:M:256 3:M:256 4:L:100 "},
		{"its last two packets again", 3, 768, 356, "3:F:256 4:L:100 "},
		{"its last packet again", 4, 1024, 100, "4:O:100 "},
		{"a repeat that goes beyond what was asked for", 4, 0, 257, ""},
		{"a new empty READ", 5, 0, 0, "5:O:0 "},
	} {
		if got := read(step.psn, step.offset, step.length); got != step.want {
			t.Errorf("%s: answered %q, want %q", step.name, got, step.want)
		}
	}
	b.memory.remove(target)
	if got := read(0, 0, 1124); got != "" {
		t.Errorf("a repeat after the region is gone: answered %q, want nothing", got)
	}
	b.expectFailure(ib.Success, "")
}

// While the first answer is on its way a repeat must not put answers out of
// order, whatever it repeats.
func TestARepeatInTheMiddleOfAnAnswerGoesBackInIt(t *testing.T) {
	w := newWire(t, options{mtu: ib.MTU256, reads: 3})
	b := w.ends[1]
	target := b.memory.add(4096, all)
	request := func(op ib.Opcode, psn ib.PSN, packets int) {
		b.Receive(w.now, &ib.Packet{
			BTH:       ib.BTH{Opcode: op, PSN: psn, AckReq: true},
			RETH:      ib.RETH{VA: target.base, RKey: target.rkey, Length: uint32(packets) * 256},
			AtomicETH: ib.AtomicETH{VA: target.base, RKey: target.rkey, Swap: 1},
		}, nil)
	}
	var sent []ib.PSN
	w.sender = 1
	w.fate = func(_ int, p *ib.Packet) verdict {
		sent = append(sent, p.PSN)
		return lose
	}
	transmit := func(n int, want ...ib.PSN) {
		t.Helper()
		sent = nil
		b.Transmit(w.now, w, n)
		if fmt.Sprint(sent) != fmt.Sprint(want) {
			t.Errorf("sent %v, want %v", sent, want)
		}
	}
	request(ib.RCRDMAReadRequest, 0, 3)
	request(ib.RCRDMAReadRequest, 3, 3)
	request(ib.RCFetchAdd, 6, 0)
	transmit(4, 0, 1, 2, 3)
	request(ib.RCRDMAReadRequest, 0, 3) // was answered: comes first again
	request(ib.RCFetchAdd, 6, 0)        // is due anyway
	transmit(1, 0)
	request(ib.RCRDMAReadRequest, 0, 3) // goes back
	request(ib.RCRDMAReadRequest, 4, 2) // is due anyway
	transmit(9, 0, 1, 2, 4, 5, 6)
	request(ib.RCFetchAdd, 6, 0)
	request(ib.RCRDMAReadRequest, 3, 3) // before it
	transmit(9, 3, 4, 5, 6)
	request(ib.RCSendOnly, 3, 0) // any repeat of a SEND or WRITE asks for the newest ACK
	transmit(9, 6)
}

func TestRepeatsDoNotPileUp(t *testing.T) {
	w := newWire(t, options{mtu: ib.MTU256, reads: 1})
	b := w.ends[1]
	target := b.memory.add(256, all)
	for psn := range ib.PSN(100) { // one packet each
		w.raw(ib.Packet{BTH: ib.BTH{Opcode: ib.RCRDMAReadRequest, PSN: psn}, RETH: ib.RETH{VA: target.base, RKey: target.rkey, Length: 1}})
	}
	for psn := range ib.PSN(100) {
		b.Receive(w.now, &ib.Packet{BTH: ib.BTH{Opcode: ib.RCRDMAReadRequest, PSN: psn}, RETH: ib.RETH{VA: target.base, RKey: target.rkey, Length: 1}}, nil)
	}
	// Nor do they take the place of a new one.
	b.Receive(w.now, &ib.Packet{BTH: ib.BTH{Opcode: ib.RCRDMAReadRequest, PSN: 100}, RETH: ib.RETH{VA: target.base, RKey: target.rkey, Length: 1}}, nil)
	b.expectFailure(ib.Success, "")
	n := 0
	w.fate = func(int, *ib.Packet) verdict { n++; return lose }
	w.sender = 1
	for b.Transmit(w.now, w, 10) {
	}
	if n > 10 {
		t.Errorf("%d answers were queued for repeats", n)
	}
}

// Go-back-N needs the NAK, and what it asks for, to arrive. Where they do not a
// few round trips pass and not a whole ACK time-out, and no retry is used up.
func TestALostNAKOrARepeatLostAgainCostsLittle(t *testing.T) {
	for name, losses := range map[string]func(from int, p *ib.Packet, nth int) bool{
		"the NAK":            func(from int, p *ib.Packet, nth int) bool { return from == 1 && p.AETH.Syndrome == 0x60 && nth == 1 },
		"the packet 3 times": func(from int, p *ib.Packet, nth int) bool { return from == 0 && p.PSN == 50 && nth <= 3 },
		"the last ACK":       func(from int, p *ib.Packet, nth int) bool { return from == 1 && p.PSN == 99 && nth <= 2 },
	} {
		w := newWire(t, options{mtu: ib.MTU256, retry: 0})
		a, b := w.ends[0], w.ends[1]
		local, target := a.memory.add(100*256, all), b.memory.add(100*256, all)
		seen := map[string]int{}
		w.fate = func(from int, p *ib.Packet) verdict {
			key := fmt.Sprint(from, p.PSN, p.AETH.Syndrome)
			seen[key]++
			if from == 0 && p.PSN == 50 && seen[key] == 1 || losses(from, p, seen[key]) {
				return lose
			}
			return pass
		}
		a.send(device.WorkRequest{ID: 1, Opcode: device.WorkWrite, SGL: local.sge(0, 100*256), RemoteAddr: target.base, RKey: target.rkey, Signaled: true})
		w.run()
		a.expect("send 1 SUCCESS")
		if took := w.now.Sub(w.start); took > 40*time.Millisecond || a.total.AckTimeouts != 0 {
			t.Errorf("%s: took %v and %d time-outs", name, took, a.total.AckTimeouts)
		}
	}
}

func TestTimeoutCodeZeroWaitsForEver(t *testing.T) {
	w := newWire(t, options{loss: 1})
	a := w.ends[0]
	a.Modify(w.now, device.ToReset{})
	a.Modify(w.now, device.ToInit{PKey: ib.DefaultPKey})
	a.Modify(w.now, device.ToRTR{Remote: device.Remote{QPN: qpn(1)}, PathMTU: ib.MTU256})
	a.Modify(w.now, device.ToRTS{Timeout: 0, RetryCount: 1})
	a.send(device.WorkRequest{ID: 1, Opcode: device.WorkSend})
	w.run()
	a.expect()
	if !a.Deadline().IsZero() || a.State() != ib.RTS {
		t.Errorf("deadline %v in %v", a.Deadline(), a.State())
	}
}
