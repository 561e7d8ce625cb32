package main

import (
	"context"
	"time"
)

const (
	peers         = 256 // of each port
	scaleName     = "8 cards x 24 ports x 256 peers by batches, a caller a card"
	processorName = "processor time of accelfabd for them, over all cores"
)

// scale measures how long a job takes that wants a queue pair on each port of
// each card to each of 256 peers: 49,152 of an HLS-2.
func scale(ctx context.Context, b *bench) error {
	perPort := peers
	if b.quick {
		perPort = 4
	}
	round := func(ctx context.Context) error {
		return b.withDaemon(ctx, func(d *daemon) error {
			door, err := openDoor(ctx, d.socket, b.conns)
			if err != nil {
				return err
			}
			defer door.close()
			before, err := d.processorTime()
			if err != nil {
				return err
			}
			start := time.Now()
			if err := door.createOnAll(ctx, perPort*len(door.cards[0].ports)); err != nil {
				return err
			}
			b.add(scaleName, "s", time.Since(start).Seconds())
			after, err := d.processorTime()
			if err != nil {
				return err
			}
			b.add(processorName, "s", (after - before).Seconds())
			start = time.Now()
			if err := door.closeSession(ctx); err != nil {
				return err
			}
			b.add("all of them destroyed with their session", "s", time.Since(start).Seconds())
			return nil
		})
	}
	if err := b.interleave(ctx, []cell{{"scale", round}}); err != nil {
		return err
	}
	b.goalOf("49,152 queue pairs", "s", b.find(scaleName).Values, 1, true)
	return nil
}
