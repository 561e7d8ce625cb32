package topology

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// MaxPick is the most cards that [Graph.Pick] chooses among: it tries all sets.
const MaxPick = 16

// A Choice is a set of cards for one job.
type Choice struct {
	Cards    []int  // places in the graph, by ascending module id
	Islands  []int  // that the cards are of: indexes of [Graph.Islands], ascending
	MinLanes int    // lanes of the pair of cards that has the fewest; 0 for one card
	Lanes    int    // lanes within the set
	Equal    int    // other sets that are as good
	Reason   string // why these, for people
}

// Pick chooses the best k of the free cards, which are given by their places,
// each once. The best set is on the fewest islands. Among those it has the most
// lanes between the two cards that have the fewest, since each card of a job
// talks to each other one; then the most lanes in all; then it leaves the fewest
// free cards over on the islands that it is of, so that whole islands stay whole
// for others; then the most lanes among the free cards that are left; then the
// lowest module ids.
//
// It is an error if k is not 1 to len(free), or there are more than MaxPick free
// cards.
func (g *Graph) Pick(free []int, k int) (Choice, error) {
	switch {
	case len(free) > MaxPick:
		return Choice{}, fmt.Errorf("topology: %d free cards: all sets are tried of at most %d", len(free), MaxPick)
	case k < 1 || k > len(free):
		return Choice{}, fmt.Errorf("topology: %d cards asked: 1 to %d are free", k, len(free))
	}
	free = slices.Clone(free)
	slices.SortFunc(free, func(a, b int) int {
		return cmp.Or(cmp.Compare(g.Modules[a], g.Modules[b]), cmp.Compare(a, b))
	})
	islands := g.Islands()
	masks := make([]uint32, len(islands)) // the free cards of each island
	for i, island := range islands {
		for at, card := range free {
			if slices.Contains(island, card) {
				masks[i] |= 1 << at
			}
		}
	}
	var best score
	var taken uint32
	c := Choice{}
	spared := false // a set lost by what it would have left
	for set := uint32(1)<<k - 1; set < 1<<len(free); set = nextOfSize(set) {
		s := g.score(free, masks, set)
		switch order := s.compare(best); {
		case taken == 0:
			best, taken = s, set
		case order < 0:
			spared = s.sameWithin(best)
			best, taken, c.Equal = s, set, 0
		case order > 0:
			spared = spared || s.sameWithin(best)
		default:
			c.Equal++
			if bits.Reverse32(set) > bits.Reverse32(taken) { // the first that differ: the lower is in set
				taken = set
			}
		}
	}
	for at, card := range free {
		if taken&(1<<at) != 0 {
			c.Cards = append(c.Cards, card)
		}
	}
	for i, mask := range masks {
		if taken&mask != 0 {
			c.Islands = append(c.Islands, i)
		}
	}
	c.MinLanes, c.Lanes = best.minLanes, best.lanes
	c.Reason = g.reason(&c, best, spared)
	return c, nil
}

// nextOfSize gives the next higher number with as many bits set.
func nextOfSize(set uint32) uint32 {
	low := set & -set
	high := set + low
	return high | (set^high)/low>>2
}

// score is how good a set is. Fields are in their order of weight.
type score struct {
	islands  int // fewer are better
	minLanes int // more are better
	lanes    int // more are better
	left     int // free cards left over on the islands of the set: fewer are better
	others   int // lanes among the free cards that are left: more are better
}

func (s score) compare(t score) int {
	return cmp.Or(cmp.Compare(s.islands, t.islands), cmp.Compare(t.minLanes, s.minLanes), cmp.Compare(t.lanes, s.lanes),
		cmp.Compare(s.left, t.left), cmp.Compare(t.others, s.others))
}

// sameWithin says whether two sets differ in what they leave at most.
func (s score) sameWithin(t score) bool {
	return s.islands == t.islands && s.minLanes == t.minLanes && s.lanes == t.lanes
}

func (g *Graph) score(free []int, islands []uint32, set uint32) score {
	var s score
	for _, mask := range islands {
		if set&mask != 0 {
			s.islands++
			s.left += bits.OnesCount32(mask &^ set)
		}
	}
	first := true
	for i, a := range free {
		for j, b := range free[:i] {
			switch lanes := g.Lanes[a][b]; {
			case set>>i&1 != set>>j&1:
			case set>>i&1 == 0:
				s.others += lanes
			default:
				s.lanes += lanes
				if first || lanes < s.minLanes {
					s.minLanes, first = lanes, false
				}
			}
		}
	}
	return s
}

// reason tells why a set was chosen.
func (g *Graph) reason(c *Choice, s score, spared bool) string {
	var b strings.Builder
	b.WriteString(count(len(c.Cards), "card"))
	if len(c.Islands) == 1 {
		fmt.Fprintf(&b, " of island %d", c.Islands[0])
	} else {
		fmt.Fprintf(&b, " of %d islands", len(c.Islands))
	}
	if len(c.Cards) > 1 {
		hops, most, apart, pairs, far := g.Hops(), 0, 0, 0, 0
		for i, x := range c.Cards {
			for _, y := range c.Cards[:i] {
				pairs++
				most = max(most, g.Lanes[x][y])
				far = max(far, hops[x][y])
				if g.Lanes[x][y] == 0 {
					apart++
				}
			}
		}
		switch {
		case most == 0:
			b.WriteString(", no two have a lane between them")
		case apart > 0:
			fmt.Fprintf(&b, ", %d of %s without a lane between them", apart, count(pairs, "pair"))
			if len(c.Islands) == 1 {
				fmt.Fprintf(&b, " and up to %s apart", count(far, "hop"))
			}
		case most == c.MinLanes:
			fmt.Fprintf(&b, ", every pair %s", count(most, "lane"))
		default:
			fmt.Fprintf(&b, ", each pair %d to %s", c.MinLanes, count(most, "lane"))
		}
		fmt.Fprintf(&b, ", %s in all", count(c.Lanes, "lane"))
	}
	if spared {
		fmt.Fprintf(&b, "; of the sets as good it leaves the rest least broken up (%s on the same %s)", count(s.left, "free card"), plural(len(c.Islands), "island"))
	}
	switch c.Equal {
	case 0:
	case 1:
		b.WriteString("; 1 other set is equal, the lowest module ids were taken")
	default:
		fmt.Fprintf(&b, "; %d other sets are equal, the lowest module ids were taken", c.Equal)
	}
	return b.String()
}

func count(n int, of string) string { return fmt.Sprintf("%d %s", n, plural(n, of)) }

func plural(n int, of string) string {
	if n == 1 {
		return of
	}
	return of + "s"
}
