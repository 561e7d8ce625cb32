package topology

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
)

// bruteForce finds the best k of the free cards of a table of lanes by listing
// every set with its marks, sorting, and taking the first. It shares no code
// with Pick: sets grow card by card, islands come from the closure of the table.
func bruteForce(lanes [][]int, free []int, k int) (best []int, equal int) {
	n := len(lanes)
	reach := make([][]bool, n)
	for a := range reach {
		reach[a] = make([]bool, n)
		for b := range reach[a] {
			reach[a][b] = a == b || lanes[a][b] > 0
		}
	}
	for via := range n {
		for a := range n {
			for b := range n {
				reach[a][b] = reach[a][b] || reach[a][via] && reach[via][b]
			}
		}
	}
	free = slices.Clone(free)
	sort.Ints(free)
	type marked struct {
		set   []int
		marks []int // lower is better
	}
	var all []marked
	var grow func(set, rest []int)
	grow = func(set, rest []int) {
		if len(set) == k {
			var left []int
			for _, c := range free {
				if !slices.Contains(set, c) {
					left = append(left, c)
				}
			}
			first := map[int]bool{} // the lowest card of each island of the set
			for _, c := range set {
				first[slices.Index(reach[c], true)] = true
			}
			beside := 0
			for _, c := range left {
				if first[slices.Index(reach[c], true)] {
					beside++
				}
			}
			within, weakest := 0, 1<<30
			for _, a := range set {
				for _, b := range set {
					if a < b {
						within += lanes[a][b]
						weakest = min(weakest, lanes[a][b])
					}
				}
			}
			if k == 1 {
				weakest = 0
			}
			others := 0
			for _, a := range left {
				for _, b := range left {
					others += lanes[a][b] // twice, in every set
				}
			}
			all = append(all, marked{set, []int{len(first), -weakest, -within, beside, -others}})
			return
		}
		for i, c := range rest {
			grow(append(slices.Clone(set), c), rest[i+1:])
		}
	}
	grow(nil, free)
	sort.SliceStable(all, func(i, j int) bool { return slices.Compare(all[i].marks, all[j].marks) < 0 })
	for _, m := range all[1:] {
		if slices.Equal(m.marks, all[0].marks) {
			equal++
		}
	}
	return all[0].set, equal
}

func lanesOf(m *Map) [][]int {
	lanes := make([][]int, len(m.Cards))
	for a := range lanes {
		lanes[a] = make([]int, len(m.Cards))
		for p := range m.Cards[a].Ports {
			if b, _, _, ok := m.Peer(a, p); ok {
				lanes[a][b]++
			}
		}
	}
	return lanes
}

func samePick(t *testing.T, what string, g *Graph, lanes [][]int, free []int, k int) {
	t.Helper()
	got, err := g.Pick(free, k)
	if err != nil {
		t.Fatalf("%s: Pick(%v, %d): %v", what, free, k, err)
	}
	if want, equal := bruteForce(lanes, free, k); !slices.Equal(got.Cards, want) || got.Equal != equal {
		t.Errorf("%s: Pick(%v, %d) = %v with %d equal, want %v with %d", what, free, k, got.Cards, got.Equal, want, equal)
	}
}

// Of every map, every number of cards: with all free, and with some held and
// lanes down, which makes the maps irregular.
func TestPickIsTheBestOfAllSets(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, name := range Names() {
		m, _ := Lookup(name)
		var all []int
		for c := range m.Cards {
			all = append(all, c)
		}
		for k := 1; k <= len(all); k++ {
			samePick(t, name, m.Graph(), lanesOf(m), all, k)
		}
		for try := range 40 {
			g, lanes := m.Graph(), lanesOf(m)
			for a := range all {
				for b := range a {
					if down := r.IntN(3) * r.IntN(4); down > 0 && r.IntN(2) == 0 {
						left := max(0, lanes[a][b]-down)
						lanes[a][b], lanes[b][a], g.Lanes[a][b], g.Lanes[b][a] = left, left, left, left
					}
				}
			}
			r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			free := all[:1+r.IntN(min(len(all), 9))]
			samePick(t, fmt.Sprintf("%s, try %d", name, try), g, lanes, free, 1+r.IntN(len(free)))
		}
	}
}

