package topology

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// lookup returns a built-in map whose peers are known.
func lookup(t *testing.T, name string) *Map {
	t.Helper()
	m, err := Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestLookup(t *testing.T) {
	want := []string{"hl-288", "hl-338", "hls-1", "hls-2", "hls-3", "hls-3-rack"}
	if got := Names(); !slices.Equal(got, want) {
		t.Errorf("Names() = %q, want %q", got, want)
	}
	for _, name := range want {
		m, err := Lookup(name)
		if name == "hls-1" {
			if !errors.Is(err, ErrPeersUnknown) || m == nil {
				t.Errorf("Lookup(%q) = %v, %v, want a map and ErrPeersUnknown", name, m, err)
			}
		} else if err != nil {
			t.Errorf("Lookup(%q): %v", name, err)
		} else if err := m.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if m != nil && m.Name != name {
			t.Errorf("Lookup(%q) has the name %q", name, m.Name)
		}
	}
}

func TestLookupTakesAnyCase(t *testing.T) {
	if a, b := lookup(t, "HLS-2"), lookup(t, "hls-2"); !reflect.DeepEqual(a, b) {
		t.Error("HLS-2 is not hls-2")
	}
}

func TestLookupOfUnknownNameListsTheKnown(t *testing.T) {
	for _, name := range []string{"hls-9", "", "../maps/hls-2", "hls-2.yaml"} {
		m, err := Lookup(name)
		if m != nil || err == nil {
			t.Errorf("Lookup(%q) = %v, %v", name, m, err)
			continue
		}
		for _, known := range append(Names(), strconv.Quote(name)) {
			if !strings.Contains(err.Error(), known) {
				t.Errorf("Lookup(%q): %q does not name %s", name, err, known)
			}
		}
	}
}

func TestLookupGivesEachCallerItsOwnMap(t *testing.T) {
	a := lookup(t, "hls-2")
	a.Cards[0].Ports[0] = Port{}
	if b := lookup(t, "hls-2"); b.Cards[0].Ports[0].PeerCard != 3 {
		t.Error("a change of one map is seen in another")
	}
}

// tables reads testdata/tables.txt by code of its own, so that no mistake in
// the loader hides a mistake in the data.
func tables(t *testing.T) map[string][][]Port {
	t.Helper()
	data, err := os.ReadFile("testdata/tables.txt")
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string][][]Port)
	var name string
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		card, row, isRow := strings.Cut(line, " | ")
		switch {
		case line == "" || line[0] == '#':
			continue
		case !isRow:
			name = line
			continue
		case card != fmt.Sprint(len(all[name])):
			t.Fatalf("%s: card %s out of order", name, card)
		}
		var ports []Port
		for n, cell := range strings.Split(row, " ") {
			p := Port{Number: n, PeerCard: -1, PeerPort: -1}
			switch {
			case cell == "SO":
				p.Class = ScaleOut
			case cell != "NC":
				p.Class = Internal
				p.PeerPort = n
				format, into := "%d", []any{&p.PeerCard}
				if strings.Contains(cell, ":") {
					format, into = "%d:%d", append(into, &p.PeerPort)
				}
				if _, err := fmt.Sscanf(cell, format, into...); err != nil {
					t.Fatalf("%s card %s port %d: %q: %v", name, card, n, cell, err)
				}
			}
			ports = append(ports, p)
		}
		all[name] = append(all[name], ports)
	}
	// The second group of the rack is the first with all cards 8 higher.
	for _, ports := range all["hls-3-rack"] {
		ports = slices.Clone(ports)
		for i := range ports {
			if ports[i].Class == Internal {
				ports[i].PeerCard += 8
			}
		}
		all["hls-3-rack"] = append(all["hls-3-rack"], ports)
	}
	return all
}

func TestEveryPortIsAsInTheTables(t *testing.T) {
	all := tables(t)
	if len(all) != 5 {
		t.Fatalf("%d tables", len(all))
	}
	cells := 0
	for name, cards := range all {
		m := lookup(t, name)
		if len(m.Cards) != len(cards) {
			t.Errorf("%s: %d cards, want %d", name, len(m.Cards), len(cards))
			continue
		}
		for c, ports := range cards {
			if m.Cards[c].Number != c || len(m.Cards[c].Ports) != 24 {
				t.Errorf("%s: card %d has number %d and %d ports", name, c, m.Cards[c].Number, len(m.Cards[c].Ports))
				continue
			}
			for p, want := range ports {
				if got := m.Cards[c].Ports[p]; got != want {
					t.Errorf("%s card %d port %d: %+v, want %+v", name, c, p, got, want)
				}
				cells++
			}
		}
	}
	if want := (4*8 + 16) * 24; cells != want {
		t.Errorf("%d cells compared, want %d", cells, want)
	}
}

