package faults

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
	"github.com/accelfab/accelfab/test/daemon"
)

// TestPowerCutsKeepWhatWasAcknowledged cuts the power under a daemon at random
// moments of its work: what it had not synced is lost, but for random pages of it.
// The store that is left is whole, and has all that was acknowledged.
//
// ACCELFAB_CUTS sets the rounds (20) and ACCELFAB_SEED what is random.
func TestPowerCutsKeepWhatWasAcknowledged(t *testing.T) {
	rounds, seed := number(t, "ACCELFAB_CUTS", 20), number(t, "ACCELFAB_SEED", uint64(time.Now().UnixNano()))
	t.Logf("%d power cuts, ACCELFAB_SEED=%d", rounds, seed)
	random := mathrand.New(mathrand.NewPCG(seed, 0))
	d, k := startOnDisk(t, "power")
	k.delay.Store(int64(5 * time.Millisecond)) // that there is always something not synced
	var total tally
	var lost, kept int
	for round := range rounds {
		killRound(t, d, random, &total, func() {
			k.cut()
			d.Kill()
			l, n := k.restore(t, random)
			lost, kept = lost+l, kept+n
			checkStore(t, k)
		})
		if t.Failed() {
			t.Fatalf("round %d of %d failed, ACCELFAB_SEED=%d", round, rounds, seed)
		}
	}
	t.Logf("%d power cuts: of what was not synced %d pages were lost and %d were not; %d objects acknowledged and there, %d deletes acknowledged and gone, %d creates in flight of which %d had become durable",
		rounds, lost, kept, total.acknowledged, total.deleted, total.inFlight, total.durable)
	if lost == 0 || kept == 0 || total.acknowledged == 0 || total.inFlight == 0 {
		t.Error("nothing was lost, or nothing was at work: nothing was tested")
	}
}

// checkStore wants the store of a daemon that does not run to be without a fault.
func checkStore(t *testing.T, k *disk) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), daemon.Binary(t, "accelfabd"), "store", "check", "--state-dir", k.mount).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "0 in quarantine") {
		t.Errorf("store check: %v\n%s", err, out)
	}
}

