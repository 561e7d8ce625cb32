package transport_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// raw hands a request made by hand to the responder, end 1, and gives what it
// answered.
func (w *wire) raw(p ib.Packet) (answers []ib.Packet) {
	w.t.Helper()
	p.PKey, p.DestQP, p.AckReq = ib.DefaultPKey, qpn(1), true
	w.ends[1].Receive(w.now, &p, nil)
	w.sender = 1
	w.fate = func(_ int, p *ib.Packet) verdict {
		answers = append(answers, *p)
		return lose
	}
	for w.ends[1].Transmit(w.now, w, 16) {
	}
	w.fate = nil
	w.ends[1].collect()
	return answers
}

// Every row of the table of faults, as both ends see it.
func TestEachFaultHasItsNAKAndItsStatuses(t *testing.T) {
	const length = 300
	for _, tt := range []struct {
		name      string
		wr        device.WorkRequest
		prepare   func(w *wire, wr *device.WorkRequest, target *region)
		o         options
		requester ib.WCStatus
		responder ib.WCStatus
		nak       string
		recv      string // completion of the posted receive
		reason    string // at the responder, what follows the packet
	}{
		{
			name: "WRITE with a wrong R_Key", wr: device.WorkRequest{Opcode: device.WorkWrite},
			prepare:   func(_ *wire, wr *device.WorkRequest, _ *region) { wr.RKey++ },
			requester: ib.RemAccessErr, responder: ib.RemAccessErr, nak: "remote access error", recv: "WR_FLUSH_ERR",
			reason: "R_Key, range or access not valid in this protection domain",
		},
		{
			name: "WRITE beyond the region", wr: device.WorkRequest{Opcode: device.WorkWrite},
			prepare:   func(_ *wire, wr *device.WorkRequest, _ *region) { wr.RemoteAddr++ },
			requester: ib.RemAccessErr, responder: ib.RemAccessErr, nak: "remote access error", recv: "WR_FLUSH_ERR",
			reason: "R_Key, range or access not valid in this protection domain",
		},
		{
			name: "WRITE to a region that is only read", wr: device.WorkRequest{Opcode: device.WorkWrite},
			prepare:   func(_ *wire, _ *device.WorkRequest, target *region) { target.access = ib.LocalWrite | ib.RemoteRead },
			requester: ib.RemAccessErr, responder: ib.RemAccessErr, nak: "remote access error", recv: "WR_FLUSH_ERR",
			reason: "R_Key, range or access not valid in this protection domain",
		},
		{
			name: "READ of a region of another protection domain", wr: device.WorkRequest{Opcode: device.WorkRead},
			prepare:   func(_ *wire, _ *device.WorkRequest, target *region) { target.pd++ },
			requester: ib.RemAccessErr, responder: ib.RemAccessErr, nak: "remote access error", recv: "WR_FLUSH_ERR",
			reason: "R_Key, range or access not valid in this protection domain",
		},
		{
			name: "atomic on a region without that access", wr: device.WorkRequest{Opcode: device.WorkFetchAdd},
			prepare:   func(_ *wire, _ *device.WorkRequest, target *region) { target.access &^= ib.RemoteAtomic },
			requester: ib.RemAccessErr, responder: ib.RemAccessErr, nak: "remote access error", recv: "WR_FLUSH_ERR",
			reason: "R_Key, range or access not valid in this protection domain",
		},
		{
			name: "WRITE that the queue pair does not allow", wr: device.WorkRequest{Opcode: device.WorkWrite},
			o:         options{access: ib.RemoteRead | ib.RemoteAtomic},
			requester: ib.RemInvReqErr, responder: ib.RemInvReqErr, nak: "invalid request", recv: "WR_FLUSH_ERR",
			reason: "operation that this queue pair does not allow",
		},
		{
			name: "READ that the queue pair does not allow", wr: device.WorkRequest{Opcode: device.WorkRead},
			o:         options{access: ib.RemoteWrite | ib.RemoteAtomic},
			requester: ib.RemInvReqErr, responder: ib.RemInvReqErr, nak: "invalid request", recv: "WR_FLUSH_ERR",
			reason: "operation that this queue pair does not allow",
		},
		{
			name: "atomic that the queue pair does not allow", wr: device.WorkRequest{Opcode: device.WorkCompareSwap},
			o:         options{access: ib.RemoteWrite | ib.RemoteRead},
			requester: ib.RemInvReqErr, responder: ib.RemInvReqErr, nak: "invalid request", recv: "WR_FLUSH_ERR",
			reason: "operation that this queue pair does not allow",
		},
		{
			name: "atomic on an odd address", wr: device.WorkRequest{Opcode: device.WorkFetchAdd},
			prepare:   func(_ *wire, wr *device.WorkRequest, _ *region) { wr.RemoteAddr += 4 },
			requester: ib.RemInvReqErr, responder: ib.RemInvReqErr, nak: "invalid request", recv: "WR_FLUSH_ERR",
			reason: "atomic operation on an address that is not a multiple of 8",
		},
		{
			name: "READ where the responder takes none", wr: device.WorkRequest{Opcode: device.WorkRead},
			o:         options{destReads: -1},
			requester: ib.RemInvReqErr, responder: ib.RemInvReqErr, nak: "invalid request", recv: "WR_FLUSH_ERR",
			reason: "more READs and atomics at once than max_dest_rd_atomic",
		},
		{
			name: "SEND longer than the receive", wr: device.WorkRequest{Opcode: device.WorkSend},
			prepare: func(w *wire, _ *device.WorkRequest, target *region) {
				w.reconnect(w.ends[1])
				w.ends[1].recv(9, target.sge(0, length-1))
			},
			requester: ib.RemInvReqErr, responder: ib.LocLenErr, nak: "invalid request", recv: "LOC_LEN_ERR",
			reason: "message longer than the receive posted for it",
		},
		{
			name: "SEND into a receive with a wrong L_Key", wr: device.WorkRequest{Opcode: device.WorkSend},
			prepare:   func(_ *wire, _ *device.WorkRequest, target *region) { target.lkey++ },
			requester: ib.RemOpErr, responder: ib.LocProtErr, nak: "remote operational error", recv: "LOC_PROT_ERR",
			reason: "memory of the receive not writable in this protection domain",
		},
		{
			name: "SEND into memory that is only read", wr: device.WorkRequest{Opcode: device.WorkSend},
			prepare:   func(_ *wire, _ *device.WorkRequest, target *region) { target.access = ib.RemoteRead },
			requester: ib.RemOpErr, responder: ib.LocProtErr, nak: "remote operational error", recv: "LOC_PROT_ERR",
			reason: "memory of the receive not writable in this protection domain",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := tt.o
			o.mtu, o.retry = ib.MTU256, 7
			w := newWire(t, o)
			a, b := w.ends[0], w.ends[1]
			local, target := a.memory.add(length, all), b.memory.add(length, all)
			fill(local.data, 1)
			b.recv(9, target.sge(0, length))
			wr := tt.wr
			wr.ID, wr.SGL, wr.RemoteAddr, wr.RKey = 1, local.sge(0, length), target.base, target.rkey
			if wr.Opcode >= device.WorkCompareSwap {
				wr.SGL = local.sge(0, 8)
			}
			if tt.prepare != nil {
				tt.prepare(w, &wr, target)
			}
			before := bytes.Clone(target.data)
			// What was posted before succeeds, what was posted after is flushed.
			a.send(device.WorkRequest{ID: 0, Opcode: device.WorkWrite, Signaled: true})
			first := "send 0 SUCCESS"
			if tt.o.access != 0 && tt.o.access&ib.RemoteWrite == 0 {
				w.reconnect(a)
				first = ""
			}
			a.send(wr)
			a.send(device.WorkRequest{ID: 2, Opcode: device.WorkSend, SGL: local.sge(0, 1)})
			w.run()
			want := []string{first, fmt.Sprintf("send 1 %v", tt.requester), "send 2 WR_FLUSH_ERR"}
			if first == "" {
				want = want[1:]
			}
			a.expect(want...)
			b.expect("recv 9 " + tt.recv)
			if status, reason := a.Failure(); status != tt.requester || !strings.Contains(reason, "QPN 0x12 answered PSN 0x00000") || !strings.Contains(reason, "NAK "+tt.nak) {
				t.Errorf("requester failed with %v, %q", status, reason)
			}
			if status, reason := b.Failure(); status != tt.responder || !strings.HasPrefix(reason, "refused RC_") || !strings.HasSuffix(reason, " from QPN 0x11: "+tt.reason) {
				t.Errorf("responder failed with %v, %q", status, reason)
			}
			if a.State() != ib.Err || b.State() != ib.Err {
				t.Errorf("states %v and %v, want both in ERR", a.State(), b.State())
			}
			if tt.recv != "LOC_LEN_ERR" && !bytes.Equal(before, target.data) {
				t.Error("memory was written")
			}
			if a.total.AckTimeouts != 0 {
				t.Errorf("%d time-outs on the way", a.total.AckTimeouts)
			}
		})
	}
}

