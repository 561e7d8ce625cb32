package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
	"github.com/accelfab/accelfab/test/daemon"
)

// The storm: so many callers, each of whom does so many things, in a few names on
// two cards, so that they get into each other's way all the time.
const (
	stormCallers = 32
	stormActs    = 100
	stormNames   = 4
)

// storm is what the callers share: descriptors that wait to be uploaded, and how
// often each outcome was.
type storm struct {
	*client.Client
	mu       sync.Mutex
	held     []*os.File
	outcomes map[string]int
	done     atomic.Int64
}

// TestAfterAStormNothingIsLeft lets many callers make, use, export, import, revoke
// and end the same few objects at once. Every refusal has a reason of its own; when
// all sessions are closed, all lists and devices are empty, and the daemon and its
// host have as many descriptors and goroutines as at the start.
//
// ACCELFAB_SEED repeats a run, as far as the order of callers can be.
func TestAfterAStormNothingIsLeft(t *testing.T) {
	d := daemon.Start(t, daemon.Config{Node: "n1", Args: []string{"--device", "soft:hls-2,cards=2,memory=16MiB"}})
	s := &storm{Client: d.Dial(), outcomes: map[string]int{}}
	seed := number(t, "ACCELFAB_SEED", uint64(time.Now().UnixNano()))
	// What is made on first use is made before the count.
	s.act(t.Context(), rand.New(rand.NewPCG(seed, 0)), 0)
	s.clean(t)
	before := d.Counts()

	var wg sync.WaitGroup
	for i := range stormCallers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i+1)))
			for range stormActs {
				s.act(t.Context(), r, i)
			}
		})
	}
	wg.Wait()
	s.clean(t)
	var seen []string
	for what, n := range s.outcomes {
		seen = append(seen, fmt.Sprintf("%s %d", what, n))
		for _, bad := range []string{"UNSPECIFIED", "INTERNAL", "TIMEOUT", "STORE_UNAVAILABLE"} {
			if strings.HasSuffix(what, bad) {
				t.Errorf("%s: %d times", what, n)
			}
		}
	}
	slices.Sort(seen)
	t.Logf("%d acts, seed %d:\n%s", s.done.Load(), seed, strings.Join(seen, "\n"))

	deadline := time.Now().Add(time.Minute)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		now := d.Counts()
		if now.Within(before) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v, at the start %+v", now, before)
		}
		<-tick.C
	}
	if log := d.Log(); strings.Contains(log, "panic") {
		t.Errorf("a panic in the log:\n%s", log)
	}
}

// errNotNow is of an act that is not made so often.
var errNotNow = errors.New("not now")

// act does one thing out of all that can be done.
func (s *storm) act(ctx context.Context, r *rand.Rand, caller int) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	card := fmt.Sprintf("nodes/local/devices/soft-%d", r.IntN(2))
	id := func(kind string) string { return fmt.Sprintf("%s%d", kind, r.IntN(stormNames)) }
	session := "nodes/local/sessions/" + id("s")
	acts := []struct {
		name string
		do   func() error
	}{
		{"open a session", func() error {
			mode := pb.Session_MODE_SHARED
			if r.IntN(8) == 0 {
				mode = pb.Session_MODE_EXCLUSIVE
			}
			_, err := s.Sessions.CreateSession(ctx, &pb.CreateSessionRequest{Parent: "nodes/local", SessionId: id("s"), Session: &pb.Session{
				Devices: []string{"nodes/local/devices/soft-0", "nodes/local/devices/soft-1"}, Mode: mode, Ttl: durationpb.New(time.Duration(1+r.IntN(60)) * time.Second)}})
			return err
		}},
		{"make a domain", func() error {
			_, err := s.Memory.CreateProtectionDomain(ctx, &pb.CreateProtectionDomainRequest{Parent: card, ProtectionDomainId: id("p"), ProtectionDomain: &pb.ProtectionDomain{Session: session}})
			return err
		}},
		{"make a buffer", func() error {
			_, err := s.Memory.CreateBuffer(ctx, &pb.CreateBufferRequest{Parent: card, BufferId: id("b"), Buffer: &pb.Buffer{Session: session, SizeBytes: uint64(1+r.IntN(8)) << 12}})
			return err
		}},
		{"write it", func() error {
			_, err := s.Transfers.WriteBuffer(ctx, &pb.WriteBufferRequest{Name: card + "/buffers/" + id("b"), Data: []byte("storm")})
			return err
		}},
		{"export it", func() error {
			_, err := s.Memory.CreateMemoryExport(ctx, &pb.CreateMemoryExportRequest{Parent: card, MemoryExportId: id("e"), MemoryExport: &pb.MemoryExport{Buffer: card + "/buffers/" + id("b")}})
			return err
		}},
		{"fetch it", func() error {
			f, err := s.FetchDescriptor(ctx, card+"/memoryExports/"+id("e"))
			if err == nil {
				s.mu.Lock()
				s.held = append(s.held, f)
				s.mu.Unlock()
			}
			return err
		}},
		{"import it", func() error {
			s.mu.Lock()
			n := len(s.held)
			if n == 0 {
				s.mu.Unlock()
				return errNotNow
			}
			f := s.held[n-1]
			s.held = s.held[:n-1]
			s.mu.Unlock()
			defer f.Close()
			u, err := s.UploadDescriptor(ctx, f)
			if err != nil {
				return err
			}
			_, err = s.Memory.CreateMemoryRegion(ctx, &pb.CreateMemoryRegionRequest{Parent: card, MemoryRegionId: id("m"), MemoryRegion: &pb.MemoryRegion{
				ProtectionDomain: card + "/protectionDomains/" + id("p"), ImportSource: &pb.MemoryRegion_ImportSource{UploadId: u.GetUploadId()}}})
			return err
		}},
		{"make a queue pair", func() error {
			_, err := s.QueuePairs.CreateQueuePair(ctx, &pb.CreateQueuePairRequest{Parent: card, QueuePairId: id("q"), QueuePair: &pb.QueuePair{
				ProtectionDomain: card + "/protectionDomains/" + id("p"), Port: card + "/ports/8", Type: pb.QueuePair_TYPE_RC}})
			return err
		}},
		{"revoke", func() error {
			_, err := s.Memory.RevokeMemoryExport(ctx, &pb.RevokeMemoryExportRequest{Name: card + "/memoryExports/" + id("e")})
			return err
		}},
		{"move a buffer", func() error {
			_, err := s.Memory.MoveBuffer(ctx, &pb.MoveBufferRequest{Name: card + "/buffers/" + id("b")})
			return err
		}},
		{"delete a region", func() error {
			_, err := s.Memory.DeleteMemoryRegion(ctx, &pb.DeleteMemoryRegionRequest{Name: card + "/memoryRegions/" + id("m")})
			return err
		}},
		{"delete an export", func() error {
			_, err := s.Memory.DeleteMemoryExport(ctx, &pb.DeleteMemoryExportRequest{Name: card + "/memoryExports/" + id("e")})
			return err
		}},
		{"delete a buffer", func() error {
			_, err := s.Memory.DeleteBuffer(ctx, &pb.DeleteBufferRequest{Name: card + "/buffers/" + id("b")})
			return err
		}},
		{"take a session over", func() error {
			_, err := s.Sessions.ResumeSession(ctx, &pb.ResumeSessionRequest{Name: session})
			return err
		}},
		{"close a session", func() error {
			if r.IntN(12) > 0 {
				return errNotNow
			}
			_, err := s.Sessions.DeleteSession(ctx, &pb.DeleteSessionRequest{Name: session})
			return err
		}},
		{"release a session", func() error {
			if r.IntN(24) > 0 {
				return errNotNow
			}
			_, err := s.Sessions.ReleaseSession(ctx, &pb.ReleaseSessionRequest{Name: session, Reason: "a storm"})
			return err
		}},
		{"reset a card", func() error {
			if r.IntN(48) > 0 {
				return errNotNow
			}
			_, err := s.Devices.ResetDevice(ctx, &pb.ResetDeviceRequest{Name: card})
			return err
		}},
	}
	a := acts[r.IntN(len(acts))]
	err := a.do()
	for ; err == errNotNow; err = a.do() {
		a = acts[r.IntN(len(acts))]
	}
	outcome := "OK"
	if err != nil {
		outcome = strings.TrimPrefix(client.Reason(err).String(), "ERROR_REASON_")
		if outcome == "UNSPECIFIED" || outcome == "INTERNAL" {
			outcome = err.Error() + " " + outcome
		}
	}
	s.done.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outcomes[a.name+": "+outcome]++
}

