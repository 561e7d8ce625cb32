package soft

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestAllocatorKeepsPiecesApart(t *testing.T) {
	const size = 1 << 24
	rng := rand.New(rand.NewPCG(1, 2))
	a := newAllocator(size)
	var held []extent
	refused := 0
	for range 20_000 {
		if len(held) == 0 || rng.IntN(100) < 52 {
			n := uint64(1+rng.IntN(64)) * pageSize
			align := uint64(pageSize) << rng.IntN(6)
			offset, ok := a.alloc(n, align)
			if !ok {
				refused++
				if a.largest() >= n+align {
					t.Fatalf("%d bytes aligned to %d refused although %d are free in one piece", n, align, a.largest())
				}
				continue
			}
			piece := extent{offset, n}
			if offset%align != 0 || piece.end() > size {
				t.Fatalf("got %+v for alignment %d", piece, align)
			}
			for _, h := range held {
				if piece.offset < h.end() && h.offset < piece.end() {
					t.Fatalf("%+v overlaps %+v", piece, h)
				}
			}
			held = append(held, piece)
		} else {
			i := rng.IntN(len(held))
			a.release(held[i].offset, held[i].size)
			held = slices.Delete(held, i, i+1)
		}
		var sum uint64
		for i, e := range a.free {
			sum += e.size
			if i > 0 && a.free[i-1].end() >= e.offset {
				t.Fatalf("free extents %+v and %+v touch", a.free[i-1], e)
			}
		}
		for _, h := range held {
			sum += h.size
		}
		if sum != size {
			t.Fatalf("free and held sum to %d, want %d", sum, size)
		}
	}
	if refused == 0 {
		t.Error("the memory never ran full: the test is too easy")
	}
	for _, h := range held {
		a.release(h.offset, h.size)
	}
	if len(a.free) != 1 || a.free[0] != (extent{0, size}) || a.avail != size {
		t.Errorf("all is free, but free = %+v, avail = %d", a.free, a.avail)
	}
}

func TestAllocatorTakesTheTightestPiece(t *testing.T) {
	a := newAllocator(16 * pageSize)
	var at [16]uint64
	for i := range at {
		at[i], _ = a.alloc(pageSize, pageSize)
	}
	for _, i := range []int{1, 2, 3, 6, 9, 10} { // pieces of 3, 1 and 2 pages
		a.release(at[i], pageSize)
	}
	if got, ok := a.alloc(pageSize, pageSize); !ok || got != at[6] {
		t.Errorf("one page came from %#x, want the lone one at %#x", got, at[6])
	}
	if got, ok := a.alloc(2*pageSize, pageSize); !ok || got != at[9] {
		t.Errorf("two pages came from %#x, want %#x", got, at[9])
	}
	if _, ok := a.alloc(4*pageSize, pageSize); ok {
		t.Error("four pages were found where three are the longest run")
	}
}