func TestMalformedMessagesAreInvalidRequests(t *testing.T) {
	const mtu = 256
	full, short := make([]byte, mtu), make([]byte, 10)
	packet := func(op ib.Opcode, payload []byte, length uint32) ib.Packet {
		return ib.Packet{BTH: ib.BTH{Opcode: op}, Payload: payload, RETH: ib.RETH{Length: length}}
	}
	for _, tt := range []struct {
		name   string
		want   string
		status ib.WCStatus
		p      []ib.Packet
	}{
		{"MIDDLE without FIRST", "out of its place", ib.RemInvReqErr, []ib.Packet{packet(ib.RCSendMiddle, full, 0)}},
		{"LAST without FIRST", "out of its place", ib.RemInvReqErr, []ib.Packet{packet(ib.RCRDMAWriteLast, short, 0)}},
		{"ONLY inside a message", "out of its place", ib.RemInvReqErr, []ib.Packet{packet(ib.RCSendFirst, full, 0), packet(ib.RCSendOnly, short, 0)}},
		{"READ inside a message", "out of its place", ib.RemInvReqErr, []ib.Packet{packet(ib.RCRDMAWriteFirst, full, 300), packet(ib.RCRDMAReadRequest, nil, 1)}},
		{"WRITE MIDDLE inside a SEND", "out of its place", ib.RemInvReqErr, []ib.Packet{packet(ib.RCSendFirst, full, 0), packet(ib.RCRDMAWriteMiddle, full, 0)}},
		{"SEND LAST inside a WRITE", "out of its place", ib.RemInvReqErr, []ib.Packet{packet(ib.RCRDMAWriteFirst, full, 300), packet(ib.RCSendLast, short, 0)}},
		{"short FIRST", "wrong length", ib.RemInvReqErr, []ib.Packet{packet(ib.RCSendFirst, short, 0)}},
		{"short MIDDLE", "wrong length", ib.RemInvReqErr, []ib.Packet{packet(ib.RCSendFirst, full, 0), packet(ib.RCSendMiddle, short, 0)}},
		{"empty LAST", "wrong length", ib.RemInvReqErr, []ib.Packet{packet(ib.RCSendFirst, full, 0), packet(ib.RCSendLast, nil, 0)}},
		{"ONLY above the MTU", "wrong length", ib.RemInvReqErr, []ib.Packet{packet(ib.RCSendOnly, make([]byte, mtu+1), 0)}},
		{"WRITE ONLY of another length than its RETH", "length that the RETH says", ib.RemInvReqErr, []ib.Packet{packet(ib.RCRDMAWriteOnly, short, 11)}},
		{"WRITE FIRST that is all of its RETH", "length that the RETH says", ib.RemInvReqErr, []ib.Packet{packet(ib.RCRDMAWriteFirst, full, mtu)}},
		{"WRITE LAST before the end", "length that the RETH says", ib.RemInvReqErr, []ib.Packet{packet(ib.RCRDMAWriteFirst, full, mtu+11), packet(ib.RCRDMAWriteLast, short, 0)}},
		{"WRITE that goes on after its end", "length that the RETH says", ib.RemInvReqErr, []ib.Packet{packet(ib.RCRDMAWriteFirst, full, mtu+9), packet(ib.RCRDMAWriteLast, short, 0)}},
		{"READ above 2 GiB", "more than 2^31", ib.RemInvReqErr, []ib.Packet{packet(ib.RCRDMAReadRequest, nil, 1<<31+1)}},
		{"SEND with invalidate", "does not allow", ib.RemInvReqErr, []ib.Packet{packet(ib.RCSendOnlyInvalidate, short, 0)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWire(t, options{mtu: ib.MTU256})
			b := w.ends[1]
			target := b.memory.add(4096, all)
			b.recv(1, target.sge(0, 4096))
			for i, p := range tt.p {
				p.PSN = ib.PSN(i)
				p.RETH.VA, p.RETH.RKey = target.base, target.rkey
				answers := w.raw(p)
				if len(answers) != 1 {
					t.Fatalf("packet %d: answers %+v", i, answers)
				}
				want := ib.AckSyndrome(ib.UnlimitedCredits)
				if i == len(tt.p)-1 {
					want = ib.Nak(ib.InvalidRequest)
				}
				if got := answers[0]; got.Opcode != ib.RCAcknowledge || got.AETH.Syndrome != want || got.PSN != ib.PSN(i) {
					t.Errorf("packet %d: answered %v %v of PSN %d, want %v", i, got.Opcode, got.AETH.Syndrome, got.PSN, want)
				}
			}
			if status, reason := b.Failure(); status != tt.status || !strings.Contains(reason, tt.want) {
				t.Errorf("failed with %v, %q", status, reason)
			}
			if again := w.raw(ib.Packet{BTH: ib.BTH{Opcode: ib.RCSendOnly, PSN: 1}}); len(again) != 0 {
				t.Errorf("answered %+v in ERR", again)
			}
		})
	}
}

