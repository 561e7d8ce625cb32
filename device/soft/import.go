package soft

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/topology"
)

// An ImportKind says how a card attaches to memory of another one.
type ImportKind string

// The kinds of importers.
const (
	ImportDynamic ImportKind = "dynamic" // lets go when the memory moves and attaches anew
	ImportPinned  ImportKind = "pinned"  // keeps the memory where it is
	ImportNone    ImportKind = "none"    // imports nothing
)

// importing is what a card can do as an importer.
type importing struct {
	kind       ImportKind
	peerToPeer bool
	segment    uint64 // the largest piece that it takes, in bytes
}

// attachment is a memory region's hold on another card's memory. Guarded by
// bus.mu, as all of an export is; it is in the lists of both sides or of none.
type attachment struct {
	export   *export
	importer *card
	region   *region // its bytes and Revoked are guarded by the importer's regions.mu
	spec     device.ImportSpec
	since    time.Time
}

func (a *attachment) dynamic() bool { return a.importer.importing.kind == ImportDynamic }

func (a *attachment) read() device.Attachment {
	return device.Attachment{
		Importer: a.importer.info.ID, Region: a.spec.UID, Offset: a.spec.Offset, Length: a.spec.Length,
		Dynamic: a.dynamic(), Since: a.since,
	}
}

// bytes gives the window at its present place.
func (a *attachment) bytes() []byte {
	place := a.export.buffer.place(a.export.Address + a.spec.Offset)
	return a.export.card.memory.data[place : place+a.spec.Length : place+a.spec.Length]
}

// cutOff ends all access by the importer and leaves it a region that is revoked.
// The exporter takes it from its list.
func (a *attachment) cutOff() {
	t := a.importer.regions
	t.mu.Lock()
	a.region.data, a.region.Revoked = nil, true
	t.mu.Unlock()
	delete(a.importer.attached, a)
	a.importer.memoryChanged()
}

// detachAll lets go of what the card imports. bus.mu is held.
func (c *card) detachAll() {
	for a := range c.attached {
		delete(c.attached, a)
		a.export.detach(a)
	}
}

// detach lets go of the memory of a region that was removed.
func (c *card) detach(a *attachment) {
	localBus.mu.Lock()
	defer localBus.mu.Unlock()
	delete(c.attached, a)
	a.export.detach(a)
}

// Import implements device.Imports.
func (c *card) Import(ctx context.Context, spec device.ImportSpec, f *os.File) (device.Region, error) {
	if err := c.usable(ctx); err != nil {
		return device.Region{}, err
	}
	m, err := readMark(f)
	if err != nil {
		return device.Region{}, fmt.Errorf("descriptor: %w", err)
	}
	c.gate.RLock()
	defer c.gate.RUnlock()
	localBus.mu.Lock()
	defer localBus.mu.Unlock()
	e, err := localBus.exportOf(m)
	if err != nil {
		return device.Region{}, err
	}
	if spec.IOVA == 0 {
		spec.IOVA = e.Address + spec.Offset
	}
	if old, ok := c.regions.get(spec.UID); ok {
		if a := old.attachment; a == nil || a.spec != spec || a.export != e {
			return device.Region{}, fmt.Errorf("memory region of %d bytes at %#x: %w", old.Length, old.Address, device.ErrExists)
		}
		return old.Region, nil
	}
	if e.revoked {
		return device.Region{}, fmt.Errorf("export of %d bytes at %#x of %s: %w", e.Length, e.Address, e.card.info.ID, device.ErrRevoked)
	}
	if err := checkImport(&spec, e); err != nil {
		return device.Region{}, err
	}
	if why := c.attachable(e, &spec); why != nil {
		why.Alternatives = e.others(c, &spec)
		return device.Region{}, why
	}
	if err := c.domains.join(spec.PD, 1); err != nil {
		return device.Region{}, err
	}
	a := &attachment{export: e, importer: c, spec: spec, since: time.Now()}
	a.region = &region{
		Region: device.Region{UID: spec.UID, PD: spec.PD, Address: spec.IOVA, Length: spec.Length, Access: spec.Access, Imported: true},
		data:   a.bytes(), attachment: a,
	}
	if err := c.regions.insert(a.region); err != nil {
		c.domains.leave(spec.PD, 1)
		return device.Region{}, err
	}
	c.attached[a] = struct{}{}
	e.attachments = append(e.attachments, a)
	e.card.memoryChanged()
	return a.region.Region, nil
}

