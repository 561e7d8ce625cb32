package soft

import (
	"errors"
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

// The entries of a GID table.
const (
	gidLinkLocal = 0
	gidIPv4      = 1
)

// port is one network port of a card.
type port struct {
	card   *card
	wiring topology.Port
	number int
	speed  uint32

	// Set by plug, then fixed.
	socket *socket // nil at a port that leads nowhere
	addr   netip.Addr
	peer   netip.Addr // internal: the other end of the cable
	own    *network   // of the chassis
	mtu    ib.MTU
	gids   []device.GIDEntry

	counters

	up atomic.Bool // read for every packet

	mu        sync.Mutex
	changedAt time.Time // of up
}

func leadsSomewhere(p topology.Port) bool {
	return p.Class == topology.ScaleOut || p.Class == topology.Internal && p.PeerCard >= 0
}

func newPort(c *card, wiring topology.Port, speed uint32) *port {
	return &port{card: c, wiring: wiring, number: wiring.Number, speed: speed}
}

// plug gives the port its address and, if it leads somewhere, its socket.
func (p *port) plug(n *network, interfaceMTU int, s *socket) {
	p.changedAt = time.Now()
	if s == nil {
		return
	}
	p.socket = s
	p.up.Store(true)
	p.addr = n.address(p.card.info.ModuleID, p.number)
	p.own = n
	p.mtu = min(ib.LargestMTU(interfaceMTU-headerRoom), p.card.info.Limits.MaxMTU)
	if p.wiring.Class == topology.Internal {
		p.peer = n.address(p.wiring.PeerCard, p.wiring.PeerPort)
	}
	p.gids = []device.GIDEntry{
		{Index: gidLinkLocal, GID: linkLocal(p.addr), Type: ib.RoCEv2},
		{Index: gidIPv4, GID: ib.GIDFromAddr(p.addr), Type: ib.RoCEv2},
	}
}

// linkLocal makes a link-local GID as Linux does from a MAC address (the
// modified EUI-64), here of the locally administered 02:00 and the IPv4 address.
func linkLocal(addr netip.Addr) ib.GID {
	a := addr.As4()
	return ib.GID{0: 0xfe, 1: 0x80, 10: a[0], 11: 0xff, 12: 0xfe, 13: a[1], 14: a[2], 15: a[3]}
}

// nowhere says why the port has no socket.
func (p *port) nowhere() string {
	if p.wiring.Class == topology.Internal {
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
		GIDs:       append([]device.GIDEntry(nil), p.gids...),
		PeerModule: p.wiring.PeerCard, PeerPort: p.wiring.PeerPort,
		Counters: p.counters.read(), ChangedAt: p.changedAt,
	}
	switch p.wiring.Class {
	case topology.Internal:
		r.Class = device.PortInternal
	case topology.ScaleOut:
		r.Class = device.PortScaleOut
	}
	if up {
		r.State = device.PortActive
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

// receive takes in packets until the socket is closed.
func (p *port) receive() {
	in := ingress{port: p}
	b := make([]byte, maxDatagrams)
	for {
		n, a, err := p.socket.read(b)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // an ICMP error of the past: packets are what counts
			continue
		}
		in.take(b[:n], a)
	}
}

// window is how many packets a queue pair of this port may have outstanding, in
// either direction: a few queue pairs with full windows fit into half of the
// receive buffer.
func (p *port) window() int {
	const (
		sharers = 4
		cost    = 8192 // what the kernel reckons for a packet of 4096 bytes
	)
	return max(8, min(128, p.socket.recvRoom/2/sharers/cost))
}
