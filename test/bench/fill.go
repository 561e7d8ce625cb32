package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/fabric"
)

// parkedID is the device whose queue pairs fill a store. It is only there while
// that is done. A fabric that opens the store without it keeps its records, in
// the file and in its memory, as those of a card that was taken out: they cost
// what records cost, and no device has to hold a million queue pairs.
const parkedID = "parked"

// nodeID of all servers of the program.
const nodeID = "bench"

// fill makes a store with so many queue pairs of the parked device.
func fill(ctx context.Context, dir string, records int) (err error) {
	f, err := openFabric(ctx, boltStore, dir, []device.Device{newParked()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	parent := "nodes/" + nodeID + "/devices/" + parkedID
	caller := fabric.Caller{Identity: "parker"}
	s, err := f.CreateSession(ctx, caller, fabric.CreateSession{
		Create: fabric.Create{Parent: "nodes/" + nodeID}, Devices: []string{parent}, TTL: sessionTTL,
	})
	if err != nil {
		return err
	}
	pd, err := f.CreateProtectionDomain(ctx, caller, fabric.CreateProtectionDomain{Create: fabric.Create{Parent: parent}, Session: s.Name})
	if err != nil {
		return err
	}
	const callers, batch = 4, 1000
	var (
		left atomic.Int64
		wg   sync.WaitGroup
		errs [callers]error
	)
	left.Store(int64(records))
	for i := range callers {
		wg.Go(func() {
			for errs[i] == nil {
				rest := left.Add(-batch) + batch
				if rest <= 0 {
					return
				}
				asks := make([]fabric.CreateQueuePair, min(rest, batch))
				for j := range asks {
					asks[j] = fabric.CreateQueuePair{Create: fabric.Create{Parent: parent}, ProtectionDomain: pd.Name, Type: ib.RC}
				}
				_, errs[i] = f.CreateQueuePairs(ctx, caller, "", false, asks)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs[:]...)
}

// parked is a device that takes any number of queue pairs and keeps none.
type parked struct {
	device.Device // nil: what is not below is not called
	events        chan device.Event
	qpn           atomic.Uint32
}

func newParked() *parked { return &parked{events: make(chan device.Event)} }

func (p *parked) Info() device.Info {
	return device.Info{ID: parkedID, Driver: "bench", Ports: 1, Capabilities: []device.Capability{device.CapRC},
		Limits: device.Limits{QueuePairs: 1 << 24, ProtectionDomains: 1 << 24, SendWR: 1 << 14, RecvWR: 1 << 14, SGE: 16, RDAtomic: 16, MaxMTU: ib.MTU4096}}
}

func (p *parked) Port(context.Context, int) (device.Port, error) {
	return device.Port{IBPort: 1, Class: device.PortScaleOut, AdminUp: true, State: device.PortActive, MaxMTU: ib.MTU4096, ActiveMTU: ib.MTU4096}, nil
}

func (p *parked) Events() <-chan device.Event { return p.events }

func (p *parked) CreateProtectionDomains(_ context.Context, uids []device.UID) []device.PDResult {
	results := make([]device.PDResult, len(uids))
	for i, u := range uids {
		results[i].ProtectionDomain = device.ProtectionDomain{UID: u, PD: 1}
	}
	return results
}

func (p *parked) CreateQueuePairs(_ context.Context, specs []device.QueuePairSpec) []device.QueuePairResult {
	results := make([]device.QueuePairResult, len(specs))
	for i, s := range specs {
		results[i].QueuePair = device.QueuePair{UID: s.UID, QPN: ib.QPN(p.qpn.Add(1) + 1), PD: s.PD, Type: s.Type, State: ib.Init, GIDIndex: -1}
	}
	return results
}

func (p *parked) ListProtectionDomains(context.Context) ([]device.ProtectionDomain, error) {
	return nil, nil
}
func (p *parked) ListBuffers(context.Context) ([]device.Buffer, error)       { return nil, nil }
func (p *parked) ListRegions(context.Context) ([]device.Region, error)       { return nil, nil }
func (p *parked) ListQueuePairs(context.Context) ([]device.QueuePair, error) { return nil, nil }

func (p *parked) Close() error {
	close(p.events)
	return nil
}
