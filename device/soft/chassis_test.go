package soft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/topology"
)

func TestNothingIsLeftAfterClose(t *testing.T) {
	dir := t.TempDir()
	descriptorsBefore := descriptors(t)
	for range 3 {
		cfg, err := ParseSpec(testSpec)
		if err != nil {
			t.Fatal(err)
		}
		cfg.LockDir = dir
		ch, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ca, pa, cb, pb := cabledPair(t, ch)
		a, b := newEnd(t, ca, pa, 1<<20), newEnd(t, cb, pb, 1<<20)
		connect(t, a, b, ib.MTU4096)
		// It closes in the middle of work.
		for range 8 {
			a.post(device.WorkRequest{Opcode: device.WorkWrite, SGL: a.sge(0, 1<<20), RemoteAddr: b.region.Address, RKey: b.region.RKey})
		}
		if err := errors.Join(ch.Close(), ch.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if after := descriptors(t); !slices.Equal(after, descriptorsBefore) {
		t.Errorf("descriptors %v, before %v", after, descriptorsBefore)
	}
	if maps, err := os.ReadFile("/proc/self/maps"); err != nil || bytes.Contains(maps, []byte("memfd:soft-")) {
		t.Errorf("card memory is still mapped (%v)", err)
	}
	var stacks bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&stacks, 2)
	for _, name := range []string{"(*port).receive", "(*timers).run"} {
		if strings.Contains(stacks.String(), name) {
			t.Errorf("%s still runs", name)
		}
	}
}

func TestNamesAreStable(t *testing.T) {
	infos := func(node string) (list []device.Info) {
		cfg, err := ParseSpec(testSpec)
		if err != nil {
			t.Fatal(err)
		}
		cfg.LockDir, cfg.NodeID = t.TempDir(), node
		ch, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer ch.Close()
		for _, d := range ch.Devices() {
			list = append(list, d.Info())
		}
		return list
	}
	a, again, b := infos("a"), infos("a"), infos("b")
	for i := range a {
		if a[i].ID != fmt.Sprintf("soft-%d", i) || a[i].ModuleID != i || a[i].ID != again[i].ID || a[i].Serial != again[i].Serial {
			t.Errorf("%+v and after a restart %+v", a[i], again[i])
		}
		if a[i].Serial == b[i].Serial {
			t.Errorf("two nodes have the serial %s", a[i].Serial)
		}
	}
	if a[0].Serial == a[1].Serial || a[0].PCIAddress == a[1].PCIAddress || a[0].MemoryBase == a[1].MemoryBase {
		t.Errorf("two cards are alike: %+v, %+v", a[0], a[1])
	}
}

// freeAddresses gives loopback addresses that no RoCE v2 socket has.
func freeAddresses(t *testing.T, n int) (list []string) {
	t.Helper()
	var taken []*stranger
	for range n {
		taken = append(taken, newStranger(t))
	}
	for _, s := range taken {
		s.socket.close()
		list = append(list, s.addr.String())
	}
	return list
}

// TestDealtAddresses gives two of six scale-out ports an address of an interface:
// the others are down and say why, internal ports stay among themselves.
func TestDealtAddresses(t *testing.T) {
	want := freeAddresses(t, 2)
	dir, list := t.TempDir(), strings.Join(want, ", ")
	ch := openChassis(t, dir, testSpec+",network="+want[0]+"+"+want[1])
	if !searchNetwork.Contains(ch.Network().Addr()) {
		t.Errorf("internal ports are on %v, want a network of %v", ch.Network(), searchNetwork)
	}
	ctx := context.Background()
	for _, c := range ch.cards {
		for _, p := range c.ports {
			got, err := c.Port(ctx, p.number)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case p.wiring.Class == topology.Internal:
				if got.State != device.PortActive || got.Reason != "" || !ch.addresses.loopback.owns(p.ipv4().addr) {
					t.Errorf("internal port %+v", got)
				}
			case p.wiring.Class == topology.ScaleOut && len(want) > 0:
				if got.State != device.PortActive || got.Reason != "" || got.ActiveMTU != ib.MTU4096 ||
					len(got.GIDs) != 1 || got.GIDs[0].Index != 1 || got.GIDs[0].GID.Addr().String() != want[0] {
					t.Errorf("port %+v, want it on %s", got, want[0])
				}
				if got.ReceiveBuffer <= 0 || got.ReceiveBuffer > got.ReceiveBufferAsked || got.ReceiveBufferAsked != socketBuffer {
					t.Errorf("receive buffer of %d bytes, %d asked", got.ReceiveBuffer, got.ReceiveBufferAsked)
				}
				want = want[1:]
			case p.wiring.Class == topology.ScaleOut:
				if got.State != device.PortDown || got.AdminUp || len(got.GIDs) != 0 || got.ReceiveBuffer != 0 ||
					!strings.Contains(got.Reason, list+") have addresses for 2 of 6 scale-out ports") {
					t.Errorf("port without an address %+v", got)
				}
				var field *device.FieldError
				if err := c.SetPort(ctx, p.number, true); !errors.As(err, &field) || !strings.Contains(field.Problem, "is without an address") {
					t.Errorf("SetPort: %v", err)
				}
			}
		}
	}
	other := openChassis(t, dir, testSpec).cards[0]
	exchange(t, newEnd(t, ch.cards[0], scaleOut(t, ch.cards[0]), 1<<16), newEnd(t, other, scaleOut(t, other), 1<<16), ib.MTU4096)
}

