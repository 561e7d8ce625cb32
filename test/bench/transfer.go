package main

import (
	"context"
	"errors"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

const (
	writeName     = "RDMA WRITE of 64 MiB, packets of 4,096 B"
	readName      = "RDMA READ of 64 MiB, packets of 4,096 B"
	againName     = "RDMA WRITE, packets sent again"
	manyName      = "plain UDP, many datagrams a call, CRC-32 at both ends"
	manyLostName  = manyName + ": lost on the way"
	plainName     = "plain UDP, one datagram a call"
	plainLostName = plainName + ": lost on the way"
)

func gbits(bytes int, took time.Duration) float64 { return float64(bytes) * 8 / took.Seconds() / 1e9 }

// transfer measures RDMA WRITE and READ between two software devices in two
// processes, beside plain UDP datagrams of the same size between the same
// processes.
func transfer(ctx context.Context, b *bench) (err error) {
	size, repeat := 64<<20, 4
	if b.quick {
		size, repeat = 4<<20, 1
	}
	p, err := b.startPair(ctx, uint64(size))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	if err := p.connect(ib.MTU4096, p.ends); err != nil {
		return err
	}
	same, err := p.fill()
	if err != nil {
		return err
	}
	move := func(op device.WorkOpcode) (sum time.Duration, err error) {
		for range repeat {
			var moved Moved
			if err := p.sender().call("Device.Move", Move{Peer: p.ends[1], Opcode: op, Pieces: 1}, &moved); err != nil {
				return 0, err
			}
			sum += moved.Took
		}
		return sum, nil
	}
	// Once before it counts: memory of both ends becomes resident.
	if _, err := move(device.WorkWrite); err != nil {
		return err
	}
	if err := same(); err != nil {
		return err
	}
	write := func(context.Context) error {
		before, err := p.retransmits()
		if err != nil {
			return err
		}
		took, err := move(device.WorkWrite)
		if err != nil {
			return err
		}
		after, err := p.retransmits()
		b.add(writeName, "Gbit/s", gbits(repeat*size, took))
		b.add(againName, "", float64(after-before))
		return err
	}
	read := func(context.Context) error {
		took, err := move(device.WorkRead)
		b.add(readName, "Gbit/s", gbits(repeat*size, took))
		return err
	}
	plain := func(name, lost string, many bool) cell {
		return cell{name, func(context.Context) error {
			const payload = 4096
			d := Datagrams{To: p.plain[1], Count: size / payload, Size: payload + ib.BTHLen + ib.ICRCLen, Many: many}
			var sum Arrived
			for range repeat {
				a, err := p.stream(d)
				if err != nil {
					return err
				}
				sum.Count += a.Count
				sum.Took += a.Took
			}
			b.add(name, "Gbit/s", gbits(sum.Count*payload, sum.Took))
			b.add(lost, "%", 100*(1-float64(sum.Count)/float64(repeat*d.Count)))
			return nil
		}}
	}
	if err := b.interleave(ctx, []cell{
		{writeName, write}, plain(manyName, manyLostName, true), {readName, read}, plain(plainName, plainLostName, false),
	}); err != nil {
		return err
	}
	b.goalOf("RDMA WRITE over plain UDP, many datagrams a call, CRC-32 at both ends", "", b.over(writeName, manyName), 0.6, false)
	b.goalOf("RDMA WRITE over plain UDP, one datagram a call", "", b.over(writeName, plainName), 4, false)
	b.goalOf("RDMA READ over RDMA WRITE", "", b.over(readName, writeName), 0.8, false)
	return nil
}

// stream sends datagrams from the sender to the receiver and gives what arrived.
func (p *pair) stream(d Datagrams) (a Arrived, err error) {
	receive := p.receiver().calls.Go("Plain.Receive", d, &a, nil)
	if err := p.sender().call("Plain.Send", d, new(None)); err != nil {
		return a, err
	}
	for { // a mark may be lost
		select {
		case <-receive.Done:
			return a, receive.Error
		default:
			if err := p.sender().call("Plain.Mark", d, new(None)); err != nil {
				return a, err
			}
		}
	}
}
