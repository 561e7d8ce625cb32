package faults

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
	"github.com/accelfab/accelfab/test/daemon"
)

func TestMain(m *testing.M) {
	status := m.Run()
	daemon.Remove()
	os.Exit(status)
}

const (
	card    = "nodes/local/devices/soft-0"
	callers = 8
	// longestLife is the most that a daemon lives under load in one round.
	longestLife = 150 * time.Millisecond
)

// number reads a positive number from the environment.
func number(t *testing.T, name string, preset uint64) uint64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return preset
	}
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil || n == 0 {
		t.Fatalf("%s=%q: want a positive number", name, s)
	}
	return n
}

// TestKilledDaemonKeepsEveryAcknowledgedCreate kills the daemon with -9 at
// random moments while callers create and delete. After each restart every
// create that was acknowledged is there, every delete that was acknowledged has
// left nothing, and whatever else is there was in flight at the kill: the same
// call with its request id answers with it.
//
// ACCELFAB_KILLS sets the rounds (50) and ACCELFAB_SEED what is random.
func TestKilledDaemonKeepsEveryAcknowledgedCreate(t *testing.T) {
	rounds, seed := number(t, "ACCELFAB_KILLS", 50), number(t, "ACCELFAB_SEED", uint64(time.Now().UnixNano()))
	t.Logf("%d kills, ACCELFAB_SEED=%d", rounds, seed)
	random := mathrand.New(mathrand.NewPCG(seed, 0))
	d := daemon.Start(t, daemon.Config{Node: "killed", Args: []string{"--device", "soft:hls-2,cards=1,memory=16MiB"}})
	var total tally
	for round := range rounds {
		killRound(t, d, random, &total, d.Kill)
		if t.Failed() {
			t.Fatalf("round %d of %d failed, ACCELFAB_SEED=%d", round, rounds, seed)
		}
	}
	t.Logf("%d kills: %d objects acknowledged and there, %d deletes acknowledged and gone, %d creates in flight of which %d had become durable",
		rounds, total.acknowledged, total.deleted, total.inFlight, total.durable)
	if total.acknowledged == 0 || total.deleted == 0 || total.inFlight == 0 {
		t.Error("the load was none: nothing was tested")
	}
}

type tally struct{ acknowledged, deleted, inFlight, durable int }

// ledger is what one caller knows.
type ledger struct {
	there    map[string]string // acknowledged: uid by name
	gone     []string          // delete acknowledged
	leaving  map[string]string // delete in flight
	inFlight []*pb.BatchCreateQueuePairsRequest
}

// killRound has callers work with a daemon until kill ends it, and compares what the
// next one has with what they were told.
func killRound(t *testing.T, d *daemon.Daemon, random *mathrand.Rand, total *tally, kill func()) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := dial(t, d)
	session, err := c.Sessions.CreateSession(ctx, &pb.CreateSessionRequest{Parent: "nodes/local", Session: &pb.Session{
		Devices: []string{card}, Mode: pb.Session_MODE_SHARED, Ttl: durationpb.New(time.Hour)}})
	if err != nil {
		t.Fatal(err)
	}
	pd, err := c.Memory.CreateProtectionDomain(ctx, &pb.CreateProtectionDomainRequest{Parent: card,
		ProtectionDomain: &pb.ProtectionDomain{Session: session.GetName()}})
	if err != nil {
		t.Fatal(err)
	}

	ledgers := make([]*ledger, callers)
	var wg sync.WaitGroup
	for i := range ledgers {
		ledgers[i] = &ledger{there: map[string]string{}, leaving: map[string]string{}}
		own := mathrand.New(mathrand.NewPCG(random.Uint64(), 1))
		wg.Go(func() { ledgers[i].load(ctx, t, c, pd.GetName(), own) })
	}
	killAt := time.NewTimer(time.Duration(random.Int64N(int64(longestLife))))
	<-killAt.C
	kill()
	wg.Wait()
	c.Close()

	d.Start()
	c = dial(t, d)
	defer c.Close()
	if _, err := c.Sessions.GetSession(ctx, &pb.GetSessionRequest{Name: session.GetName()}); err != nil {
		t.Errorf("the session is gone: %v", err)
	}
	found := list(ctx, t, c)
	for _, l := range ledgers {
		l.check(ctx, t, c, found, total)
	}
	for name := range found {
		t.Errorf("%s is there, and nobody has asked for it", name)
	}
	if _, err := c.Sessions.DeleteSession(ctx, &pb.DeleteSessionRequest{Name: session.GetName()}); err != nil {
		t.Errorf("close the session: %v", err)
	}
	if left := list(ctx, t, c); len(left) > 0 {
		t.Errorf("%d queue pairs are left of a closed session", len(left))
	}
}

