package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

const pingpongLong = `Exchange messages with another end and say how long that took. The other end is
%s of Linux, or this command on another node. Without HOST it is the server,
which waits for one client; with HOST it is the client of the server there.

The queue pair, its memory and all work are the daemon's: each message takes calls of
its API, which is what the time is made of. Everything is deleted at the end. If
nothing comes for --timeout the run ends and says how many messages had arrived.

Flags are those of %s where they mean the same. Both ends need the same
%s. A peer that is %s needs -g with the index
of its IPv4 entry (1 as a rule): RoCE has no LID to go by.`

// pingpongFlags are what the command line says.
type pingpongFlags struct {
	port  int
	place jobPlace
	size  sizeFlag
	mtu   uint32
	sl    uint32
	run   pingpong
}

func newPingpongCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "pingpong",
		Short:   "Exchange messages with ibv_*_pingpong of Linux, or with another node",
		Example: "  accelfab pingpong rc\n  accelfab pingpong rc 10.77.0.2 -n 100",
	}
	cmd.AddCommand(newPingpongTypeCmd(a, pb.QueuePair_TYPE_RC), newPingpongTypeCmd(a, pb.QueuePair_TYPE_UC), newPingpongTypeCmd(a, pb.QueuePair_TYPE_UD))
	return cmd
}

func newPingpongTypeCmd(a *app, kind pb.QueuePair_Type) *cobra.Command {
	p := pingpongFlags{size: 4096, run: pingpong{kind: kind}}
	name := strings.ToLower(enum(kind, "TYPE"))
	program, same := "ibv_"+name+"_pingpong", "-s, -n and -m"
	if kind == pb.QueuePair_TYPE_UD {
		p.size, same = 1024, "-s and -n"
	}
	cmd := &cobra.Command{
		Use:   name + " [HOST]",
		Short: "Exchange messages over " + enum(kind, "TYPE") + ", as " + program + " does",
		Long:  fmt.Sprintf(pingpongLong, program, program, same, program),
		Example: fmt.Sprintf("  accelfab pingpong %s -d soft-0 -c\n  accelfab pingpong %s 10.77.0.2 -c\n  accelfab pingpong %s fe80::1%%eth0 -g 0 -s 64 -n 100",
			name, name, name),
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			host := ""
			if len(args) == 1 {
				host, p.run.client = args[0], true
			}
			if err := p.validate(args, cmd.Flags().Changed); err != nil {
				return err
			}
			p.run.limit = a.timeout
			return a.dial(a.server, func(c *client.Client) error { return p.do(cmd, a, c, host) })
		},
	}
	f := cmd.Flags()
	f.IntVarP(&p.port, "port", "p", 18515, "TCP port to find each other; 0 lets a server take a free one")
	f.StringVarP(&p.place.device, "ib-dev", "d", "", "device (default: the first with an active scale-out port)")
	f.Uint32VarP(&p.place.ibPort, "ib-port", "i", 0, "port of the device, as verbs count, from 1\n(default: the first active scale-out port)")
	f.VarP(&p.size, "size", "s", "bytes of a message")
	if kind != pb.QueuePair_TYPE_UD {
		f.Uint32VarP(&p.mtu, "mtu", "m", 1024, "path MTU: 256, 512, 1024, 2048 or 4096")
	}
	f.IntVarP(&p.run.receives, "rx-depth", "r", 500, "receives that are posted")
	f.IntVarP(&p.run.iters, "iters", "n", 1000, "messages each way")
	f.BoolVarP(&p.run.sleep, "events", "e", false, "sleep until a message comes (default: ask the daemon again and again)\nand ask the peer for an event with each")
	f.VarP(optionalFlag{&p.place.gidIndex}, "gid-idx", "g", "entry of the port's GID table (default: the first that is not link-local)")
	f.BoolVarP(&p.run.check, "chk", "c", false, "check what arrived; give it to both ends")
	f.Uint32VarP(&p.sl, "sl", "l", 0, "service level, 0 to 7. RoCE has none on the wire: it becomes the\nfirst three bits of the traffic class")
	p.place.gidFlag = "gid-idx"
	_ = cmd.RegisterFlagCompletionFunc("ib-dev", devices.complete(a))
	return cmd
}

// validate refuses what no node could do.
func (p *pingpongFlags) validate(args []string, given func(flag string) bool) error {
	if err := checkPlace(p.port, p.place, args, given); err != nil {
		return err
	}
	switch {
	case p.size < 1 || p.size > 1<<31:
		return usage("--size %d: want 1 to 2GiB", uint64(p.size))
	case p.run.kind != pb.QueuePair_TYPE_UD && !slices.Contains(pathMTUs, p.mtu):
		return usage("--mtu %d: want 256, 512, 1024, 2048 or 4096", p.mtu)
	case p.run.receives < 1:
		return usage("--rx-depth %d: want 1 or more", p.run.receives)
	case p.run.iters < 1:
		return usage("--iters %d: want 1 or more", p.run.iters)
	case p.sl > 7:
		return usage("--sl %d: want 0 to 7", p.sl)
	}
	return nil
}

