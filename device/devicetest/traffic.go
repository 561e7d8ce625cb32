package devicetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// random gives n bytes that differ from seed to seed.
func random(n uint64, seed byte) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(p) // it never fails
	return p
}

func testTransfer(t *testing.T, p Pair) {
	a, b := newEnd(t, p.A, p.PortA), newEnd(t, p.B, p.PortB)
	qa, qb := connect(a, b, everyAccess)
	for _, size := range []uint64{1, 1023, 1024, 1025, 10_000, 1 << 20} {
		ma, mb := a.region(a.buffer(size), everyAccess), b.region(b.buffer(size), everyAccess)
		want := random(size, 1)
		a.write(ma.Address, want)

		b.post(qb, device.WorkRequest{ID: 10, Opcode: device.WorkRecv, SGL: sge(mb)})
		a.post(qa, device.WorkRequest{ID: 11, Opcode: device.WorkSendImm, Imm: 0x01020304, SGL: sge(ma), Signaled: true, Solicited: true})
		r := b.next(qb, 1)[0]
		if r.ID != 10 || r.Status != ib.Success || r.Opcode != ib.WCRecv || !r.Receive || r.Length != uint32(size) || !r.HasImm || r.Imm != 0x01020304 || !r.Solicited {
			t.Fatalf("%d bytes received: %+v", size, r)
		}
		if n := b.get(qb).Outstanding; n != 0 { // a receive is none
			t.Fatalf("%d sends outstanding where none was posted", n)
		}
		if s := a.next(qa, 1)[0]; s.ID != 11 || s.Status != ib.Success || s.Opcode != ib.WCSend || s.Receive {
			t.Fatalf("%d bytes sent: %+v", size, s)
		}
		if n := a.get(qa).Outstanding; n != 0 {
			t.Fatalf("%d sends outstanding after the last had completed", n)
		}
		if !bytes.Equal(b.read(mb.Address, size), want) {
			t.Fatalf("SEND of %d bytes: they differ", size)
		}

		want = random(size, 2)
		a.write(ma.Address, want)
		// An unsignaled request completes without a word.
		a.post(qa, device.WorkRequest{ID: 12, Opcode: device.WorkWrite, SGL: sge(ma), RemoteAddr: mb.Address, RKey: mb.RKey},
			device.WorkRequest{ID: 13, Opcode: device.WorkWrite, SGL: sge(ma), RemoteAddr: mb.Address, RKey: mb.RKey, Signaled: true})
		if s := a.next(qa, 1)[0]; s.ID != 13 || s.Status != ib.Success || s.Opcode != ib.WCRDMAWrite {
			t.Fatalf("%d bytes written: %+v", size, s)
		}
		if !bytes.Equal(b.read(mb.Address, size), want) {
			t.Fatalf("WRITE of %d bytes: they differ", size)
		}

		want = random(size, 3)
		b.write(mb.Address, want)
		a.post(qa, device.WorkRequest{ID: 14, Opcode: device.WorkRead, SGL: sge(ma), RemoteAddr: mb.Address, RKey: mb.RKey, Signaled: true})
		if s := a.next(qa, 1)[0]; s.ID != 14 || s.Status != ib.Success || s.Opcode != ib.WCRDMARead {
			t.Fatalf("%d bytes read: %+v", size, s)
		}
		if !bytes.Equal(a.read(ma.Address, size), want) {
			t.Fatalf("READ of %d bytes: they differ", size)
		}
	}
}

