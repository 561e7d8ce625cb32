package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

const (
	cleanName  = "RDMA WRITE, packets of 1,024 B, no loss"
	lossName   = "RDMA WRITE, packets of 1,024 B, 1 % lost"
	resentName = "1 % lost: packets sent again"
	stallName  = "1 % lost: longest wait for a message of 64 KiB"
)

// loss measures RDMA WRITE over a wire that loses 1 % of the packets of each
// direction at random, beside the same wire without loss.
func loss(ctx context.Context, b *bench) (err error) {
	size, pieces := 64<<20, 1024
	if b.quick {
		size, pieces = 4<<20, 64
	}
	p, err := b.startPair(ctx, uint64(size))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	wire, err := b.startChild(ctx, "wire")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, wire.stop()) }()
	seen := p.ends
	var gids [2]ib.GID
	if err := wire.call("Lossy.Open", [2]ib.GID{p.ends[0].GID, p.ends[1].GID}, &gids); err != nil {
		return err
	}
	for i := range seen {
		seen[i].GID = gids[i]
	}
	if err := p.connect(ib.MTU1024, seen); err != nil {
		return err
	}
	same, err := p.fill()
	if err != nil {
		return err
	}
	move := func(perMill int64) (moved Moved, err error) {
		if err := wire.call("Lossy.Lose", perMill, new(None)); err != nil {
			return moved, err
		}
		err = p.sender().call("Device.Move", Move{Peer: p.ends[1], Opcode: device.WorkWrite, Pieces: pieces}, &moved)
		return moved, err
	}
	if _, err := move(10); err != nil {
		return err
	}
	if err := same(); err != nil {
		return err
	}
	clean := func(context.Context) error {
		moved, err := move(0)
		b.add(cleanName, "Gbit/s", gbits(size, moved.Took))
		return err
	}
	lossy := func(context.Context) error {
		before, err := p.retransmits()
		if err != nil {
			return err
		}
		moved, err := move(10)
		if err != nil {
			return err
		}
		after, err := p.retransmits()
		b.add(lossName, "Gbit/s", gbits(size, moved.Took))
		b.add(resentName, "%", 100*float64(after-before)/float64(size/ib.MTU1024.Bytes()))
		b.add(stallName, "ms", float64(moved.Longest)/float64(time.Millisecond))
		return err
	}
	if err := b.interleave(ctx, []cell{{cleanName, clean}, {lossName, lossy}}); err != nil {
		return err
	}
	b.goalOf("1 % lost over no loss", "", b.over(lossName, cleanName), 0.3, false)
	// Not even one round may wait for longer than the time-out.
	b.goalOf("longest wait of all rounds", "ms", []float64{slices.Max(b.find(stallName).Values)},
		float64(ib.AckTimeout(timeoutCode))/float64(time.Millisecond), true)
	return nil
}
