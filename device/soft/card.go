package soft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/accelfab/accelfab/device"
)

// card is one accelerator of a chassis. It implements device.Device.
type card struct {
	info    device.Info
	node    string   // that it is a device of
	chassis *Chassis // that it is in
	// gate is held for reading by what makes and ends objects of the card, and for
	// writing by Reset.
	gate    sync.RWMutex
	ports   []*port
	memory  *memory
	domains *domains
	regions *regions
	keyed   keyedMemory // by the keys of regions
	qps     *queuePairs
	timers  *timers
	events  *events

	// slot is its place on the bus, aperture what the bus reaches of its memory,
	// importing what it can do as an importer; fixed once it is open.
	slot      int
	aperture  aperture
	importing importing
	udmabuf   *os.File                 // what makes exports real dma-bufs; nil: they are tokens
	exports   map[device.UID]*export   // guarded by bus.mu
	attached  map[*attachment]struct{} // to others' exports; guarded by bus.mu

	closed  atomic.Bool
	running sync.WaitGroup
}

func newCard(ch *Chassis, cfg *Config, module int) (*card, error) {
	info := cardInfo(cfg, module)
	memory, err := openMemory(info.ID, info.MemoryBase, info.MemoryBytes)
	if err != nil {
		return nil, err
	}
	c := &card{
		info: info, memory: memory,
		domains: newDomains(info.Limits.ProtectionDomains),
		regions: newRegions(info.Limits.Regions, cfg.Rest),
		qps:     newQueuePairs(info.Limits.QueuePairs, cfg.Rest),
		timers:  newTimers(),
		events:  newEvents(),
		node:    cfg.NodeID, chassis: ch,
		aperture:  aperture{cfg.ApertureBytes},
		importing: importing{cfg.Import, !cfg.NoPeerToPeer, cfg.LargestSegment},
		exports:   make(map[device.UID]*export),
		attached:  make(map[*attachment]struct{}),
	}
	c.keyed.regions = c.regions
	for _, p := range cfg.Map.Cards[module].Ports {
		c.ports = append(c.ports, newPort(c, p, cfg.Map.PortSpeedMbps))
	}
	if cfg.RealDMABufs {
		c.udmabuf, err = openUDMABuf()
	}
	if err == nil {
		err = localBus.join(c)
	}
	if err != nil {
		return nil, errors.Join(err, c.closeMemory())
	}
	return c, nil
}

// start begins to receive and to keep time.
func (c *card) start() {
	for _, p := range c.ports {
		for _, s := range p.sockets() {
			c.running.Go(func() { p.receive(s) })
		}
	}
	c.running.Go(c.timers.run)
}

// usable says why nothing can be done now, if so.
func (c *card) usable(ctx context.Context) error {
	if c.closed.Load() {
		return device.ErrClosed
	}
	return ctx.Err()
}

// Info implements device.Device.
func (c *card) Info() device.Info { return c.info }

func (c *card) port(number int) (*port, error) {
	if number < 0 || number >= len(c.ports) {
		return nil, fmt.Errorf("port %d of %s, which has %d: %w", number, c.info.ID, len(c.ports), device.ErrNotFound)
	}
	return c.ports[number], nil
}

// Port implements device.Device.
func (c *card) Port(ctx context.Context, number int) (device.Port, error) {
	if err := c.usable(ctx); err != nil {
		return device.Port{}, err
	}
	p, err := c.port(number)
	if err != nil {
		return device.Port{}, err
	}
	return p.read(), nil
}

// SetPort implements device.Device.
func (c *card) SetPort(ctx context.Context, number int, up bool) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	p, err := c.port(number)
	if err != nil {
		return err
	}
	if !p.plugged() {
		return &device.FieldError{Field: "port", Problem: fmt.Sprintf("%d of %s is %s", number, c.info.ID, p.nowhere())}
	}
	if p.set(up) {
		c.events.post(device.Event{Kind: device.PortChanged, Port: number})
	}
	return nil
}

// Events implements device.Device.
func (c *card) Events() <-chan device.Event { return c.events.c }

// Close implements device.Device. Queue pairs and memory are gone after it.
func (c *card) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	var errs []error
	for _, p := range c.ports {
		for _, s := range p.sockets() {
			errs = append(errs, s.close())
		}
	}
	c.timers.close()
	c.running.Wait()
	c.qps.close()
	c.regions.close()
	localBus.leave(c)
	c.events.close()
	return errors.Join(append(errs, c.closeMemory())...)
}

func (c *card) closeMemory() error {
	err := c.memory.close()
	if c.udmabuf != nil {
		err = errors.Join(err, c.udmabuf.Close())
	}
	return err
}