func dial(t *testing.T, d *daemon.Daemon) *client.Client {
	t.Helper()
	c, err := client.Dial(d.Target, grpc.WithDisableRetry())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// load creates and deletes until the daemon is gone.
func (l *ledger) load(ctx context.Context, t *testing.T, c *client.Client, pd string, random *mathrand.Rand) {
	for {
		if len(l.there) > 0 && random.IntN(4) == 0 {
			name := slices.Sorted(maps.Keys(l.there))[0]
			uid := l.there[name]
			delete(l.there, name)
			if _, err := c.QueuePairs.DeleteQueuePair(ctx, &pb.DeleteQueuePairRequest{Name: name}); err != nil {
				l.leaving[name] = uid
				l.mustBeAway(t, err)
				return
			}
			l.gone = append(l.gone, name)
			continue
		}
		request := &pb.BatchCreateQueuePairsRequest{Parent: card, RequestId: rand.Text()}
		for range 1 + random.IntN(5) {
			request.Requests = append(request.Requests, &pb.CreateQueuePairRequest{QueuePair: &pb.QueuePair{
				ProtectionDomain: pd, Port: fmt.Sprintf("%s/ports/8", card), Type: pb.QueuePair_TYPE_RC}})
		}
		r, err := c.QueuePairs.BatchCreateQueuePairs(ctx, request)
		if err != nil {
			l.inFlight = append(l.inFlight, request)
			l.mustBeAway(t, err)
			return
		}
		for _, q := range r.GetQueuePairs() {
			l.there[q.GetName()] = q.GetUid()
		}
	}
}

// mustBeAway checks that a call failed for the kill, and for nothing else.
func (l *ledger) mustBeAway(t *testing.T, err error) {
	if code := status.Code(err); code != codes.Unavailable {
		t.Errorf("a call failed before the kill: %v", err)
	}
}

// check takes what it explains out of found.
func (l *ledger) check(ctx context.Context, t *testing.T, c *client.Client, found map[string]string, total *tally) {
	for name, uid := range l.there {
		if found[name] != uid {
			t.Errorf("%s was acknowledged with uid %s; now it has %q", name, uid, found[name])
		}
		delete(found, name)
		total.acknowledged++
	}
	for _, name := range l.gone {
		if _, ok := found[name]; ok {
			t.Errorf("%s is back: its delete was acknowledged", name)
			delete(found, name)
		}
		total.deleted++
	}
	for name, uid := range l.leaving {
		if got, ok := found[name]; ok && got != uid {
			t.Errorf("%s has uid %s, and was made with %s", name, got, uid)
		}
		delete(found, name)
	}
	for _, request := range l.inFlight {
		total.inFlight++
		r, err := c.QueuePairs.BatchCreateQueuePairs(ctx, request)
		if err != nil {
			t.Errorf("the same call again: %v", err)
			continue
		}
		if got, want := len(r.GetQueuePairs()), len(request.GetRequests()); got != want {
			t.Errorf("the same call again made %d queue pairs, want %d", got, want)
		}
		before := 0
		for _, q := range r.GetQueuePairs() {
			if uid, ok := found[q.GetName()]; ok {
				before++
				if uid != q.GetUid() {
					t.Errorf("%s: uid %s in the list, %s in the answer", q.GetName(), uid, q.GetUid())
				}
				delete(found, q.GetName())
			}
		}
		if before != 0 && before != len(r.GetQueuePairs()) {
			t.Errorf("%d of a batch of %d were there after the kill: half a change", before, len(r.GetQueuePairs()))
		}
		total.durable += min(before, 1)
	}
}

// list gives the uids of all queue pairs by name, in any state but on their way
// out.
func list(ctx context.Context, t *testing.T, c *client.Client) map[string]string {
	t.Helper()
	found := map[string]string{}
	for token := ""; ; {
		r, err := c.QueuePairs.ListQueuePairs(ctx, &pb.ListQueuePairsRequest{Parent: card, PageSize: 1000, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range r.GetQueuePairs() {
			if q.GetState() != pb.QueuePair_STATE_DELETING {
				found[q.GetName()] = q.GetUid()
			}
		}
		if token = r.GetNextPageToken(); token == "" {
			return found
		}
	}
}
