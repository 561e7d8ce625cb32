package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	accelfabv1 "github.com/accelfab/accelfab/proto/accelfab/v1"
)

const (
	sessionTTL = 24 * time.Hour
	// maxBatch is the most queue pairs of a batch call.
	maxBatch = 1000
)

// door is a daemon as its callers see it: generated clients on a unix socket,
// without the retries of the SDK; one session on all its devices, with a
// protection domain on each.
type door struct {
	conns    []*grpc.ClientConn
	sessions accelfabv1.SessionServiceClient
	session  string
	cards    []*doorCard
}

// doorCard is one device. The callers of a load are spread over all.
type doorCard struct {
	name  string
	pd    string
	ports []string
	turn  atomic.Uint64 // for the ports
}

// openDoor dials socket, waits until it answers, and makes session and domains.
func openDoor(ctx context.Context, socket string, conns int) (d *door, err error) {
	d = &door{}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	for range conns {
		c, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
		if err != nil {
			return d, err
		}
		d.conns = append(d.conns, c)
	}
	d.sessions = accelfabv1.NewSessionServiceClient(d.conns[0])
	devices := accelfabv1.NewDeviceServiceClient(d.conns[0])
	domains := accelfabv1.NewMemoryServiceClient(d.conns[0])
	list, err := devices.ListDevices(ctx, &accelfabv1.ListDevicesRequest{Parent: "nodes/local"}, grpc.WaitForReady(true))
	if err != nil {
		return d, err
	}
	s := &accelfabv1.Session{Ttl: durationpb.New(sessionTTL), Mode: accelfabv1.Session_MODE_SHARED}
	for _, dev := range list.Devices {
		if dev.Driver == "soft" { // not the parked one
			s.Devices = append(s.Devices, dev.Name)
		}
	}
	if s, err = d.sessions.CreateSession(ctx, &accelfabv1.CreateSessionRequest{Parent: "nodes/local", Session: s}); err != nil {
		return d, err
	}
	d.session = s.Name
	for _, name := range s.Devices {
		pd, err := domains.CreateProtectionDomain(ctx, &accelfabv1.CreateProtectionDomainRequest{
			Parent: name, ProtectionDomain: &accelfabv1.ProtectionDomain{Session: d.session},
		})
		if err != nil {
			return d, err
		}
		ports, err := devices.ListPorts(ctx, &accelfabv1.ListPortsRequest{Parent: name})
		if err != nil {
			return d, err
		}
		c := &doorCard{name: name, pd: pd.Name}
		for _, p := range ports.Ports {
			c.ports = append(c.ports, p.Name)
		}
		d.cards = append(d.cards, c)
	}
	if len(d.cards) == 0 {
		return d, errors.New("the daemon has no software device")
	}
	return d, nil
}

// queuePairs gives the client that a caller uses.
func (d *door) queuePairs(caller int) accelfabv1.QueuePairServiceClient {
	return accelfabv1.NewQueuePairServiceClient(d.conns[caller%len(d.conns)])
}

func (d *door) card(caller int) *doorCard { return d.cards[caller%len(d.cards)] }

// ask is a request for a queue pair in INIT.
func (c *doorCard) ask() *accelfabv1.CreateQueuePairRequest {
	return &accelfabv1.CreateQueuePairRequest{Parent: c.name, QueuePair: &accelfabv1.QueuePair{
		ProtectionDomain: c.pd,
		Port:             c.ports[c.turn.Add(1)%uint64(len(c.ports))],
		Type:             accelfabv1.QueuePair_TYPE_RC,
	}}
}

// made is the names of queue pairs that one caller made on its card.
type made []string

// create makes one queue pair.
func (d *door) create(ctx context.Context, caller int, m *made) error {
	qp, err := d.queuePairs(caller).CreateQueuePair(ctx, d.card(caller).ask())
	if err != nil {
		return err
	}
	*m = append(*m, qp.Name)
	return inInit(qp)
}

// createBatch makes n queue pairs in one call.
func (d *door) createBatch(ctx context.Context, caller, n int, m *made) error {
	c := d.card(caller)
	r := &accelfabv1.BatchCreateQueuePairsRequest{Parent: c.name}
	for range n {
		r.Requests = append(r.Requests, c.ask())
	}
	reply, err := d.queuePairs(caller).BatchCreateQueuePairs(ctx, r)
	if err != nil {
		return err
	}
	for _, qp := range reply.QueuePairs {
		*m = append(*m, qp.Name)
		if err := inInit(qp); err != nil {
			return err
		}
	}
	return nil
}

func inInit(qp *accelfabv1.QueuePair) error {
	if qp.State != accelfabv1.QueuePair_STATE_INIT {
		return fmt.Errorf("%s is in %v, want INIT", qp.Name, qp.State)
	}
	return nil
}

// delete destroys what callers made.
func (d *door) delete(ctx context.Context, byCaller []made) error {
	for i, c := range d.cards {
		var names made
		for caller := i; caller < len(byCaller); caller += len(d.cards) {
			names = append(names, byCaller[caller]...)
		}
		for batch := range slices.Chunk(names, maxBatch) {
			r := &accelfabv1.BatchDeleteQueuePairsRequest{Parent: c.name}
			for _, name := range batch {
				r.Requests = append(r.Requests, &accelfabv1.DeleteQueuePairRequest{Name: name})
			}
			if _, err := d.queuePairs(0).BatchDeleteQueuePairs(ctx, r); err != nil {
				return fmt.Errorf("delete queue pairs: %w", err)
			}
		}
	}
	return nil
}

// closeSession ends the session, and all that is in it.
func (d *door) closeSession(ctx context.Context) error {
	_, err := d.sessions.DeleteSession(ctx, &accelfabv1.DeleteSessionRequest{Name: d.session})
	return err
}

func (d *door) close() {
	for _, c := range d.conns {
		c.Close()
	}
}

func isCanceled(err error) bool {
	return errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled
}

// createOnAll makes n queue pairs on each card, in batches, one caller a card.
// Ports take turns.
func (d *door) createOnAll(ctx context.Context, n int) error {
	var wg sync.WaitGroup
	errs := make([]error, len(d.cards))
	for caller := range d.cards {
		wg.Go(func() {
			var m made
			for len(m) < n && errs[caller] == nil {
				errs[caller] = d.createBatch(ctx, caller, min(n-len(m), maxBatch), &m)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
