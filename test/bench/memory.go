package main

import (
	"context"
	"fmt"
)

const (
	idleName = "accelfabd idle, 8 cards of 24 ports: resident beside memfds"
	costName = "a queue pair: resident, over all of them"
)

// memory measures what an idle daemon takes, and what queue pairs add.
func memory(ctx context.Context, b *bench) error {
	perCard := 3072
	if b.quick {
		perCard = 500
	}
	round := func(ctx context.Context) error {
		return b.withDaemon(ctx, func(d *daemon) error {
			memfds, idle, err := d.resident()
			if err != nil {
				return err
			}
			door, err := openDoor(ctx, d.socket, b.conns)
			if err != nil {
				return err
			}
			defer door.close()
			_, before, err := d.resident()
			if err != nil {
				return err
			}
			if err := door.createOnAll(ctx, perCard); err != nil {
				return err
			}
			_, after, err := d.resident()
			if err != nil {
				return err
			}
			n := perCard * len(door.cards)
			const mib, kib = 1 << 20, 1 << 10
			b.add(idleName, "MiB", float64(idle)/mib)
			b.add("accelfabd idle: resident memfds", "MiB", float64(memfds)/mib)
			b.add(fmt.Sprintf("accelfabd with %s queue pairs: resident beside memfds", figure(float64(n))), "MiB", float64(after)/mib)
			b.add(costName, "KiB", (float64(after)-float64(before))/float64(n)/kib)
			return nil
		})
	}
	if err := b.interleave(ctx, []cell{{"memory", round}}); err != nil {
		return err
	}
	b.goalOf("idle daemon", "MiB", b.find(idleName).Values, 64, true)
	b.goalOf("a queue pair", "KiB", b.find(costName).Values, 8, true)
	return nil
}