func TestPickSaysWhy(t *testing.T) {
	hl338, hls2 := lookup(t, "hl-338").Graph(), lookup(t, "hls-2").Graph()
	hls1, _ := Lookup("hls-1")
	several := NewGraph([]int{5, 0, 0}) // module ids decide, not places
	for _, test := range []struct {
		name string
		g    *Graph
		free []int
		k    int
		want string
	}{
		{"a quad", hl338, []int{0, 1, 2, 3, 4, 5, 6, 7}, 4, "[0 1 2 3] 4 cards of island 0, every pair 6 lanes, 36 lanes in all; 1 other set is equal, the lowest module ids were taken"},
		{"the quad that is whole", hl338, []int{0, 1, 3, 4, 5, 6, 7}, 4, "[4 5 6 7] 4 cards of island 1, every pair 6 lanes, 36 lanes in all"},
		{"the quad that is broken already", hl338, []int{0, 1, 2, 3, 6, 7}, 2, "[6 7] 2 cards of island 1, every pair 6 lanes, 6 lanes in all; of the sets as good it leaves the rest least broken up (0 free cards on the same island)"},
		{"more than a quad", hl338, []int{0, 1, 2, 3, 4, 5, 6, 7}, 5, "[0 1 2 3 4] 5 cards of 2 islands, 4 of 10 pairs without a lane between them, 36 lanes in all"},
		{"one", hl338, []int{0, 1, 6}, 1, "[6] 1 card of island 1; of the sets as good it leaves the rest least broken up (0 free cards on the same island)"},
		{"equal", hls2, []int{7, 3, 5}, 2, "[3 5] 2 cards of island 0, every pair 3 lanes, 3 lanes in all; 2 other sets are equal, the lowest module ids were taken"},
		{"the strongest", chain(1, 3, 2), []int{0, 1, 2, 3}, 2, "[1 2] 2 cards of island 0, every pair 3 lanes, 3 lanes in all"},
		{"the weakest pair before the sum", triangle(), []int{0, 1, 2, 3, 4, 5}, 3, "[3 4 5] 3 cards of island 1, every pair 1 lane, 3 lanes in all"},
		{"the end of a chain", chain(1, 1, 1), []int{0, 1, 2, 3}, 2, "[0 1] 2 cards of island 0, every pair 1 lane, 1 lane in all; of the sets as good it leaves the rest least broken up (2 free cards on the same island); 1 other set is equal"},
		{"through others", chain(1, 2), []int{0, 2}, 2, "[0 2] 2 cards of island 0, no two have a lane between them, 0 lanes in all"},
		{"far apart", chain(1, 2, 2), []int{0, 1, 3}, 3, "[0 1 3] 3 cards of island 0, 2 of 3 pairs without a lane between them and up to 3 hops apart, 1 lane in all"},
		{"unlike", unlike(), []int{0, 1, 2}, 3, "[0 1 2] 3 cards of island 0, each pair 1 to 3 lanes, 6 lanes in all"},
		{"peers unknown", hls1.Graph(), []int{0, 1, 2}, 2, "[0 1] 2 cards of 2 islands, no two have a lane between them, 0 lanes in all; 2 other"},
		{"module ids", several, []int{0, 1, 2}, 2, "[1 2] 2 cards of 2 islands"},
	} {
		c, err := test.g.Pick(test.free, test.k)
		if got := fmt.Sprint(c.Cards, " ", c.Reason); err != nil || !strings.HasPrefix(got, test.want) {
			t.Errorf("%s: %q, %v, want %q", test.name, got, err, test.want)
		}
	}
}

// triangle is a chain of three cards with ten lanes, and three cards with one
// lane between each two.
func triangle() *Graph {
	g := chain(5, 5, 0, 1, 1)
	g.Join(3, 5)
	return g
}

// unlike is three cards, each pair of other lanes.
func unlike() *Graph {
	g := chain(1, 3)
	g.Join(0, 2)
	g.Join(0, 2)
	return g
}

func TestPickRefuses(t *testing.T) {
	g := NewGraph(make([]int, MaxPick+1))
	all := make([]int, MaxPick+1)
	for i := range all {
		all[i] = i
	}
	for _, test := range []struct {
		free []int
		k    int
		want string
	}{
		{all, 1, "17 free cards: all sets are tried of at most 16"},
		{all[:3], 0, "0 cards asked: 1 to 3 are free"},
		{all[:3], 4, "4 cards asked: 1 to 3 are free"},
	} {
		if _, err := g.Pick(test.free, test.k); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("Pick(%d cards, %d): %v, want %q", len(test.free), test.k, err, test.want)
		}
	}
	if c, err := g.Pick(all[:MaxPick], MaxPick); err != nil || len(c.Cards) != MaxPick {
		t.Errorf("all: %+v, %v", c, err)
	}
}
