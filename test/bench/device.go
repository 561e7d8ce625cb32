package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/soft"
)

// Device is a software device in a child, with one buffer, a region over it
// and one queue pair on a port that leads out of the chassis. It also sends and
// receives plain UDP.
type Device struct {
	chassis *soft.Chassis
	dev     device.Device
	qp      device.UID
	region  device.Region
	udp     *net.UDPConn
}

// None is an argument or reply that says nothing.
type None int

// DeviceEnd is what the peer needs to know.
type DeviceEnd struct {
	GID     ib.GID
	QPN     ib.QPN
	Address uint64
	RKey    ib.RKey
	UDP     netip.AddrPort
}

// firstPSN is that of both ends.
const firstPSN ib.PSN = 0x123456

const remoteAccess = ib.LocalWrite | ib.RemoteWrite | ib.RemoteRead

// Open makes the device with a buffer of size bytes.
func (d *Device) Open(size uint64, end *DeviceEnd) error {
	ctx := context.Background()
	cfg, err := soft.ParseSpec(fmt.Sprintf("soft:hls-2,cards=1,memory=%d", size))
	if err != nil {
		return err
	}
	if d.chassis, err = soft.Open(cfg); err != nil {
		return err
	}
	d.dev = d.chassis.Devices()[0]
	port, err := d.scaleOut(ctx)
	if err != nil {
		return err
	}
	pd := d.dev.CreateProtectionDomains(ctx, []device.UID{uid()})[0]
	if pd.Err != nil {
		return pd.Err
	}
	buffer, err := d.dev.Allocate(ctx, device.BufferSpec{UID: uid(), Size: size})
	if err != nil {
		return err
	}
	region := d.dev.RegisterRegions(ctx, []device.RegionSpec{{UID: uid(), PD: pd.PD, Address: buffer.Address, Length: size, Access: remoteAccess}})[0]
	if region.Err != nil {
		return region.Err
	}
	d.region = region.Region
	qp := d.dev.CreateQueuePairs(ctx, []device.QueuePairSpec{{
		UID: uid(), PD: pd.PD, Port: port.Number, Type: ib.RC,
		Steps: []device.Transition{device.ToInit{PKey: ib.DefaultPKey, Access: remoteAccess}},
	}})[0]
	if qp.Err != nil {
		return qp.Err
	}
	d.qp = qp.UID
	if d.udp, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}); err != nil {
		return err
	}
	if err := receiveBuffer(d.udp, 4<<20); err != nil {
		return err
	}
	*end = DeviceEnd{GID: port.GIDs[gidIndex].GID, QPN: qp.QPN, Address: region.Address, RKey: region.RKey,
		UDP: d.udp.LocalAddr().(*net.UDPAddr).AddrPort()}
	return nil
}

// gidIndex is the place of the RoCE v2 entry of a port's IPv4 address.
const gidIndex = 1

func (d *Device) scaleOut(ctx context.Context) (device.Port, error) {
	for n := range d.dev.Info().Ports {
		p, err := d.dev.Port(ctx, n)
		if err != nil {
			return p, err
		}
		if p.Class == device.PortScaleOut {
			return p, nil
		}
	}
	return device.Port{}, fmt.Errorf("%s has no port that leads out", d.dev.Info().ID)
}

// Connect takes the queue pair to RTS towards a peer.
func (d *Device) Connect(peer DeviceEnd, _ *None) error {
	return d.dev.ModifyQueuePairs(context.Background(), []device.QueuePairChange{{UID: d.qp, Steps: []device.Transition{
		device.ToRTR{
			Remote:   device.Remote{GID: peer.GID, QPN: peer.QPN, PSN: firstPSN},
			GIDIndex: gidIndex, PathMTU: ib.MTU4096, MaxDestRDAtomic: 8, MinRNRTimer: 12,
		},
		device.ToRTS{PSN: firstPSN, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxRDAtomic: 8},
	}}})[0].Err
}

// Fill fills the buffer with random bytes and gives their sum.
func (d *Device) Fill(_ None, sum *[sha256.Size]byte) error {
	p := make([]byte, d.region.Length)
	rand.Read(p)
	*sum = sha256.Sum256(p)
	return d.dev.WriteMemory(context.Background(), d.region.Address, p)
}

// Sum gives the sum of the buffer's bytes.
func (d *Device) Sum(_ None, sum *[sha256.Size]byte) error {
	p := make([]byte, d.region.Length)
	err := d.dev.ReadMemory(context.Background(), d.region.Address, p)
	*sum = sha256.Sum256(p)
	return err
}

// Write writes the whole buffer to the peer's by one RDMA WRITE and gives the
// time from the post to the completion.
func (d *Device) Write(peer DeviceEnd, took *time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	start := time.Now()
	err := d.dev.Post(ctx, d.qp, []device.WorkRequest{{
		Opcode:     device.WorkWrite,
		SGL:        []device.SGE{{Address: d.region.Address, Length: uint32(d.region.Length), LKey: d.region.LKey}},
		RemoteAddr: peer.Address, RKey: peer.RKey, Signaled: true,
	}})
	if err != nil {
		return err
	}
	done, err := d.dev.Completions(ctx, d.qp, 1)
	*took = time.Since(start)
	if err != nil {
		return err
	}
	if s := done[0].Status; s != ib.Success {
		return fmt.Errorf("RDMA WRITE ended with %v", s)
	}
	return nil
}

// Retransmits gives the packets that were sent again.
func (d *Device) Retransmits(_ None, n *uint64) error {
	p, err := d.scaleOut(context.Background())
	*n = p.Counters.Retransmits
	return err
}

// Datagrams is some plain UDP datagrams of one size.
type Datagrams struct {
	To    netip.AddrPort
	Count int
	Size  int
}

// Send sends datagrams, one a call, from a connected socket.
func (d *Device) Send(s Datagrams, _ *None) error {
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(s.To))
	if err != nil {
		return err
	}
	defer conn.Close()
	p := make([]byte, s.Size)
	for range s.Count {
		if _, err := conn.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// endMark is the size of the datagram that ends a stream.
const endMark = 1

// Mark marks the end of a stream. The mark may be lost as any datagram.
func (d *Device) Mark(to netip.AddrPort, _ *None) error {
	_, err := d.udp.WriteToUDPAddrPort(make([]byte, endMark), to)
	return err
}

// Arrived is what arrived of Datagrams, and in what time from the first to the
// last.
type Arrived struct {
	Count int
	Took  time.Duration
}

// Receive receives datagrams, one a call, until the end is marked.
func (d *Device) Receive(s Datagrams, a *Arrived) error {
	p := make([]byte, s.Size)
	var first, last time.Time
	if err := d.udp.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	for {
		n, err := d.udp.Read(p)
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
		last = time.Now()
		if a.Count++; a.Count == 1 {
			first = last
		}
	}
}

func (d *Device) close() error {
	if d.udp != nil {
		d.udp.Close()
	}
	if d.chassis != nil {
		return d.chassis.Close()
	}
	return nil
}

func uid() (u device.UID) {
	rand.Read(u[:])
	return u
}