func testAtomics(t *testing.T, p Pair) {
	if !has(p.A, device.CapAtomics) || !has(p.B, device.CapAtomics) {
		return // then the suite asks nothing of them
	}
	const access = everyAccess | ib.RemoteAtomic
	a, b := newEnd(t, p.A, p.PortA), newEnd(t, p.B, p.PortB)
	ma, mb := a.region(a.buffer(8), access), b.region(b.buffer(16), access)
	qa, qb := connect(a, b, access)
	word := func(n uint64) []byte { return binary.NativeEndian.AppendUint64(nil, n) }
	for _, c := range []struct {
		opcode        device.WorkOpcode
		wc            ib.WCOpcode
		compare, swap uint64
		was, is       uint64
	}{
		{device.WorkFetchAdd, ib.WCFetchAdd, 5, 0, 0, 5},
		{device.WorkFetchAdd, ib.WCFetchAdd, 1<<64 - 3, 0, 5, 2}, // it wraps
		{device.WorkCompareSwap, ib.WCCompSwap, 2, 77, 2, 77},
		{device.WorkCompareSwap, ib.WCCompSwap, 2, 88, 77, 77}, // not as compared: it stays
	} {
		a.post(qa, device.WorkRequest{ID: 20, Opcode: c.opcode, SGL: sge(ma), RemoteAddr: mb.Address + 8, RKey: mb.RKey,
			Compare: c.compare, Swap: c.swap, Signaled: true})
		if got := a.next(qa, 1)[0]; got.ID != 20 || got.Status != ib.Success || got.Opcode != c.wc || got.Length != 8 {
			t.Fatalf("%+v: completion %+v", c, got)
		}
		if was, is := a.read(ma.Address, 8), b.read(mb.Address, 16); !bytes.Equal(was, word(c.was)) || !bytes.Equal(is, append(word(0), word(c.is)...)) {
			t.Errorf("%+v: gave %x, left %x", c, was, is)
		}
	}
	// The word must be one, and the queue pair must let the peer do it.
	a.post(qa, device.WorkRequest{Opcode: device.WorkFetchAdd, SGL: sge(ma), RemoteAddr: mb.Address + 4, RKey: mb.RKey, Signaled: true})
	if got := a.next(qa, 1)[0]; got.Status != ib.RemInvReqErr {
		t.Errorf("at an address that is no multiple of 8: %+v", got)
	}
	if qp := b.get(qb); qp.State != ib.Err {
		t.Errorf("responder %+v, want ERR", qp)
	}
	qa, _ = connect(a, b, everyAccess)
	a.post(qa, device.WorkRequest{Opcode: device.WorkFetchAdd, SGL: sge(ma), RemoteAddr: mb.Address, RKey: mb.RKey, Signaled: true})
	if got := a.next(qa, 1)[0]; got.Status != ib.RemInvReqErr {
		t.Errorf("on a queue pair that does not allow it: %+v", got)
	}
}

func testAccess(t *testing.T, p Pair) {
	const size = 5000
	write := func(a *end, ma, mb device.Region) device.WorkRequest {
		return device.WorkRequest{ID: 1, Opcode: device.WorkWrite, SGL: sge(ma), RemoteAddr: mb.Address, RKey: mb.RKey, Signaled: true}
	}
	for _, c := range []struct {
		name   string
		access ib.Access // of the queue pairs
		region ib.Access // of b's memory
		change func(wr *device.WorkRequest)
		want   ib.WCStatus
	}{
		{"wrong R_Key", everyAccess, everyAccess, func(wr *device.WorkRequest) { wr.RKey ^= 1 }, ib.RemAccessErr},
		{"behind the region", everyAccess, everyAccess, func(wr *device.WorkRequest) { wr.RemoteAddr++ }, ib.RemAccessErr},
		{"before the region", everyAccess, everyAccess, func(wr *device.WorkRequest) { wr.RemoteAddr-- }, ib.RemAccessErr},
		{"region not for writing", everyAccess, ib.RemoteRead, nil, ib.RemAccessErr},
		{"queue pair not for writing", ib.RemoteRead, everyAccess, nil, ib.RemInvReqErr},
		{"wrong L_Key", everyAccess, everyAccess, func(wr *device.WorkRequest) { wr.SGL[0].LKey ^= 1 }, ib.LocProtErr},
		{"behind the local region", everyAccess, everyAccess, func(wr *device.WorkRequest) { wr.SGL[0].Address++ }, ib.LocProtErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := newEnd(t, p.A, p.PortA), newEnd(t, p.B, p.PortB)
			ma, mb := a.region(a.buffer(size), everyAccess), b.region(b.buffer(size), c.region)
			a.write(ma.Address, random(size, 1))
			qa, _ := connect(a, b, c.access)
			wr := write(a, ma, mb)
			if c.change != nil {
				c.change(&wr)
			}
			a.post(qa, wr)
			if got := a.next(qa, 1)[0]; got.Status != c.want || got.ID != 1 {
				t.Errorf("completion %+v, want %v", got, c.want)
			}
			if qp := a.get(qa); qp.State != ib.Err || qp.Status != c.want || qp.Reason == "" {
				t.Errorf("queue pair %+v, want ERR with %v and a reason", qp, c.want)
			}
			// A local fault shows when its packet is made: those before it are gone.
			local := c.want == ib.LocProtErr
			if got := b.read(mb.Address, size); !local && !bytes.Equal(got, make([]byte, size)) {
				t.Error("bytes arrived all the same")
			}
		})
	}
	t.Run("other protection domain", func(t *testing.T) {
		a, b, c := newEnd(t, p.A, p.PortA), newEnd(t, p.B, p.PortB), newEnd(t, p.B, p.PortB)
		ma, mc := a.region(a.buffer(size), everyAccess), c.region(c.buffer(size), everyAccess)
		qa, _ := connect(a, b, everyAccess)
		a.post(qa, write(a, ma, mc))
		if got := a.next(qa, 1)[0]; got.Status != ib.RemAccessErr {
			t.Errorf("completion %+v, want %v", got, ib.RemAccessErr)
		}
	})
}

