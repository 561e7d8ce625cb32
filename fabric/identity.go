package fabric

import (
	"fmt"
	"maps"
	"slices"

	"github.com/accelfab/accelfab/device"
)

// deviceMark is what tells a device from others, whatever it is called and wherever
// it is enumerated. The node's record keeps that of each device under the id that
// the device has in names.
type deviceMark struct {
	Driver string `cbor:"0,keyasint,omitempty"`
	Serial string `cbor:"1,keyasint,omitempty"`
	PCI    string `cbor:"2,keyasint,omitempty"`
	Module int    `cbor:"3,keyasint,omitempty"`
}

func markOf(i *device.Info) deviceMark {
	return deviceMark{Driver: i.Driver, Serial: i.Serial, PCI: i.PCIAddress, Module: i.ModuleID}
}

// same says whether two marks are of one device: the serial number says it, and
// where one of them has none, its place does. A mark with neither is of no device
// but by the name that the device gives itself.
func (m deviceMark) same(o deviceMark) bool {
	if m.Driver != o.Driver {
		return false
	}
	if m.Serial != "" && o.Serial != "" {
		return m.Serial == o.Serial
	}
	return m.PCI != "" && m.PCI == o.PCI && m.Module == o.Module
}

// says tells whether the mark tells the device from others at all.
func (m deviceMark) says() bool { return m.Serial != "" || m.PCI != "" }

// distinct refuses devices that cannot be told apart: what belongs to one would be
// looked for on the other.
func distinct(op string, devices []device.Info) error {
	for i := range devices {
		for j := range i {
			a, b := &devices[j], &devices[i]
			if !markOf(a).same(markOf(b)) {
				continue
			}
			return &Error{Op: op, Field: "devices", Reason: FieldInvalid, Message: fmt.Sprintf(
				"%s and %s cannot be told apart: both have the driver %s, the serial number %q and the place %q; is one configured twice?",
				a.ID, b.ID, a.Driver, a.Serial, a.PCIAddress)}
		}
	}
	return nil
}

// identify gives each device the id that it has in names: the one that it had,
// also if it is called otherwise now; else its own, or one made of that if another
// device had it. It tells what is not as the devices call themselves. Pure.
func identify(known map[string]deviceMark, devices []device.Info) (ids []string, told []string) {
	ids = make([]string, len(devices))
	taken := map[string]bool{}
	claim := func(i int, id string) { ids[i], taken[id] = id, true }
	names := slices.Sorted(maps.Keys(known))
	for i := range devices { // first those that are as they were
		mark := markOf(&devices[i])
		if m, ok := known[devices[i].ID]; ok && (m.same(mark) || m.Driver == mark.Driver && !(m.says() && mark.says())) {
			claim(i, devices[i].ID)
		}
	}
	for i := range devices { // then those that are known by another id
		for _, id := range names {
			if ids[i] == "" && !taken[id] && known[id].same(markOf(&devices[i])) {
				claim(i, id)
				told = append(told, fmt.Sprintf("the device that calls itself %s is %s: its serial number is %q, at %s",
					devices[i].ID, id, devices[i].Serial, devices[i].PCIAddress))
			}
		}
	}
	for i := range devices { // and those that nobody knows
		if ids[i] != "" {
			continue
		}
		id := devices[i].ID
		_, was := known[id]
		for n := 2; was || taken[id]; n++ {
			id = fmt.Sprintf("%s-%d", devices[i].ID, n)
			_, was = known[id]
		}
		if claim(i, id); id != devices[i].ID {
			told = append(told, fmt.Sprintf("the device that calls itself %s is %s: another device had that name, with its own objects", devices[i].ID, id))
		}
	}
	return ids, told
}

// place makes a card of each device, under the id that it has in names, and notes
// the marks for the node's record.
func (f *Fabric) place(change *Change) error {
	var known map[string]deviceMark
	if f.node != nil {
		known = f.node.Devices
	}
	f.marks = maps.Clone(known)
	if f.marks == nil {
		f.marks = map[string]deviceMark{}
	}
	infos := make([]device.Info, len(f.cfg.Devices))
	for i, d := range f.cfg.Devices {
		infos[i] = d.Info()
	}
	if err := distinct("Open", infos); err != nil {
		return err
	}
	ids, told := identify(known, infos)
	for i, d := range f.cfg.Devices {
		f.addCard(ids[i], d)
		f.marks[ids[i]] = markOf(&infos[i])
	}
	return f.tellIdentities(change, told)
}

// tellIdentities writes into the journal and the log what is not as devices call
// themselves.
func (f *Fabric) tellIdentities(change *Change, told []string) error {
	for _, text := range told {
		f.log.Warn(text)
		if err := change.event(Event{Type: EventChanged, Resource: f.names.node, Actor: system, Reason: CauseDevice, Message: text}); err != nil {
			return err
		}
	}
	return nil
}

// nameOf gives the name of a device by what it calls itself.
func (f *Fabric) nameOf(own string) string {
	for _, c := range f.cards {
		if c.dev != nil && c.info.ID == own {
			return c.name
		}
	}
	return f.names.node + "/devices/" + own
}
