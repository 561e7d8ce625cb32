package devicetest

import (
	"bytes"
	"errors"
	"reflect"
	"regexp"
	"slices"
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

func testInfo(t *testing.T, p Pair) {
	info := p.A.Info()
	if !regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`).MatchString(info.ID) {
		t.Errorf("id %q", info.ID)
	}
	if info.Driver == "" || info.Model == "" || info.Serial == "" || info.PCIAddress == "" {
		t.Errorf("something is missing: %+v", info)
	}
	if info.Ports <= p.PortA || info.MemoryBytes == 0 {
		t.Errorf("ports or memory are missing: %+v", info)
	}
	limits := reflect.ValueOf(info.Limits)
	for i := range limits.NumField() {
		name := limits.Type().Field(i).Name
		if limits.Field(i).IsZero() && (name != "ExportPage" || has(p.A, device.CapExport)) {
			t.Errorf("limit %s is 0", name)
		}
	}
	if !slices.Contains(info.Capabilities, device.CapRC) {
		t.Errorf("capabilities %v", info.Capabilities)
	}
	if !reflect.DeepEqual(info, p.A.Info()) {
		t.Error("a second call gives another answer")
	}
}

func testPorts(t *testing.T, p Pair) {
	ctx := t.Context()
	port, err := p.A.Port(ctx, p.PortA)
	if err != nil {
		t.Fatal(err)
	}
	if port.Number != p.PortA || port.IBPort == 0 || port.Class == device.PortNotConnected || !port.AdminUp ||
		port.State != device.PortActive || !port.ActiveMTU.Valid() || port.ActiveMTU > port.MaxMTU || len(port.GIDs) == 0 || port.ChangedAt.IsZero() {
		t.Errorf("port %+v", port)
	}
	for i, g := range port.GIDs {
		if g.GID.IsZero() || i > 0 && g.Index <= port.GIDs[i-1].Index {
			t.Errorf("GID table %+v", port.GIDs)
		}
	}
	for _, n := range []int{-1, p.A.Info().Ports} {
		_, err := p.A.Port(ctx, n)
		wantError(t, err, device.ErrNotFound)
	}
	if p.NotConnected >= 0 {
		nc, err := p.A.Port(ctx, p.NotConnected)
		if err != nil || nc.Class != device.PortNotConnected || nc.State != device.PortDown || nc.PeerModule != -1 {
			t.Errorf("port that leads nowhere: %+v, %v", nc, err)
		}
		wantField(t, p.A.SetPort(ctx, p.NotConnected, true), "port")
	}
	if !slices.Contains(p.A.Info().Capabilities, device.CapSetPort) {
		wantError(t, p.A.SetPort(ctx, p.PortA, false), errors.ErrUnsupported)
		return
	}
	for _, up := range []bool{false, true} {
		if err := p.A.SetPort(ctx, p.PortA, up); err != nil {
			t.Fatal(err)
		}
		want := device.PortDown
		if up {
			want = device.PortActive
		}
		for { // the port may follow later; an event tells
			got, err := p.A.Port(ctx, p.PortA)
			if err != nil {
				t.Fatal(err)
			}
			if got.AdminUp == up && got.State == want {
				break
			}
			<-p.A.Events()
		}
	}
}

func testDomains(t *testing.T, p Pair) {
	ctx := t.Context()
	uids := []device.UID{NewUID(), NewUID()}
	first := p.A.CreateProtectionDomains(ctx, uids)
	again := p.A.CreateProtectionDomains(ctx, uids)
	if !reflect.DeepEqual(first, again) || first[0].PD == first[1].PD || first[0].UID != uids[0] {
		t.Fatalf("%+v and again %+v", first, again)
	}
	list, err := p.A.ListProtectionDomains(ctx)
	if err != nil || len(list) != 2 {
		t.Errorf("list %+v, %v", list, err)
	}
	e := &end{t: t, dev: p.A, port: p.PortA, pd: first[0].PD}
	qp := e.queuePair()
	errs := p.A.DestroyProtectionDomains(ctx, []device.UID{uids[0], uids[1], NewUID()})
	wantError(t, errs[0], device.ErrBusy)
	wantError(t, errs[1], nil)
	wantError(t, errs[2], device.ErrNotFound)
	if err := p.A.DestroyQueuePairs(ctx, []device.UID{qp.UID})[0]; err != nil {
		t.Fatal(err)
	}
	wantError(t, p.A.DestroyProtectionDomains(ctx, uids[:1])[0], nil)
	if list, _ := p.A.ListProtectionDomains(ctx); len(list) != 0 {
		t.Errorf("left: %+v", list)
	}
}

func testBuffers(t *testing.T, p Pair) {
	ctx := t.Context()
	spec := device.BufferSpec{UID: NewUID(), Size: 1 << 20, Alignment: 1 << 16}
	b, err := p.A.Allocate(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	info := p.A.Info()
	if b.UID != spec.UID || b.Size != spec.Size || b.Address%spec.Alignment != 0 ||
		b.Address < info.MemoryBase || b.Address+b.Size > info.MemoryBase+info.MemoryBytes {
		t.Errorf("buffer %+v", b)
	}
	again, err := p.A.Allocate(ctx, spec)
	if err != nil || again != b {
		t.Errorf("the same again: %+v, %v", again, err)
	}
	_, err = p.A.Allocate(ctx, device.BufferSpec{UID: spec.UID, Size: spec.Size + 1})
	wantError(t, err, device.ErrExists)
	_, err = p.A.Allocate(ctx, device.BufferSpec{UID: NewUID()})
	wantField(t, err, "size")
	_, err = p.A.Allocate(ctx, device.BufferSpec{UID: NewUID(), Size: 1, Alignment: 3})
	wantField(t, err, "alignment")

	one, err := p.A.Allocate(ctx, device.BufferSpec{UID: NewUID(), Size: 1})
	if err != nil || one.Size != 1 || one.Address < b.Address+b.Size && one.Address >= b.Address {
		t.Errorf("a second buffer: %+v, %v", one, err)
	}
	if list, err := p.A.ListBuffers(ctx); err != nil || len(list) != 2 {
		t.Errorf("list %+v, %v", list, err)
	}
	wantError(t, p.A.Free(ctx, b.UID), nil)
	wantError(t, p.A.Free(ctx, b.UID), device.ErrNotFound)
	if list, _ := p.A.ListBuffers(ctx); len(list) != 1 || list[0] != one {
		t.Errorf("left: %+v", list)
	}
}

func testFull(t *testing.T, p Pair) {
	ctx := t.Context()
	total := p.A.Info().MemoryBytes
	_, err := p.A.Allocate(ctx, device.BufferSpec{UID: NewUID(), Size: total + 1})
	var limit *device.LimitError
	if !errors.As(err, &limit) || !errors.Is(err, device.ErrExhausted) || limit.Asked != total+1 || limit.Available == 0 || limit.Limit == 0 {
		t.Fatalf("more than all: %v", err)
	}
	var held []device.UID
	for size := total; size >= 1<<12; {
		uid := NewUID()
		_, err := p.A.Allocate(ctx, device.BufferSpec{UID: uid, Size: size})
		if err == nil {
			held = append(held, uid)
			continue
		}
		if !errors.As(err, &limit) || limit.Asked != size {
			t.Fatalf("allocating %d: %v", size, err)
		}
		size /= 2
	}
	if len(held) == 0 {
		t.Fatal("nothing could be allocated")
	}
	if list, _ := p.A.ListBuffers(ctx); len(list) != len(held) {
		t.Errorf("%d buffers are listed, %d were given", len(list), len(held))
	}
	for _, uid := range held {
		if err := p.A.Free(ctx, uid); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.A.Allocate(ctx, device.BufferSpec{UID: NewUID(), Size: total / 2}); err != nil {
		t.Errorf("all was freed: %v", err)
	}
}

func testZeroed(t *testing.T, p Pair) {
	ctx := t.Context()
	e := newEnd(t, p.A, p.PortA)
	total := p.A.Info().MemoryBytes
	const piece = 1 << 20
	secret := bytes.Repeat([]byte{0xa5}, piece)
	size := min(total/2, 16*piece)
	b := e.buffer(size)
	for at := uint64(0); at+piece <= size; at += piece {
		e.write(b.Address+at, secret)
	}
	if err := p.A.Free(ctx, b.UID); err != nil {
		t.Fatal(err)
	}
	// Whoever takes the same place reads zeros, with no matter which sizes.
	for _, n := range []uint64{size, 1 << 16, 4097} {
		b := e.buffer(n)
		if got := e.read(b.Address, n); bytes.IndexByte(got, 0xa5) >= 0 {
			t.Fatalf("a buffer of %d bytes shows what was there before", n)
		}
		e.write(b.Address, secret[:min(n, piece)])
		if err := p.A.Free(ctx, b.UID); err != nil {
			t.Fatal(err)
		}
	}
}

func testHostAccess(t *testing.T, p Pair) {
	ctx := t.Context()
	e := newEnd(t, p.A, p.PortA)
	a, b := e.buffer(10_000), e.buffer(10_000)
	want := []byte("some bytes")
	e.write(a.Address+a.Size-10, want)
	if got := e.read(a.Address+a.Size-10, 10); !bytes.Equal(got, want) {
		t.Errorf("read %q", got)
	}
	if got := e.read(b.Address, b.Size); !bytes.Equal(got, make([]byte, b.Size)) {
		t.Error("the other buffer changed")
	}
	for _, c := range []struct {
		address uint64
		n       int
		field   string
	}{
		{a.Address + a.Size - 9, 10, "length"},
		{a.Address + a.Size, 1, "address"},
		{a.Address - 1, 2, "address"},
		{0, 1, "address"},
		{^uint64(0), 16, "address"},
	} {
		if a.Address+1<<14 > b.Address && c.address == a.Address-1 {
			continue // the other buffer may lie there
		}
		wantField(t, p.A.ReadMemory(ctx, c.address, make([]byte, c.n)), c.field)
		wantField(t, p.A.WriteMemory(ctx, c.address, make([]byte, c.n)), c.field)
	}
}

func testRegions(t *testing.T, p Pair) {
	ctx := t.Context()
	e := newEnd(t, p.A, p.PortA)
	b := e.buffer(1 << 16)
	spec := device.RegionSpec{UID: NewUID(), PD: e.pd, Address: b.Address + 100, Length: 1000, Access: everyAccess}
	first, again := p.A.RegisterRegions(ctx, []device.RegionSpec{spec})[0], p.A.RegisterRegions(ctx, []device.RegionSpec{spec})[0]
	if first.Err != nil || again != first {
		t.Fatalf("%+v and again %+v", first, again)
	}
	if first.UID != spec.UID || first.PD != spec.PD || first.Address != spec.Address || first.Length != spec.Length || first.Access != spec.Access {
		t.Errorf("region %+v", first)
	}
	other := spec
	other.Length++
	wantError(t, p.A.RegisterRegions(ctx, []device.RegionSpec{other})[0].Err, device.ErrExists)

	for _, c := range []struct {
		field  string
		change func(*device.RegionSpec)
	}{
		{"protection_domain", func(s *device.RegionSpec) { s.PD += 12345 }},
		{"address", func(s *device.RegionSpec) { s.Address = 1 }},
		{"length", func(s *device.RegionSpec) { s.Length = b.Size }},
		{"length", func(s *device.RegionSpec) { s.Length = 0 }},
		{"access", func(s *device.RegionSpec) { s.Access = ib.RemoteWrite }},
	} {
		bad := spec
		bad.UID = NewUID()
		c.change(&bad)
		wantField(t, p.A.RegisterRegions(ctx, []device.RegionSpec{bad})[0].Err, c.field)
	}

	wantError(t, p.A.Free(ctx, b.UID), device.ErrBusy)
	seen := map[uint32]bool{}
	for range 100 {
		r := e.region(b, 0)
		if seen[uint32(r.RKey)] || r.RKey == 0 || r.LKey == 0 || uint32(r.LKey) == uint32(r.RKey) {
			t.Fatalf("keys %#x and %#x", r.LKey, r.RKey)
		}
		seen[uint32(r.RKey)] = true
		if err := p.A.DeregisterRegions(ctx, []device.UID{r.UID})[0]; err != nil {
			t.Fatal(err)
		}
	}
	list, err := p.A.ListRegions(ctx)
	if err != nil || len(list) != 1 || list[0] != first.Region {
		t.Errorf("list %+v, %v", list, err)
	}
	errs := p.A.DeregisterRegions(ctx, []device.UID{spec.UID, spec.UID})
	wantError(t, errs[0], nil)
	wantError(t, errs[1], device.ErrNotFound)
	wantError(t, p.A.Free(ctx, b.UID), nil)
}
