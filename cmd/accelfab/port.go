package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

var ports = resource[*pb.Port]{
	kind: portKind, command: "port", plural: "ports",
	columns: []column[*pb.Port]{
		{"PORT", func(p *pb.Port) any { return short(p.GetName()) }},
		{"CLASS", func(p *pb.Port) any { return enum(p.GetClass(), "CLASS") }},
		{"ADMIN", func(p *pb.Port) any { return enum(p.GetAdminState(), "ADMIN_STATE") }},
		{"STATE", func(p *pb.Port) any { return stateText(enum(p.GetState(), "STATE"), p.GetReason()) }},
		{"GBIT/S", func(p *pb.Port) any { return p.GetSpeedMbps() / 1000 }},
		{"MTU", func(p *pb.Port) any { return p.GetActiveMtuBytes() }},
		{"PEER", func(p *pb.Port) any { return short(p.GetPeer().GetPort()) }},
		{"GID", func(p *pb.Port) any { return gidText(usualGID(p.GetGids())) }},
	},
	more: portDetails,
	get: func(ctx context.Context, c *client.Client, name string) (*pb.Port, error) {
		return c.Devices.GetPort(ctx, &pb.GetPortRequest{Name: name})
	},
	list: func(ctx context.Context, c *client.Client, p page) (proto.Message, []*pb.Port, string, error) {
		r, err := c.Devices.ListPorts(ctx, &pb.ListPortsRequest{Parent: p.parent, Filter: p.filter, PageToken: p.token, PageSize: pageSize})
		return r, r.GetPorts(), r.GetNextPageToken(), err
	},
}

// usualGID is the entry that a connection would use where nobody asks for
// another: the first of RoCE v2 that is not link-local, else the first.
func usualGID(gids []*pb.Port_Gid) *pb.Port_Gid {
	var usual *pb.Port_Gid
	for _, g := range gids {
		if g.GetType() != pb.GidType_GID_TYPE_ROCE_V1 && gidFamily(g.GetGid()) != linkLocal {
			return g
		}
		if usual == nil {
			usual = g
		}
	}
	return usual
}

func gidText(g *pb.Port_Gid) string {
	if g == nil {
		return ""
	}
	return fmt.Sprintf("%s [%d]", g.GetGid(), g.GetIndex())
}

const linkLocal = "IPv6 link-local"

// gidFamily is the address family of a GID.
func gidFamily(gid string) string {
	switch addr, err := netip.ParseAddr(gid); {
	case err != nil:
		return ""
	case addr.Is4In6():
		return "IPv4"
	case addr.IsLinkLocalUnicast():
		return linkLocal
	}
	return "IPv6"
}

var gidColumns = []column[*pb.Port_Gid]{
	{"GID INDEX", func(g *pb.Port_Gid) any { return g.GetIndex() }},
	{"TYPE", func(g *pb.Port_Gid) any { return enum(g.GetType(), "GID_TYPE") }},
	{"FAMILY", func(g *pb.Port_Gid) any { return gidFamily(g.GetGid()) }},
	{"GID", func(g *pb.Port_Gid) any { return g.GetGid() }},
}

// counter is one of a port.
type counter struct {
	name  string
	count uint64
}

var counterColumns = []column[counter]{
	{"COUNTER", func(c counter) any { return c.name }},
	{"COUNT", func(c counter) any { return c.count }},
}

// countersOf gives the counters of a port that are not 0, in the contract's
// order.
func countersOf(p *pb.Port) []counter {
	var out []counter
	m := p.GetCounters().ProtoReflect()
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		if f.Kind() != protoreflect.Uint64Kind {
			continue
		}
		if n := m.Get(f).Uint(); n > 0 {
			out = append(out, counter{string(f.Name()), n})
		}
	}
	return out
}

// portDetails shows what a row has no room for: why the port is down, its
// receive buffer, its GID table and its counters.
func portDetails(w io.Writer, p *pb.Port) error {
	if p.GetMessage() != "" {
		fmt.Fprintf(w, "\n%s\n", p.GetMessage())
	}
	if p.GetReceiveBufferAskedBytes() > 0 {
		fmt.Fprintf(w, "\nreceive buffer: %d of %d bytes\n", p.GetReceiveBufferBytes(), p.GetReceiveBufferAskedBytes())
	}
	if len(p.GetGids()) > 0 {
		fmt.Fprintln(w)
		if err := table(w, gidColumns, p.GetGids()); err != nil {
			return err
		}
	}
	counters := countersOf(p)
	if len(counters) == 0 {
		_, err := fmt.Fprintln(w, "\nall counters are 0")
		return err
	}
	fmt.Fprintln(w)
	return table(w, counterColumns, counters)
}

func newPortCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "port", Short: "RoCE ports of the cards", Example: "  accelfab port list soft-0"}
	cmd.AddCommand(ports.listCmd(a), ports.getCmd(a),
		newPortSetCmd(a, "enable", "Let a port come up", pb.Port_ADMIN_STATE_ENABLED),
		newPortSetCmd(a, "disable", "Take a port down: nothing passes it", pb.Port_ADMIN_STATE_DISABLED))
	return cmd
}

func newPortSetCmd(a *app, verb, about string, state pb.Port_AdminState) *cobra.Command {
	var validateOnly bool
	cmd := on(a, ports, &cobra.Command{
		Use:     verb + " DEVICE/PORT",
		Short:   about,
		Example: "  accelfab port " + verb + " soft-0/8",
	}, func(name string) (call[*pb.Port], error) {
		req := &pb.UpdatePortRequest{
			Port:         &pb.Port{Name: name, AdminState: state},
			UpdateMask:   &fieldmaskpb.FieldMask{Paths: []string{"admin_state"}},
			ValidateOnly: validateOnly,
		}
		return func(ctx context.Context, c *client.Client) (*pb.Port, error) { return c.Devices.UpdatePort(ctx, req) }, nil
	}, ports.print)
	validateOnlyFlag(cmd, &validateOnly)
	return cmd
}
