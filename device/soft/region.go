package soft

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// region is a registered range of card memory, of the card's own or of another's
// that it imports.
type region struct {
	device.Region
	buffer     *buffer     // nil: imported
	attachment *attachment // nil: not imported
	data       []byte      // the range itself; nil if it was revoked
}

// regions are the memory regions of a card and their keys.
type regions struct {
	// mu is held for reading while work or the wire touches memory by a key,
	// and for writing to take a key away: then no access is in progress.
	mu     sync.RWMutex
	byUID  map[device.UID]*region
	byLKey map[ib.LKey]*region
	byRKey map[ib.RKey]*region
	// resting keys are of either kind: the two draw from one set of numbers.
	resting quarantine[uint32]
	rest    time.Duration
	limit   int
	closed  bool
}

func newRegions(limit int, rest time.Duration) *regions {
	return &regions{
		byUID: make(map[device.UID]*region), byLKey: make(map[ib.LKey]*region), byRKey: make(map[ib.RKey]*region),
		limit: limit, rest: rest,
	}
}

// newKey draws a random number that names no region and does not rest. 0 is
// left out: programs forget to set keys.
func (t *regions) newKey(now time.Time) uint32 {
	for {
		var b [4]byte
		rand.Read(b[:])
		key := binary.NativeEndian.Uint32(b[:])
		if key == 0 || t.byLKey[ib.LKey(key)] != nil || t.byRKey[ib.RKey(key)] != nil || t.resting.holds(key, now) {
			continue
		}
		return key
	}
}

func (c *card) register(spec device.RegionSpec) (device.Region, error) {
	t := c.regions
	if old, ok := t.get(spec.UID); ok {
		if old.Imported || old.PD != spec.PD || old.Address != spec.Address || old.Length != spec.Length || old.Access != spec.Access {
			return device.Region{}, fmt.Errorf("memory region of %d bytes at %#x: %w", old.Length, old.Address, device.ErrExists)
		}
		return old.Region, nil
	}
	if spec.Length == 0 {
		return device.Region{}, &device.FieldError{Field: "length", Problem: "is 0: at least 1 byte"}
	}
	if err := spec.Access.CheckRegion(); err != nil {
		return device.Region{}, &device.FieldError{Field: "access", Problem: err.Error()}
	}
	if err := c.domains.join(spec.PD, 1); err != nil {
		return device.Region{}, err
	}
	r := &region{Region: device.Region{UID: spec.UID, PD: spec.PD, Address: spec.Address, Length: spec.Length, Access: spec.Access}}
	if err := c.memory.pin(spec.Address, spec.Length, func(b *buffer, data []byte) error {
		r.buffer, r.data = b, data
		return t.insert(r)
	}); err != nil {
		c.domains.leave(spec.PD, 1)
		return device.Region{}, err
	}
	return r.Region, nil
}

// get gives a copy of a region.
func (t *regions) get(uid device.UID) (r region, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if r := t.byUID[uid]; r != nil {
		return *r, true
	}
	return region{}, false
}

func (t *regions) insert(r *region) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return device.ErrClosed
	}
	if t.byUID[r.UID] != nil {
		return fmt.Errorf("memory region registered twice at the same time: %w", device.ErrBusy)
	}
	if len(t.byUID) >= t.limit {
		return &device.LimitError{Kind: "memory_regions", Asked: 1, Limit: uint64(t.limit)}
	}
	now := time.Now()
	r.LKey = ib.LKey(t.newKey(now))
	t.byLKey[r.LKey] = r
	r.RKey = ib.RKey(t.newKey(now))
	t.byRKey[r.RKey] = r
	t.byUID[r.UID] = r
	return nil
}

// remove takes the keys of a region away. When it returns, no access by them is
// in progress, as accesses hold mu.
func (t *regions) remove(uid device.UID) (*region, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byUID[uid]
	if r == nil {
		return nil, fmt.Errorf("memory region: %w", device.ErrNotFound)
	}
	delete(t.byUID, uid)
	delete(t.byLKey, r.LKey)
	delete(t.byRKey, r.RKey)
	until := time.Now().Add(t.rest)
	t.resting.add(uint32(r.LKey), until)
	t.resting.add(uint32(r.RKey), until)
	return r, nil
}

// close takes all keys away: no access is in progress when it returns.
func (t *regions) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	clear(t.byUID)
	clear(t.byLKey)
	clear(t.byRKey)
}

// RegisterRegions implements device.Regions.
func (c *card) RegisterRegions(ctx context.Context, specs []device.RegionSpec) []device.RegionResult {
	results := make([]device.RegionResult, len(specs))
	c.gate.RLock()
	defer c.gate.RUnlock()
	for i, spec := range specs {
		r := &results[i]
		if r.Err = c.usable(ctx); r.Err == nil {
			r.Region, r.Err = c.register(spec)
		}
	}
	return results
}

// ListRegions implements device.Regions.
func (c *card) ListRegions(ctx context.Context) ([]device.Region, error) {
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	c.regions.mu.RLock()
	defer c.regions.mu.RUnlock()
	list := make([]device.Region, 0, len(c.regions.byUID))
	for _, r := range c.regions.byUID {
		list = append(list, r.Region)
	}
	return list, nil
}

// DeregisterRegions implements device.Regions.
func (c *card) DeregisterRegions(ctx context.Context, uids []device.UID) []error {
	errs := make([]error, len(uids))
	c.gate.RLock()
	defer c.gate.RUnlock()
	for i, uid := range uids {
		if errs[i] = c.usable(ctx); errs[i] != nil {
			continue
		}
		r, err := c.regions.remove(uid)
		if err != nil {
			errs[i] = err
			continue
		}
		if r.attachment != nil {
			c.detach(r.attachment)
		} else {
			c.memory.unpin(r.buffer)
		}
		c.domains.leave(r.PD, 1)
	}
	return errs
}
