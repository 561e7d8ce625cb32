package soft

import (
	"context"

	"github.com/accelfab/accelfab/device"
)

// Reset implements device.Maintenance. QPNs and keys rest, and handles of
// protection domains are not used again.
func (c *card) Reset(ctx context.Context) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	c.gate.Lock()
	defer c.gate.Unlock()
	c.qps.clear()
	localBus.mu.Lock()
	c.forgetExports()
	c.detachAll()
	localBus.mu.Unlock()
	c.regions.clear()
	c.domains.clear()
	if err := c.memory.clear(); err != nil {
		return err
	}
	c.events.post(device.Event{Kind: device.DeviceChanged, Port: -1})
	return nil
}

// clear destroys all queue pairs.
func (t *queuePairs) clear() {
	for _, qp := range t.all() {
		if qp, err := t.remove(qp.info.UID); err == nil {
			qp.destroy()
		}
	}
}

// clear takes all keys away.
func (t *regions) clear() {
	t.mu.Lock()
	uids := make([]device.UID, 0, len(t.byUID))
	for uid := range t.byUID {
		uids = append(uids, uid)
	}
	t.mu.Unlock()
	for _, uid := range uids {
		t.remove(uid)
	}
}

// clear destroys all domains.
func (d *domains) clear() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.byUID)
	clear(d.byPD)
}

// clear frees all memory.
func (m *memory) clear() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.data == nil {
		return device.ErrClosed
	}
	size := uint64(len(m.data))
	m.zero(0, size)
	m.space, m.addresses = newAllocator(size), newAllocator(addressRoom)
	clear(m.byUID)
	m.byAddress = nil
	return nil
}
