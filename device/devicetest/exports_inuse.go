package devicetest

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// inUse is an imported export to which the remote device writes.
type inUse struct {
	*peers
	buffer device.Buffer
	export device.Export
	region device.Region
	source device.Region
	qa, qb device.QueuePair // remote, importer
}

func (p *peers) use(t *testing.T, pages uint64) *inUse {
	t.Helper()
	u := &inUse{peers: p}
	u.buffer, u.export = p.exporter.export(pages)
	f := p.exporter.open(u.export)
	u.region = p.importer.importOf(f, 0, u.buffer.Size)
	f.Close()
	u.source = p.remote.region(p.remote.buffer(u.buffer.Size), everyAccess)
	u.qa, u.qb = connect(p.remote, p.importer, everyAccess)
	return u
}

func (u *inUse) write() device.WorkRequest {
	return device.WorkRequest{Opcode: device.WorkWrite, SGL: sge(u.source), RemoteAddr: u.region.Address, RKey: u.region.RKey, Signaled: true}
}

// stream writes until a write fails or stop is closed, and gives the completion of
// the last. started is closed after the first success.
func (u *inUse) stream(t *testing.T, stop <-chan struct{}) (started <-chan struct{}, last <-chan device.Completion) {
	first, done := make(chan struct{}), make(chan device.Completion, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			err := u.Remote.Post(ctx, u.qa.UID, []device.WorkRequest{u.write()})
			var list []device.Completion
			if err == nil {
				list, err = u.Remote.Completions(ctx, u.qa.UID, 1)
			}
			if err != nil {
				t.Errorf("write %d: %v", n, err)
				return
			}
			if n == 0 {
				close(first)
			}
			select {
			case <-stop:
				done <- list[0]
				return
			default:
			}
			if list[0].Status != ib.Success {
				done <- list[0]
				return
			}
		}
	}()
	return first, done
}

// testThrough reads and writes another device's memory in every way.
func testThrough(t *testing.T, p *peers) {
	u := p.use(t, 4)
	size := u.buffer.Size
	check := func(what string, want []byte) {
		t.Helper()
		if got := p.exporter.read(u.buffer.Address, size); !bytes.Equal(got, want) {
			t.Fatalf("%s: the exporter's memory differs", what)
		}
	}
	want := random(size, 1)
	p.remote.write(u.source.Address, want)
	p.remote.post(u.qa, u.write())
	if c := p.remote.next(u.qa, 1)[0]; c.Status != ib.Success {
		t.Fatalf("WRITE: %+v", c)
	}
	check("WRITE", want)

	want = random(size, 2)
	p.exporter.write(u.buffer.Address, want)
	read := u.write()
	read.Opcode = device.WorkRead
	p.remote.post(u.qa, read)
	if c := p.remote.next(u.qa, 1)[0]; c.Status != ib.Success || !bytes.Equal(p.remote.read(u.source.Address, size), want) {
		t.Fatalf("READ: %+v, or the bytes differ", c)
	}

	want = random(size, 3)
	p.remote.write(u.source.Address, want)
	p.importer.post(u.qb, device.WorkRequest{Opcode: device.WorkRecv, SGL: sge(u.region)})
	p.remote.post(u.qa, device.WorkRequest{Opcode: device.WorkSend, SGL: sge(u.source), Signaled: true})
	if c := p.importer.next(u.qb, 1)[0]; c.Status != ib.Success || c.Length != uint32(size) {
		t.Fatalf("received: %+v", c)
	}
	p.remote.next(u.qa, 1)
	check("SEND", want)

	want = random(size, 4) // from there to the remote
	p.exporter.write(u.buffer.Address, want)
	p.importer.post(u.qb, device.WorkRequest{Opcode: device.WorkWrite, SGL: sge(u.region), RemoteAddr: u.source.Address, RKey: u.source.RKey, Signaled: true})
	if c := p.importer.next(u.qb, 1)[0]; c.Status != ib.Success || !bytes.Equal(p.remote.read(u.source.Address, size), want) {
		t.Fatalf("WRITE from imported memory: %+v, or the bytes differ", c)
	}
	// The window is all there is.
	beyond := u.write()
	beyond.RemoteAddr++
	p.remote.post(u.qa, beyond)
	if c := p.remote.next(u.qa, 1)[0]; c.Status != ib.RemAccessErr {
		t.Errorf("behind the window: %+v", c)
	}
}

