package boltstore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
)

// This file reads bbolt's pages without trusting them: bbolt itself maps the
// file and panics, or is killed by SIGBUS, where a page is not what it should
// be. The layout is bbolt's internal/common/page.go, meta.go and bucket.go,
// in the byte order of the machine.
const (
	boltMagic   = 0xED0CDAED
	boltVersion = 2

	pageHead    = 16 // id 8, flags 2, count 2, overflow 4
	branchEntry = 16 // position 4, key size 4, page 8
	leafEntry   = 16 // flags 4, position 4, key size 4, value size 4
	bucketHead  = 16 // root page 8, sequence 8
	metaSize    = 64 // with the checksum in its last 8 bytes

	branchFlag   = 0x01
	leafFlag     = 0x02
	metaFlag     = 0x04
	freelistFlag = 0x10
	bucketEntry  = 0x01
	noFreelist   = ^uint64(0)

	maxDepth = 40 // a sound tree of 8-byte keys has 4 or 5
)

var order = binary.NativeEndian

// meta is one of the two meta pages, which name the tree by turns.
type meta struct {
	slot     int
	pageSize int
	root     uint64 // page of the bucket of buckets
	freelist uint64 // page
	pages    uint64 // high water mark
	txid     uint64
}

// parseMeta reads a meta page; ok is false if its checksum is wrong.
func parseMeta(page []byte, slot int) (m meta, ok bool) {
	if len(page) < pageHead+metaSize || order.Uint16(page[8:])&metaFlag == 0 {
		return meta{}, false
	}
	b := page[pageHead : pageHead+metaSize]
	sum := fnv.New64a()
	sum.Write(b[:metaSize-8])
	if order.Uint32(b) != boltMagic || order.Uint32(b[4:]) != boltVersion || order.Uint64(b[metaSize-8:]) != sum.Sum64() {
		return meta{}, false
	}
	m = meta{
		slot:     slot,
		pageSize: int(order.Uint32(b[8:])),
		root:     order.Uint64(b[16:]),
		freelist: order.Uint64(b[32:]),
		pages:    order.Uint64(b[40:]),
		txid:     order.Uint64(b[48:]),
	}
	sane := m.pageSize >= 1024 && m.pageSize <= 1<<16 && m.pageSize&(m.pageSize-1) == 0
	return m, sane
}

// readMetas gives the readable meta pages, the newer first.
func readMetas(r io.ReaderAt) []meta {
	var metas []meta
	head := make([]byte, pageHead+metaSize)
	read := func(at int64, slot int) (meta, bool) {
		if n, _ := r.ReadAt(head, at); n < len(head) {
			return meta{}, false
		}
		return parseMeta(head, slot)
	}
	if m, ok := read(0, 0); ok {
		metas = append(metas, m)
	}
	// The second stands one page on; if the first is lost, the size of a page
	// is lost with it.
	for size := int64(1024); size <= 1<<16; size *= 2 {
		if m, ok := read(size, 1); ok && int64(m.pageSize) == size {
			metas = append(metas, m)
			break
		}
	}
	if len(metas) == 2 && metas[1].txid > metas[0].txid {
		metas[0], metas[1] = metas[1], metas[0]
	}
	return metas
}

// lost is a piece of a bucket that cannot be read: the keys from up to,
// excluding, to. nil is no bound.
type lost struct {
	bucket   string
	from, to []byte
	why      string
	freelist bool // not keys but the list of free pages
}

func (l lost) String() string {
	bound := func(k []byte, open string) string {
		if len(k) == 8 {
			return fmt.Sprint(binary.BigEndian.Uint64(k))
		}
		return open
	}
	if l.bucket == "" {
		return l.why
	}
	return fmt.Sprintf("%s from %s to below %s (%s)", l.bucket, bound(l.from, "the first"), bound(l.to, "the end"), l.why)
}

// walker goes through the tree of one meta page.
type walker struct {
	r      io.ReaderAt
	meta   meta
	seen   []uint64 // bit set of pages met
	bucket string
	lost   []lost
	// entry gets every key and value, and before those of a bucket its name
	// and sequence with a nil key. Its arguments are valid during the call.
	entry func(bucket string, sequence uint64, key, value []byte) error
	err   error // of entry; ends the walk
}

