package soft

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/accelfab/accelfab/device"
)

// maxAlignment is the largest alignment of a buffer, in bytes.
const maxAlignment = 1 << 30

// buffer is one allocation of card memory. Its device address stays as it is;
// its place in the memory changes when it is moved. Guarded by memory.mu; the
// place changes only while bus.mu and regions.mu are held too, so that either is
// enough to rely on it.
type buffer struct {
	device.Buffer
	offset  uint64       // its place: of the mapping
	room    uint64       // bytes taken: the size rounded up to a page
	pins    int          // regions on it
	exports []device.UID // that are not revoked
}

// place of an address of the buffer in the card's memory.
func (b *buffer) place(address uint64) uint64 { return b.offset + (address - b.Address) }

// memory is the memory of one card: a memory file and what is allocated of it.
// Free pages of the file are holes, so new memory reads as zeros. Addresses are
// given out apart from places, from a range that is larger, so that a buffer that
// was moved leaves room that can be used.
type memory struct {
	base uint64 // the lowest device address

	// mu is held for reading while the host copies, so that nothing is freed
	// under a copy. The wire does not take it: a region pins its buffer.
	mu        sync.RWMutex
	file      *os.File
	data      []byte     // nil after close
	space     *allocator // places
	addresses *allocator // less base
	byUID     map[device.UID]*buffer
	byAddress []*buffer // ascending
}

func openMemory(name string, base, size uint64) (*memory, error) {
	file, data, err := openMemfd(name, size)
	if err != nil {
		return nil, err
	}
	return &memory{
		base: base, file: file, data: data,
		space: newAllocator(size), addresses: newAllocator(addressRoom), byUID: make(map[device.UID]*buffer),
	}, nil
}

func (m *memory) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.data == nil {
		return nil
	}
	err := unmap(m.data)
	m.data = nil
	return cmp.Or(err, m.file.Close())
}

// find returns the buffer that holds all of a range. Its fields and place are
// valid while mu is held.
func (m *memory) find(address, length uint64) (*buffer, error) {
	i, found := slices.BinarySearchFunc(m.byAddress, address, func(b *buffer, a uint64) int { return cmp.Compare(b.Address, a) })
	if !found {
		i--
	}
	if i < 0 || address-m.byAddress[i].Address >= m.byAddress[i].Size {
		return nil, &device.FieldError{Field: "address", Problem: fmt.Sprintf("%#x is in no buffer", address)}
	}
	b := m.byAddress[i]
	if left := b.Size - (address - b.Address); length > left {
		return nil, &device.FieldError{Field: "length", Problem: fmt.Sprintf(
			"%d bytes from %#x leave the buffer at %#x, which has %d bytes from there on", length, address, b.Address, left)}
	}
	return b, nil
}

// bytes of a range of a buffer, at its present place.
func (m *memory) bytes(b *buffer, address, length uint64) []byte {
	at := b.place(address)
	return m.data[at : at+length : at+length]
}

// pin finds the buffer of a range and keeps it from being freed until unpin. use
// is called with the buffer and the bytes before either can be moved; after an
// error from it the buffer is not pinned.
func (m *memory) pin(address, length uint64, use func(*buffer, []byte) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.data == nil {
		return device.ErrClosed
	}
	b, err := m.find(address, length)
	if err != nil {
		return err
	}
	if err := use(b, m.bytes(b, address, length)); err != nil {
		return err
	}
	b.pins++
	return nil
}

// hold finds the buffer of an export and keeps it from being freed until letGo.
func (m *memory) hold(spec *device.ExportSpec) (*buffer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.data == nil {
		return nil, device.ErrClosed
	}
	b, err := m.find(spec.Address, spec.Length)
	if err == nil {
		b.exports = append(b.exports, spec.UID)
	}
	return b, err
}

// letGo ends what hold began.
func (m *memory) letGo(b *buffer, export device.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(b.exports, export); i >= 0 {
		b.exports = slices.Delete(b.exports, i, i+1)
	}
}

func (m *memory) unpin(b *buffer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b.pins--
}

