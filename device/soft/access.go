package soft

import (
	"encoding/binary"
	"sync"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// keyedMemory is card memory as keys lead to it. It implements transport.Memory. Who
// calls Local or Remote holds regions.mu for reading until it is done with the
// bytes.
type keyedMemory struct {
	*regions
	atomics sync.Mutex // all atomic operations of the card
}

// Local implements transport.Memory.
func (m *keyedMemory) Local(pd device.PD, key ib.LKey, address uint64, length uint32, access ib.Access) ([]byte, bool) {
	return m.byLKey[key].reach(pd, address, length, access)
}

// Remote implements transport.Memory.
func (m *keyedMemory) Remote(pd device.PD, key ib.RKey, address uint64, length uint32, access ib.Access) ([]byte, bool) {
	return m.byRKey[key].reach(pd, address, length, access)
}

// reach gives the bytes of a range if the region, which may be nil, is not revoked,
// is of the domain, grants the access and holds the range.
func (r *region) reach(pd device.PD, address uint64, length uint32, access ib.Access) ([]byte, bool) {
	if r == nil || r.data == nil || r.PD != pd || r.Access&access != access || address < r.Address {
		return nil, false
	}
	offset, n := address-r.Address, uint64(length)
	if offset > r.Length || n > r.Length-offset {
		return nil, false
	}
	return r.data[offset : offset+n : offset+n], true
}

// FetchAdd implements transport.Memory.
func (m *keyedMemory) FetchAdd(word []byte, add uint64) (original uint64) {
	m.atomics.Lock()
	defer m.atomics.Unlock()
	original = binary.NativeEndian.Uint64(word)
	binary.NativeEndian.PutUint64(word, original+add)
	return original
}

// CompareSwap implements transport.Memory.
func (m *keyedMemory) CompareSwap(word []byte, compare, swap uint64) (original uint64) {
	m.atomics.Lock()
	defer m.atomics.Unlock()
	if original = binary.NativeEndian.Uint64(word); original == compare {
		binary.NativeEndian.PutUint64(word, swap)
	}
	return original
}
