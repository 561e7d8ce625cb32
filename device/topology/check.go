package topology

import (
	"errors"
	"fmt"
	"regexp"
)

// ErrPeersUnknown is wrapped by the error for a map whose only lack is that the
// peers of internal ports are not known. Such a map can be used by what needs
// the classes of ports alone; to cable cards it takes an operator's map file.
var ErrPeersUnknown = errors.New("the cabling of internal ports is not known")

// maxPorts is the most ports a card may have: they must fit a mask.
const maxPorts = 64

var validName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// A Fault is one thing wrong with a map. The errors of Check and Load join all
// of them.
type Fault struct {
	Source string // the map's name or the file's path
	Card   int    // module id, -1 if the fault is not of one card
	Port   int    // -1 if the fault is not of one port
	Text   string
}

func (f *Fault) Error() string {
	switch {
	case f.Card < 0 && f.Port < 0:
		return fmt.Sprintf("topology %s: %s", f.Source, f.Text)
	case f.Port < 0:
		return fmt.Sprintf("topology %s: card %d: %s", f.Source, f.Card, f.Text)
	}
	return fmt.Sprintf("topology %s: card %d port %d: %s", f.Source, f.Card, f.Port, f.Text)
}

// faults gathers what is wrong with the map of one source.
type faults struct {
	source string
	list   []error
}

func (f *faults) add(card, port int, format string, args ...any) {
	f.list = append(f.list, &Fault{Source: f.source, Card: card, Port: port, Text: fmt.Sprintf(format, args...)})
}

// Check returns all faults of the map as one error, each a [*Fault] that names
// card and port, or nil. A map is right if its cards have the same number of
// ports, every internal port is cabled to exactly one port of another card that
// is cabled back to it, no other port has a peer, and the counts are those of
// m.Expect.
//
// If it is right but for unknown peers, the error wraps [ErrPeersUnknown]; in
// no other case does it.
func (m *Map) Check() error { return m.check(m.Name) }

func (m *Map) check(source string) error {
	f := &faults{source: source}
	if !validName.MatchString(m.Name) {
		f.add(-1, -1, "name %q: use up to 63 of a-z, 0-9, '.', '_' and '-', a letter or digit first", m.Name)
	}
	m.checkShape(f)
	m.checkPeerAccess(f)
	if len(f.list) > 0 {
		return errors.Join(f.list...) // peers cannot be followed
	}
	unknown := m.checkPeers(f)
	m.checkCounts(f, len(unknown) == 0)
	if len(f.list) > 0 {
		return errors.Join(f.list...)
	}
	if len(unknown) > 0 {
		return fmt.Errorf("topology %s: %w: card %d port %d (%d ports in all): give a map file that names their peers",
			source, ErrPeersUnknown, unknown[0].card, unknown[0].port, len(unknown))
	}
	return nil
}

// checkShape checks the numbers of cards and ports.
func (m *Map) checkShape(f *faults) {
	if len(m.Cards) == 0 {
		f.add(-1, -1, "no cards")
	}
	for i, c := range m.Cards {
		switch {
		case i > 0 && c.Number == m.Cards[i-1].Number:
			f.add(c.Number, -1, "stands twice in the map")
		case c.Number != i:
			f.add(c.Number, -1, "stands where card %d belongs: cards are numbered from 0 without gap", i)
		}
		switch n := len(c.Ports); {
		case n == 0 || n > maxPorts:
			f.add(c.Number, -1, "%d ports: a card has 1 to %d", n, maxPorts)
		case n != len(m.Cards[0].Ports):
			f.add(c.Number, -1, "%d ports, where card %d has %d: all cards have the same number",
				n, m.Cards[0].Number, len(m.Cards[0].Ports))
		}
		for j, p := range c.Ports {
			if p.Number != j {
				f.add(c.Number, p.Number, "stands where port %d belongs: ports are numbered from 0 without gap", j)
			}
		}
	}
}

// end is one end of a cable.
type end struct{ card, port int }

// checkPeers checks both ends of every cable and returns the internal ports
// whose peer is not known.
func (m *Map) checkPeers(f *faults) (unknown []end) {
	usedBy := make(map[end]end) // who is cabled to this port
	for _, c := range m.Cards {
		for _, p := range c.Ports {
			here, there := end{c.Number, p.Number}, end{p.PeerCard, p.PeerPort}
			if p.Class != Internal {
				if p.Class > ScaleOut {
					f.add(here.card, here.port, "%v is no class of a port", p.Class)
				} else if there != (end{-1, -1}) {
					f.add(here.card, here.port, "is %v and cannot be cabled to card %d port %d", p.Class, there.card, there.port)
				}
				continue
			}
			if there == (end{-1, -1}) {
				unknown = append(unknown, here)
				continue
			}
			q := m.port(there.card, there.port)
			first, used := usedBy[there]
			switch {
			case there.card < 0 || there.card >= len(m.Cards):
				f.add(here.card, here.port, "cabled to card %d, which is not there (cards are 0 to %d)", there.card, len(m.Cards)-1)
			case q == nil:
				f.add(here.card, here.port, "cabled to card %d port %d, which is not there (ports are 0 to %d)",
					there.card, there.port, len(m.Cards[there.card].Ports)-1)
			case there == here:
				f.add(here.card, here.port, "cabled to itself")
			case there.card == here.card:
				f.add(here.card, here.port, "cabled to port %d of its own card", there.port)
			case used:
				f.add(here.card, here.port, "cabled to card %d port %d, to which card %d port %d is cabled too",
					there.card, there.port, first.card, first.port)
			case q.Class != Internal:
				f.add(here.card, here.port, "cabled to card %d port %d, which is %v", there.card, there.port, q.Class)
			case q.PeerCard == -1 && q.PeerPort == -1:
				f.add(here.card, here.port, "cabled to card %d port %d, whose peer is left unknown", there.card, there.port)
			case (end{q.PeerCard, q.PeerPort}) != here:
				f.add(here.card, here.port, "cabled to card %d port %d, which is cabled to card %d port %d",
					there.card, there.port, q.PeerCard, q.PeerPort)
			}
			if !used {
				usedBy[there] = here
			}
		}
	}
	return unknown
}

// checkCounts holds the map to what it expects of itself.
func (m *Map) checkCounts(f *faults, peersKnown bool) {
	for _, c := range m.Cards {
		var internal, scaleOut int
		lanes := make([]int, len(m.Cards))
		for _, p := range c.Ports {
			switch p.Class {
			case Internal:
				internal++
			case ScaleOut:
				scaleOut++
			}
			if p.PeerCard >= 0 && p.PeerCard < len(lanes) {
				lanes[p.PeerCard]++
			}
		}
		if want := m.Expect.Internal; want != 0 && internal != want {
			f.add(c.Number, -1, "%d ports are %v, expected %d", internal, Internal, want)
		}
		if want := m.Expect.ScaleOut; want != 0 && scaleOut != want {
			f.add(c.Number, -1, "%d ports are %v, expected %d", scaleOut, ScaleOut, want)
		}
		if want := m.Expect.LanesPerPeer; want != 0 && peersKnown {
			for peer, n := range lanes {
				if n != 0 && n != want {
					f.add(c.Number, -1, "%d lanes to card %d, expected %d", n, peer, want)
				}
			}
		}
	}
}
