package fabric

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/topology"
)

// MaxPick is the most devices that PickDevices chooses, and chooses among.
const MaxPick = topology.MaxPick

// PickDevices asks for the best free cards for a job.
type PickDevices struct {
	Count         int  // 1 to MaxPick
	AllowDegraded bool // also those whose health is HealthDegraded
}

// Pick is a choice of devices. Nobody holds them by it.
type Pick struct {
	Devices  []string         // names, by ascending module id
	Reason   string           // why these, for people
	MinLanes int              // active lanes of the two that have the fewest; 0 for one device
	Lanes    int              // active lanes between them
	Excluded []ExcludedDevice // the cards by ascending module id, then other devices
}

// ExcludedDevice is a device that could not be picked.
type ExcludedDevice struct {
	Device  string // name
	Reason  Reason // DeviceBusy, Unsupported, or that of its health
	Message string // who has it, or what is wrong with it
}

// PickDevices chooses among the cards that no session holds and that are well,
// by the lanes that are active now ([topology.Graph.Pick]). It holds nothing: a
// create of a session may still find one taken. errors.Is finds Exhausted where
// fewer than Count are free, and Unsupported where more than MaxPick are.
func (f *Fabric) PickDevices(ctx context.Context, _ Caller, r PickDevices) (Pick, error) {
	const op = "PickDevices"
	var v violations
	if want := fmt.Sprintf("want 1 to %d", MaxPick); r.Count == 0 {
		v.required("count", want)
	} else if r.Count < 0 || r.Count > MaxPick {
		v.invalid("count", fmt.Sprintf("%d: %s", r.Count, want))
	}
	if err := v.err(op, ""); err != nil {
		return Pick{}, err
	}
	var cards []TopologyDevice // places in the graph; the same as in Topology, whose islands have the same numbers
	read := map[string]bool{}
	faults := map[string]error{} // of cards whose ports cannot be read
	for _, c := range f.withDevices() {
		if c.info.Topology == "" {
			continue
		}
		d, n, err := f.readCabling(ctx, c)
		if ctx.Err() != nil {
			return Pick{}, ctx.Err()
		}
		if err != nil {
			faults[c.name] = fmt.Errorf("port %d cannot be read: %w", n, err)
			d.Ports = nil // what it has is not known
		}
		read[c.name] = true
		cards = append(cards, d)
	}
	sortCards(cards)
	all := len(cards)
	var out Pick
	var free []int
	var holders []Holder
	f.mu.RLock()
	for at, d := range cards {
		c := f.cardOf(d.Name)
		switch x := f.excluded(c, r.AllowDegraded, faults[d.Name]); x.Reason {
		case "":
			free = append(free, at)
		case DeviceBusy:
			holders = hold(holders, c.holders)
			fallthrough
		default:
			out.Excluded = append(out.Excluded, x)
		}
	}
	for _, c := range f.cards {
		if read[c.name] {
			continue
		}
		x := f.excluded(c, r.AllowDegraded, nil)
		if x.Reason == "" { // it came while the others were read
			x.Reason, x.Message = DeviceUnavailable, "it has come just now"
		}
		if x.Reason != Unsupported {
			all++ // it may be a card, and be back
		}
		out.Excluded = append(out.Excluded, x)
	}
	f.mu.RUnlock()
	switch {
	case r.Count > len(free):
		slices.SortStableFunc(holders, func(a, b Holder) int { return cmp.Compare(b.Amount, a.Amount) })
		holders = holders[:min(len(holders), maxHolders)]
		message := fmt.Sprintf("%d devices asked, %d are free", r.Count, len(free))
		for _, x := range out.Excluded {
			if x.Reason != DeviceBusy && x.Reason != Unsupported {
				message += fmt.Sprintf("; %s is not well (%s)", x.Device, x.Reason)
			}
		}
		return Pick{}, &Error{Op: op, Name: f.names.node, Field: "count", Reason: Exhausted, Message: message + describe(holders),
			Shortage: &Shortage{Kind: "devices", Asked: uint64(r.Count), Available: uint64(len(free)), Limit: uint64(all), Holders: holders}}
	case len(free) > MaxPick:
		return Pick{}, &Error{Op: op, Name: f.names.node, Reason: Unsupported, Message: fmt.Sprintf("%d devices are free, and the best are chosen among at most %d; name the devices of the session yourself", len(free), MaxPick),
			Details: map[string]string{"capability": "PICK_DEVICES"}}
	}
	choice, err := activeLanes(cards).Pick(free, r.Count)
	if err != nil {
		return Pick{}, &Error{Op: op, Name: f.names.node, Reason: Internal, Err: err}
	}
	for _, at := range choice.Cards {
		out.Devices = append(out.Devices, cards[at].Name)
	}
	out.Reason, out.MinLanes, out.Lanes = choice.Reason, choice.MinLanes, choice.Lanes
	return out, nil
}