func testDeregistered(t *testing.T, p Pair) {
	ctx := t.Context()
	const size = 1 << 16
	a, b := newEnd(t, p.A, p.PortA), newEnd(t, p.B, p.PortB)
	ma, mb := a.region(a.buffer(size), everyAccess), b.region(b.buffer(size), everyAccess)
	qa, _ := connect(a, b, everyAccess)
	a.write(ma.Address, random(size, 1))
	write := device.WorkRequest{Opcode: device.WorkWrite, SGL: sge(ma), RemoteAddr: mb.Address, RKey: mb.RKey, Signaled: true}
	for range 32 {
		a.post(qa, write)
	}
	// In the middle of it the key is taken away.
	if c := a.next(qa, 1)[0]; c.Status != ib.Success {
		t.Fatalf("completion %+v", c)
	}
	if err := p.B.DeregisterRegions(ctx, []device.UID{mb.UID})[0]; err != nil {
		t.Fatal(err)
	}
	b.write(mb.Address, make([]byte, size))
	a.dev.Post(ctx, qa.UID, []device.WorkRequest{write}) // refused if the queue pair is in ERR already: no matter
	for failed := false; !failed; {
		failed = a.next(qa, 1)[0].Status == ib.RemAccessErr
	}
	if got := b.read(mb.Address, size); !bytes.Equal(got, make([]byte, size)) {
		t.Error("bytes arrived by a key that was taken away")
	}
}