func checkImport(spec *device.ImportSpec, e *export) error {
	switch {
	case spec.Length == 0:
		return invalid("length", "is 0: at least 1 byte")
	case spec.Offset >= e.Length:
		return invalid("offset", "%d: the export has %d bytes", spec.Offset, e.Length)
	case spec.Length > e.Length-spec.Offset:
		return invalid("length", "%d bytes from offset %d leave the export, which has %d bytes from there on", spec.Length, spec.Offset, e.Length-spec.Offset)
	case spec.IOVA%pageSize != spec.Offset%pageSize:
		return invalid("iova", "%#x: its place in a page of %d bytes is %d, and must be that of the offset, %d",
			spec.IOVA, pageSize, spec.IOVA%pageSize, spec.Offset%pageSize)
	case spec.IOVA+spec.Length < spec.IOVA:
		return invalid("iova", "%#x: %d bytes from there end behind the largest address", spec.IOVA, spec.Length)
	}
	if err := spec.Access.CheckRegion(); err != nil {
		return invalid("access", "%v", err)
	}
	return nil
}

// attachable says why a card cannot attach a window of an export, if so. bus.mu is
// held.
func (c *card) attachable(e *export, spec *device.ImportSpec) *device.AttachError {
	id := c.info.ID
	switch {
	case c.importing.kind == ImportNone:
		return &device.AttachError{Reason: device.NoImport, Problem: id + " imports no memory"}
	case !c.importing.peerToPeer:
		return &device.AttachError{Reason: device.NoPeerToPeer, Problem: id + " reaches host memory alone, and this is memory of " + e.card.info.ID}
	}
	if access := c.reach(e.card); !access.Reachable {
		return &device.AttachError{Reason: device.NotReachable, Problem: fmt.Sprintf(
			"%s (%s) does not reach memory of %s (%s): %s", id, c.info.PCIAddress, e.card.info.ID, e.card.info.PCIAddress, access.Obstacle)}
	}
	return e.onBus(spec.Offset, spec.Length, c.importing.segment)
}

// others lists the devices that could attach a window which one could not. bus.mu
// is held.
func (e *export) others(than *card, spec *device.ImportSpec) (ids []string) {
	for _, c := range localBus.slots {
		if c != nil && c != than && c != e.card && c.node == than.node && c.attachable(e, spec) == nil {
			ids = append(ids, c.info.ID)
		}
	}
	return ids
}

// PeerAccess implements device.Imports.
func (c *card) PeerAccess(ctx context.Context, exporter string) (device.PeerAccess, error) {
	if err := c.usable(ctx); err != nil {
		return device.PeerAccess{}, err
	}
	localBus.mu.Lock()
	defer localBus.mu.Unlock()
	from := localBus.find(exporter, c)
	if from == nil {
		return device.PeerAccess{}, fmt.Errorf("device %q: %w", exporter, device.ErrNotFound)
	}
	access := c.reach(from)
	switch {
	case c.importing.kind == ImportNone:
		access.Reachable, access.Obstacle = false, c.info.ID+" imports no memory"
	case !c.importing.peerToPeer:
		access.Reachable, access.Obstacle = false, c.info.ID+" reaches host memory alone"
	case from.info.Limits.ExportPage == 0:
		access.Reachable, access.Obstacle = false, from.info.ID+" has no memory to reach"
	}
	return access, nil
}

// reach says whether there is a way over the bus to memory of another card, by the
// rules of the port maps of both, the exporter's first.
func (c *card) reach(from *card) device.PeerAccess {
	access := device.PeerAccess{Exporter: from.info.ID, Importer: c.info.ID, Reachable: true}
	switch {
	case c == from:
		access.Path = "same device"
	case c.chassis == from.chassis:
		access.Path = "same chassis"
	case c.node == from.node:
		access.Path = "same node"
	default:
		access.Reachable, access.Obstacle = false, "it is a device of another node"
	}
	if !access.Reachable || c == from {
		return access
	}
	for _, ch := range []*Chassis{from.chassis, c.chassis} {
		rule, ok := ch.wiring.PeerRule(ch.peerDevice(c), ch.peerDevice(from))
		switch {
		case !ok:
			continue
		case rule.Obstacle != "":
			access.Reachable, access.Path, access.Obstacle = false, "", rule.Obstacle
		default:
			access.Path = rule.Path
		}
		break
	}
	return access
}

// peerDevice names a card as the rules of the chassis' map do.
func (ch *Chassis) peerDevice(c *card) topology.PeerDevice {
	d := topology.PeerDevice{Card: -1, ID: c.info.ID}
	if c.chassis == ch {
		d.Card = c.info.ModuleID
	}
	return d
}