// TestADiskThatFailsForAWhile has each write, or each fsync, fail until the disk is
// back. Meanwhile what is there is read, sessions end, and changes are refused with
// the reason; then all goes on by itself, and what those sessions had can be had.
func TestADiskThatFailsForAWhile(t *testing.T) {
	for _, c := range []struct {
		name string
		fail func(*disk, syscall.Errno)
		with syscall.Errno
	}{
		{"no room", func(k *disk, e syscall.Errno) { k.writes.Store(int32(e)) }, syscall.ENOSPC},
		{"writes fail", func(k *disk, e syscall.Errno) { k.writes.Store(int32(e)) }, syscall.EIO},
		{"fsync fails", func(k *disk, e syscall.Errno) { k.syncs.Store(int32(e)) }, syscall.EIO},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, k := startOnDisk(t, "fails")
			ctx, cl := t.Context(), d.Dial()
			job := daemon.NewJob(t, cl, "soft-0", "8", 4096)
			short, err := cl.Sessions.CreateSession(ctx, &pb.CreateSessionRequest{Parent: "nodes/local", Session: &pb.Session{
				Devices: []string{card}, Mode: pb.Session_MODE_SHARED, Ttl: durationpb.New(2 * time.Second)}})
			if err != nil {
				t.Fatal(err)
			}
			b, err := cl.Memory.CreateBuffer(ctx, &pb.CreateBufferRequest{Parent: card, Buffer: &pb.Buffer{Session: short.GetName(), SizeBytes: 8 << 20}})
			if err != nil {
				t.Fatal(err)
			}

			c.fail(k, c.with)
			_, err = cl.Memory.CreateBuffer(ctx, &pb.CreateBufferRequest{Parent: card, Buffer: &pb.Buffer{Session: job.Session.GetName(), SizeBytes: 4096}})
			if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), c.with.Error()) {
				t.Errorf("a create is answered with %v, want UNAVAILABLE that tells of %q", err, c.with)
			}
			if h := storeHealth(ctx, t, cl); h.GetStatus() != pb.Health_STATUS_DEGRADED || h.GetReason() == "" || h.GetMessage() == "" {
				t.Errorf("the health of the store is %v, want DEGRADED with the reason", h)
			}
			if q, err := cl.QueuePairs.GetQueuePair(ctx, &pb.GetQueuePairRequest{Name: job.QP.GetName()}); err != nil || q.GetState() != job.QP.GetState() {
				t.Errorf("what is there reads as %v, %v", q, err)
			}
			if err := cl.Upload(ctx, job.Buffer.GetName(), []byte("goes on")); err != nil {
				t.Errorf("work does not go on: %v", err)
			}
			// The session whose ttl is over ends, though that cannot be recorded.
			eventually(t, "the session whose ttl is over ends", func() error {
				if _, err := cl.Download(ctx, b.GetName(), 1); err == nil {
					return errors.New("it can be read")
				}
				return nil
			})

			c.fail(k, 0)
			eventually(t, "health is as before", func() error {
				if h := storeHealth(ctx, t, cl); h.GetStatus() != pb.Health_STATUS_OK {
					return fmt.Errorf("the store is %v", h)
				}
				return nil
			})
			eventually(t, "the session that ended is forgotten", func() error {
				if _, err := cl.Sessions.GetSession(ctx, &pb.GetSessionRequest{Name: short.GetName()}); status.Code(err) != codes.NotFound {
					return fmt.Errorf("answered with %v", err)
				}
				return nil
			})
			made, err := cl.Memory.CreateBuffer(ctx, &pb.CreateBufferRequest{Parent: card, Buffer: &pb.Buffer{Session: job.Session.GetName(), SizeBytes: 10 << 20}})
			if err != nil {
				t.Fatalf("after it is back, and with the memory of the session that ended: %v", err)
			}
			d.Kill()
			checkStore(t, k)
			d.Start()
			l, err := cl.Memory.ListBuffers(ctx, &pb.ListBuffersRequest{Parent: card})
			if err != nil || len(l.GetBuffers()) != 2 || l.GetBuffers()[1].GetUid() != made.GetUid() {
				t.Errorf("after a kill there are %v, %v", l.GetBuffers(), err)
			}
		})
	}
}

func storeHealth(ctx context.Context, t *testing.T, c *client.Client) *pb.Health_Component {
	t.Helper()
	n, err := c.Nodes.GetNode(ctx, &pb.GetNodeRequest{Name: "nodes/local"})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range n.GetHealth().GetComponents() {
		if h.GetName() == "store" {
			return h
		}
	}
	t.Fatal("no component of health is the store")
	return nil
}

// eventually asks until ok has no objection.
func eventually(t *testing.T, what string, ok func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ok()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within a minute: %v", what, err)
		case <-tick.C:
		}
	}
}

// TestASlowDisk has each fsync take half a second: callers share commits, and who
// reads does not wait for any.
func TestASlowDisk(t *testing.T) {
	d, k := startOnDisk(t, "slow")
	ctx, c := t.Context(), d.Dial()
	job := daemon.NewJob(t, c, "soft-0", "8", 4096)
	k.delay.Store(int64(500 * time.Millisecond))
	before := k.synced.Load()
	const creates = 100
	var wg sync.WaitGroup
	for range creates {
		wg.Go(func() {
			if _, err := c.Memory.CreateProtectionDomain(ctx, &pb.CreateProtectionDomainRequest{Parent: card,
				ProtectionDomain: &pb.ProtectionDomain{Session: job.Session.GetName()}}); err != nil {
				t.Error(err)
			}
		})
	}
	reads := 0
	for k.synced.Load() == before { // the first fsync is under way, or has not begun
		if _, err := c.QueuePairs.GetQueuePair(ctx, &pb.GetQueuePairRequest{Name: job.QP.GetName()}); err != nil {
			t.Fatal(err)
		}
		reads++
	}
	wg.Wait()
	syncs := k.synced.Load() - before
	t.Logf("%d creates took %d syncs; %d reads during the first", creates, syncs, reads)
	if syncs >= creates || reads < 2 {
		t.Errorf("%d creates took %d syncs, %d reads were answered during the first: callers wait for each other", creates, syncs, reads)
	}
	k.delay.Store(0)
}
