package soft

import (
	"cmp"
	"slices"
)

// pageSize is the granularity of card memory, in bytes.
const pageSize = 4096

// extent is a run of bytes.
type extent struct{ offset, size uint64 }

func (e extent) end() uint64 { return e.offset + e.size }

// allocator hands out pieces of a range that begins at offset 0. It knows free
// extents alone: those who hold a piece remember it. Sizes are multiples of
// pageSize. Not for use by several goroutines.
type allocator struct {
	free  []extent // by offset; no two touch
	avail uint64   // bytes in free
}

func newAllocator(size uint64) *allocator {
	return &allocator{free: []extent{{0, size}}, avail: size}
}

// alloc takes size bytes at a multiple of align, a power of two, from the
// extent that leaves least over: large pieces stay large. ok is false when no
// extent fits.
func (a *allocator) alloc(size, align uint64) (offset uint64, ok bool) {
	best := -1
	for i, e := range a.free {
		if e.size < size || best >= 0 && e.size >= a.free[best].size {
			continue
		}
		if pad := -e.offset & (align - 1); pad <= e.size-size {
			best, offset = i, e.offset+pad
		}
	}
	if best < 0 {
		return 0, false
	}
	e := a.free[best]
	var rest []extent
	if offset > e.offset {
		rest = append(rest, extent{e.offset, offset - e.offset})
	}
	if end := offset + size; end < e.end() {
		rest = append(rest, extent{end, e.end() - end})
	}
	a.free = slices.Replace(a.free, best, best+1, rest...)
	a.avail -= size
	return offset, true
}

// allocLowest takes size bytes as low as there are.
func (a *allocator) allocLowest(size uint64) (offset uint64, ok bool) {
	for i := range a.free {
		if e := &a.free[i]; e.size >= size {
			offset = e.offset
			if e.offset, e.size = e.offset+size, e.size-size; e.size == 0 {
				a.free = slices.Delete(a.free, i, i+1)
			}
			a.avail -= size
			return offset, true
		}
	}
	return 0, false
}

// release gives back what alloc gave, and joins it with free neighbours.
func (a *allocator) release(offset, size uint64) {
	i, _ := slices.BinarySearchFunc(a.free, offset, func(e extent, o uint64) int { return cmp.Compare(e.offset, o) })
	a.free = slices.Insert(a.free, i, extent{offset, size})
	a.avail += size
	if i+1 < len(a.free) && a.free[i].end() == a.free[i+1].offset {
		a.free[i].size += a.free[i+1].size
		a.free = slices.Delete(a.free, i+1, i+2)
	}
	if i > 0 && a.free[i-1].end() == a.free[i].offset {
		a.free[i-1].size += a.free[i].size
		a.free = slices.Delete(a.free, i, i+1)
	}
}

// largest is the size of the largest free extent.
func (a *allocator) largest() uint64 {
	var n uint64
	for _, e := range a.free {
		n = max(n, e.size)
	}
	return n
}
