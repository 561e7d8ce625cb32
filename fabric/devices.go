package fabric

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/accelfab/accelfab/device"
)

func utoa(n uint64) string { return strconv.FormatUint(n, 10) }

func (c *card) portName(n int) string { return c.name + "/ports/" + itoa(n) }

// Node tells about this daemon and what is wrong with it.
func (f *Fabric) Node() Node {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n := Node{Name: f.node.name, UID: f.node.UID, Revision: f.node.Revision, CreateTime: time.Unix(0, f.node.Created), BootID: f.cfg.BootID,
		InstanceID: f.instance, Version: f.cfg.Version, StartTime: f.started, Devices: len(f.cards)}
	n.Health = f.NodeHealth()
	return n
}

func (f *Fabric) viewDevice(c *card) Device {
	d := Device{Name: c.name, Info: c.info, Condition: c.health, Health: f.health.view(c.name), Usage: c.usage}
	d.Info.ID = c.id
	for _, h := range c.holders {
		a := h.SessionAsk
		d.Holders = append(d.Holders, DeviceHolder{Session: h.name, Identity: a.Identity, Exclusive: a.Exclusive, Since: time.Unix(0, h.Created),
			Peer: Caller{Identity: a.Identity, UID: a.UID, GID: a.GID, PID: a.PID, HasPeer: a.HasPeer}})
	}
	return d
}