func TestAnAddressThatIsHeld(t *testing.T) {
	s := newStranger(t)
	before := descriptors(t)
	cfg, err := ParseSpec(testSpec + ",network=" + s.addr.String())
	if err != nil {
		t.Fatal(err)
	}
	cfg.LockDir = t.TempDir()
	ch, err := Open(cfg)
	if err == nil {
		ch.Close()
	}
	if !errors.Is(err, errHeld) || !strings.Contains(err.Error(), "address "+s.addr.String()+", UDP port 4791") {
		t.Errorf("error %v, want one with the address and UDP port 4791", err)
	}
	if after := descriptors(t); !slices.Equal(before, after) {
		t.Errorf("descriptors %v, before %v", after, before)
	}
}

func TestMemoryFileIsPrivateAndSparse(t *testing.T) {
	c := openChassis(t, t.TempDir(), "soft:hls-2,cards=1,memory=1GiB").cards[0]
	info, err := c.memory.file.Stat()
	if err != nil || info.Mode() != 0o600 || info.Size() != 1<<30 {
		t.Fatalf("mode %v, size %d, %v", info.Mode(), info.Size(), err)
	}
	if err := c.memory.file.Truncate(0); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("the file can shrink: %v", err)
	}
	blocks := func() uint64 { return allocated(t, c.memory.file) }
	if n := blocks(); n != 0 {
		t.Errorf("%d bytes are allocated at first", n)
	}
	ctx := context.Background()
	uid := newUID()
	b, err := c.Allocate(ctx, device.BufferSpec{UID: uid, Size: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.WriteMemory(ctx, b.Address, bytes.Repeat([]byte{1}, 8<<20)); err != nil {
		t.Fatal(err)
	}
	if n := blocks(); n < 8<<20 {
		t.Errorf("%d bytes are allocated, 8 MiB were written", n)
	}
	if err := c.Free(ctx, uid); err != nil {
		t.Fatal(err)
	}
	if n := blocks(); n != 0 {
		t.Errorf("%d bytes are allocated after all was freed", n)
	}
}

func TestFragmentedMemorySaysSo(t *testing.T) {
	c := openChassis(t, t.TempDir(), "soft:hls-2,cards=1,memory=64KiB").cards[0]
	ctx := context.Background()
	var uids []device.UID
	for range 16 {
		uids = append(uids, newUID())
		if _, err := c.Allocate(ctx, device.BufferSpec{UID: uids[len(uids)-1], Size: 4096}); err != nil {
			t.Fatal(err)
		}
	}
	for i := 0; i < 16; i += 2 {
		if err := c.Free(ctx, uids[i]); err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.Allocate(ctx, device.BufferSpec{UID: newUID(), Size: 8192})
	var limit *device.LimitError
	if !errors.As(err, &limit) || limit.Available != 32768 || limit.Limit != 65536 || !strings.Contains(limit.Detail, "largest piece has 4096") {
		t.Errorf("error %v", err)
	}
}

// TestDeregisterEndsAccess takes a region away while packets write to it, again
// and again: from the moment that DeregisterRegions returns nothing changes any
// more.
func TestDeregisterEndsAccess(t *testing.T) {
	ch := openChassis(t, t.TempDir(), testSpec)
	ca, pa, cb, pb := cabledPair(t, ch)
	ctx := context.Background()
	for round := range 20 {
		a, b := newEnd(t, ca, pa, 1<<18), newEnd(t, cb, pb, 1<<18)
		connect(t, a, b, ib.MTU4096)
		a.write(0, bytes.Repeat([]byte{byte(round + 1)}, 1<<18))
		write := device.WorkRequest{Opcode: device.WorkWrite, SGL: a.sge(0, 1<<18), RemoteAddr: b.region.Address, RKey: b.region.RKey, Signaled: true}
		var posting sync.WaitGroup
		posting.Go(func() {
			for range 16 {
				if err := a.Post(ctx, a.qp.UID, []device.WorkRequest{write}); err != nil {
					t.Error(err)
				}
			}
		})
		if round%2 == 0 {
			a.next(1)
		}
		if err := b.DeregisterRegions(ctx, []device.UID{b.region.UID})[0]; err != nil {
			t.Fatal(err)
		}
		mark := bytes.Repeat([]byte{0xee}, 1<<18)
		b.write(0, mark)
		posting.Wait()
		a.next(16 - (round+1)%2)
		if !bytes.Equal(b.bytes(), mark) {
			t.Fatal("a packet was written after the region was taken away")
		}
	}
}

// TestManyQueuePairs makes what a full chassis holds: 256 peers on each of 24
// ports of a card. A queue pair must stay below 8 KiB.
func TestManyQueuePairs(t *testing.T) {
	c := openChassis(t, t.TempDir(), "soft:hls-2,cards=2,memory=1MiB").cards[0]
	ctx := context.Background()
	pd := c.CreateProtectionDomains(ctx, []device.UID{newUID()})[0]
	port := scaleOut(t, c)
	const n = 24 * 256
	specs := make([]device.QueuePairSpec, n)
	uids := make([]device.UID, n)
	for i := range specs {
		uids[i] = newUID()
		specs[i] = device.QueuePairSpec{UID: uids[i], PD: pd.PD, Port: port, Type: ib.RC, Steps: []device.Transition{
			device.ToInit{PKey: ib.DefaultPKey},
			device.ToRTR{Remote: device.Remote{GID: ib.GID{10: 0xff, 11: 0xff, 12: 127, 13: 66, 15: 1}, QPN: 99}, GIDIndex: 1, PathMTU: ib.MTU4096},
			device.ToRTS{Timeout: 14},
		}}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	seen := map[ib.QPN]bool{}
	for _, r := range c.CreateQueuePairs(ctx, specs) {
		if r.Err != nil || r.State != ib.RTS || seen[r.QPN] {
			t.Fatalf("%+v", r)
		}
		seen[r.QPN] = true
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (after.HeapAlloc - before.HeapAlloc) / n
	t.Logf("%d bytes a queue pair in RTS", each)
	if each > 8192 {
		t.Errorf("a queue pair costs %d bytes", each)
	}
	for _, err := range c.DestroyQueuePairs(ctx, uids) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range c.CreateQueuePairs(ctx, specs[:100]) {
		if r.Err != nil || seen[r.QPN] {
			t.Fatalf("a number came back at once: %+v", r)
		}
	}
}

func TestLimits(t *testing.T) {
	cfg, err := ParseSpec("soft:hls-2,cards=1,memory=1MiB")
	if err != nil {
		t.Fatal(err)
	}
	cfg.LockDir = t.TempDir()
	cfg.Limits = device.Limits{QueuePairs: 2, ProtectionDomains: 1, Regions: 1}
	ch, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ch.Close() })
	e := newEnd(t, ch.cards[0], scaleOut(t, ch.cards[0]), 4096)
	ctx := context.Background()
	spec := device.QueuePairSpec{PD: e.pd, Port: e.qp.Port, Type: ib.RC}
	specs := []device.QueuePairSpec{spec, spec}
	specs[0].UID, specs[1].UID = newUID(), newUID()
	pairs := e.CreateQueuePairs(ctx, specs)
	if pairs[0].Err != nil {
		t.Error(pairs[0].Err)
	}
	for kind, err := range map[string]error{
		"queue_pairs":        pairs[1].Err,
		"protection_domains": e.CreateProtectionDomains(ctx, []device.UID{newUID()})[0].Err,
		"memory_regions": e.RegisterRegions(ctx, []device.RegionSpec{{UID: newUID(), PD: e.pd, Address: e.region.Address,
			Length: 1}})[0].Err,
	} {
		var limit *device.LimitError
		if !errors.As(err, &limit) || limit.Kind != kind || limit.Available != 0 {
			t.Errorf("%s: error %v", kind, err)
		}
	}
}

func TestQuarantine(t *testing.T) {
	var q quarantine[int]
	start := time.Unix(0, 0)
	q.add(1, start.Add(10*time.Second))
	q.add(2, start.Add(20*time.Second))
	for _, c := range []struct {
		at       time.Duration
		one, two bool
	}{{0, true, true}, {9 * time.Second, true, true}, {10 * time.Second, false, true}, {20 * time.Second, false, false}} {
		if one, two := q.holds(1, start.Add(c.at)), q.holds(2, start.Add(c.at)); one != c.one || two != c.two {
			t.Errorf("after %v: %v and %v, want %v and %v", c.at, one, two, c.one, c.two)
		}
	}
	if len(q.resting) != 0 || len(q.queue) != 0 {
		t.Errorf("left: %+v", q)
	}
}

func TestQPNsRest(t *testing.T) {
	const rest = time.Minute
	table := newQueuePairs(8, rest)
	now := time.Now()
	qpn, err := table.reserve(now)
	if err != nil {
		t.Fatal(err)
	}
	qp := &queuePair{info: device.QueuePair{UID: newUID(), QPN: qpn}}
	if _, err := table.insert(qp); err != nil {
		t.Fatal(err)
	}
	if _, err := table.remove(qp.info.UID); err != nil {
		t.Fatal(err)
	}
	table.next = qpn
	if again, err := table.reserve(now); err != nil || again == qpn {
		t.Errorf("QPN %#x, %v: want another than %#x", again, err, qpn)
	}
	table.next = qpn
	if again, err := table.reserve(now.Add(2 * rest)); err != nil || again != qpn {
		t.Errorf("QPN %#x, %v: want %#x, which has rested", again, err, qpn)
	}
}