func TestARegionThatGoesInTheMiddleFailsTheNextAccess(t *testing.T) {
	const size = 100 * 256
	for _, tt := range []struct {
		op     device.WorkOpcode
		remote bool // which end's region goes
		a, b   ib.WCStatus
	}{
		{device.WorkWrite, true, ib.RemAccessErr, ib.RemAccessErr},
		{device.WorkRead, true, ib.RemAccessErr, ib.RemAccessErr},
		{device.WorkSend, true, ib.RemOpErr, ib.LocProtErr},
		{device.WorkWrite, false, ib.LocProtErr, ib.Success},
		{device.WorkRead, false, ib.LocProtErr, ib.Success},
		{device.WorkSend, false, ib.LocProtErr, ib.Success},
	} {
		t.Run(fmt.Sprintf("%d remote %v", tt.op, tt.remote), func(t *testing.T) {
			w := newWire(t, options{mtu: ib.MTU256, window: 16})
			a, b := w.ends[0], w.ends[1]
			local, target := a.memory.add(size, all), b.memory.add(size, all)
			b.recv(5, target.sge(0, size))
			a.send(device.WorkRequest{ID: 1, Opcode: tt.op, SGL: local.sge(0, size), RemoteAddr: target.base, RKey: target.rkey})
			n := 0
			w.seen = func(int, *ib.Packet) {
				if n++; n == 50 && tt.remote {
					b.memory.remove(target)
				} else if n == 50 {
					a.memory.remove(local)
				}
			}
			w.run()
			a.expect(fmt.Sprintf("send 1 %v", tt.a))
			if got, _ := b.Failure(); got != tt.b {
				t.Errorf("responder failed with %v, want %v", got, tt.b)
			}
		})
	}
}

