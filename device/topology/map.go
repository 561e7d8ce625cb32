package topology

import (
	"fmt"
	"slices"
)

// Class says where a port leads.
type Class uint8

const (
	NotConnected Class = iota // leads nowhere
	Internal                  // cabled to a port of another card of the server
	ScaleOut                  // leads out of the server, to a switch
)

// String returns the name of the class: NOT_CONNECTED, INTERNAL or SCALE_OUT.
func (c Class) String() string {
	switch c {
	case NotConnected:
		return "NOT_CONNECTED"
	case Internal:
		return "INTERNAL"
	case ScaleOut:
		return "SCALE_OUT"
	}
	return fmt.Sprintf("Class(%d)", uint8(c))
}

// A Port is one network port of a card.
type Port struct {
	Number int // the hardware's number, from 0
	Class  Class

	// PeerCard and PeerPort are the other end of the cable, -1 where there is
	// none or, at an internal port, where it is not known.
	PeerCard, PeerPort int
}

// A Card is one accelerator of the server.
type Card struct {
	Number int    // module id, from 0
	Ports  []Port // by Number
}

// Expect holds the counts that [Map.Check] demands of each card. Zero is no
// demand.
type Expect struct {
	Internal     int // internal ports of each card
	ScaleOut     int // scale-out ports of each card
	LanesPerPeer int // ports that join two cards, where any do
}

// A Map is the cabling of one server. The methods other than [Map.Check]
// expect a map that passes it, as all that Lookup and Load return do. A Map
// may be read by several goroutines at a time.
type Map struct {
	Name          string // of the server, lower case: "hls-2"
	Model         string // of the card: "HL-225H"; empty if not known
	ASIC          string // "Gaudi2"; empty if not known
	PortSpeedMbps uint32 // of one port, in Mbit/s; 0 if not known
	Expect        Expect
	Cards         []Card // by Number, without gap
	// PeerAccess says who reaches whose memory over the bus of the machine, the
	// first rule that fits. What no rule speaks of has nothing in its way.
	PeerAccess []PeerRule
}

// A Lane is one cable between two cards, seen from the first.
type Lane struct {
	Port     int // on the first card
	PeerPort int // on the second card
}

// port returns a port, or nil if there is none of these numbers.
func (m *Map) port(card, port int) *Port {
	if card < 0 || card >= len(m.Cards) || port < 0 || port >= len(m.Cards[card].Ports) {
		return nil
	}
	return &m.Cards[card].Ports[port]
}

// Peer returns the other end of the cable in a port. ok is false where there
// is no such port, no cable, or the peer is not known; peerCard and peerPort
// are then -1. The class is that of the port whenever there is such a port.
func (m *Map) Peer(card, port int) (peerCard, peerPort int, class Class, ok bool) {
	p := m.port(card, port)
	if p == nil {
		return -1, -1, NotConnected, false
	}
	return p.PeerCard, p.PeerPort, p.Class, p.PeerCard >= 0
}

// Lanes returns the cables between cards a and b by ascending port of a. It is
// empty where no port of a leads to b, or there is no card a.
func (m *Map) Lanes(a, b int) []Lane {
	if a < 0 || a >= len(m.Cards) || b < 0 {
		return nil
	}
	var lanes []Lane
	for _, p := range m.Cards[a].Ports {
		if p.PeerCard == b {
			lanes = append(lanes, Lane{Port: p.Number, PeerPort: p.PeerPort})
		}
	}
	return lanes
}

// ScaleOut returns the numbers of the scale-out ports of a card, ascending.
// Cards of one server may differ in them. It is empty if there is no such card.
func (m *Map) ScaleOut(card int) []int {
	if card < 0 || card >= len(m.Cards) {
		return nil
	}
	var ports []int
	for _, p := range m.Cards[card].Ports {
		if p.Class == ScaleOut {
			ports = append(ports, p.Number)
		}
	}
	return ports
}

// Mask returns the ports of a class of a card as bits: bit n is port n, as in
// the port masks of the habanalabs driver. It is 0 if there is no such card.
func (m *Map) Mask(card int, class Class) uint64 {
	if card < 0 || card >= len(m.Cards) {
		return 0
	}
	var mask uint64
	for _, p := range m.Cards[card].Ports {
		if p.Class == class {
			mask |= 1 << p.Number
		}
	}
	return mask
}

// Islands returns the groups of cards that reach each other over internal
// ports: one group for most servers, two quads for PCIe cards. Groups and cards
// in them ascend. Where peers are not known a card is an island of its own.
func (m *Map) Islands() [][]int { return m.Graph().Islands() }

// Truncate returns the map of the first n cards, 1 to len(m.Cards). Their
// internal ports to other cards become NotConnected, and the rules of PeerAccess
// that name others are left out; m does not change.
func (m *Map) Truncate(n int) (*Map, error) {
	if n < 1 || n > len(m.Cards) {
		return nil, fmt.Errorf("topology %s: %d cards asked: it has 1 to %d", m.Name, n, len(m.Cards))
	}
	t := *m
	t.Cards = make([]Card, n)
	for i, c := range m.Cards[:n] {
		c.Ports = slices.Clone(c.Ports)
		for j := range c.Ports {
			if p := &c.Ports[j]; p.PeerCard >= n {
				*p = Port{Number: p.Number, Class: NotConnected, PeerCard: -1, PeerPort: -1}
			}
		}
		t.Cards[i] = c
	}
	t.PeerAccess = m.peerAccessOf(n)
	if n < len(m.Cards) {
		t.Expect.Internal = 0
	}
	return &t, nil
}
