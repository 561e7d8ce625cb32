package soft

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/accelfab/accelfab/device"
)

// MoveBuffer implements device.Maintenance. Regions are locked while the bytes are
// copied: the wire and work requests wait, and what comes after finds the new
// place. An importer is told, lets go and attaches anew under that lock, which it
// gives up at the latest after the batch of packets that it is at.
func (c *card) MoveBuffer(ctx context.Context, uid device.UID) (device.Buffer, error) {
	if err := c.usable(ctx); err != nil {
		return device.Buffer{}, err
	}
	if c.info.Limits.ExportPage == 0 {
		return device.Buffer{}, errNoMove
	}
	c.gate.RLock()
	defer c.gate.RUnlock()
	localBus.mu.Lock()
	defer localBus.mu.Unlock()
	m := c.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.data == nil {
		return device.Buffer{}, device.ErrClosed
	}
	b := m.byUID[uid]
	if b == nil {
		return device.Buffer{}, fmt.Errorf("buffer: %w", device.ErrNotFound)
	}
	if err := c.mayMove(b); err != nil {
		return device.Buffer{}, err
	}
	to, ok := m.space.allocLowest(b.room)
	if !ok {
		return device.Buffer{}, &device.LimitError{Kind: "memory_bytes", Asked: b.room, Available: m.space.avail, Limit: uint64(len(m.data)),
			Detail: fmt.Sprintf("a buffer moves to where nothing is, and the largest piece has %d", m.space.largest())}
	}
	followers := c.attachmentsOf(b)
	if err := mayFollow(followers, b, to); err != nil {
		m.space.release(to, b.room)
		return device.Buffer{}, err
	}
	from := b.offset
	c.whileStill(followers, func() {
		for _, a := range followers {
			a.region.data = nil // it lets go
		}
		m.copy(to, from, b.room)
		b.offset = to
		for _, a := range followers {
			a.region.data = a.bytes()
		}
		for _, r := range c.regions.byUID {
			if r.buffer == b {
				r.data = m.bytes(b, r.Address, r.Length)
			}
		}
	})
	m.zero(from, b.room)
	m.space.release(from, b.room)
	for _, a := range followers {
		a.importer.memoryChanged()
	}
	c.memoryChanged()
	return b.Buffer, nil
}

// attachmentsOf lists the attachments to a buffer. bus.mu is held.
func (c *card) attachmentsOf(b *buffer) (list []*attachment) {
	for _, e := range c.exports {
		if e.buffer == b && !e.revoked {
			list = append(list, e.attachments...)
		}
	}
	return list
}

// mayMove says what keeps a buffer from going anywhere. bus.mu is held.
func (c *card) mayMove(b *buffer) error {
	for _, e := range c.exports {
		if e.buffer == b && e.dmabuf != nil {
			return fmt.Errorf("buffer at %#x: pinned by a dma-buf of %d bytes at %#x of it: %w", b.Address, e.Length, e.Address, device.ErrBusy)
		}
	}
	return nil
}

// mayFollow says which importers keep a buffer from going to a place.
func mayFollow(list []*attachment, b *buffer, to uint64) error {
	var pinned, lost []string
	for _, a := range list {
		end := to + (a.export.Address + a.spec.Offset + a.spec.Length - b.Address)
		switch id := a.importer.info.ID; {
		case !a.dynamic() && !slices.Contains(pinned, id):
			pinned = append(pinned, id)
		case end > a.export.card.aperture.size && !slices.Contains(lost, id):
			lost = append(lost, id)
		}
	}
	switch {
	case len(pinned) > 0:
		return fmt.Errorf("buffer at %#x: pinned by %s, which cannot follow: %w", b.Address, idsText(pinned), device.ErrBusy)
	case len(lost) > 0:
		return fmt.Errorf("buffer at %#x: the lowest free place is outside of the aperture, and %s would lose it: %w", b.Address, idsText(lost), device.ErrBusy)
	}
	return nil
}

func idsText(ids []string) string {
	slices.Sort(ids)
	return fmt.Sprintf("%q", ids)
}

// whileStill calls do while nothing reaches the regions of the card and of those
// who are attached to it. They are locked in order of their slots.
func (c *card) whileStill(list []*attachment, do func()) {
	cards := []*card{c}
	for _, a := range list {
		cards = append(cards, a.importer)
	}
	slices.SortFunc(cards, func(a, b *card) int { return cmp.Compare(a.slot, b.slot) })
	cards = slices.Compact(cards)
	for _, x := range cards {
		x.regions.mu.Lock()
		defer x.regions.mu.Unlock()
	}
	do()
}

// copy copies what is not a hole to a range that is all zeros.
func (m *memory) copy(to, from, size uint64) {
	for _, e := range dataOf(m.file, from, size) {
		at := e.offset - from
		copy(m.data[to+at:to+at+e.size], m.data[e.offset:e.end()])
	}
}
