package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
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
		{"GID", func(p *pb.Port) any { return lastGID(p.GetGids()) }},
	},
	get: func(ctx context.Context, c *client.Client, name string) (*pb.Port, error) {
		return c.Devices.GetPort(ctx, &pb.GetPortRequest{Name: name})
	},
	list: func(ctx context.Context, c *client.Client, p page) (proto.Message, []*pb.Port, string, error) {
		r, err := c.Devices.ListPorts(ctx, &pb.ListPortsRequest{Parent: p.parent, Filter: p.filter, PageToken: p.token, PageSize: pageSize})
		return r, r.GetPorts(), r.GetNextPageToken(), err
	},
}

// lastGID is the entry of the table that a connection would use, with its index.
func lastGID(gids []*pb.Port_Gid) string {
	if len(gids) == 0 {
		return ""
	}
	g := gids[len(gids)-1]
	return fmt.Sprintf("%s [%d]", g.GetGid(), g.GetIndex())
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
	cmd := ports.on(a, ports, &cobra.Command{
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
	})
	validateOnlyFlag(cmd, &validateOnly)
	return cmd
}
