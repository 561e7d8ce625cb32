package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/accelfab/accelfab/device/ib"
)

// Lossy is a wire between two software devices that loses packets: a process
// in the middle with two addresses, one that each device takes for the other.
// It takes many packets a call and passes them on as many, each with an
// invariant CRC for its new addresses.
type Lossy struct {
	sides   [2]*udpSocket
	running sync.WaitGroup
	perMill atomic.Int64 // packets lost of 1,000, in both directions
}

// Open puts the wire between two devices with these GIDs, and gives the GIDs
// that each is to take for the other: the first that for the second device.
func (l *Lossy) Open(ends [2]ib.GID, seen *[2]ib.GID) error {
	for i := range l.sides {
		s, err := listenAnywhere()
		if err != nil {
			return err
		}
		l.sides[i] = s
		seen[1-i] = ib.GIDFromAddr(s.addr().Addr()) // what device i sees
	}
	for i, s := range l.sides {
		to := l.sides[1-i]
		l.running.Go(func() { l.pass(s, to, netip.AddrPortFrom(ends[1-i].Addr(), ib.UDPPort), uint64(i)) })
	}
	return nil
}

// listenAnywhere finds an address of this machine whose RoCE v2 port is free.
func listenAnywhere() (s *udpSocket, err error) {
	for range 100 {
		addr := netip.AddrFrom4([4]byte{127, 32, byte(rand.N(256)), byte(1 + rand.N(254))})
		if s, err = listenUDP(netip.AddrPortFrom(addr, ib.UDPPort), true); err == nil {
			return s, nil
		}
	}
	return nil, err
}

// Lose sets how many of 1,000 packets are lost.
func (l *Lossy) Lose(perMill int64, _ *None) error {
	l.perMill.Store(perMill)
	return nil
}

// pass passes on what one side receives until that is closed.
func (l *Lossy) pass(from, out *udpSocket, to netip.AddrPort, seed uint64) {
	dice := rand.New(rand.NewPCG(seed, 0))
	pseudo := ib.PseudoIPv4{
		Src: out.addr().Addr().As4(), Dst: to.Addr().As4(),
		SrcPort: ib.UDPPort, DstPort: ib.UDPPort, DontFragment: true,
	}
	b := make([]byte, maxDatagrams)
	for {
		n, segment, err := from.readMany(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n == 0 {
			continue // of a device that is gone
		}
		kept := 0
		pseudo.ID = 0
		for start := 0; start < n; start += segment {
			p := b[start:min(start+segment, n)]
			if dice.Int64N(1000) < l.perMill.Load() {
				continue
			}
			if body, _, ok := ib.CutICRC(p); ok && len(body) >= ib.BTHLen {
				ib.AppendICRC(body, pseudo.ICRC(body))
			}
			kept += copy(b[kept:], p)
			pseudo.ID++
		}
		if kept > 0 {
			_ = out.writeMany(b[:kept], segment, to) // a packet more that is lost
		}
	}
}

func (l *Lossy) close() error {
	var errs []error
	for _, s := range l.sides {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	l.running.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("lossy wire: %w", err)
	}
	return nil
}
