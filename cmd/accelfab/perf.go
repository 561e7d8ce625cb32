package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/accelfab/accelfab/client"
)

const perfLong = `Measure RDMA %s between two nodes over RC, as %s and
%s of perftest do. Without HOST it is the server, which waits for one
client; with HOST it is the client of the server there. The client says what is
measured; both print it. MB are of 2^20 bytes.

Work is posted, and completions are read, by calls of the daemon's API. So the
latency holds the door of the daemon%s, and is no figure of the wire
alone; bandwidth is posted in batches.%s Everything is deleted at the end.

Both ends are accelfab: the exchange by which they find each other is its own, and
perftest does not know it.`

// perfFlags are what the command line says.
type perfFlags struct {
	plan     perfPlan
	port     int
	place    jobPlace
	bw, lat  bool
	all      bool
	size     sizeFlag
	duration secondsFlag
}

// secondsFlag is a duration, or a number of seconds as perftest has it.
type secondsFlag time.Duration

func (s *secondsFlag) String() string {
	if *s == 0 {
		return ""
	}
	return time.Duration(*s).String()
}

func (s *secondsFlag) Type() string { return "seconds" }

func (s *secondsFlag) Set(text string) error {
	d, err := time.ParseDuration(text)
	if n, bad := strconv.ParseUint(text, 10, 31); bad == nil {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil || d <= 0 {
		return fmt.Errorf("want a number of seconds, or a duration such as 500ms")
	}
	*s = secondsFlag(d)
	return nil
}

// perfTests are the tests and what their help says.
var perfTests = []struct {
	test, what, doors, how string
}{
	{"write", "WRITE", "s at both ends", " For latency both ends write in\nturn, and tell each other so by immediate data; the time is half of there and back."},
	{"read", "READ", " that reads", ""},
	{"send", "SEND", "s at both ends", " For latency both ends send in\nturn; the time is half of there and back."},
}

func newPerfCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "perf",
		Short:   "Measure RDMA between two nodes, as perftest does",
		Example: "  accelfab perf write\n  accelfab perf write 10.77.0.2 -a",
	}
	for _, t := range perfTests {
		bw, lat := "ib_"+t.test+"_bw", "ib_"+t.test+"_lat"
		cmd.AddCommand(newPerfTestCmd(a, t.test, "Measure RDMA "+t.what+" between two nodes", fmt.Sprintf(perfLong, t.what, bw, lat, t.doors, t.how)))
	}
	return cmd
}

