package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

const (
	demoBytes = 64 << 20
	// demoLimit bounds the demo as a whole, demoCall one call of it.
	demoLimit = 10 * time.Minute
	demoCall  = rdmaCall
)

func newDemoCmd() *cobra.Command {
	cfg := labConfig{nodes: 2, devices: []string{"soft:hls-2", "soft-nic"}}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the main job on two software nodes",
		Long: `Start two nodes with eight software cards and a NIC each, move data between them by
RDMA and check every byte, export accelerator memory to a NIC and revoke it while the
other node writes, kill one daemon and start it again, and clean up. Each step says
what was measured; a check that fails ends the demo with status 1.

The demo runs in a lab of its own and leaves nothing behind. Only if a step fails
are the logs kept, and the message says where.`,
		Example: `  accelfab demo
  accelfab demo -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			ctx, cancel := context.WithTimeout(ctx, demoLimit)
			defer cancel()
			d := &demo{out: cmd.OutOrStdout()}
			if outputFlag(cmd) != "table" {
				d.out = cmd.ErrOrStderr() // the report alone goes to the output
			}
			cfg.stderr = cmd.ErrOrStderr()
			if err := d.run(ctx, cfg); err != nil {
				return err
			}
			return printReport(cmd, d.report, d.report.print)
		},
	}
	accelfabdFlag(cmd, &cfg)
	return cmd
}

// demo is the state that its steps share.
type demo struct {
	out    io.Writer
	lab    *lab
	report demoReport

	began time.Time // of the lab's start
	a, b  *demoNode // the two nodes

	lane demoLane // inside a

	source, back *rdmaRegion // on card 0 of a
	target       *rdmaRegion // on card 0 of b
	near         *rdmaRegion // on the peer card of a

	across rdmaPair // from a to b
	inside rdmaPair // from card 0 of a to its peer card
}

// demoStep is one step, which prints what it did by say.
type demoStep struct {
	title string
	run   func(*demo, context.Context) error
}

var demoSteps = []demoStep{
	{"two nodes", (*demo).startNodes},
	{"inventory", (*demo).inventory},
	{"sessions that hold devices alone", (*demo).sessions},
	{"memory", (*demo).memory},
	{"RDMA between the nodes", (*demo).betweenNodes},
	{"RDMA inside a node", (*demo).insideNode},
	{"memory exported to a NIC, and revoked", (*demo).exported},
	{"a device that is taken", (*demo).takenDevice},
	{"a daemon killed and back", (*demo).killedDaemon},
	{"devices killed and back", (*demo).killedHost},
	{"everything closed", (*demo).closeAll},
}

// run runs the steps in a lab of the demo's own.
func (d *demo) run(ctx context.Context, cfg labConfig) error {
	dir, err := tempLabDir("demo")
	if err != nil {
		return err
	}
	d.began = time.Now()
	err = withLab(ctx, dir, cfg, func(l *lab) error {
		d.lab = l
		defer d.hangUp()
		for i, s := range demoSteps {
			fmt.Fprintf(d.out, "%d. %s\n", i+1, s.title)
			if err := s.run(d, ctx); err != nil {
				err = fmt.Errorf("step %d (%s): %w", i+1, s.title, err)
				if interrupted(ctx) {
					return err
				}
				return &keepLogs{fmt.Errorf("failed, and its logs stay in %s until \"accelfab lab down --dir %s\": %w",
					strings.Join(l.logs(), " and "), l.Dir, err)}
			}
		}
		return nil
	})
	switch {
	case err == nil:
		return nil
	case interrupted(ctx):
		return fmt.Errorf("demo: interrupted, and cleaned up: %w", err)
	default:
		return fmt.Errorf("demo: %w", err)
	}
}

// interrupted tells whether the user ended the command, rather than a limit.
func interrupted(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }

// logs are the paths of the daemons' logs.
func (l *lab) logs() []string {
	var paths []string
	for _, n := range l.Nodes {
		paths = append(paths, n.logPath())
	}
	return paths
}

// say prints one line of a step.
func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.out, "   "+format+"\n", args...)
}

// demoReport is what was measured.
type demoReport struct {
	Measured []demoMeasure `json:"measured"`
}

// demoMeasure is one thing that was done.
type demoMeasure struct {
	What          string  `json:"what"`
	Bytes         uint64  `json:"bytes,omitempty"`
	Seconds       float64 `json:"seconds"`
	GbitPerSecond float64 `json:"gbit_per_second,omitempty"`
}

// took notes how long something took.
func (d *demo) took(what string, t time.Duration) {
	d.report.Measured = append(d.report.Measured, demoMeasure{What: what, Seconds: t.Seconds()})
}

// moved notes how long bytes took and gives the rate in words.
func (d *demo) moved(what string, bytes uint64, t time.Duration) string {
	rate := float64(bytes) * 8 / 1e9 / t.Seconds()
	d.report.Measured = append(d.report.Measured, demoMeasure{What: what, Bytes: bytes, Seconds: t.Seconds(), GbitPerSecond: rate})
	return fmt.Sprintf("%d MiB in %s, %.2f Gbit/s", bytes>>20, rounded(t), rate)
}

func (r demoReport) print(w io.Writer) error {
	fmt.Fprintf(w, "%d. summary\n", len(demoSteps)+1)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, m := range r.Measured {
		fmt.Fprintf(t, "   %s\t%s", m.What, rounded(time.Duration(m.Seconds*float64(time.Second))))
		if m.Bytes > 0 {
			fmt.Fprintf(t, "\t%d MiB\t%.2f Gbit/s", m.Bytes>>20, m.GbitPerSecond)
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, "   every check passed; processes and files are gone")
	return err
}

// rounded rounds a duration to what is worth reading.
func rounded(t time.Duration) string {
	if t < time.Second {
		return t.Round(100 * time.Microsecond).String()
	}
	return t.Round(10 * time.Millisecond).String()
}
