package topology

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
)

func TestClassString(t *testing.T) {
	for class, want := range map[Class]string{
		NotConnected: "NOT_CONNECTED", Internal: "INTERNAL", ScaleOut: "SCALE_OUT", 9: "Class(9)",
	} {
		if got := class.String(); got != want {
			t.Errorf("Class %d is %q, want %q", uint8(class), got, want)
		}
	}
}

func TestPeer(t *testing.T) {
	hls2, hl288 := lookup(t, "hls-2"), lookup(t, "hl-288")
	hls1, _ := Lookup("hls-1")
	for _, test := range []struct {
		m          *Map
		card, port int
		want       string // peer card, peer port, class, ok
	}{
		{hls2, 0, 10, "2 16 INTERNAL true"},
		{hls2, 2, 16, "0 10 INTERNAL true"},
		{hls2, 7, 21, "2 21 INTERNAL true"},
		{hls2, 0, 8, "-1 -1 SCALE_OUT false"},
		{hl288, 0, 23, "-1 -1 NOT_CONNECTED false"},
		{hls1, 3, 0, "-1 -1 INTERNAL false"},
		{hls2, 8, 0, "-1 -1 NOT_CONNECTED false"},
		{hls2, -1, 0, "-1 -1 NOT_CONNECTED false"},
		{hls2, 0, 24, "-1 -1 NOT_CONNECTED false"},
		{hls2, 0, -1, "-1 -1 NOT_CONNECTED false"},
	} {
		card, port, class, ok := test.m.Peer(test.card, test.port)
		if got := fmt.Sprint(card, port, class, ok); got != test.want {
			t.Errorf("%s: Peer(%d, %d) = %s, want %s", test.m.Name, test.card, test.port, got, test.want)
		}
	}
}

func TestLanes(t *testing.T) {
	m := lookup(t, "hls-2")
	if got, want := m.Lanes(0, 2), []Lane{{10, 16}, {11, 17}, {12, 18}}; !slices.Equal(got, want) {
		t.Errorf("Lanes(0, 2) = %v, want %v", got, want)
	}
	if got, want := m.Lanes(2, 0), []Lane{{16, 10}, {17, 11}, {18, 12}}; !slices.Equal(got, want) {
		t.Errorf("Lanes(2, 0) = %v, want %v", got, want)
	}
	for _, pair := range [][2]int{{0, 0}, {0, 8}, {8, 0}, {-1, 0}, {0, -1}} {
		if got := m.Lanes(pair[0], pair[1]); len(got) != 0 {
			t.Errorf("Lanes%v = %v, want none", pair, got)
		}
	}
}

// Every two cards of an island are joined by the lanes that the machine has,
// and cards of two islands by none.
func TestLanesOfEveryPair(t *testing.T) {
	for _, name := range []string{"hls-2", "hls-3", "hls-3-rack", "hl-288", "hl-338"} {
		m := lookup(t, name)
		island := make(map[int]int)
		for i, cards := range m.Islands() {
			for _, c := range cards {
				island[c] = i
			}
		}
		for a := range m.Cards {
			for b := range m.Cards {
				want := m.Expect.LanesPerPeer
				if a == b || island[a] != island[b] {
					want = 0
				}
				if got := m.Lanes(a, b); len(got) != want {
					t.Errorf("%s: cards %d and %d have the lanes %v, want %d", name, a, b, got, want)
				}
			}
		}
	}
}

func TestIslands(t *testing.T) {
	one := [][]int{{0, 1, 2, 3, 4, 5, 6, 7}}
	quads := [][]int{{0, 1, 2, 3}, {4, 5, 6, 7}}
	for name, want := range map[string][][]int{
		"hls-1":      {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}},
		"hls-2":      one,
		"hls-3":      one,
		"hl-288":     quads,
		"hl-338":     quads,
		"hls-3-rack": {one[0], {8, 9, 10, 11, 12, 13, 14, 15}},
	} {
		m, _ := Lookup(name)
		if got := m.Islands(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: islands %v, want %v", name, got, want)
		}
	}
}

// A ring of cards is one island though no card reaches all others directly.
func TestIslandsFollowsManyHops(t *testing.T) {
	m := mustLoad(t, `cards: [{card: 0, ports: 2:1 1:1}, {card: 1, ports: 3:1 0:1}, {card: 2, ports: 3:0 0:0}, {card: 3, ports: 2:0 1:0}]`)
	if got, want := m.Islands(), [][]int{{0, 1, 2, 3}}; !reflect.DeepEqual(got, want) {
		t.Errorf("islands %v, want %v", got, want)
	}
}

func TestMethodsOfNoCard(t *testing.T) {
	m := lookup(t, "hls-2")
	for _, card := range []int{-1, 8} {
		if got := m.ScaleOut(card); got != nil {
			t.Errorf("ScaleOut(%d) = %v", card, got)
		}
		if got := m.Mask(card, Internal); got != 0 {
			t.Errorf("Mask(%d) = %#x", card, got)
		}
	}
}

func TestTruncate(t *testing.T) {
	for _, name := range Names() {
		whole, _ := Lookup(name)
		for n := 1; n <= len(whole.Cards); n++ {
			m, err := whole.Truncate(n)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Check(); err != nil && !errors.Is(err, ErrPeersUnknown) {
				t.Errorf("%s cut to %d: %v", name, n, err)
			}
			if len(m.Cards) != n || m.Name != name || m.PortSpeedMbps != whole.PortSpeedMbps {
				t.Errorf("%s cut to %d: %d cards, name %q, %d Mbit/s", name, n, len(m.Cards), m.Name, m.PortSpeedMbps)
			}
			for c := range m.Cards {
				for p, was := range whole.Cards[c].Ports {
					want := was
					if was.PeerCard >= n {
						want = Port{Number: p, Class: NotConnected, PeerCard: -1, PeerPort: -1}
					}
					if got := m.Cards[c].Ports[p]; got != want {
						t.Errorf("%s cut to %d: card %d port %d is %+v, want %+v", name, n, c, p, got, want)
					}
				}
			}
		}
		if again, _ := Lookup(name); !reflect.DeepEqual(whole, again) {
			t.Errorf("%s: Truncate changed the map it was given", name)
		}
		if all, _ := whole.Truncate(len(whole.Cards)); !reflect.DeepEqual(whole, all) {
			t.Errorf("%s: cut to all its cards it differs", name)
		}
		for _, n := range []int{-1, 0, len(whole.Cards) + 1} {
			if m, err := whole.Truncate(n); m != nil || err == nil {
				t.Errorf("%s: Truncate(%d) = %v, %v", name, n, m, err)
			}
		}
	}
}