// testRevokedInUse revokes while the remote writes: from the moment that
// RevokeExport returns nothing changes any more, and the writer is told.
func testRevokedInUse(t *testing.T, p *peers) {
	for range 10 {
		u := p.use(t, 16)
		p.remote.write(u.source.Address, random(u.source.Length, 1))
		started, last := u.stream(t, nil)
		<-started
		if err := p.Exporter.RevokeExport(t.Context(), u.export.UID); err != nil {
			t.Fatal(err)
		}
		mark := bytes.Repeat([]byte{0xee}, int(u.buffer.Size))
		p.exporter.write(u.buffer.Address, mark)
		if c := <-last; c.Status != ib.RemAccessErr {
			t.Errorf("the writer was told %+v", c)
		}
		if !bytes.Equal(p.exporter.read(u.buffer.Address, u.buffer.Size), mark) {
			t.Fatal("something was written after the export was revoked")
		}
		u.wantRevoked(t)
		if now, ok := p.exporter.exportNow(u.export.UID); !ok || !now.Revoked || len(now.Attachments) != 0 {
			t.Errorf("export %+v", now)
		}
		// Local use fails as with a wrong key.
		qb, _ := connect(p.importer, p.remote, everyAccess)
		p.importer.post(qb, device.WorkRequest{Opcode: device.WorkSend, SGL: sge(u.region), Signaled: true})
		if c := p.importer.next(qb, 1)[0]; c.Status != ib.LocProtErr {
			t.Errorf("local use: %+v", c)
		}
		if err := errors.Join(p.importer.deregister(u.region), p.Exporter.DestroyExport(t.Context(), u.export.UID), p.Exporter.Free(t.Context(), u.buffer.UID)); err != nil {
			t.Error(err)
		}
	}
}

// wantRevoked checks that the importer says what became of its region.
func (u *inUse) wantRevoked(t *testing.T) {
	t.Helper()
	list, err := u.Importer.ListRegions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		if r.UID == u.region.UID {
			if !r.Revoked || !r.Imported || r.RKey != u.region.RKey {
				t.Errorf("region %+v, want it revoked", r)
			}
			return
		}
	}
	t.Error("the region is gone: it stays until it is deregistered")
}

func testExporterReset(t *testing.T, p *peers) {
	if !has(p.Exporter, device.CapReset) {
		return
	}
	if p.Exporter == p.Importer {
		return
	}
	ctx := t.Context()
	u := p.use(t, 16)
	f := p.exporter.open(u.export)
	own := p.exporter.region(p.exporter.buffer(100), everyAccess)
	p.remote.write(u.source.Address, bytes.Repeat([]byte{0xa5}, int(u.source.Length)))
	started, last := u.stream(t, nil)
	<-started
	if err := p.Exporter.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	if c := <-last; c.Status != ib.RemAccessErr {
		t.Errorf("the writer was told %+v", c)
	}
	u.wantRevoked(t)
	p.exporter.empty()
	_, err := p.Exporter.FindExport(ctx, f)
	wantError(t, err, device.ErrNotFound)
	wantError(t, p.exporter.deregister(own), device.ErrNotFound)
	b := p.exporter.buffer(min(p.Exporter.Info().MemoryBytes/2, 16<<20))
	if bytes.IndexByte(p.exporter.read(b.Address, b.Size), 0xa5) >= 0 {
		t.Error("memory shows what was there before the reset")
	}
	// It works as before.
	p.exporter = newEnd(t, p.Exporter, 0)
	testThrough(t, p)
}

func testImporterReset(t *testing.T, p *peers) {
	if !has(p.Importer, device.CapReset) || p.Exporter == p.Importer {
		return
	}
	u := p.use(t, 16)
	for range 4 {
		p.remote.post(u.qa, u.write())
	}
	if err := p.Importer.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	mark := bytes.Repeat([]byte{0xee}, int(u.buffer.Size))
	p.exporter.write(u.buffer.Address, mark)
	p.importer.empty()
	if now, ok := p.exporter.exportNow(u.export.UID); !ok || now.Revoked || len(now.Attachments) != 0 {
		t.Errorf("export %+v, want it there and not attached", now)
	}
	if !bytes.Equal(p.exporter.read(u.buffer.Address, u.buffer.Size), mark) {
		t.Error("something was written after the importer was reset")
	}
	if port, err := p.Importer.Port(t.Context(), p.PortImporter); err != nil || port.State != device.PortActive {
		t.Errorf("port %+v, %v", port, err)
	}
	p.importer = newEnd(t, p.Importer, p.PortImporter)
	testThrough(t, p)
}