// walk reads all that can be reached from m. It gives what is lost, nothing for
// a sound tree, and the first error of entry.
func walk(r io.ReaderAt, m meta, entry func(bucket string, sequence uint64, key, value []byte) error) ([]lost, error) {
	w := &walker{r: r, meta: m, entry: entry}
	if m.pages > 1<<32 {
		return []lost{{why: fmt.Sprintf("meta page %d claims %d pages", m.slot, m.pages)}}, nil
	}
	w.seen = make([]uint64, m.pages/64+1)
	w.tree(m.root, nil, nil, 0)
	w.checkFreelist()
	return w.lost, w.err
}

func (w *walker) lose(from, to []byte, format string, args ...any) {
	w.lost = append(w.lost, lost{bucket: w.bucket, from: bytes.Clone(from), to: bytes.Clone(to), why: fmt.Sprintf(format, args...)})
}

// page reads a page with its overflow and marks it as met.
func (w *walker) page(id uint64) ([]byte, error) {
	if id < 2 || id >= w.meta.pages {
		return nil, fmt.Errorf("page %d is outside the file's %d", id, w.meta.pages)
	}
	size := int64(w.meta.pageSize)
	b := make([]byte, size)
	if _, err := w.r.ReadAt(b, int64(id)*size); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	if got := order.Uint64(b); got != id {
		return nil, fmt.Errorf("page %d says it is page %d", id, got)
	}
	more := uint64(order.Uint32(b[12:]))
	if id+more >= w.meta.pages {
		return nil, fmt.Errorf("page %d spans %d more pages than there are", id, more)
	}
	for p := id; p <= id+more; p++ {
		if w.met(p) {
			return nil, fmt.Errorf("page %d is used twice", p)
		}
		w.seen[p/64] |= 1 << (p % 64)
	}
	if more > 0 {
		whole := make([]byte, size*int64(more+1))
		if _, err := w.r.ReadAt(whole, int64(id)*size); err != nil {
			return nil, fmt.Errorf("page %d with %d more: %w", id, more, err)
		}
		b = whole
	}
	return b, nil
}

func (w *walker) met(id uint64) bool { return w.seen[id/64]&(1<<(id%64)) != 0 }

// tree goes through the page id and all below it, which may hold keys from
// from up to to.
func (w *walker) tree(id uint64, from, to []byte, depth int) {
	if depth > maxDepth {
		w.lose(from, to, "page %d is %d pages deep", id, depth)
		return
	}
	b, err := w.page(id)
	if err != nil {
		w.lose(from, to, "%v", err)
		return
	}
	w.content(b, id, from, to, depth)
}

// content goes through a page's entries; id is 0 for a page that stands inline
// in a bucket's entry.
func (w *walker) content(b []byte, id uint64, from, to []byte, depth int) {
	count := int(order.Uint16(b[10:]))
	switch flags := order.Uint16(b[8:]); {
	case pageHead+count*leafEntry > len(b):
		w.lose(from, to, "page %d claims %d entries", id, count)
	case flags == leafFlag:
		w.leaf(b, id, count, from, to, depth)
	case flags == branchFlag && id != 0 && count > 0:
		w.branch(b, id, count, from, to, depth)
	default:
		w.lose(from, to, "page %d has flags %#x and %d entries", id, flags, count)
	}
}

// slice gives size bytes at pos behind the entry at, if they are in the page.
func slice(b []byte, at int, pos, size int64) ([]byte, bool) {
	start := int64(at) + pos
	end := start + size
	if start < pageHead || end > int64(len(b)) {
		return nil, false
	}
	return b[start:end], true
}

