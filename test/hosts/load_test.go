package hosts

import (
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// seed gives what is random, from ACCELFAB_SEED if it is set.
func seed(t *testing.T) uint64 {
	t.Helper()
	s := os.Getenv("ACCELFAB_SEED")
	if s == "" {
		return uint64(time.Now().UnixNano())
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("ACCELFAB_SEED=%q: want a number", s)
	}
	return n
}

// TestProcessesKilledUnderLoad kills the daemon, the host, or both, at random
// moments while callers create and delete. Each time all comes back by itself; in
// the end nothing is left that no record knows, and nothing that a record says is
// not on the device.
func TestProcessesKilledUnderLoad(t *testing.T) {
	const rounds, callers = 15, 4
	n := newNode(t, "n", 1<<20, one)
	s := seed(t)
	t.Logf("%d kills, ACCELFAB_SEED=%d", rounds, s)
	random := mathrand.New(mathrand.NewPCG(s, 0))
	for round := range rounds {
		ctx, stop := context.WithCancel(t.Context())
		var load sync.WaitGroup
		for caller := range callers {
			load.Go(func() {
				for i := 0; ctx.Err() == nil; i++ { // what fails meanwhile may fail
					q, err := n.job.Client.QueuePairs.CreateQueuePair(ctx, &pb.CreateQueuePairRequest{Parent: card, QueuePairId: fmt.Sprintf("q-%d-%d-%d", round, caller, i),
						QueuePair: &pb.QueuePair{ProtectionDomain: n.job.PD.GetName(), Port: port, Type: pb.QueuePair_TYPE_RC}})
					if err == nil && i%2 == 0 {
						n.job.Client.QueuePairs.DeleteQueuePair(ctx, &pb.DeleteQueuePairRequest{Name: q.GetName()})
					}
				}
			})
		}
		<-time.After(time.Duration(random.IntN(100)) * time.Millisecond)
		which := random.IntN(3)
		if which != 0 {
			syscall.Kill(n.d.Host("soft").PID, syscall.SIGKILL)
		}
		if which != 1 {
			n.d.Kill()
		}
		<-time.After(time.Duration(random.IntN(50)) * time.Millisecond)
		stop()
		load.Wait()
		if which != 1 {
			n.d.Start()
			n.again()
		}
		until(t, "the device is READY and nothing is to be done", func() bool {
			if n.device(card).GetState() != pb.Device_STATE_READY {
				return false
			}
			for token := ""; ; {
				l, err := n.job.Client.QueuePairs.ListQueuePairs(t.Context(), &pb.ListQueuePairsRequest{Parent: card, PageSize: 1000, PageToken: token})
				if err != nil {
					return false
				}
				for _, q := range l.GetQueuePairs() {
					if q.GetState() != pb.QueuePair_STATE_INIT || q.GetLocalEndpoint().GetQpn() == 0 {
						return false
					}
				}
				if token = l.GetNextPageToken(); token == "" {
					return true
				}
			}
		})
	}
	if _, err := n.job.Client.Sessions.DeleteSession(t.Context(), &pb.DeleteSessionRequest{Name: n.job.Session.GetName()}); err != nil {
		t.Fatal(err)
	}
	if u := n.device(card).GetUsage(); u.GetQueuePairs()+u.GetBuffers()+u.GetMemoryRegions()+u.GetProtectionDomains() != 0 {
		t.Errorf("records are left: %v", u)
	}
	// No daemon has found anything on the device that no record knows.
	n.killDaemon()
	for token := ""; ; {
		l, err := n.job.Client.Events.ListEvents(t.Context(), &pb.ListEventsRequest{Parent: "nodes/local", PageSize: 1000, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range l.GetEvents() {
			if strings.Contains(e.GetMessage(), "that no record knows") {
				t.Errorf("at %v: %s", e.GetCreateTime().AsTime(), e.GetMessage())
			}
		}
		if token = l.GetNextPageToken(); token == "" {
			break
		}
	}
	if _, err := n.job.Client.Sessions.CreateSession(t.Context(), &pb.CreateSessionRequest{Parent: "nodes/local", Session: &pb.Session{
		Devices: []string{card}, Mode: pb.Session_MODE_EXCLUSIVE, Ttl: durationpb.New(time.Minute)}}); err != nil {
		t.Errorf("the device is not free in the end: %v", err)
	}
}