// excluded says why a card cannot be picked; its Reason is empty if it can.
// Fabric.mu is held.
func (f *Fabric) excluded(c *card, degraded bool, unread error) ExcludedDevice {
	x := ExcludedDevice{Device: c.name}
	h := f.health.view(c.name)
	switch {
	case c.dev == nil:
		x.Reason, x.Message = cmp.Or(c.health.Reason, DeviceUnavailable), c.health.Message
	case c.info.Topology == "":
		x.Reason, x.Message = Unsupported, "it is no card of a port map"
	case len(c.holders) > 0:
		how := "shared"
		if c.holders[0].SessionAsk.Exclusive {
			how = "alone"
		}
		x.Reason, x.Message = DeviceBusy, fmt.Sprintf("held %s by %s", how, c.holders[0].holder(1))
		if n := len(c.holders) - 1; n > 0 {
			x.Message += fmt.Sprintf(" and %d more", n)
		}
	case unread != nil:
		x.Reason, x.Message = DeviceUnavailable, unread.Error()
	case h.Status != HealthOK && !(degraded && h.Status == HealthDegraded):
		x.Reason, x.Message = cmp.Or(h.Reason, Reason(h.Status)), "its health is "+string(h.Status)
		if len(h.Problems) > 0 {
			x.Message += ": " + h.Problems[0].Message
		}
	}
	return x
}

// hold adds one device to what sessions hold.
func hold(holders []Holder, sessions []*record) []Holder {
	for _, s := range sessions {
		i := slices.IndexFunc(holders, func(h Holder) bool { return h.Name == s.name })
		if i < 0 {
			i = len(holders)
			holders = append(holders, s.holder(0))
		}
		holders[i].Amount++
	}
	return holders
}

// sortCards puts devices in the order of their module ids.
func sortCards(ds []TopologyDevice) {
	slices.SortStableFunc(ds, func(a, b TopologyDevice) int { return cmp.Compare(a.Info.ModuleID, b.Info.ModuleID) })
}

// activeLanes is the graph of devices by the cables whose ports are active at
// both ends. The place of a device is its index.
func activeLanes(ds []TopologyDevice) *topology.Graph {
	modules := make([]int, len(ds))
	places := map[string]int{}
	for i, d := range ds {
		modules[i], places[d.Name] = d.Info.ModuleID, i
	}
	g := topology.NewGraph(modules)
	for a, d := range ds {
		for _, p := range d.Ports {
			b, ok := places[p.PeerDevice]
			if !ok || b <= a || p.Class != device.PortInternal || p.State != device.PortActive || p.PeerPort < 0 || p.PeerPort >= len(ds[b].Ports) {
				continue // each cable is counted from its first end
			}
			if ds[b].Ports[p.PeerPort].State == device.PortActive {
				g.Join(a, b)
			}
		}
	}
	return g
}

// islands names the cards of port maps that reach each other over active lanes.
func islands(ds []TopologyDevice) [][]string {
	cards := slices.DeleteFunc(slices.Clone(ds), func(d TopologyDevice) bool { return d.Info.Topology == "" })
	var out [][]string
	for _, places := range activeLanes(cards).Islands() {
		var names []string
		for _, at := range places {
			names = append(names, cards[at].Name)
		}
		out = append(out, names)
	}
	return out
}
