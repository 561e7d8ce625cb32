package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"

	"github.com/accelfab/accelfab/device/ib"
)

const (
	writeName = "RDMA WRITE of 64 MiB, packets of 4,096 B"
	plainName = "plain UDP, one datagram a call"
	lostName  = "plain UDP, datagrams lost on the way"
	againName = "RDMA WRITE, packets sent again"
)

// transfer measures RDMA WRITE between two software devices in two processes,
// beside plain UDP datagrams of the same size between the same processes.
func transfer(ctx context.Context, b *bench) (err error) {
	size, repeat := uint64(64<<20), 4
	if b.quick {
		size, repeat = 4<<20, 1
	}
	var ends [2]DeviceEnd
	var pair [2]*child
	for i := range pair {
		c, err := b.startChild(ctx, "device")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.stop()) }()
		if err := c.call("Device.Open", size, &ends[i]); err != nil {
			return err
		}
		pair[i] = c
	}
	for i, c := range pair {
		if err := c.call("Device.Connect", ends[1-i], new(None)); err != nil {
			return err
		}
	}
	sender, receiver, to := pair[0], pair[1], ends[1]
	var sent, got [sha256.Size]byte
	if err := sender.call("Device.Fill", None(0), &sent); err != nil {
		return err
	}
	// Once before it counts: memory of both ends becomes resident.
	if err := sender.call("Device.Write", to, new(time.Duration)); err != nil {
		return err
	}
	if err := receiver.call("Device.Sum", None(0), &got); err != nil {
		return err
	}
	if got != sent {
		return errors.New("what was written by RDMA differs from what was sent")
	}
	gbits := func(bytes int, took time.Duration) float64 { return float64(bytes) * 8 / took.Seconds() / 1e9 }
	write := func(ctx context.Context) error {
		var before, after uint64
		if err := sender.call("Device.Retransmits", None(0), &before); err != nil {
			return err
		}
		var sum time.Duration
		for range repeat {
			var took time.Duration
			if err := sender.call("Device.Write", to, &took); err != nil {
				return err
			}
			sum += took
		}
		if err := sender.call("Device.Retransmits", None(0), &after); err != nil {
			return err
		}
		b.add(writeName, "Gbit/s", gbits(repeat*int(size), sum))
		b.add(againName, "", float64(after-before))
		return nil
	}
	plain := func(ctx context.Context) error {
		const payload = 4096
		d := Datagrams{To: to.UDP, Count: int(size) / payload, Size: payload + ib.BTHLen + ib.ICRCLen}
		var arrived Arrived
		for range repeat {
			var a Arrived
			receive := receiver.calls.Go("Device.Receive", d, &a, nil)
			if err := sender.call("Device.Send", d, new(None)); err != nil {
				return err
			}
			for over := false; !over; {
				select {
				case <-receive.Done:
					over = true
				default:
					if err := sender.call("Device.Mark", to.UDP, new(None)); err != nil {
						return err
					}
				}
			}
			if receive.Error != nil {
				return receive.Error
			}
			arrived.Count += a.Count
			arrived.Took += a.Took
		}
		b.add(plainName, "Gbit/s", gbits(arrived.Count*payload, arrived.Took))
		b.add(lostName, "%", 100*(1-float64(arrived.Count)/float64(repeat*d.Count)))
		return nil
	}
	if err := b.interleave(ctx, []cell{{writeName, write}, {plainName, plain}}); err != nil {
		return err
	}
	b.goalOf("RDMA WRITE over plain UDP", "", b.over(writeName, plainName), 0.5, false)
	return nil
}