func TestWorkBeforeALocalErrorCompletesFirst(t *testing.T) {
	w := newWire(t, options{mtu: ib.MTU256, window: 8})
	a, b := w.ends[0], w.ends[1]
	local, target := a.memory.add(5000, all), b.memory.add(5000, all)
	a.send(device.WorkRequest{ID: 1, Opcode: device.WorkWrite, SGL: local.sge(0, 5000), RemoteAddr: target.base, RKey: target.rkey, Signaled: true})
	a.send(device.WorkRequest{ID: 2, Opcode: device.WorkRead, SGL: local.sge(0, 5000), RemoteAddr: target.base, RKey: target.rkey, Signaled: true})
	bad := local.sge(16, 100)
	bad[0].LKey = 0xbad
	a.send(device.WorkRequest{ID: 3, Opcode: device.WorkSend, SGL: bad})
	a.send(device.WorkRequest{ID: 4, Opcode: device.WorkSend})
	w.run()
	a.expect("send 1 SUCCESS", "send 2 SUCCESS", "send 3 LOC_PROT_ERR", "send 4 WR_FLUSH_ERR")
	a.expectFailure(ib.LocProtErr, "local memory 0x10000000010, 100 bytes, L_Key 0x00000bad is not readable in this protection domain")
	b.expectFailure(ib.Success, "")
}