// clean closes everything, and checks that every list is empty.
func (s *storm) clean(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	for _, f := range s.held {
		f.Close()
	}
	s.held = nil
	sessions, err := s.Sessions.ListSessions(ctx, &pb.ListSessionsRequest{Parent: "nodes/local"})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range sessions.GetSessions() {
		if _, err := s.Sessions.DeleteSession(ctx, &pb.DeleteSessionRequest{Name: x.GetName()}); err != nil && client.Reason(err) != pb.ErrorReason_ERROR_REASON_NOT_FOUND {
			t.Errorf("close %s: %v", x.GetName(), err)
		}
	}
	all := "nodes/local/devices/-"
	sessions, err = s.Sessions.ListSessions(ctx, &pb.ListSessionsRequest{Parent: "nodes/local"})
	pds, err1 := s.Memory.ListProtectionDomains(ctx, &pb.ListProtectionDomainsRequest{Parent: all})
	buffers, err2 := s.Memory.ListBuffers(ctx, &pb.ListBuffersRequest{Parent: all})
	regions, err3 := s.Memory.ListMemoryRegions(ctx, &pb.ListMemoryRegionsRequest{Parent: all})
	exports, err4 := s.Memory.ListMemoryExports(ctx, &pb.ListMemoryExportsRequest{Parent: all})
	qps, err5 := s.QueuePairs.ListQueuePairs(ctx, &pb.ListQueuePairsRequest{Parent: all})
	devices, err6 := s.Devices.ListDevices(ctx, &pb.ListDevicesRequest{Parent: "nodes/local"})
	for _, err := range []error{err, err1, err2, err3, err4, err5, err6} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := len(sessions.GetSessions()) + len(pds.GetProtectionDomains()) + len(buffers.GetBuffers()) + len(regions.GetMemoryRegions()) + len(exports.GetMemoryExports()) + len(qps.GetQueuePairs()); n > 0 {
		t.Errorf("%d objects are left: %v %v %v %v %v %v", n, sessions, pds, buffers, regions, exports, qps)
	}
	for _, d := range devices.GetDevices() {
		u := d.GetUsage()
		if u.GetBuffers()+u.GetMemoryExports()+u.GetMemoryRegions()+u.GetProtectionDomains()+u.GetQueuePairs() > 0 || d.GetMemoryFreeBytes() != d.GetMemoryBytes() || len(d.GetHolders()) > 0 {
			t.Errorf("%s is left with %v, %d of %d bytes free, held by %v", d.GetName(), u, d.GetMemoryFreeBytes(), d.GetMemoryBytes(), d.GetHolders())
		}
	}
}