// Allocate implements device.Memory.
func (c *card) Allocate(ctx context.Context, spec device.BufferSpec) (device.Buffer, error) {
	if err := ctx.Err(); err != nil {
		return device.Buffer{}, err
	}
	m := c.memory
	if spec.Alignment == 0 {
		spec.Alignment = pageSize
	}
	switch {
	case spec.Size == 0:
		return device.Buffer{}, &device.FieldError{Field: "size", Problem: "is 0: at least 1 byte"}
	case spec.Alignment&(spec.Alignment-1) != 0 || spec.Alignment > maxAlignment:
		return device.Buffer{}, &device.FieldError{Field: "alignment", Problem: fmt.Sprintf(
			"%d: a power of two, at most %d", spec.Alignment, uint64(maxAlignment))}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.data == nil {
		return device.Buffer{}, device.ErrClosed
	}
	if b := m.byUID[spec.UID]; b != nil {
		if b.Size != spec.Size || b.Address&(spec.Alignment-1) != 0 {
			return device.Buffer{}, fmt.Errorf("buffer of %d bytes at %#x: %w", b.Size, b.Address, device.ErrExists)
		}
		return b.Buffer, nil
	}
	full := &device.LimitError{Kind: "memory_bytes", Asked: spec.Size, Available: m.space.avail, Limit: uint64(len(m.data))}
	if spec.Size > uint64(len(m.data)) {
		return device.Buffer{}, full
	}
	room := (spec.Size + pageSize - 1) &^ (pageSize - 1)
	offset, ok := m.space.alloc(room, pageSize)
	if !ok {
		full.Detail = fmt.Sprintf("%d bytes free, the largest piece has %d", m.space.avail, m.space.largest())
		return device.Buffer{}, full
	}
	address, ok := m.addresses.alloc(room, max(spec.Alignment, pageSize))
	if !ok { // it takes a card that is larger than its addresses less all pieces
		m.space.release(offset, room)
		full.Kind, full.Limit, full.Available, full.Detail = "device_addresses", addressRoom, m.addresses.avail, ""
		return device.Buffer{}, full
	}
	b := &buffer{
		Buffer: device.Buffer{UID: spec.UID, Address: m.base + address, Size: spec.Size},
		offset: offset, room: room,
	}
	m.byUID[spec.UID] = b
	i, _ := slices.BinarySearchFunc(m.byAddress, b.Address, func(b *buffer, a uint64) int { return cmp.Compare(b.Address, a) })
	m.byAddress = slices.Insert(m.byAddress, i, b)
	return b.Buffer, nil
}

// Free implements device.Memory.
func (c *card) Free(ctx context.Context, uid device.UID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m := c.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.data == nil {
		return device.ErrClosed
	}
	b := m.byUID[uid]
	switch {
	case b == nil:
		return fmt.Errorf("buffer: %w", device.ErrNotFound)
	case b.pins > 0:
		return fmt.Errorf("buffer at %#x: %d memory regions are on it: %w", b.Address, b.pins, device.ErrBusy)
	case len(b.exports) > 0:
		return fmt.Errorf("buffer at %#x: it is exported %d times, as %s: %w", b.Address, len(b.exports), uidsText(b.exports), device.ErrBusy)
	}
	m.zero(b.offset, b.room)
	delete(m.byUID, uid)
	i := slices.Index(m.byAddress, b)
	m.byAddress = slices.Delete(m.byAddress, i, i+1)
	m.space.release(b.offset, b.room)
	m.addresses.release(b.Address-m.base, b.room)
	return nil
}

// uidsText lists identities for people, up to a few.
func uidsText(uids []device.UID) string {
	const most = 8
	var list []string
	for _, uid := range uids[:min(most, len(uids))] {
		list = append(list, fmt.Sprintf("%x", uid))
	}
	if more := len(uids) - most; more > 0 {
		list = append(list, fmt.Sprintf("%d more", more))
	}
	return strings.Join(list, ", ")
}

// ListBuffers implements device.Memory.
func (c *card) ListBuffers(ctx context.Context) ([]device.Buffer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m := c.memory
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.data == nil {
		return nil, device.ErrClosed
	}
	list := make([]device.Buffer, len(m.byAddress))
	for i, b := range m.byAddress {
		list[i] = b.Buffer
	}
	return list, nil
}

// ReadMemory implements device.Memory.
func (c *card) ReadMemory(ctx context.Context, address uint64, p []byte) error {
	return c.memory.host(ctx, address, uint64(len(p)), func(at []byte) { copy(p, at) })
}

// WriteMemory implements device.Memory.
func (c *card) WriteMemory(ctx context.Context, address uint64, p []byte) error {
	return c.memory.host(ctx, address, uint64(len(p)), func(at []byte) { copy(at, p) })
}

// host lets the host copy to or from a range inside one buffer.
func (m *memory) host(ctx context.Context, address, length uint64, copy func(at []byte)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.data == nil {
		return device.ErrClosed
	}
	b, err := m.find(address, length)
	if err != nil {
		return err
	}
	copy(m.bytes(b, address, length))
	return nil
}

// zero makes a range of the memory read as zeros and cost nothing.
func (m *memory) zero(offset, size uint64) {
	if err := punch(m.file, offset, size); err != nil {
		clear(m.data[offset : offset+size])
	}
}
