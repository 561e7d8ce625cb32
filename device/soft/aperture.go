package soft

import (
	"fmt"

	"github.com/accelfab/accelfab/device"
)

// busBase is the bus address of the aperture in slot 0. Each slot has room for the
// largest memory.
const busBase = 1 << 46

// maxPieces is the most pieces that an importer takes in one attachment.
const maxPieces = 65536

// aperture is what of a card's memory is on the bus: the first size bytes of it,
// as a BAR that is smaller than the memory behind it.
type aperture struct{ size uint64 }

// busAddress gives the address on the bus of a place in the card's memory.
func (c *card) busAddress(place uint64) uint64 { return busBase + uint64(c.slot)*maxMemory + place }

// segments gives a window of an export as pieces of at most longest bytes (0: as
// long as they come), without what lies outside of the aperture. bus.mu is held.
func (e *export) segments(offset, length, longest uint64) (list []device.Segment) {
	address := e.Address + offset
	place := e.buffer.place(address)
	length = min(length, e.card.aperture.size-min(place, e.card.aperture.size))
	for length > 0 {
		n := length
		if longest > 0 {
			n = min(n, longest)
		}
		list = append(list, device.Segment{Address: address, Bus: e.card.busAddress(place), Length: n})
		address, place, length = address+n, place+n, length-n
	}
	return list
}

// onBus says why a window of an export cannot be reached over the bus by pieces
// of at most longest bytes, if so. bus.mu is held.
func (e *export) onBus(offset, length, longest uint64) *device.AttachError {
	place := e.buffer.place(e.Address + offset)
	if size := e.card.aperture.size; place > size || length > size-place {
		return &device.AttachError{Reason: device.NotInAperture, Problem: fmt.Sprintf(
			"%d bytes from %#x of %s are not all in the first %d bytes of its memory, which are all that the bus reaches: move the buffer, or make the aperture larger",
			length, e.Address+offset, e.card.info.ID, size)}
	}
	if n := (length-1)/longest + 1; n > maxPieces {
		return &device.AttachError{Reason: device.SegmentTooLong, Problem: fmt.Sprintf(
			"%d bytes in pieces of at most %d are %d pieces: at most %d", length, longest, n, maxPieces)}
	}
	return nil
}
