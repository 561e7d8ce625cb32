package main

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"time"
)

// Plain sends and receives plain UDP datagrams in a child: the yardstick of
// what a software device does.
type Plain struct {
	single *udpSocket // one datagram a call
	many   *udpSocket // many a call
}

// PlainEnd is what the peer needs to know.
type PlainEnd struct{ Single, Many netip.AddrPort }

// Open opens the sockets.
func (p *Plain) Open(_ None, end *PlainEnd) error {
	loopback := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)
	var err error
	if p.single, err = listenUDP(loopback, false); err != nil {
		return err
	}
	if p.many, err = listenUDP(loopback, true); err != nil {
		return err
	}
	*end = PlainEnd{p.single.addr(), p.many.addr()}
	return nil
}

// Datagrams is some plain UDP datagrams of one size, which ends with four
// bytes of CRC-32 where many go in one call.
type Datagrams struct {
	To    PlainEnd
	Count int
	Size  int
	Many  bool // one call sends and receives many, with CRC-32 at both ends
}

// Send sends datagrams.
func (p *Plain) Send(s Datagrams, _ *None) error {
	if s.Many {
		return p.sendMany(s)
	}
	b := make([]byte, s.Size)
	for range s.Count {
		if _, err := p.single.WriteToUDPAddrPort(b, s.To.Single); err != nil {
			return err
		}
	}
	return nil
}

// sendMany gives each datagram a number, so that no CRC is as the one before.
func (p *Plain) sendMany(s Datagrams) error {
	b := make([]byte, maxDatagrams/s.Size*s.Size)
	for sent := 0; sent < s.Count; {
		n := min(len(b)/s.Size, s.Count-sent)
		for i := range n {
			d := b[i*s.Size:][:s.Size]
			body := d[:len(d)-crc32.Size]
			binary.NativeEndian.PutUint64(body, uint64(sent+i))
			binary.LittleEndian.PutUint32(d[len(body):], crc32.ChecksumIEEE(body))
		}
		if err := p.many.writeMany(b[:n*s.Size], s.Size, s.To.Many); err != nil {
			return err
		}
		sent += n
	}
	return nil
}

// endMark is the size of the datagram that ends a stream.
const endMark = 1

// Mark marks the end of a stream. The mark may be lost as any datagram.
func (p *Plain) Mark(s Datagrams, _ *None) error {
	to := s.To.Single
	if s.Many {
		to = s.To.Many
	}
	_, err := p.single.WriteToUDPAddrPort(make([]byte, endMark), to)
	return err
}

// Arrived is what arrived of Datagrams, and in what time from the first to the
// last.
type Arrived struct {
	Count int
	Took  time.Duration
}

// Receive receives datagrams until the end is marked.
func (p *Plain) Receive(s Datagrams, a *Arrived) error {
	socket := p.single
	if s.Many {
		socket = p.many
	}
	if err := socket.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	b := make([]byte, maxDatagrams)
	var first, last time.Time
	for {
		n, segment, err := socket.readMany(b)
		if err != nil {
			return err
		}
		if n == endMark && a.Count == 0 {
			continue // of the stream before
		}
		if n == endMark {
			a.Took = last.Sub(first)
			return nil
		}
		count := 1
		if s.Many {
			count = intact(b[:n], segment)
		}
		last = time.Now()
		if a.Count == 0 {
			first = last
		}
		a.Count += count
	}
}

// intact counts the datagrams whose CRC is right.
func intact(b []byte, segment int) (n int) {
	for len(b) >= segment {
		body := b[:segment-crc32.Size]
		if crc32.ChecksumIEEE(body) == binary.LittleEndian.Uint32(b[len(body):]) {
			n++
		}
		b = b[segment:]
	}
	return n
}

// Echo is messages that go forth and back, one after the other.
type Echo struct {
	Count int
	Size  int // bytes
}

// warmUp is how many of an Echo's messages do not count.
func (e Echo) warmUp() int { return e.Count / 10 }

// PlainEcho is an Echo by plain UDP.
type PlainEcho struct {
	Echo
	To PlainEnd
}

// Pong answers every datagram with itself.
func (p *Plain) Pong(e PlainEcho, _ *None) error {
	if err := p.single.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	b := make([]byte, e.Size)
	for range e.Count {
		n, from, err := p.single.ReadFromUDPAddrPort(b)
		if err != nil {
			return err
		}
		if _, err := p.single.WriteToUDPAddrPort(b[:n], from); err != nil {
			return err
		}
	}
	return nil
}

// Ping sends datagrams that come back, and gives their round trips. On
// loopback none is lost while only one is on its way.
func (p *Plain) Ping(e PlainEcho, trips *Trips) error {
	if err := p.single.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	b := make([]byte, e.Size)
	return e.measure(trips, func() error {
		if _, err := p.single.WriteToUDPAddrPort(b, e.To.Single); err != nil {
			return err
		}
		_, _, err := p.single.ReadFromUDPAddrPort(b)
		return err
	})
}

func (p *Plain) close() error {
	for _, s := range []*udpSocket{p.single, p.many} {
		if s != nil {
			s.Close()
		}
	}
	return nil
}
