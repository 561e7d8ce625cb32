package transport

import (
	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// lengthOf sums a scatter/gather list.
func lengthOf(sgl []device.SGE) (n uint64) {
	for _, e := range sgl {
		n += uint64(e.Length)
	}
	return n
}

// gather gives n bytes from offset of a list: device memory itself where they
// are in one entry, else a copy in scratch. It returns the entry that is not
// readable, nil if all went well. The list holds offset+n bytes.
func (qp *QueuePair) gather(sgl []device.SGE, offset, n uint32) (payload []byte, bad *device.SGE) {
	if n == 0 {
		return nil, nil
	}
	for i := range sgl {
		e := &sgl[i]
		if offset >= e.Length {
			offset -= e.Length
			continue
		}
		part := min(n, e.Length-offset)
		b, ok := qp.cfg.Memory.Local(qp.cfg.PD, e.LKey, e.Address+uint64(offset), part, 0)
		switch {
		case !ok:
			return nil, e
		case part == n && payload == nil:
			return b, nil
		case payload == nil:
			if cap(qp.scratch) < qp.mtu {
				qp.scratch = make([]byte, 0, qp.mtu)
			}
			payload = qp.scratch[:0]
		}
		payload = append(payload, b...)
		if n -= part; n == 0 {
			break
		}
		offset = 0
	}
	return payload, nil
}

// scatter copies payload to offset of a list, which has room for it. It
// returns the entry that is not writable, nil if all went well.
func (qp *QueuePair) scatter(sgl []device.SGE, offset uint32, payload []byte) (bad *device.SGE) {
	for i := range sgl {
		if len(payload) == 0 {
			break
		}
		e := &sgl[i]
		if offset >= e.Length {
			offset -= e.Length
			continue
		}
		part := min(uint32(len(payload)), e.Length-offset)
		b, ok := qp.cfg.Memory.Local(qp.cfg.PD, e.LKey, e.Address+uint64(offset), part, ib.LocalWrite)
		if !ok {
			return e
		}
		copy(b, payload)
		payload = payload[part:]
		offset = 0
	}
	return nil
}