func testFlush(t *testing.T, p Pair) {
	a, b := newEnd(t, p.A, p.PortA), newEnd(t, p.B, p.PortB)
	ma := a.region(a.buffer(100), everyAccess)
	qa, _ := connect(a, b, everyAccess)
	recv := device.WorkRequest{ID: 1, Opcode: device.WorkRecv, SGL: sge(ma)}
	a.post(qa, recv, recv)
	if r := a.modify(qa, device.ToErr{}); r.Err != nil || r.State != ib.Err || r.Status != ib.Success {
		t.Errorf("%+v", r)
	}
	a.post(qa, recv, device.WorkRequest{ID: 2, Opcode: device.WorkSend, SGL: sge(ma)})
	for _, c := range a.next(qa, 4) {
		if c.Status != ib.WRFlushErr || c.Receive != (c.ID == 1) {
			t.Errorf("completion %+v", c)
		}
	}
	// RESET drops work and completions without a word.
	a.post(qa, recv)
	if r := a.modify(qa, device.ToReset{}); r.Err != nil {
		t.Fatal(r.Err)
	}
	err := p.A.Post(t.Context(), qa.UID, []device.WorkRequest{recv})
	var refused *device.PostError
	if !errors.As(err, &refused) || refused.Index != 0 {
		t.Errorf("posting in RESET: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if list, err := p.A.Completions(ctx, qa.UID, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("after RESET: %+v, %v", list, err)
	}
}

func testCompletionsWait(t *testing.T, p Pair) {
	a, b := newEnd(t, p.A, p.PortA), newEnd(t, p.B, p.PortB)
	qa, qb := connect(a, b, everyAccess)
	type answer struct {
		list []device.Completion
		err  error
	}
	wait := func(ctx context.Context) <-chan answer {
		c := make(chan answer, 1)
		go func() {
			list, err := p.B.Completions(ctx, qb.UID, 10)
			c <- answer{list, err}
		}()
		return c
	}
	waiting := wait(t.Context())
	b.post(qb, device.WorkRequest{ID: 5, Opcode: device.WorkRecv})
	a.post(qa, device.WorkRequest{Opcode: device.WorkSend})
	if got := <-waiting; got.err != nil || len(got.list) != 1 || got.list[0].ID != 5 || got.list[0].Length != 0 {
		t.Errorf("%+v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waiting = wait(ctx)
	cancel()
	if got := <-waiting; !errors.Is(got.err, context.Canceled) {
		t.Errorf("cancelled: %+v", got)
	}
	waiting = wait(t.Context())
	if err := p.B.DestroyQueuePairs(t.Context(), []device.UID{qb.UID})[0]; err != nil {
		t.Fatal(err)
	}
	if got := <-waiting; !errors.Is(got.err, device.ErrNotFound) {
		t.Errorf("destroyed: %+v", got)
	}
	_, err := p.A.Completions(t.Context(), qa.UID, 0)
	wantField(t, err, "limit")
	_, err = p.A.Completions(t.Context(), NewUID(), 1)
	wantError(t, err, device.ErrNotFound)
	wantError(t, p.A.Post(t.Context(), NewUID(), nil), device.ErrNotFound)
}

func testClosed(t *testing.T, p Pair) {
	ctx := t.Context()
	e := newEnd(t, p.A, p.PortA)
	qp := e.queuePair(toInit(0))
	b := e.buffer(1)
	waiting := make(chan error, 1)
	go func() {
		_, err := p.A.Completions(ctx, qp.UID, 1)
		waiting <- err
	}()
	if err := p.A.Close(); err != nil {
		t.Fatal(err)
	}
	wantError(t, <-waiting, device.ErrClosed)
	for range p.A.Events() { // ends: Close closed it
	}
	wantError(t, p.A.Close(), nil)
	_, port := p.A.Port(ctx, p.PortA)
	_, allocate := p.A.Allocate(ctx, device.BufferSpec{UID: NewUID(), Size: 1})
	_, buffers := p.A.ListBuffers(ctx)
	_, regions := p.A.ListRegions(ctx)
	_, pairs := p.A.ListQueuePairs(ctx)
	_, domains := p.A.ListProtectionDomains(ctx)
	_, pair := p.A.GetQueuePair(ctx, qp.UID)
	for name, err := range map[string]error{
		"Port": port, "SetPort": p.A.SetPort(ctx, p.PortA, true),
		"Allocate": allocate, "Free": p.A.Free(ctx, b.UID), "ListBuffers": buffers,
		"ReadMemory": p.A.ReadMemory(ctx, b.Address, make([]byte, 1)), "WriteMemory": p.A.WriteMemory(ctx, b.Address, make([]byte, 1)),
		"ListRegions": regions, "RegisterRegions": p.A.RegisterRegions(ctx, make([]device.RegionSpec, 1))[0].Err,
		"DeregisterRegions":     p.A.DeregisterRegions(ctx, make([]device.UID, 1))[0],
		"ListProtectionDomains": domains, "CreateProtectionDomains": p.A.CreateProtectionDomains(ctx, make([]device.UID, 1))[0].Err,
		"DestroyProtectionDomains": p.A.DestroyProtectionDomains(ctx, make([]device.UID, 1))[0],
		"ListQueuePairs":           pairs, "GetQueuePair": pair,
		"CreateQueuePairs":  p.A.CreateQueuePairs(ctx, make([]device.QueuePairSpec, 1))[0].Err,
		"ModifyQueuePairs":  p.A.ModifyQueuePairs(ctx, make([]device.QueuePairChange, 1))[0].Err,
		"DestroyQueuePairs": p.A.DestroyQueuePairs(ctx, make([]device.UID, 1))[0],
		"Post":              p.A.Post(ctx, qp.UID, nil),
	} {
		if !errors.Is(err, device.ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
}
