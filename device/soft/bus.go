package soft

import (
	"fmt"
	"os"
	"sync"

	"github.com/accelfab/accelfab/device"
)

// bus is the peripheral bus of this machine as far as the process makes it up:
// the cards of all chassis, by the slot in which each one's aperture lies, and the
// tokens of their exports. It is one for the process, so that whatever one card
// exports any other can import, also one of another chassis.
type bus struct {
	// mu guards all exports and attachments of all cards. It is for control
	// alone: no packet waits for it.
	mu      sync.Mutex
	slots   []*card // nil for one that is free
	tokens  map[uint64]*token
	dmabufs map[inode]*export // those that are real dma-bufs
	keeper  *keeper           // there while a card is
}

var localBus bus

// join puts a card into the lowest free slot.
func (b *bus) join(c *card) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.keeper == nil {
		k, err := openKeeper(b.letGo)
		if err != nil {
			return err
		}
		b.keeper, b.tokens, b.dmabufs = k, make(map[uint64]*token), make(map[inode]*export)
	}
	c.slot = 0
	for c.slot < len(b.slots) && b.slots[c.slot] != nil {
		c.slot++
	}
	if c.slot == len(b.slots) {
		b.slots = append(b.slots, nil)
	}
	b.slots[c.slot] = c
	return nil
}

// leave takes a card away: what it exports is cut off, what it imports is
// detached. Nothing reaches its memory through another card when it returns.
func (b *bus) leave(c *card) {
	b.mu.Lock()
	c.forgetExports()
	c.detachAll()
	b.slots[c.slot] = nil
	for len(b.slots) > 0 && b.slots[len(b.slots)-1] == nil {
		b.slots = b.slots[:len(b.slots)-1]
	}
	var last *keeper
	if len(b.slots) == 0 {
		last, b.keeper, b.slots, b.tokens, b.dmabufs = b.keeper, nil, nil, nil, nil
	}
	b.mu.Unlock()
	if last != nil {
		last.close() // waits for what waits for mu
	}
}

// has reports whether a card is on the bus. mu is held.
func (b *bus) has(c *card) bool { return c.slot < len(b.slots) && b.slots[c.slot] == c }

// find gives the card of a node with an ID, of the chassis of the card that asks
// if that has it, nil if there is none. mu is held.
func (b *bus) find(id string, asks *card) (found *card) {
	for _, c := range b.slots {
		if c != nil && c.info.ID == id && c.node == asks.node && (found == nil || c.chassis == asks.chassis) {
			found = c
		}
	}
	return found
}

// exportOf gives the export that a descriptor stands for. mu is held.
func (b *bus) exportOf(m mark) (*export, error) {
	if t := b.tokens[m.cookie]; t != nil && t.mark == m {
		return t.export, nil
	}
	if e := b.dmabufs[m.inode]; e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("export of this descriptor: %w", device.ErrNotFound)
}

// open makes a token of an export and gives the end for the holder. mu is held.
func (b *bus) open(e *export) (*os.File, error) {
	given, t, err := newToken()
	if err != nil {
		return nil, err
	}
	t.export = e
	if err := b.keeper.watch(t); err != nil {
		given.Close()
		t.kept.Close()
		return nil, err
	}
	b.tokens[t.mark.cookie] = t
	e.tokens[t] = struct{}{}
	return given, nil
}

// release ends a token. What is left of the holder's end stands for nothing. mu is
// held.
func (b *bus) release(t *token) {
	delete(b.tokens, t.mark.cookie)
	delete(t.export.tokens, t)
	t.kept.Close()
}

// letGo is called when nobody holds the end of a token any more.
func (b *bus) letGo(cookie uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.tokens[cookie]; t != nil {
		b.release(t)
		t.export.card.memoryChanged()
	}
}

// memoryChanged hints at exports and imports.
func (c *card) memoryChanged() { c.events.post(device.Event{Kind: device.MemoryChanged, Port: -1}) }