// ListDevices lists the devices in ascending order of their ids. Page.Next
// counts them.
func (f *Fabric) ListDevices(_ context.Context, _ Caller, r List, match func(*Device) bool) (Page[Device], error) {
	const op = "ListDevices"
	var out Page[Device]
	size, err := pageSize(op, r.PageSize)
	if err != nil {
		return out, err
	}
	if f.canonical(r.Parent) != f.names.node {
		return out, violations{{Field: "parent", Reason: FieldInvalid, Problem: fmt.Sprintf("%q: want %s", r.Parent, f.names.node)}}.err(op, "")
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	for i := int(min(r.After, uint64(len(f.cards)))); i < len(f.cards); i++ {
		if len(out.Items) == size {
			out.Next = uint64(i)
			break
		}
		if d := f.viewDevice(f.cards[i]); match == nil || match(&d) {
			out.Items = append(out.Items, d)
		}
	}
	return out, nil
}

// GetDevice reads a device.
func (f *Fabric) GetDevice(_ context.Context, _ Caller, name string) (Device, error) {
	const op = "GetDevice"
	f.mu.RLock()
	defer f.mu.RUnlock()
	var v violations
	c, err := f.parentCard(op, name, &v)
	if len(v) > 0 {
		v[0].Field = "name"
		err = v.err(op, name)
	}
	if err != nil {
		err.(*Error).Field = "name"
		return Device{}, err
	}
	return f.viewDevice(c), nil
}

// findPort resolves a port's name.
func (f *Fabric) findPort(op, name string) (*card, int, error) {
	full, ok := f.object(kindPort, name)
	if !ok {
		reason, problem := FieldInvalid, fmt.Sprintf("%q: want %s", name, f.pattern(kindPort))
		if name == "" {
			reason = FieldRequired
		}
		return nil, 0, violations{{Field: "name", Reason: reason, Problem: problem}}.err(op, "")
	}
	parts := strings.Split(full, "/")
	n, _ := strconv.Atoi(parts[5]) // object checked it
	f.mu.RLock()
	defer f.mu.RUnlock()
	c := f.card[parts[3]]
	if c == nil || c.dev == nil || n >= c.info.Ports {
		return nil, 0, &Error{Op: op, Name: full, Field: "name", Reason: NotFound, Message: "there is no such port"}
	}
	return c, n, nil
}

func (f *Fabric) viewPort(c *card, p device.Port) Port {
	f.mu.RLock()
	defer f.mu.RUnlock()
	v := Port{Name: c.portName(p.Number), Flaps: c.flaps[p.Number], Port: p}
	if p.Class == device.PortInternal {
		if peer := f.peerCard(c, &p); peer != nil {
			v.PeerDevice = peer.name
		}
	}
	return v
}

// GetPort reads a port from the device.
func (f *Fabric) GetPort(ctx context.Context, _ Caller, name string) (Port, error) {
	const op = "GetPort"
	c, n, err := f.findPort(op, name)
	if err != nil {
		return Port{}, err
	}
	p, err := c.readPort(ctx, n)
	if err != nil {
		return Port{}, f.portFault(ctx, op, c, n, err)
	}
	return f.viewPort(c, p), nil
}

func (f *Fabric) portFault(ctx context.Context, op string, c *card, n int, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	e := &Error{Op: op, Name: c.portName(n), Reason: DeviceUnavailable, Message: "the device failed", RetryAfter: time.Second, Err: err}
	var field *device.FieldError
	switch {
	case errors.As(err, &field):
		e.Reason, e.Field, e.Message, e.RetryAfter, e.Err = FieldInvalid, "admin_state", field.Problem, 0, nil
	case errors.Is(err, errors.ErrUnsupported):
		e.Reason, e.Message, e.RetryAfter = Unsupported, "the device cannot do this", 0
		e.Details = map[string]string{"capability": string(device.CapSetPort)}
	case isNotFound(err):
		e.Reason, e.Message, e.RetryAfter = NotFound, "there is no such port", 0
	}
	return e
}

// ListPorts reads the ports of a device, or of all ("-"), in ascending order
// of device and number. Page.Next counts them.
func (f *Fabric) ListPorts(ctx context.Context, _ Caller, r List, match func(*Port) bool) (Page[Port], error) {
	const op = "ListPorts"
	var out Page[Port]
	size, err := pageSize(op, r.PageSize)
	if err != nil {
		return out, err
	}
	cards := f.withDevices()
	if f.canonical(r.Parent) != f.names.node+"/devices/-" {
		var v violations
		f.mu.RLock()
		c, err := f.parentCard(op, r.Parent, &v)
		f.mu.RUnlock()
		if err == nil {
			err = v.err(op, "")
		}
		if err != nil {
			return out, err
		}
		cards = slices.DeleteFunc(cards, func(x *card) bool { return x != c })
	}
	at := uint64(0)
	for _, c := range cards {
		for n := range c.info.Ports {
			if at++; at <= r.After {
				continue
			}
			if len(out.Items) == size {
				out.Next = at - 1
				return out, nil
			}
			p, err := c.readPort(ctx, n)
			if err != nil {
				return Page[Port]{}, f.portFault(ctx, op, c, n, err)
			}
			if v := f.viewPort(c, p); match == nil || match(&v) {
				out.Items = append(out.Items, v)
			}
		}
	}
	return out, nil
}

// SetPort sets the administrative state of a port: an operator's right. It is
// recorded and set again after a restart.
func (f *Fabric) SetPort(ctx context.Context, c Caller, r SetPort) (Port, error) {
	const op = "SetPort"
	card, n, err := f.findPort(op, r.Name)
	if err != nil {
		return Port{}, err
	}
	if !c.Operator {
		return Port{}, &Error{Op: op, Name: card.portName(n), Reason: PermissionDenied, Message: fmt.Sprintf("%q is not an operator", c.Identity),
			Details: map[string]string{"identity": c.Identity}}
	}
	if r.ValidateOnly {
		return f.GetPort(ctx, c, r.Name)
	}
	if err := f.setPort(ctx, op, c.Identity, card, n, r.Up); err != nil {
		return Port{}, err
	}
	return f.GetPort(ctx, c, r.Name)
}

// setPort sets a port and records it. The device goes first: what it refuses
// must not be asked for ever. What cannot be recorded is taken back.
func (f *Fabric) setPort(ctx context.Context, op, actor string, card *card, n int, up bool) error {
	select { // one after the other: device and record must not end with different ones of two
	case card.admin <- struct{}{}:
		defer func() { <-card.admin }()
	case <-ctx.Done():
		return ctx.Err()
	}
	before, err := card.readPort(ctx, n)
	f.mu.RLock()
	rec := card.asks[n]
	same := err == nil && rec != nil && rec.PortAsk.Up == up && before.AdminUp == up
	f.mu.RUnlock()
	if same {
		return nil
	}
	if err == nil {
		err = card.dev.SetPort(ctx, n, up)
	}
	if err != nil {
		return f.portFault(ctx, op, card, n, err)
	}
	f.mu.Lock()
	if rec == nil {
		rec = &record{id: f.idx.nextID, name: card.portName(n), card: card, stored: &stored{Kind: kindPort, UID: newUID(), Created: time.Now().UnixNano()}}
		f.idx.nextID++
	}
	next := rec.with(func(s *stored) { s.PortAsk = &portAsk{Up: up} })
	f.mu.Unlock()
	ev := Event{Type: EventChanged, Resource: rec.name, ResourceUID: next.UID, Actor: actor, Before: adminWord(before.AdminUp), After: adminWord(up), Reason: CauseRequested}
	if err := f.commitRecord(op, rec, next, ev); err != nil {
		if err := card.dev.SetPort(ctx, n, before.AdminUp); err != nil {
			f.log.Warn("port not set back", "port", rec.name, "error", err)
		}
		return err
	}
	f.mu.Lock()
	rec.stored = next
	card.asks[n] = rec
	f.mu.Unlock()
	return nil
}

func adminWord(up bool) string {
	if up {
		return "ENABLED"
	}
	return "DISABLED"
}

// adoptPort takes over a port's recorded state.
func (f *Fabric) adoptPort(r *record) {
	c := f.cardOf(r.name)
	if n, err := strconv.Atoi(r.name[strings.LastIndexByte(r.name, '/')+1:]); err == nil {
		r.card = c
		c.asks[n] = r
	}
	if r.id >= f.idx.nextID {
		f.idx.nextID = r.id + 1
	}
}

// applyPorts sets ports again that are not as they were asked.
func (c *card) applyPorts() {
	set := map[int]bool{}
	c.f.mu.Lock()
	for n, r := range c.asks {
		if n < len(c.ports) && c.ports[n].AdminUp != r.PortAsk.Up {
			set[n] = r.PortAsk.Up
		}
	}
	c.f.mu.Unlock()
	for n, up := range set {
		ctx, cancel := c.call()
		if err := c.dev.SetPort(ctx, n, up); err != nil {
			c.f.log.Warn("port not set as asked", "port", c.portName(n), "error", err)
		}
		cancel()
	}
}

func portWord(s device.PortState) string {
	return map[device.PortState]string{device.PortDown: "DOWN", device.PortInit: "INIT", device.PortArmed: "ARMED", device.PortActive: "ACTIVE"}[s]
}

// portChanged records that a port's state is another one than before, and counts how
// often it left ACTIVE, also where it was back before anybody looked. Fabric.mu is
// held.
func (c *card) portChanged(p, old *device.Port) {
	if old.State == device.PortActive && (p.State != device.PortActive || p.ChangedAt.After(old.ChangedAt)) {
		c.flaps[p.Number]++
	}
	if p.State == old.State {
		return
	}
	c.f.enter(entry{events: []Event{{Type: EventChanged, Resource: c.portName(p.Number), Actor: system, Before: portWord(old.State), After: portWord(p.State), Reason: CauseDevice}}})
}

// Topology reads how the node's devices are cabled.
func (f *Fabric) Topology(ctx context.Context, _ Caller) (Topology, error) {
	var t Topology
	for _, c := range f.withDevices() {
		d, n, err := f.readCabling(ctx, c)
		if err != nil {
			return Topology{}, f.portFault(ctx, "Topology", c, n, err)
		}
		if t.Map == "" {
			t.Map = c.info.Topology
		}
		t.Devices = append(t.Devices, d)
	}
	sortCards(t.Devices)
	t.Islands = islands(t.Devices)
	return t, nil
}

// readCabling reads all ports of a card. An error comes with the number of the
// port that could not be read.
func (f *Fabric) readCabling(ctx context.Context, c *card) (TopologyDevice, int, error) {
	d := TopologyDevice{Name: c.name, Info: c.info}
	for n := range c.info.Ports {
		p, err := c.readPort(ctx, n)
		if err != nil {
			return d, n, err
		}
		d.Ports = append(d.Ports, f.viewPort(c, p))
	}
	return d, 0, nil
}
