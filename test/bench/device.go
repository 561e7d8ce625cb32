package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/soft"
)

// Device is a software device in a child, with one buffer, a region over it
// and one queue pair on a port that leads out of the chassis. Work is posted and
// completions are read in the child.
type Device struct {
	chassis *soft.Chassis
	dev     device.Device
	qp      device.UID
	region  device.Region
}

// None is an argument or reply that says nothing.
type None int

// DeviceEnd is what the peer needs to know.
type DeviceEnd struct {
	GID     ib.GID
	QPN     ib.QPN
	Address uint64
	RKey    ib.RKey
}

// sendWR is the most work that the queue pair holds.
const sendWR = 1024

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
		UID: uid(), PD: pd.PD, Port: port.Number, Type: ib.RC, SendWR: sendWR,
		Steps: []device.Transition{device.ToInit{PKey: ib.DefaultPKey, Access: remoteAccess}},
	}})[0]
	if qp.Err != nil {
		return qp.Err
	}
	d.qp = qp.UID
	*end = DeviceEnd{GID: port.GIDs[gidIndex].GID, QPN: qp.QPN, Address: region.Address, RKey: region.RKey}
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

// Link is what a queue pair is connected with.
type Link struct {
	Peer DeviceEnd
	MTU  ib.MTU
}

// timeoutCode is the local ACK timeout, in the specification's code: 67 ms.
const timeoutCode = 14

// Connect takes the queue pair to RTS towards a peer.
func (d *Device) Connect(l Link, _ *None) error {
	return d.dev.ModifyQueuePairs(context.Background(), []device.QueuePairChange{{UID: d.qp, Steps: []device.Transition{
		device.ToRTR{
			Remote:   device.Remote{GID: l.Peer.GID, QPN: l.Peer.QPN, PSN: firstPSN},
			GIDIndex: gidIndex, PathMTU: l.MTU, MaxDestRDAtomic: 8, MinRNRTimer: 12,
		},
		device.ToRTS{PSN: firstPSN, Timeout: timeoutCode, RetryCount: 7, RNRRetry: 7, MaxRDAtomic: 8},
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

// Move is a transfer of the whole buffer to or from the peer's, by WRITE or
// READ.
type Move struct {
	Peer   DeviceEnd
	Opcode device.WorkOpcode
	Pieces int // equal messages that it is made of, at most sendWR
}

// Moved is how long a Move took from the post to the last completion, and the
// longest that nothing completed meanwhile.
type Moved struct{ Took, Longest time.Duration }

// Move moves the buffer.
func (d *Device) Move(m Move, moved *Moved) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	size := d.region.Length / uint64(m.Pieces)
	work := make([]device.WorkRequest, m.Pieces)
	for i := range work {
		work[i] = d.request(m.Opcode, uint64(i)*size, size, m.Peer)
	}
	start := time.Now()
	if err := d.dev.Post(ctx, d.qp, work); err != nil {
		return err
	}
	last := start
	for left := m.Pieces; left > 0; {
		n, err := d.completions(ctx, left)
		if err != nil {
			return err
		}
		now := time.Now()
		moved.Longest = max(moved.Longest, now.Sub(last))
		last = now
		left -= n
	}
	moved.Took = last.Sub(start)
	return nil
}

// request is work on part of the buffer, and the same part of the peer's.
func (d *Device) request(op device.WorkOpcode, offset, size uint64, peer DeviceEnd) device.WorkRequest {
	return device.WorkRequest{
		Opcode:     op,
		SGL:        []device.SGE{{Address: d.region.Address + offset, Length: uint32(size), LKey: d.region.LKey}},
		RemoteAddr: peer.Address + offset, RKey: peer.RKey, Signaled: true,
	}
}

// completions waits for completions, and counts them.
func (d *Device) completions(ctx context.Context, most int) (int, error) {
	done, err := d.dev.Completions(ctx, d.qp, most)
	if err != nil {
		return 0, err
	}
	for _, c := range done {
		if c.Status != ib.Success {
			return 0, fmt.Errorf("work ended with %v", c.Status)
		}
	}
	return len(done), nil
}

// DeviceEcho is an Echo by a queue pair. Messages to send are at the front of
// the buffer, those that are received behind them.
type DeviceEcho struct {
	Echo
	Peer DeviceEnd
}

// PingWrite writes to the peer's memory, and takes the time from the post to
// the completion.
func (d *Device) PingWrite(e DeviceEcho, trips *Trips) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	work := []device.WorkRequest{d.request(device.WorkWrite, 0, uint64(e.Size), e.Peer)}
	return e.measure(trips, func() error {
		if err := d.dev.Post(ctx, d.qp, work); err != nil {
			return err
		}
		_, err := d.completions(ctx, 1)
		return err
	})
}

// echoWork is a receive and a SEND, which says nothing when it is done.
func (d *Device) echoWork(e DeviceEcho) (receive, send device.WorkRequest) {
	receive = d.request(device.WorkRecv, uint64(e.Size), uint64(e.Size), e.Peer)
	send = d.request(device.WorkSend, 0, uint64(e.Size), e.Peer)
	send.Signaled = false
	return receive, send
}

// Ready posts the first receive of Pong.
func (d *Device) Ready(e DeviceEcho, _ *None) error {
	receive, _ := d.echoWork(e)
	return d.dev.Post(context.Background(), d.qp, []device.WorkRequest{receive})
}

// Pong answers every message by one of its own.
func (d *Device) Pong(e DeviceEcho, _ *None) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	receive, send := d.echoWork(e)
	for left := e.Count; left > 0; left-- {
		if _, err := d.completions(ctx, 1); err != nil {
			return err
		}
		work := []device.WorkRequest{send, receive}
		if left == 1 {
			work = work[:1]
		}
		if err := d.dev.Post(ctx, d.qp, work); err != nil {
			return err
		}
	}
	return nil
}

// Ping sends messages that are answered, and gives the round trips.
func (d *Device) Ping(e DeviceEcho, trips *Trips) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	receive, send := d.echoWork(e)
	work := []device.WorkRequest{receive, send}
	return e.measure(trips, func() error {
		if err := d.dev.Post(ctx, d.qp, work); err != nil {
			return err
		}
		_, err := d.completions(ctx, 1)
		return err
	})
}

// Retransmits gives the packets that were sent again.
func (d *Device) Retransmits(_ None, n *uint64) error {
	p, err := d.scaleOut(context.Background())
	*n = p.Counters.Retransmits
	return err
}

func (d *Device) close() error {
	if d.chassis != nil {
		return d.chassis.Close()
	}
	return nil
}

func uid() (u device.UID) {
	rand.Read(u[:])
	return u
}
