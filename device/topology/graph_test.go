package topology

import (
	"reflect"
	"testing"
)

// chain is cards 0 to n-1, each joined to the next by the given lanes.
func chain(lanes ...int) *Graph {
	modules := make([]int, len(lanes)+1)
	for i := range modules {
		modules[i] = i
	}
	g := NewGraph(modules)
	for a, n := range lanes {
		for range n {
			g.Join(a, a+1)
		}
	}
	return g
}

func TestGraphOfAMap(t *testing.T) {
	for _, name := range Names() {
		m, _ := Lookup(name)
		g := m.Graph()
		for a := range m.Cards {
			if g.Modules[a] != a {
				t.Errorf("%s: card %d has the module id %d", name, a, g.Modules[a])
			}
			for b := range m.Cards {
				if got, want := g.Lanes[a][b], len(m.Lanes(a, b)); got != want {
					t.Errorf("%s: %d lanes between %d and %d, want %d", name, got, a, b, want)
				}
			}
		}
	}
}

func TestHopsAndIslands(t *testing.T) {
	g := chain(2, 1, 0, 3)
	if got, want := g.Hops(), [][]int{{0, 1, 2, -1, -1}, {1, 0, 1, -1, -1}, {2, 1, 0, -1, -1}, {-1, -1, -1, 0, 1}, {-1, -1, -1, 1, 0}}; !reflect.DeepEqual(got, want) {
		t.Errorf("Hops() = %v, want %v", got, want)
	}
	if got, want := g.Islands(), [][]int{{0, 1, 2}, {3, 4}}; !reflect.DeepEqual(got, want) {
		t.Errorf("Islands() = %v, want %v", got, want)
	}
	g = NewGraph([]int{0, 1, 2, 3})
	g.Join(0, 2)
	g.Join(3, 1)
	if got, want := g.Islands(), [][]int{{0, 2}, {1, 3}}; !reflect.DeepEqual(got, want) {
		t.Errorf("Islands() = %v, want %v", got, want)
	}
	if got := NewGraph(nil).Islands(); len(got) != 0 {
		t.Errorf("no cards have the islands %v", got)
	}
}
