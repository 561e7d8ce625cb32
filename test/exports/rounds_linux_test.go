package exports

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// Many rounds leave nothing behind in the daemon: descriptors are as before, and
// so is memory, once there are as many tombstones of requests as it keeps.
//
// ACCELFAB_ROUNDS sets how many (200).
func TestRoundsLeaveNothing(t *testing.T) {
	rounds := 200
	if s := os.Getenv("ACCELFAB_ROUNDS"); s != "" {
		rounds = must(strconv.Atoi(s))(t)
	}
	t.Setenv("GODEBUG", "gctrace=1") // the daemon tells how much of its heap is in use
	n := start(t)
	const warm, callers, parts = 100, 8, 10
	n.rounds(0, warm, callers)
	before := n.Counts()
	var took []time.Duration
	var heaps, hosts [parts + 1]int // of the daemon, and of its device host
	t.Logf("%7s %9s %10s %10s %10s %16s %11s %20s", "rounds", "rounds/s", "p50", "p99", "heap (MB)", "host memory (MB)", "descriptors", "goroutines, at most")
	most := 0
	for i := range parts {
		count := (i+1)*rounds/parts - i*rounds/parts
		began := time.Now()
		part := n.rounds(warm+i*rounds/parts, count, callers)
		whole := time.Since(began)
		took, heaps[i+1], hosts[i+1] = append(took, part...), n.heap(), n.hostMemory()
		slices.Sort(part)
		now := n.Counts()
		most = max(most, now.Goroutines)
		t.Logf("%7d %9.0f %10v %10v %10d %16d %5d, %4d %20d", (i+1)*rounds/parts, float64(count)/whole.Seconds(), ms(part[count/2]), ms(part[count*99/100]),
			heaps[i+1], hosts[i+1], now.Descriptors, now.HostDescriptors, most)
	}
	slices.Sort(took)
	t.Logf("%d rounds of export, fetch, upload, import, revoke (every other), delete by %d callers: p50 %v, p99 %v", rounds, callers, ms(took[rounds/2]), ms(took[rounds*99/100]))

	// The device learns of a close by an event.
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for now := n.Counts(); !now.Within(before); now = n.Counts() {
		if time.Now().After(deadline) {
			t.Fatalf("%+v, before %+v; the daemon has open:\n%s", now, before, strings.Join(n.descriptors(), "\n"))
		}
		<-tick.C
	}
	// Each round leaves two tombstones, of which there are 65,536 at most, and
	// those are dropped every 10 s. 100 bytes a round would be 5 MB in the second
	// half of 100,000.
	const tombstones, slack = 65536, 4
	if half := heaps[parts/2]; rounds > tombstones && heaps[parts] > half+slack {
		t.Errorf("the heap has %d MB after all rounds, %d after half of them", heaps[parts], half)
	}
	if half := hosts[parts/2]; rounds > tombstones && hosts[parts] > half+2*slack {
		t.Errorf("the host has %d MB after all rounds, %d after half of them", hosts[parts], half)
	}
}

func ms(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// rounds runs rounds by many callers, and gives how long each took.
func (n *node) rounds(first, count, callers int) []time.Duration {
	n.t.Helper()
	took := make([]time.Duration, count)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < count && !n.t.Failed(); i = int(next.Add(1)) - 1 {
				began := time.Now()
				if err := n.round(n.t.Context(), first+i); err != nil {
					n.t.Errorf("round %d: %v", first+i, err)
				}
				took[i] = time.Since(began)
			}
		})
	}
	wg.Wait()
	return took
}

// round takes memory from card 0 to card 1 and back. Every other one is revoked.
func (n *node) round(ctx context.Context, i int) error {
	id := fmt.Sprintf("x%d", i)
	e, err := n.Memory.CreateMemoryExport(ctx, &pb.CreateMemoryExportRequest{Parent: card0, MemoryExportId: id, MemoryExport: &pb.MemoryExport{Buffer: card0 + "/buffers/b"}})
	if err != nil {
		return err
	}
	f, err := n.FetchDescriptor(ctx, e.Name)
	if err != nil {
		return err
	}
	up, err := n.UploadDescriptor(ctx, f)
	f.Close()
	if err != nil {
		return err
	}
	m, err := n.Memory.CreateMemoryRegion(ctx, &pb.CreateMemoryRegionRequest{Parent: card1, MemoryRegionId: id, MemoryRegion: &pb.MemoryRegion{
		ProtectionDomain: n.pd, ImportSource: &pb.MemoryRegion_ImportSource{UploadId: up.GetUploadId()}}})
	if err != nil {
		return err
	}
	if i%2 == 1 {
		if _, err := n.Memory.RevokeMemoryExport(ctx, &pb.RevokeMemoryExportRequest{Name: e.Name}); err != nil {
			return err
		}
	}
	if _, err := n.Memory.DeleteMemoryRegion(ctx, &pb.DeleteMemoryRegionRequest{Name: m.Name}); err != nil {
		return err
	}
	_, err = n.Memory.DeleteMemoryExport(ctx, &pb.DeleteMemoryExportRequest{Name: e.Name})
	return err
}

// gcLine is what the runtime says of a collection; the third number of its heap
// is what is in use.
var gcLine = regexp.MustCompile(`(?m)^gc \d+ @.*, \d+->\d+->(\d+) MB, `)

// heap is what the daemon's last collection of garbage left, in MB; 0 if there
// was none.
func (n *node) heap() (mb int) {
	n.t.Helper()
	if all := gcLine.FindAllStringSubmatch(n.Log(), -1); len(all) > 0 {
		mb = must(strconv.Atoi(all[len(all)-1][1]))(n.t)
	}
	return mb
}

// hostMemory is what the device host has of the machine's memory that is no file, in
// MB.
func (n *node) hostMemory() (mb int) {
	n.t.Helper()
	for line := range strings.Lines(string(must(os.ReadFile(fmt.Sprintf("/proc/%d/status", n.Host("soft").PID)))(n.t))) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			fmt.Sscan(rest, &mb)
		}
	}
	return mb >> 10
}