func (w *walker) branch(b []byte, id uint64, count int, from, to []byte, depth int) {
	keys := make([][]byte, count)
	for i := range keys {
		at := pageHead + i*branchEntry
		k, ok := slice(b, at, int64(order.Uint32(b[at:])), int64(order.Uint32(b[at+4:])))
		if !ok || !ordered(keys[:i], k, from, to) {
			w.lose(from, to, "page %d: entry %d of %d is out of bounds or order", id, i, count)
			return
		}
		keys[i] = k
	}
	for i := range keys {
		if w.err != nil {
			return
		}
		next := to
		if i+1 < count {
			next = keys[i+1]
		}
		w.tree(order.Uint64(b[pageHead+i*branchEntry+8:]), keys[i], next, depth+1)
	}
}

// ordered tells whether k follows the keys before it and is inside the bounds.
func ordered(before [][]byte, k, from, to []byte) bool {
	if len(before) > 0 && bytes.Compare(before[len(before)-1], k) >= 0 {
		return false
	}
	return bytes.Compare(from, k) <= 0 && (to == nil || bytes.Compare(k, to) < 0)
}

func (w *walker) leaf(b []byte, id uint64, count int, from, to []byte, depth int) {
	// A page is taken whole or not at all: one bad entry puts in doubt what the
	// others say.
	keys, values := make([][]byte, count), make([][]byte, count)
	for i := range keys {
		at := pageHead + i*leafEntry
		pos, size := int64(order.Uint32(b[at+4:])), int64(order.Uint32(b[at+8:]))
		k, ok := slice(b, at, pos, size)
		if !ok || !ordered(keys[:i], k, from, to) {
			w.lose(from, to, "page %d: entry %d of %d is out of bounds or order", id, i, count)
			return
		}
		v, ok := slice(b, at, pos+size, int64(order.Uint32(b[at+12:])))
		if !ok {
			w.lose(from, to, "page %d: the value of entry %d of %d is out of bounds", id, i, count)
			return
		}
		keys[i], values[i] = k, v
	}
	for i, k := range keys {
		if w.err != nil {
			return
		}
		if order.Uint32(b[pageHead+i*leafEntry:])&bucketEntry == 0 {
			w.err = w.entry(w.bucket, 0, k, values[i])
			continue
		}
		w.inBucket(string(k), values[i], depth)
	}
}

// inBucket goes through a bucket, which stands in its entry if it is small.
func (w *walker) inBucket(name string, value []byte, depth int) {
	outer := w.bucket
	defer func() { w.bucket = outer }()
	w.bucket = name
	if outer != "" || len(value) < bucketHead {
		w.lose(nil, nil, "bucket %q in %q with a head of %d bytes", name, outer, len(value))
		return
	}
	root, sequence := order.Uint64(value), order.Uint64(value[8:])
	if w.err = w.entry(name, sequence, nil, nil); w.err != nil {
		return
	}
	switch {
	case root != 0:
		w.tree(root, nil, nil, depth+1)
	case len(value) < bucketHead+pageHead:
		w.lose(nil, nil, "inline page of %d bytes", len(value)-bucketHead)
	default:
		w.content(value[bucketHead:], 0, nil, nil, depth+1)
	}
}

// checkFreelist finds a list of free pages that names a page in use: bbolt
// would write over it.
func (w *walker) checkFreelist() {
	lose := func(format string, args ...any) {
		w.lost = append(w.lost, lost{freelist: true, why: "list of free pages: " + fmt.Sprintf(format, args...)})
	}
	if w.meta.freelist == noFreelist {
		return
	}
	b, err := w.page(w.meta.freelist)
	if err != nil {
		lose("%v", err)
		return
	}
	ids, count := b[pageHead:], uint64(order.Uint16(b[10:]))
	if count == 0xffff && len(ids) >= 8 { // the number itself comes first
		ids, count = ids[8:], order.Uint64(ids)
	}
	if order.Uint16(b[8:]) != freelistFlag || count > uint64(len(ids)/8) {
		lose("page %d is not one", w.meta.freelist)
		return
	}
	for i := range count {
		id := order.Uint64(ids[i*8:])
		if id < 2 || id >= w.meta.pages || w.met(id) {
			lose("it names page %d, which is in use or outside the file", id)
			return
		}
		w.seen[id/64] |= 1 << (id % 64)
	}
}
