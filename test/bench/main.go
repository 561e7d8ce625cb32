// Command bench measures accelfab beside the limits of the machine it runs on:
// the disk, bbolt, gRPC and UDP. A figure alone says little, since it moves
// with the machine and with what else runs there; so every figure and its
// yardsticks are taken in turns in the same run, round after round, and a goal
// is a ratio: the median, over the rounds, of the ratio within a round.
//
//	go run ./test/bench                       everything, about four minutes
//	go run ./test/bench -run qp,transfer      some groups
//	go run ./test/bench -o json               for programs
//	go run ./test/bench -cpuprofile /tmp/p    profiles of this process and its children
//
// The groups are
//
//	qp        durable queue pair set-up, beside the same RPC without a store,
//	          bare bbolt, and etcd if it is in PATH
//	transfer  RDMA WRITE and READ between two software devices, beside plain UDP
//	latency   messages of 8 bytes between them, beside a UDP echo
//	loss      RDMA WRITE over a wire that loses packets, beside one that does not
//	libfabric SEND beside fi_pingpong, if that is in PATH
//	memory    what an idle accelfabd and a queue pair of it take
//	scale     49,152 queue pairs by batches
//
// The queue pair group runs its servers as children of the same program, so
// that the one with a store and the one without differ in nothing else. The
// memory and scale groups build and run accelfabd itself.
//
// It exits with 0 also where a goal is missed: it measures, a person judges.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200) // as accelfabd has it, here and in the children
	}
	if childMain() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
		os.Exit(1)
	}
}

// group measures some figures that belong together.
type group struct {
	name string
	run  func(context.Context, *bench) error
}

// groups in the order in which they run.
var groups = []group{
	{"qp", queuePairs},
	{"transfer", transfer},
	{"latency", latency},
	{"loss", loss},
	{"libfabric", libfabric},
	{"memory", memory},
	{"scale", scale},
	{"leases", leases},
	{"wear", wear},
}

// names gives the names of the groups with sep between them.
func names(sep string) string {
	var list []string
	for _, g := range groups {
		list = append(list, g.name)
	}
	return strings.Join(list, sep)
}

// bench is one run.
type bench struct {
	report
	dir    string // for stores, on a disk
	rounds int
	quick  bool
	conns  int // connections of the clients together
	window time.Duration
	log    io.Writer

	accelfabd  string // path of the program, if a group needs it
	cpuProfile string // front of file names, "" for none
	children   int    // started
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	which := fs.String("run", names(","), "`groups` to run, with commas between")
	rounds := fs.Int("rounds", 0, "how often to measure each figure (default 7, with -quick 1)")
	quick := fs.Bool("quick", false, "measure little, to see that it works; the figures mean nothing")
	window := fs.Duration("window", 500*time.Millisecond, "how long to measure a rate in each round")
	conns := fs.Int("conns", 1, "gRPC connections that the callers share")
	dir := fs.String("dir", "", "`directory` for stores (default the first of the temporary and the working directory that is on a disk)")
	output := fs.String("o", "table", "table or json")
	cpuProfile := fs.String("cpuprofile", "", "write CPU profiles to `prefix`.bench.pprof and, for each child, prefix.N-ROLE.pprof")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; see -help", fs.Arg(0))
	}
	if *output != "table" && *output != "json" {
		return fmt.Errorf("-o %s: want table or json", *output)
	}
	if *conns < 1 || *rounds < 0 || *window <= 0 {
		return errors.New("-conns and -window must be above 0, -rounds not below")
	}
	selected := strings.Split(*which, ",")
	for _, name := range selected {
		if !slices.ContainsFunc(groups, func(g group) bool { return g.name == name }) {
			return fmt.Errorf("-run %s: the groups are %s", name, names(", "))
		}
	}
	b := &bench{rounds: *rounds, quick: *quick, conns: *conns, window: *window, log: stderr, cpuProfile: *cpuProfile}
	if b.rounds == 0 {
		b.rounds = 7
		if b.quick {
			b.rounds = 1
		}
	}
	if b.quick {
		b.window = 30 * time.Millisecond
	}
	remove, err := b.makeDir(*dir)
	if err != nil {
		return err
	}
	defer remove()
	if b.Machine, err = describeMachine(b.dir); err != nil {
		return err
	}
	if *cpuProfile != "" {
		f, err := os.Create(*cpuProfile + ".bench.pprof")
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	if slices.Contains(selected, "memory") || slices.Contains(selected, "scale") || slices.Contains(selected, "leases") {
		if err := b.buildDaemon(ctx); err != nil {
			return err
		}
	}
	b.Rounds = b.rounds
	var failed error
	for _, g := range groups {
		if slices.Contains(selected, g.name) && failed == nil {
			b.group = g.name
			if err := g.run(ctx, b); err != nil {
				failed = fmt.Errorf("%s: %w", g.name, err)
			}
		}
	}
	// What was measured before a failure is told too.
	write := b.writeTable
	if *output == "json" {
		write = b.writeJSON
	}
	return errors.Join(failed, write(stdout))
}

// makeDir makes the directory of this run, and gives what removes it.
func (b *bench) makeDir(parent string) (remove func(), err error) {
	candidates := []string{os.TempDir(), "."}
	if parent != "" {
		candidates = []string{parent}
	}
	for _, c := range candidates {
		inMemory, err := isInMemory(c)
		if err != nil {
			return nil, err
		}
		if inMemory && parent == "" {
			continue
		}
		if b.dir, err = os.MkdirTemp(c, "accelfab-bench-"); err != nil {
			return nil, err
		}
		return func() { os.RemoveAll(b.dir) }, nil
	}
	return nil, fmt.Errorf("%s is in memory: a store there tells nothing; give -dir", strings.Join(candidates, " and "))
}

// cell is one figure, or several that come together, of one group.
type cell struct {
	name string
	run  func(context.Context) error
}

// interleave runs all cells once a round. Every other round goes backwards, so
// that a drift of the machine favours none.
func (b *bench) interleave(ctx context.Context, cells []cell) error {
	for round := range b.rounds {
		fmt.Fprintf(b.log, "%s: round %d of %d\n", b.group, round+1, b.rounds)
		for _, c := range cells {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := c.run(ctx); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
		slices.Reverse(cells)
	}
	return nil
}