var pathMTUs = []uint32{256, 512, 1024, 2048, 4096}

// spec is what the daemon is to make.
func (p *pingpongFlags) spec() jobSpec {
	q := &pb.QueuePair{
		Type:       p.run.kind,
		Capacities: &pb.QueuePair_Capacities{SendWr: 1, RecvWr: uint32(p.run.receives)},
		Attributes: &pb.QueuePair_Attributes{TrafficClass: proto.Uint32(p.sl << 5)},
	}
	s := jobSpec{
		program: "pingpong", place: p.place, bytes: p.run.bufferSize(), count: 1, queuePair: q,
		access: []pb.MemoryRegion_Access{pb.MemoryRegion_ACCESS_LOCAL_WRITE},
	}
	if p.run.kind == pb.QueuePair_TYPE_UD {
		q.Attributes.Qkey = proto.Uint32(pingpongQKey)
		s.datagram = p.run.size
	} else {
		q.Attributes.PathMtuBytes = &p.mtu
	}
	if p.run.kind == pb.QueuePair_TYPE_RC {
		q.Attributes.Timeout = proto.Uint32(pingpongAckTimeout)
	}
	return s
}

// pingpongReport is what -o json and -o yaml give.
type pingpongReport struct {
	Transport string          `json:"transport"`
	Local     pingpongAddress `json:"local"`
	Remote    pingpongAddress `json:"remote"`
	Bytes     uint64          `json:"bytes"` // both ways
	Iters     int             `json:"iters"`
	Seconds   float64         `json:"seconds"`
	Mbit      float64         `json:"mbit_per_second"`
	Usec      float64         `json:"usec_per_iter"`
	Checked   bool            `json:"checked"`
}

// print gives the last lines of ibv_*_pingpong.
func (r *pingpongReport) print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%d bytes in %.2f seconds = %.2f Mbit/sec\n%d iters in %.2f seconds = %.2f usec/iter\n",
		r.Bytes, r.Seconds, r.Mbit, r.Iters, r.Seconds, r.Usec)
	return err
}

// do runs one end, from the first call of the daemon to the last.
func (p *pingpongFlags) do(cmd *cobra.Command, a *app, c *client.Client, host string) error {
	talk := cmd.OutOrStdout() // for people
	if a.output != "table" {
		talk = cmd.ErrOrStderr()
	}
	p.run.size = uint64(p.size)
	report := pingpongReport{Transport: enum(p.run.kind, "TYPE"), Checked: p.run.check}
	err := runJob(cmd.Context(), c, a.timeout, p.spec(), func(ctx context.Context, j *job) (err error) {
		run := &p.run
		run.end = j.ends[0]
		if report.Local, err = run.own(); err != nil {
			return err
		}
		if err := run.prepare(ctx); err != nil {
			return err
		}
		fmt.Fprintf(talk, "  local address:  %v\n", report.Local)
		if err := p.meet(ctx, talk, host, report.Local); err != nil {
			return err
		}
		report.Remote = run.peer
		fmt.Fprintf(talk, "  remote address: %v\n", report.Remote)
		took, err := run.run(ctx)
		if err != nil {
			return err
		}
		report.measured(run, took)
		run.linger(ctx)
		if run.check {
			return run.verify(ctx)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return printReport(cmd, &report, report.print)
}

func (r *pingpongReport) measured(run *pingpong, took time.Duration) {
	r.Iters, r.Bytes, r.Seconds = run.iters, run.size*uint64(run.iters)*2, took.Seconds()
	r.Mbit = float64(r.Bytes) * 8 / 1e6 / r.Seconds
	r.Usec = r.Seconds * 1e6 / float64(r.Iters)
}

// meet finds the other end by TCP and connects with it.
func (p *pingpongFlags) meet(ctx context.Context, talk io.Writer, host string, own pingpongAddress) error {
	var conn net.Conn
	if host != "" {
		var err error
		if conn, err = tcpDial(ctx, host, p.port, p.run.limit); err != nil {
			return interruptedOr(ctx, err)
		}
	} else {
		l, err := tcpListen(ctx, p.port)
		if err != nil {
			return err
		}
		if p.port == 0 {
			fmt.Fprintf(talk, "  waiting on port %d\n", l.Addr().(*net.TCPAddr).Port)
		}
		if conn, err = tcpAccept(ctx, l); err != nil {
			return interruptedOr(ctx, err)
		}
	}
	defer conn.Close()
	peer := tcpPeer{conn: conn, limit: p.run.limit}
	err := introduce(ctx, peer, host == "", own, func(remote pingpongAddress) error { return p.run.connect(ctx, remote) })
	return interruptedOr(ctx, err)
}