// empty checks that a device has nothing.
func (e *end) empty() {
	e.t.Helper()
	ctx := e.t.Context()
	buffers, err1 := e.dev.ListBuffers(ctx)
	regions, err2 := e.dev.ListRegions(ctx)
	pairs, err3 := e.dev.ListQueuePairs(ctx)
	domains, err4 := e.dev.ListProtectionDomains(ctx)
	if err := errors.Join(err1, err2, err3, err4); err != nil || len(buffers)+len(regions)+len(pairs)+len(domains) > 0 {
		e.t.Errorf("left: %+v, %+v, %+v, %+v, %v", buffers, regions, pairs, domains, err)
	}
	if has(e.dev, device.CapExport) {
		if list, err := e.dev.ListExports(ctx); err != nil || len(list) > 0 {
			e.t.Errorf("left: %+v, %v", list, err)
		}
	}
}

func testMovedInUse(t *testing.T, p *peers) {
	if !has(p.Exporter, device.CapMove) {
		return
	}
	ctx := t.Context()
	u := p.use(t, 16)
	want := random(u.buffer.Size, 1)
	p.remote.write(u.source.Address, want)
	if !has(p.Importer, device.CapMoveNotify) {
		_, err := p.Exporter.MoveBuffer(ctx, u.buffer.UID)
		wantError(t, err, device.ErrBusy)
		wantError(t, p.importer.deregister(u.region), nil)
		if b, err := p.Exporter.MoveBuffer(ctx, u.buffer.UID); err != nil || b != u.buffer {
			t.Errorf("let go and moved: %+v, %v", b, err)
		}
		return
	}
	own := p.exporter.region(u.buffer, everyAccess)
	stop := make(chan struct{})
	started, last := u.stream(t, stop)
	<-started
	for range 50 {
		if b, err := p.Exporter.MoveBuffer(ctx, u.buffer.UID); err != nil || b != u.buffer {
			t.Fatalf("moved: %+v, %v", b, err)
		}
	}
	close(stop)
	if c := <-last; c.Status != ib.Success {
		t.Errorf("a write while the memory moved: %+v", c)
	}
	if !bytes.Equal(p.exporter.read(u.buffer.Address, u.buffer.Size), want) {
		t.Error("the bytes differ")
	}
	wantError(t, p.exporter.deregister(own), nil)
	_, err := p.Exporter.MoveBuffer(ctx, NewUID())
	wantError(t, err, device.ErrNotFound)
}

func testExporterClosed(t *testing.T, p *peers) {
	if p.Exporter == p.Importer {
		return
	}
	u := p.use(t, 16)
	started, last := u.stream(t, nil)
	<-started
	if err := p.Exporter.Close(); err != nil {
		t.Fatal(err)
	}
	if c := <-last; c.Status != ib.RemAccessErr {
		t.Errorf("the writer was told %+v", c)
	}
	u.wantRevoked(t)
	wantError(t, p.importer.deregister(u.region), nil)
	_, err := p.Exporter.ListExports(t.Context())
	wantError(t, err, device.ErrClosed)
}

func testImporterClosed(t *testing.T, p *peers) {
	if p.Exporter == p.Importer {
		return
	}
	u := p.use(t, 16)
	var posting sync.WaitGroup
	posting.Go(func() {
		for range 8 {
			p.remote.dev.Post(context.Background(), u.qa.UID, []device.WorkRequest{u.write()})
		}
	})
	if err := p.Importer.Close(); err != nil {
		t.Fatal(err)
	}
	mark := bytes.Repeat([]byte{0xee}, int(u.buffer.Size))
	p.exporter.write(u.buffer.Address, mark)
	posting.Wait()
	if now, _ := p.exporter.exportNow(u.export.UID); len(now.Attachments) != 0 {
		t.Errorf("export %+v", now)
	}
	if !bytes.Equal(p.exporter.read(u.buffer.Address, u.buffer.Size), mark) {
		t.Error("something was written after the importer was closed")
	}
	if err := errors.Join(p.Exporter.DestroyExport(t.Context(), u.export.UID), p.Exporter.Free(t.Context(), u.buffer.UID)); err != nil {
		t.Error(err)
	}
}