// In an HLS-2 and in each half of the rack seven groups of three ports lead to
// one peer each, with the same numbers at both ends, but for two pairs of
// cards that join group 10 to 12 to group 16 to 18.
func TestHLS2FollowsItsRule(t *testing.T) {
	groups := [][]int{{0, 1, 3}, {2, 4, 5}, {6, 7, 9}, {10, 11, 12}, {13, 14, 15}, {16, 17, 18}, {19, 20, 21}}
	crossed := [][2]int{{0, 2}, {4, 6}}
	for _, name := range []string{"hls-2", "hls-3-rack"} {
		m := lookup(t, name)
		for card := range m.Cards {
			peers := make(map[int]bool)
			for g, group := range groups {
				peer, _, _, ok := m.Peer(card, group[0])
				if !ok || peers[peer] {
					t.Errorf("%s card %d: group %v leads to card %d", name, card, group, peer)
				}
				peers[peer] = true
				far := g
				if pair := [2]int{min(card, peer) % 8, max(card, peer) % 8}; slices.Contains(crossed, pair) {
					far = 8 - g // 3 and 5 change places
				}
				for i, port := range group {
					peerCard, peerPort, class, ok := m.Peer(card, port)
					if !ok || class != Internal || peerCard != peer || peerPort != groups[far][i] {
						t.Errorf("%s card %d port %d leads to %v %d:%d, want %d:%d",
							name, card, port, class, peerCard, peerPort, peer, groups[far][i])
					}
				}
			}
			if len(peers) != 7 || peers[card] {
				t.Errorf("%s card %d: peers %v", name, card, peers)
			}
		}
	}
}

func TestMasks(t *testing.T) {
	for _, test := range []struct {
		name                             string
		internal, scaleOut, notConnected uint64
	}{
		{"hls-1", 0xFD, 0x302, 0},
		{"hls-2", 0x3FFEFF, 0xC00100, 0},
		{"hls-3-rack", 0x3FFEFF, 0xC00100, 0},
		{"hl-288", 0x3FFC3F, 0x3C0, 0xC00000},
		{"hl-338", 0xFFF0FC, 0xF00, 0x3},
	} {
		m, err := Lookup(test.name)
		if m == nil {
			t.Fatal(err)
		}
		for card := range m.Cards {
			if i, s, n := m.Mask(card, Internal), m.Mask(card, ScaleOut), m.Mask(card, NotConnected); i != test.internal || s != test.scaleOut || n != test.notConnected {
				t.Errorf("%s card %d: masks %#x %#x %#x, want %#x %#x %#x",
					test.name, card, i, s, n, test.internal, test.scaleOut, test.notConnected)
			}
		}
	}
}

func TestScaleOutPortsOfHLS3DifferByCard(t *testing.T) {
	want := [][]int{{17, 20, 21}, {5, 8, 9}, {5, 8, 9}, {17, 20, 21}, {14, 15, 19}, {2, 3, 7}, {2, 3, 7}, {14, 15, 19}}
	m := lookup(t, "hls-3")
	for card := range m.Cards {
		if got := m.ScaleOut(card); !slices.Equal(got, want[card]) {
			t.Errorf("card %d: scale-out ports %v, want %v", card, got, want[card])
		}
	}
}

func TestMachines(t *testing.T) {
	for _, test := range []struct {
		name, asic   string
		cards, ports int
		speed        uint32
		expect       Expect
	}{
		{"hls-1", "Gaudi", 8, 10, 100_000, Expect{7, 3, 1}},
		{"hls-2", "Gaudi2", 8, 24, 100_000, Expect{21, 3, 3}},
		{"hl-288", "Gaudi2", 8, 24, 100_000, Expect{18, 4, 6}},
		{"hls-3", "Gaudi3", 8, 24, 200_000, Expect{21, 3, 3}},
		{"hl-338", "Gaudi3", 8, 24, 200_000, Expect{18, 4, 6}},
		{"hls-3-rack", "Gaudi3", 16, 24, 200_000, Expect{21, 3, 3}},
	} {
		m, err := Lookup(test.name)
		if m == nil {
			t.Fatal(err)
		}
		if m.ASIC != test.asic || len(m.Cards) != test.cards || len(m.Cards[0].Ports) != test.ports ||
			m.PortSpeedMbps != test.speed || m.Expect != test.expect {
			t.Errorf("%s: %s, %d cards, %d ports of %d Mbit/s, %+v", test.name, m.ASIC, len(m.Cards),
				len(m.Cards[0].Ports), m.PortSpeedMbps, m.Expect)
		}
	}
}
