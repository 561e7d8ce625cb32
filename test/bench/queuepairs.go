package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// Names of the figures of the queue pair group; callers and p50 are behind.
const (
	durableName = "RPC with a store"
	bareName    = "RPC without a store"
	singleName  = "RPC with one bare bbolt Update a call"
	healthName  = "RPC that does nothing (health check)"
	fullName    = "RPC with a store of 1,000,000 records"
	groupName   = "bare bbolt, group commit"
	updateName  = "bare bbolt, one Update a call"
	etcdName    = "etcd, one put a call"
)

func withCallers(name string, n int) string {
	if n == 1 {
		return name + ", 1 caller"
	}
	return fmt.Sprintf("%s, %d callers", name, n)
}

func inBatches(name string, n int) string { return withCallers(name+", batches of 1,000", n) }

func p50(name string) string { return name + ", alone: p50" }

// qpServer is a server child and its door.
type qpServer struct {
	name string
	ServerConfig
	*child
	*door
}

// queuePairs measures how fast durable queue pairs are set up: one RPC takes
// each to INIT. Every server has eight cards; callers are spread over them.
func queuePairs(ctx context.Context, b *bench) (err error) {
	few, many := 1000, 1_000_000
	if b.quick {
		many = 5000
	}
	dir := filepath.Join(b.dir, "qp")
	durable := &qpServer{name: durableName, ServerConfig: ServerConfig{Store: boltStore, Records: few}}
	full := &qpServer{name: fullName, ServerConfig: ServerConfig{Store: boltStore, Records: many}}
	single := &qpServer{name: singleName, ServerConfig: ServerConfig{Store: updateStore}}
	bare := &qpServer{name: bareName, ServerConfig: ServerConfig{Store: withoutOne}}
	for _, s := range []*qpServer{durable, full, single, bare} {
		s.Dir = filepath.Join(dir, fmt.Sprint(s.Store, s.Records))
		s.Socket = filepath.Join(s.Dir, "sock")
		if err := os.MkdirAll(s.Dir, 0o700); err != nil {
			return err
		}
		if s.child, err = b.startChild(ctx, "server"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.child.stop()) }()
		if err := s.call("Server.Open", s.ServerConfig, new(None)); err != nil {
			return err
		}
		if s.door, err = openDoor(ctx, s.Socket, b.conns); err != nil {
			return err
		}
		defer s.door.close()
	}
	bolt, err := openBolt(b.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bolt.close()) }()
	etcd, err := b.startEtcd(ctx)
	if err != nil {
		return err
	}
	if etcd == nil {
		b.Skipped = append(b.Skipped, "etcd: not in PATH")
	} else {
		defer func() { err = errors.Join(err, etcd.stop()) }()
	}

	cells := []cell{{"fdatasync", func(context.Context) error {
		prepared, growing, err := fdatasync(b.dir, 200)
		b.add("write of 4 KiB and fdatasync, blocks there: p50", "us", micros(prepared))
		b.add("write of 4 KiB and fdatasync, file grows: p50", "us", micros(growing))
		return err
	}}}
	counts := []int{1, 16, 64, 256, 1024}
	if b.quick {
		counts = []int{1, 64}
	}
	for _, n := range counts {
		both := n == 1 || n == 64
		if both {
			cells = append(cells, b.singles(full, n))
		}
		cells = append(cells, b.singles(durable, n), b.singles(bare, n))
		health := healthpb.NewHealthClient(bare.conns[0])
		cells = append(cells, b.yardstick(healthName, n, func(ctx context.Context) (outcome, error) {
			return load(ctx, n, b.window, 1<<30, func(ctx context.Context, _ int) error {
				_, err := health.Check(ctx, &healthpb.HealthCheckRequest{})
				return err
			})
		}))
		if both {
			cells = append(cells, b.singles(single, n), b.yardstick(updateName, n, func(ctx context.Context) (outcome, error) {
				return bolt.updates(ctx, n, 1, b.window)
			}))
		}
		cells = append(cells, b.yardstick(groupName, n, func(ctx context.Context) (outcome, error) {
			return bolt.groups(ctx, n, b.window)
		}))
		if etcd != nil {
			cells = append(cells, b.yardstick(etcdName, n, func(ctx context.Context) (outcome, error) {
				return load(ctx, n, b.window, 1<<30, func(ctx context.Context, _ int) error { return etcd.put(ctx) })
			}))
		}
	}
	for _, n := range []int{1, 4} {
		if n == 1 {
			cells = append(cells, b.batches(full, n))
		}
		cells = append(cells, b.batches(durable, n), b.batches(bare, n))
		if etcd != nil {
			cells = append(cells, cell{etcdName, func(ctx context.Context) error {
				o, err := load(ctx, n, b.window, 1<<30, func(ctx context.Context, _ int) error { return etcd.putMany(ctx, maxBatch) })
				b.add(withCallers("etcd, transactions of 1,000", n), "/s", o.rate()*maxBatch)
				return err
			}})
		}
	}
	if err := b.interleave(ctx, cells); err != nil {
		return err
	}

	for _, ratio := range b.over(p50(durableName), p50(singleName)) {
		b.add("alone, p50 with store over p50 with one bare Update a call", "", ratio)
	}
	b.goalOf("64 callers, store over no store", "", b.over(withCallers(durableName, 64), withCallers(bareName, 64)), 0.45, false)
	b.goalOf("64 callers, store over the same RPC with one Update a call", "", b.over(withCallers(durableName, 64), withCallers(singleName, 64)), 6, false)
	b.goalOf("64 callers, store over bare Updates, one a call, no RPC", "", b.over(withCallers(durableName, 64), withCallers(updateName, 64)), 6, false)
	b.goalOf("alone, p50 with store over p50 of (no store + one Update)", "", b.over(p50(durableName), p50(bareName), p50(updateName)), 1.35, true)
	b.goalOf("batches of 1,000, store over no store", "", b.over(inBatches(durableName, 1), inBatches(bareName, 1)), 0.5, false)
	// The yardstick is the same above and below, so it falls out of these.
	b.goalOf("1,000,000 records over 1,000: 64 callers", "", b.over(withCallers(fullName, 64), withCallers(durableName, 64)), 0.8, false)
	b.goalOf("1,000,000 records over 1,000: alone, by p50", "", b.over(p50(durableName), p50(fullName)), 0.8, false)
	b.goalOf("1,000,000 records over 1,000: batches of 1,000", "", b.over(inBatches(fullName, 1), inBatches(durableName, 1)), 0.8, false)
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// singles is one queue pair a call.
func (b *bench) singles(s *qpServer, callers int) cell {
	return cell{withCallers(s.name, callers), func(ctx context.Context) error {
		made := make([]made, callers)
		o, err := load(ctx, callers, b.window, 48_000, func(ctx context.Context, caller int) error {
			return s.create(ctx, caller, &made[caller])
		})
		if err != nil {
			return err
		}
		b.note(s.name, callers, o)
		return s.delete(ctx, made)
	}}
}

// batches is 1,000 queue pairs a call. They have to fit on one card.
func (b *bench) batches(s *qpServer, callers int) cell {
	return cell{inBatches(s.name, callers), func(ctx context.Context) error {
		made := make([]made, callers)
		o, err := load(ctx, callers, b.window, 48, func(ctx context.Context, caller int) error {
			return s.createBatch(ctx, caller, maxBatch, &made[caller])
		})
		if err != nil {
			return err
		}
		b.add(inBatches(s.name, callers), "/s", o.rate()*maxBatch)
		return s.delete(ctx, made)
	}}
}

func (b *bench) yardstick(name string, callers int, run func(context.Context) (outcome, error)) cell {
	return cell{withCallers(name, callers), func(ctx context.Context) error {
		o, err := run(ctx)
		b.note(name, callers, o)
		return err
	}}
}

func (b *bench) note(name string, callers int, o outcome) {
	b.add(withCallers(name, callers), "/s", o.rate())
	if callers == 1 {
		b.add(p50(name), "us", micros(o.p50))
	}
}
