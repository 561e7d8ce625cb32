package soft

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"syscall"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// path is where the packets of a queue pair go.
type path struct {
	socket *socket
	to     netip.AddrPort
	oob    []byte // control messages of traffic class and hop limit
	header header
}

func newPath(from *socket, to netip.Addr, trafficClass, hopLimit uint8) path {
	return path{
		socket: from,
		to:     netip.AddrPortFrom(to, ib.UDPPort),
		oob:    appendPath(nil, to.Is6(), trafficClass, hopLimit),
		header: newHeader(netip.AddrPortFrom(from.addr, ib.UDPPort), netip.AddrPortFrom(to, ib.UDPPort)),
	}
}

// maxPaths is how many paths a router keeps.
const maxPaths = 64

// router finds the paths of datagrams, and keeps them, as datagrams mostly go
// where others went before.
type router struct {
	port         *port
	gidIndex     int // -1: the first entry of the destination's family
	trafficClass uint8
	hopLimit     uint8

	paths map[ib.GID]*path // at most maxPaths
}

// path gives the path to a GID, or says why there is none.
func (r *router) path(to ib.GID) (*path, error) {
	if p := r.paths[to]; p != nil {
		return p, nil
	}
	if to.IsZero() {
		return nil, invalid("destination.gid", "is missing")
	}
	e, err := r.port.source(r.gidIndex, to)
	if err == nil {
		err = r.port.checkCable(to.Addr())
	}
	if err != nil {
		return nil, err
	}
	if r.paths == nil || len(r.paths) == maxPaths {
		r.paths = make(map[ib.GID]*path)
	}
	p := newPath(e.socket, to.Addr(), r.trafficClass, r.hopLimit)
	r.paths[to] = &p
	return &p, nil
}

// batch gathers packets of one queue pair and sends them in few calls. It
// implements transport.Sink. Headers and payload are copied once, to here.
type batch struct {
	port   *port
	path   *path   // of connected queue pairs
	router *router // of UD ones
	b      []byte
	runs   []run
	oob    []byte
}

// run is packets that leave in one call: all of one size but the last, which
// may be shorter. Packet i of it gets the IP identification i.
type run struct {
	path    *path
	end     int // in batch.b
	segment int // bytes of a packet
	count   int
	closed  bool // by a shorter packet
}

// batches are for use again: a queue pair that has nothing to send has none.
var batches = sync.Pool{New: func() any { return &batch{b: make([]byte, 0, maxDatagrams)} }}

// maxPacket is the most bytes that a packet has beside its payload: BTH, the
// largest two extension headers, pad and ICRC.
const maxPacket = ib.BTHLen + ib.AtomicETHLen + ib.AETHLen + 3 + ib.ICRCLen

// packetsOf is how many packets of a path MTU a batch holds.
func packetsOf(mtu ib.MTU) int { return min(maxDatagrams/(mtu.Bytes()+maxPacket), maxSegments) }

// Send implements transport.Sink.
func (t *batch) Send(p *ib.Packet, to *device.Datagram) {
	path := t.path
	if to != nil {
		var err error
		if path, err = t.router.path(to.GID); err != nil {
			return // an address that is not reached from here any more: lost
		}
	}
	start := len(t.b)
	t.b = p.Append(t.b)
	size := len(t.b) - start + ib.ICRCLen
	r := t.runOf(path, size)
	t.b = ib.AppendICRC(t.b, path.header.icrc(uint16(r.count), t.b[start:]))
	r.end = len(t.b)
	r.count++
	r.closed = size < r.segment
}

// runOf gives the run that a packet of size bytes goes to.
func (t *batch) runOf(path *path, size int) *run {
	if n := len(t.runs); n > 0 && path.socket.segments.Load() {
		if r := &t.runs[n-1]; r.path == path && !r.closed && size <= r.segment && r.count < maxSegments {
			return r
		}
	}
	t.runs = append(t.runs, run{path: path, segment: size})
	return &t.runs[len(t.runs)-1]
}

// flush sends what was gathered. What the network does not take is lost, as it
// may be anywhere on the way.
func (t *batch) flush() {
	start := 0
	for _, r := range t.runs {
		if t.port.up.Load() {
			t.send(t.b[start:r.end], r)
		}
		start = r.end
	}
	t.b, t.runs = t.b[:0], t.runs[:0]
}

// send sends a run in one call and reports whether the network took it.
func (t *batch) send(b []byte, r run) bool {
	oob := r.path.oob
	if r.count > 1 {
		t.oob = appendSegment(append(t.oob[:0], oob...), r.segment)
		oob = t.oob
	}
	err := r.path.socket.write(b, oob, r.path.to)
	if r.count > 1 && (errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EMSGSIZE)) {
		if t.sendSingly(b, r) { // it is not the packets: this interface does not cut calls into them
			r.path.socket.segments.Store(false)
		}
		return false
	}
	if err == nil {
		t.port.xmitPackets.Add(uint64(r.count))
		t.port.xmitBytes.Add(uint64(len(b)))
	}
	return err == nil
}

// sendSingly sends the packets of a run one a call, which gives each the IP
// identification 0. It reports whether the network took any.
func (t *batch) sendSingly(b []byte, r run) (some bool) {
	for len(b) > 0 {
		p := b[:min(r.segment, len(b))]
		b = b[len(p):]
		body, _, _ := ib.CutICRC(p)
		binary.LittleEndian.PutUint32(p[len(body):], r.path.header.icrc(0, body))
		if t.send(p, run{path: r.path, segment: len(p), count: 1}) {
			some = true
		}
	}
	return some
}