func newPerfTestCmd(a *app, test, about, long string) *cobra.Command {
	p := perfFlags{plan: perfPlan{Version: perfVersion, Test: test}}
	cmd := &cobra.Command{
		Use: test + " [HOST]", Short: about, Long: long,
		Example: fmt.Sprintf("  accelfab perf %s\n  accelfab perf %s 10.77.0.2 -s 1MiB -n 1000\n  accelfab perf %s 10.77.0.2 --lat -s 8 -D 5", test, test, test),
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.validate(args, cmd.Flags().Changed); err != nil {
				return err
			}
			return a.dial(a.server, func(c *client.Client) error {
				if len(args) == 1 {
					return p.client(cmd, a, c, args[0])
				}
				return p.server(cmd, a, c)
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&p.bw, "bw", false, "measure bandwidth (default)")
	f.BoolVar(&p.lat, "lat", false, "measure latency")
	f.VarP(&p.size, "size", "s", "bytes of a message (default 64KiB, with --lat 2)")
	f.BoolVarP(&p.all, "all", "a", false, "all sizes from 2 to 8 MiB, powers of two")
	f.IntVarP(&p.plan.Iters, "iters", "n", 0, "messages of each queue pair and size (default 5000 for write, else 1000)")
	f.VarP(&p.duration, "duration", "D", "how long each size is measured, in place of --iters")
	f.IntVarP(&p.plan.TxDepth, "tx-depth", "t", 128, "work requests outstanding on a queue pair (--bw)")
	f.IntVarP(&p.plan.QPs, "qp", "q", 1, "queue pairs (--bw)")
	f.Uint32VarP(&p.plan.MTU, "mtu", "m", 0, "path MTU, 256 to 4096 (default: the largest that both ends carry)")
	f.VarP(optionalFlag{&p.place.gidIndex}, "gid-index", "x", "entry of the port's GID table (default: the first that is not link-local)")
	f.IntVarP(&p.port, "port", "p", 18516, "TCP port to find each other; 0 lets a server take a free one")
	f.StringVarP(&p.place.device, "ib-dev", "d", "", "device (default: the first with an active scale-out port)")
	f.Uint32VarP(&p.place.ibPort, "ib-port", "i", 0, "port of the device, as verbs count, from 1\n(default: the first active scale-out port)")
	p.place.gidFlag = "gid-index"
	cmd.MarkFlagsMutuallyExclusive("bw", "lat")
	cmd.MarkFlagsMutuallyExclusive("size", "all")
	cmd.MarkFlagsMutuallyExclusive("iters", "duration")
	_ = cmd.RegisterFlagCompletionFunc("ib-dev", devices.complete(a))
	return cmd
}

// validate makes the plan, and refuses what no node could do.
func (p *perfFlags) validate(args []string, given func(string) bool) error {
	if err := checkPlace(p.port, p.place, args, given); err != nil {
		return err
	}
	plan := &p.plan
	plan.Mode = "bw"
	if p.lat {
		plan.Mode = "lat"
		for _, flag := range []string{"tx-depth", "qp"} {
			if given(flag) {
				return usage("--%s does not go with --lat, which has one message under way", flag)
			}
		}
		plan.TxDepth = 1
	}
	switch {
	case p.all:
		for size := uint64(2); size <= 8<<20; size *= 2 {
			plan.Sizes = append(plan.Sizes, size)
		}
	case given("size"):
		plan.Sizes = []uint64{uint64(p.size)}
	case p.lat:
		plan.Sizes = []uint64{2}
	default:
		plan.Sizes = []uint64{65536}
	}
	plan.Seconds = time.Duration(p.duration).Seconds()
	if !given("iters") && plan.Seconds == 0 {
		plan.Iters = 1000
		if plan.Test == "write" {
			plan.Iters = 5000
		}
	}
	if given("mtu") && plan.MTU == 0 {
		return usage("--mtu 0: want 256, 512, 1024, 2048 or 4096")
	}
	if err := plan.check(); err != nil {
		return usageError{err}
	}
	return nil
}

// client is the whole of an end with HOST.
func (p *perfFlags) client(cmd *cobra.Command, a *app, c *client.Client, host string) error {
	out := p.output(cmd, a)
	err := runJob(cmd.Context(), c, a.timeout, p.plan.spec(p.place), func(ctx context.Context, j *job) error {
		tcp, err := tcpDial(ctx, host, p.port, a.timeout)
		if err != nil {
			return interruptedOr(ctx, err)
		}
		defer tcp.Close()
		conn := newPerfConn(tcp, a.timeout)
		err = perfClient(ctx, conn, &perfRun{plan: &p.plan, job: j}, out.row)
		return conn.part(ctx, interruptedOr(ctx, err))
	})
	return out.end(err)
}

// server is the whole of an end without HOST. What it makes is what the client
// asks for, so it makes it when one has come.
func (p *perfFlags) server(cmd *cobra.Command, a *app, c *client.Client) error {
	out := p.output(cmd, a)
	ctx := cmd.Context()
	// A port that is not there is told before a client has come.
	if err := (&job{client: c, limit: a.timeout}).findPort(ctx, p.place); err != nil {
		return err
	}
	l, err := tcpListen(ctx, p.port)
	if err != nil {
		return err
	}
	if p.port == 0 {
		fmt.Fprintf(out.talk, "  waiting on port %d\n", l.Addr().(*net.TCPAddr).Port)
	}
	tcp, err := tcpAccept(ctx, l)
	if err != nil {
		return interruptedOr(ctx, err)
	}
	defer tcp.Close()
	conn := newPerfConn(tcp, a.timeout)
	plan, remote, err := conn.receivePlan(ctx, &p.plan, cmd.Flags().Changed)
	if err == nil {
		p.plan = *plan
		err = runJob(ctx, c, a.timeout, plan.spec(p.place), func(ctx context.Context, j *job) error {
			return perfServer(ctx, conn, &perfRun{plan: plan, job: j, remote: remote}, out.row)
		})
	}
	return out.end(conn.part(ctx, interruptedOr(ctx, err)))
}

// perfOutput shows what is measured: rows as they come, or one document.
type perfOutput struct {
	cmd    *cobra.Command
	talk   io.Writer // for people
	table  bool
	report perfReport
}

func (p *perfFlags) output(cmd *cobra.Command, a *app) *perfOutput {
	o := &perfOutput{cmd: cmd, talk: cmd.OutOrStdout(), table: a.output == "table", report: perfReport{Plan: &p.plan, Rows: []perfRow{}}}
	if !o.table {
		o.talk = cmd.ErrOrStderr()
	}
	return o
}

func (o *perfOutput) row(r *perfRow) {
	if o.table && len(o.report.Rows) == 0 {
		o.report.Plan.head(o.talk)
	}
	if o.table {
		r.print(o.talk)
	}
	o.report.Rows = append(o.report.Rows, *r)
}

func (o *perfOutput) end(err error) error {
	if err != nil {
		return err
	}
	plan := o.report.Plan
	o.report.Note = plan.note()
	return printReport(o.cmd, &o.report, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, o.report.Note)
		return err
	})
}
