package fabric

import (
	"fmt"
	"maps"
	"slices"

	"github.com/accelfab/accelfab/device"
)

// Devices that come while the daemon serves.

// checkIDs refuses devices whose ids cannot be names, or are not unique.
func checkIDs(op string, devices []device.Device) error {
	seen := map[string]bool{}
	for _, d := range devices {
		id := d.Info().ID
		if !validID(id) || seen[id] {
			return &Error{Op: op, Field: "devices", Reason: FieldInvalid, Message: fmt.Sprintf("device id %q is not valid or not unique", id)}
		}
		seen[id] = true
	}
	return nil
}

// withDevices gives the cards whose devices are there: what is fixed of these needs
// no lock.
func (f *Fabric) withDevices() (cards []*card) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, c := range f.cards {
		if c.dev != nil {
			cards = append(cards, c)
		}
	}
	return cards
}

// AddDevices takes in devices that were not there when the fabric was opened: what
// records say of them is compared with what they have, and they can be used. Each is
// in the journal. The devices are the fabric's from then on, and with an error stay
// the caller's: FIELD_INVALID for one that cannot be told from another,
// STORE_UNAVAILABLE, and DEVICE_UNAVAILABLE after Close.
func (f *Fabric) AddDevices(devices []device.Device) error {
	const op = "AddDevices"
	f.adding.Lock()
	defer f.adding.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return f.closing(op)
	}
	all := devices
	for _, c := range f.cards {
		if c.dev != nil {
			all = append(slices.Clone(all), c.dev)
		}
	}
	if err := checkIDs(op, all); err != nil {
		return err
	}
	infos := make([]device.Info, len(all))
	for i, d := range all {
		infos[i] = d.Info()
	}
	if err := distinct(op, infos); err != nil {
		return err
	}
	ids, told := identify(f.marks, infos)
	marks := maps.Clone(f.marks)
	for i := range devices {
		marks[ids[i]] = markOf(&infos[i])
	}
	if err := f.recordArrival(op, ids[:len(devices)], told, marks); err != nil {
		return err
	}
	if f.closed {
		return f.closing(op)
	}
	f.marks = marks
	for i, d := range devices {
		f.arrive(ids[i], d).start()
	}
	return nil
}

// recordArrival makes durable which devices came. Fabric.mu is held, but not during
// the commit.
func (f *Fabric) recordArrival(op string, ids, told []string, marks map[string]deviceMark) error {
	next := f.node.with(func(s *stored) { s.Devices = marks })
	var change Change
	if err := change.put(&record{id: f.node.id, name: f.node.name, stored: next}); err != nil {
		return err
	}
	for _, id := range ids {
		if err := change.event(Event{Type: EventChanged, Resource: f.names.node + "/devices/" + id, Actor: system, Reason: CauseDevice,
			Message: "the device has come"}); err != nil {
			return err
		}
	}
	if err := f.tellIdentities(&change, told); err != nil {
		return err
	}
	if err := f.commitUnlocked(op, change); err != nil {
		return err
	}
	f.node.stored = next
	return nil
}

// arrive makes a card of a device, or gives it to the one that stood in for it.
// Fabric.mu is held.
func (f *Fabric) arrive(id string, d device.Device) *card {
	c := f.card[id]
	if c == nil {
		return f.addCard(id, d)
	}
	c.dev, c.info, c.compared = d, d.Info(), make(chan struct{})
	c.health = beingReached
	return c
}
