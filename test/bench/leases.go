package main

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	accelfabv1 "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// The sizes of jobs that a daemon is killed with, and that die themselves.
var (
	restartSizes = []int{10_000, 20_000, 40_000}
	victimSizes  = []int{1, 1_000, 20_000}
)

func restartName(n int) string {
	return fmt.Sprintf("kill -9 with %s queue pairs, to the first right answer of the next daemon", figure(float64(n)))
}

func victimName(n int) string {
	return fmt.Sprintf("a client with %s queue pairs killed, to the end of its session", figure(float64(n)))
}

const (
	othersName = "p99 of a queue pair made by another caller while that of 20,000 is cleaned up, over before"
	leftName   = "objects left of all killed clients"
)

// leases measures what the death of a daemon, and of clients, costs.
func leases(ctx context.Context, b *bench) error {
	var cells []cell
	for _, n := range restartSizes {
		if b.quick {
			n /= 100
		}
		cells = append(cells, cell{restartName(n), func(ctx context.Context) error { return b.restart(ctx, n) }})
	}
	cells = append(cells, cell{"victims", b.victims})
	if err := b.interleave(ctx, cells); err != nil {
		return err
	}
	if !b.quick {
		b.goalOf("restart with 20,000 queue pairs", "s", b.find(restartName(20_000)).Values, 2, true)
		b.goalOf("another caller's p99 meanwhile, over before", "", b.find(othersName).Values, 2, true)
	}
	b.goalOf("objects left of killed clients", "", b.find(leftName).Values, 0, true)
	return nil
}

// restart kills a daemon and takes the time until the next one gives the right
// answer about the last of n queue pairs: adopted, with its number.
func (b *bench) restart(ctx context.Context, n int) error {
	return b.withDaemon(ctx, func(d *daemon) error {
		door, err := openDoor(ctx, d.socket, b.conns)
		if err != nil {
			return err
		}
		defer door.close()
		if err := door.createOnAll(ctx, n/len(door.cards)); err != nil {
			return err
		}
		last, err := door.queuePairs(0).CreateQueuePair(ctx, door.cards[0].ask())
		if err != nil {
			return err
		}
		start := time.Now()
		if err := d.kill(); err != nil {
			return err
		}
		if err := d.start(ctx, b); err != nil {
			return err
		}
		now, err := door.queuePairs(0).GetQueuePair(ctx, &accelfabv1.GetQueuePairRequest{Name: last.Name}, grpc.WaitForReady(true))
		if err != nil {
			return err
		}
		took := time.Since(start)
		if err := inInit(now); err != nil {
			return err
		}
		if now.LocalEndpoint.Qpn != last.LocalEndpoint.Qpn {
			return fmt.Errorf("%s has QPN %#x after the restart, before %#x", now.Name, now.LocalEndpoint.Qpn, last.LocalEndpoint.Qpn)
		}
		b.add(restartName(n), "s", took.Seconds())
		return nil
	})
}

// victims kills clients, each with a session that is bound to it.
func (b *bench) victims(ctx context.Context) error {
	return b.withDaemon(ctx, func(d *daemon) error {
		other, err := openDoor(ctx, d.socket, b.conns)
		if err != nil {
			return err
		}
		defer other.close()
		var m made
		one := func() (time.Duration, error) {
			start := time.Now()
			err := other.create(ctx, 0, &m)
			return time.Since(start), err
		}
		before, err := p99(500, one)
		if err != nil {
			return err
		}
		for _, n := range victimSizes {
			if b.quick {
				n = max(1, n/100)
			}
			if err := b.victim(ctx, d, n, n == slices.Max(victimSizes), before, one); err != nil {
				return err
			}
		}
		devices, err := accelfabv1.NewDeviceServiceClient(other.conns[0]).ListDevices(ctx, &accelfabv1.ListDevicesRequest{Parent: "nodes/local"})
		if err != nil {
			return err
		}
		left := -len(m) - len(other.cards) // what the other has
		for _, dev := range devices.Devices {
			u := dev.Usage
			left += int(u.QueuePairs + u.ProtectionDomains + u.Buffers + u.MemoryRegions + u.MemoryExports)
		}
		b.add(leftName, "", float64(left))
		return nil
	})
}

// victim makes n queue pairs in a session that dies with a process, and kills
// that.
func (b *bench) victim(ctx context.Context, d *daemon, n int, watch bool, before time.Duration, other func() (time.Duration, error)) error {
	process := exec.CommandContext(ctx, "cat")
	in, err := process.StdinPipe() // it waits for its input
	if err != nil {
		return err
	}
	defer in.Close()
	if err := process.Start(); err != nil {
		return err
	}
	door, err := openDoor(ctx, d.socket, b.conns)
	if err != nil {
		return err
	}
	defer door.close()
	if _, err := door.sessions.ResumeSession(ctx, &accelfabv1.ResumeSessionRequest{Name: door.session, Process: &accelfabv1.Session_Process{Pid: int32(process.Process.Pid)}}); err != nil {
		return err
	}
	per := max(1, n/len(door.cards))
	if n < len(door.cards) {
		door.cards = door.cards[:1]
	}
	if err := door.createOnAll(ctx, per); err != nil {
		return err
	}
	start := time.Now()
	if err := process.Process.Kill(); err != nil {
		return err
	}
	process.Wait()
	ended := make(chan error, 1)
	go func() { ended <- door.awaitEnd(ctx) }()
	if watch {
		meanwhile, err := p99(500, other)
		if err != nil {
			return err
		}
		b.add(othersName, "", float64(meanwhile)/float64(before))
	}
	if err := <-ended; err != nil {
		return err
	}
	b.add(victimName(n), "s", time.Since(start).Seconds())
	return nil
}

// awaitEnd waits until the session is no more.
func (d *door) awaitEnd(ctx context.Context) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		_, err := d.sessions.GetSession(ctx, &accelfabv1.GetSessionRequest{Name: d.session})
		switch {
		case status.Code(err) == codes.NotFound:
			return nil
		case err != nil:
			return err
		}
		<-tick.C
	}
}

// p99 makes calls and gives the time that one of a hundred takes longer than.
func p99(calls int, call func() (time.Duration, error)) (time.Duration, error) {
	took := make([]time.Duration, calls)
	for i := range took {
		var err error
		if took[i], err = call(); err != nil {
			return 0, err
		}
	}
	slices.Sort(took)
	return took[calls*99/100], nil
}