func TestAReadResponseOfTheWrongLengthIsABadResponse(t *testing.T) {
	w := newWire(t, options{mtu: ib.MTU256})
	a, b := w.ends[0], w.ends[1]
	local, target := a.memory.add(100, all), b.memory.add(100, all)
	a.send(device.WorkRequest{ID: 1, Opcode: device.WorkRead, SGL: local.sge(0, 100), RemoteAddr: target.base, RKey: target.rkey})
	w.seen = func(from int, p *ib.Packet) {
		if from == 1 {
			p.Payload = p.Payload[:99]
		}
	}
	w.run()
	a.expect("send 1 BAD_RESP_ERR")
	a.expectFailure(ib.BadRespErr, "READ response of PSN 0x000000 from QPN 0x12 has 99 bytes: want 100")
}

func TestPostRefusesWhatCannotWorkAndNamesIt(t *testing.T) {
	w := newWire(t, options{queue: 2})
	a := w.ends[0]
	e := device.SGE{Length: 1 << 31}
	for _, tt := range []struct {
		wr   device.WorkRequest
		want string
	}{
		{device.WorkRequest{}, "opcode: 0 is none of a send queue"},
		{device.WorkRequest{Opcode: device.WorkRecv}, "opcode: 8 is none of a send queue"},
		{device.WorkRequest{Opcode: device.WorkSend, SGL: make([]device.SGE, 5)}, "sgl: has 5 entries: at most 4"},
		{device.WorkRequest{Opcode: device.WorkSend, SGL: []device.SGE{e, {Length: 1}}}, "sgl: has 2147483649 bytes: at most 2147483648"},
		{device.WorkRequest{Opcode: device.WorkFetchAdd, SGL: []device.SGE{{Length: 7}}}, "sgl: has 7 bytes: an atomic operation gives 8"},
	} {
		if err := a.PostSend(&tt.wr); err == nil || err.Error() != tt.want || !errors.Is(err, device.ErrInvalid) {
			t.Errorf("PostSend gave %v, want %s", err, tt.want)
		}
	}
	if err := a.PostRecv(&device.WorkRequest{Opcode: device.WorkSend}); !errors.Is(err, device.ErrInvalid) {
		t.Errorf("PostRecv of a SEND gave %v", err)
	}
	for range 2 {
		a.send(device.WorkRequest{Opcode: device.WorkSend})
		a.recv(0, nil)
	}
	if err := a.PostSend(&device.WorkRequest{Opcode: device.WorkSend}); !errors.Is(err, device.ErrExhausted) {
		t.Errorf("PostSend to a full queue gave %v", err)
	}
	if err := a.PostRecv(&device.WorkRequest{Opcode: device.WorkRecv}); !errors.Is(err, device.ErrExhausted) {
		t.Errorf("PostRecv to a full queue gave %v", err)
	}
	a.Modify(w.now, device.ToReset{})
	var state *device.StateError
	if err := a.PostSend(&device.WorkRequest{Opcode: device.WorkSend}); !errors.As(err, &state) || state.State != ib.Reset {
		t.Errorf("PostSend in RESET gave %v", err)
	}
	if err := a.PostRecv(&device.WorkRequest{Opcode: device.WorkRecv}); !errors.As(err, &state) || state.State != ib.Reset {
		t.Errorf("PostRecv in RESET gave %v", err)
	}
	if got := a.take(); len(got) != 0 {
		t.Errorf("completed %+v", got)
	}
}
