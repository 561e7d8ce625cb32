package soft

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/topology"
)

// headerRoom is what the interface's MTU must hold beside the payload, as
// Soft-RoCE reckons it (RXE_MAX_HDR_LENGTH).
const headerRoom = 80

// port is one network port of a card.
type port struct {
	card   *card
	wiring topology.Port
	number int
	speed  uint32

	// Set by plug, then fixed.
	gids   []gidEntry // in ascending order of Index; none at a port without an address
	mtu    ib.MTU
	peer   netip.Addr // internal: the other end of the cable
	own    *addresses // of the chassis
	reason string     // why it has no address, after "it is"

	counters

	up atomic.Bool // read for every packet

	mu        sync.Mutex
	changedAt time.Time // of up
}

func leadsSomewhere(p topology.Port) bool {
	return p.Class == topology.ScaleOut || p.Class == topology.Internal && p.PeerCard >= 0
}

func newPort(c *card, wiring topology.Port, speed uint32) *port {
	return &port{card: c, wiring: wiring, number: wiring.Number, speed: speed, changedAt: time.Now()}
}

// gidEntry is an entry of a port's GID table.
type gidEntry struct {
	device.GIDEntry
	socket *socket // which carries packets from and to it; nil for a made-up link-local GID
}

// plug opens a socket on each address of a place and makes the GID table of
// them, as Linux does: index 0 is for the link-local address. A place without an
// interface is on the loopback network, which has no link-local addresses: one
// is made up. The caller unplugs after an error.
func (p *port) plug(at place) error {
	add := func(index int, addr netip.Addr) error {
		s, err := openSocket(addr)
		if err != nil {
			return fmt.Errorf("card %d port %d: %w", p.card.info.ModuleID, p.number, err)
		}
		p.gids = append(p.gids, gidEntry{device.GIDEntry{Index: index, GID: ib.GIDFromAddr(addr), Type: ib.RoCEv2}, s})
		return nil
	}
	switch {
	case at.iface == "":
		p.gids = append(p.gids, gidEntry{device.GIDEntry{Index: 0, GID: linkLocal(at.addrs[0]), Type: ib.RoCEv2}, nil})
	case at.linkLocal.IsValid():
		if err := add(0, at.linkLocal.WithZone(at.iface)); err != nil {
			return err
		}
	}
	for i, addr := range at.addrs {
		if addr.IsLinkLocalUnicast() && addr.Is6() {
			addr = addr.WithZone(at.iface)
		}
		if err := add(i+1, addr); err != nil {
			return err
		}
	}
	p.mtu = min(ib.LargestMTU(at.mtu-headerRoom), p.card.info.Limits.MaxMTU)
	p.up.Store(true)
	return nil
}

// plugged reports whether the port has an address.
func (p *port) plugged() bool { return len(p.gids) > 0 }

// unplug closes the port's sockets.
func (p *port) unplug() error {
	var errs []error
	for _, s := range p.sockets() {
		errs = append(errs, s.close())
	}
	p.gids = nil
	p.up.Store(false)
	return errors.Join(errs...)
}

func (p *port) sockets() (list []*socket) {
	for i := range p.gids {
		if s := p.gids[i].socket; s != nil {
			list = append(list, s)
		}
	}
	return list
}

// entry gives the entry of the GID table at an index, or for -1 the first that
// carries packets to remote GIDs of a family; nil if there is none.
func (p *port) entry(index int, remote ib.GID) *gidEntry {
	for i := range p.gids {
		e := &p.gids[i]
		if e.Index == index || index < 0 && e.socket != nil && e.GID.Family() == remote.Family() {
			return e
		}
	}
	return nil
}

// preferred gives the entry of the GID table for those who have no preference:
// the first that is not link-local, as that reaches beyond its link.
func (p *port) preferred() *gidEntry {
	for i := range p.gids {
		if e := &p.gids[i]; !e.GID.IsLinkLocal() {
			return e
		}
	}
	return &p.gids[0]
}

// linkLocal makes a link-local GID as Linux does from a MAC address (the
// modified EUI-64), here of the locally administered 02:00 and the IPv4 address.
func linkLocal(addr netip.Addr) ib.GID {
	a := addr.As4()
	return ib.GID{0: 0xfe, 1: 0x80, 10: a[0], 11: 0xff, 12: 0xfe, 13: a[1], 14: a[2], 15: a[3]}
}

// nowhere says why the port has no address, after "it is".
func (p *port) nowhere() string {
	switch {
	case p.reason != "":
		return p.reason
	case p.wiring.Class == topology.Internal:
		return "internal and the port map does not say where its cable leads: give a map file"
	}
	return "not connected"
}

// set changes the administrative state and reports whether that was a change.
// A port that is down neither sends nor receives; what arrives meanwhile is
// lost.
func (p *port) set(up bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.up.Swap(up) == up {
		return false
	}
	p.changedAt = time.Now()
	return true
}

func (p *port) read() device.Port {
	p.mu.Lock()
	defer p.mu.Unlock()
	up := p.up.Load()
	r := device.Port{
		Number: p.number, AdminUp: up, State: device.PortDown,
		SpeedMbps: p.speed, ActiveMTU: p.mtu, MaxMTU: p.card.info.Limits.MaxMTU,
		PeerModule: p.wiring.PeerCard, PeerPort: p.wiring.PeerPort,
		Counters: p.counters.read(), ChangedAt: p.changedAt,
	}
	for i := range p.gids {
		r.GIDs = append(r.GIDs, p.gids[i].GIDEntry)
	}
	switch p.wiring.Class {
	case topology.Internal:
		r.Class = device.PortInternal
	case topology.ScaleOut:
		r.Class = device.PortScaleOut
	}
	switch {
	case !p.plugged():
		r.Reason = p.nowhere()
	case up:
		r.State = device.PortActive
	default:
		r.Reason = "disabled by its administrator"
	}
	if p.plugged() {
		// The kernel sets aside twice what it is asked for, and tells that.
		r.ReceiveBuffer, r.ReceiveBufferAsked = p.recvRoom()/2, socketBuffer
	}
	if r.Class != device.PortNotConnected {
		for _, other := range p.card.ports[:p.number+1] {
			if other.wiring.Class != topology.NotConnected {
				r.IBPort++
			}
		}
	}
	return r
}

// cabled reports whether a packet from an address may come out of this port.
func (p *port) cabled(from netip.Addr) bool {
	if p.wiring.Class == topology.Internal {
		return from == p.peer
	}
	return !p.own.owns(from)
}

// receive takes in packets of a socket until that is closed.
func (p *port) receive(s *socket) {
	in := ingress{port: p, socket: s}
	b := make([]byte, maxDatagrams)
	for {
		n, a, err := s.read(b)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // an ICMP error of the past: packets are what counts
			continue
		}
		in.take(b[:n], a)
	}
}

// recvRoom is the bytes of receive buffer that the kernel gave the socket of
// the port that has the least.
func (p *port) recvRoom() int {
	room := math.MaxInt
	for _, s := range p.sockets() {
		room = min(room, s.recvRoom)
	}
	return room
}

// window is how many packets of a path MTU a queue pair of this port may have
// outstanding, in either direction: a few queue pairs with full windows fit into
// half of the receive buffer. More than two megabytes gain nothing on a wire whose
// round trip is a few calls.
func (p *port) window(mtu ib.MTU) int {
	const (
		sharers = 4
		most    = 2 << 20
	)
	// What the kernel reckons for a packet that arrives alone.
	cost := 2*mtu.Bytes() + 512
	return max(8, min(most/mtu.Bytes(), p.recvRoom()/2/sharers/cost))
}
