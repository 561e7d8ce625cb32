package topology

// A Graph is the lanes between cards. It tells cards by their places, 0 to
// len(Modules)-1, so that cards of several servers fit into one graph.
type Graph struct {
	Modules []int   // module id of each card
	Lanes   [][]int // Lanes[a][b] is how many cables join a and b, both ways round; 0 where a is b
}

// NewGraph returns a graph of cards without lanes.
func NewGraph(modules []int) *Graph {
	g := &Graph{Modules: modules, Lanes: make([][]int, len(modules))}
	for i := range g.Lanes {
		g.Lanes[i] = make([]int, len(modules))
	}
	return g
}

// Join adds a lane between two cards, given by their places.
func (g *Graph) Join(a, b int) {
	g.Lanes[a][b]++
	g.Lanes[b][a]++
}

// Graph returns the lanes between the cards of m. The place of a card is its
// module id. Where peers are not known there are no lanes.
func (m *Map) Graph() *Graph {
	modules := make([]int, len(m.Cards))
	for i := range modules {
		modules[i] = i
	}
	g := NewGraph(modules)
	for a, c := range m.Cards {
		for _, p := range c.Ports {
			if p.PeerCard > a { // each cable once
				g.Join(a, p.PeerCard)
			}
		}
	}
	return g
}

// Islands returns the groups of cards that reach each other over lanes, as
// ascending places; the islands ascend by their first. A card without lanes is
// an island of its own.
func (g *Graph) Islands() [][]int {
	var islands [][]int
	seen := make([]bool, len(g.Modules))
	for first, hops := range g.Hops() {
		if seen[first] {
			continue
		}
		var island []int
		for b, n := range hops {
			if n >= 0 {
				seen[b] = true
				island = append(island, b)
			}
		}
		islands = append(islands, island)
	}
	return islands
}

// Hops returns how many lanes lie on the shortest way between each two cards,
// through other cards where there is no lane: 0 from a card to itself, -1 where
// there is no way.
func (g *Graph) Hops() [][]int {
	all := make([][]int, len(g.Modules))
	for from := range all {
		hops := make([]int, len(g.Modules))
		for i := range hops {
			hops[i] = -1
		}
		hops[from] = 0
		reached := []int{from}
		for next := 0; next < len(reached); next++ {
			at := reached[next]
			for b, lanes := range g.Lanes[at] {
				if lanes > 0 && hops[b] < 0 {
					hops[b] = hops[at] + 1
					reached = append(reached, b)
				}
			}
		}
		all[from] = hops
	}
	return all
}
