package topology

import (
	"slices"
	"strconv"
)

// anyDevice stands for every device in a [PeerRule].
const anyDevice = "*"

// A PeerRule says what is between two devices of a machine on its bus: whether
// the importer can reach memory of the exporter. Each is named by the module id
// of a card of the map ("0"), by the id of any device of the node ("soft-nic"),
// or as "*", which is all.
type PeerRule struct {
	Importer string
	Exporter string
	// Path is the way, for people, such as "PCIe switch 03:00.0". It or Obstacle
	// is given, not both.
	Path string
	// Obstacle is what is in the way, such as "root port 0000:00:01.0 forwards no
	// peer-to-peer requests", "ACS of switch 03:00.0 redirects to the root
	// complex" or "IOMMU has no mapping".
	Obstacle string
}

// A PeerDevice is one end of the way between two devices.
type PeerDevice struct {
	Card int    // module id, if it is a card of the map, else -1
	ID   string // of the device
}

func (d PeerDevice) is(name string) bool {
	if name == anyDevice || name == d.ID {
		return true
	}
	n, err := strconv.Atoi(name)
	return err == nil && d.Card >= 0 && n == d.Card
}

// PeerRule gives the first rule of the map for two devices. ok is false where
// there is none: then the map knows of nothing in the way.
func (m *Map) PeerRule(importer, exporter PeerDevice) (rule PeerRule, ok bool) {
	for _, r := range m.PeerAccess {
		if importer.is(r.Importer) && exporter.is(r.Exporter) {
			return r, true
		}
	}
	return PeerRule{}, false
}

// checkPeerAccess checks the rules of the bus.
func (m *Map) checkPeerAccess(f *faults) {
	for i, r := range m.PeerAccess {
		for _, end := range []struct{ key, name string }{{"importer", r.Importer}, {"exporter", r.Exporter}} {
			n, err := strconv.Atoi(end.name)
			switch {
			case end.name == "":
				f.add(-1, -1, "peerAccess[%d]: %s: give a module id, the id of a device, or %q for all", i, end.key, anyDevice)
			case err == nil && (n < 0 || n >= len(m.Cards)):
				f.add(-1, -1, "peerAccess[%d]: %s: card %d is not there (cards are 0 to %d)", i, end.key, n, len(m.Cards)-1)
			}
		}
		if (r.Path == "") == (r.Obstacle == "") {
			f.add(-1, -1, "peerAccess[%d]: give either a path, if the importer reaches the exporter, or the obstacle", i)
		}
	}
}

// peerAccessOf keeps the rules that speak of none but the first n cards.
func (m *Map) peerAccessOf(n int) []PeerRule {
	gone := func(name string) bool {
		card, err := strconv.Atoi(name)
		return err == nil && card >= n
	}
	return slices.DeleteFunc(slices.Clone(m.PeerAccess), func(r PeerRule) bool { return gone(r.Importer) || gone(r.Exporter) })
}
