package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

var nodeColumns = []column[*pb.Node]{
	{"NODE", func(n *pb.Node) any { return strings.TrimPrefix(n.GetName(), "nodes/") }},
	{"STATE", func(n *pb.Node) any { return stateText(enum(n.GetState(), "STATE"), n.GetReason()) }},
	{"DEVICES", func(n *pb.Node) any { return n.GetDeviceCount() }},
	{"VERSION", func(n *pb.Node) any { return n.GetVersion() }},
	{"INSTANCE", func(n *pb.Node) any { return n.GetInstanceId() }},
	{"STARTED", func(n *pb.Node) any { return n.GetStartTime().AsTime().Local().Format(time.DateTime) }},
}

func newNodeCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "node", Short: "The node and its health", Example: "  accelfab node get"}
	get := func(cmd *cobra.Command, show func(*pb.Node) error) error {
		return a.call(cmd, func(ctx context.Context, c *client.Client) error {
			n, err := c.Nodes.GetNode(ctx, &pb.GetNodeRequest{Name: localNode})
			if err != nil {
				return err
			}
			return show(n)
		})
	}
	cmd.AddCommand(&cobra.Command{
		Use:     "get",
		Short:   "Show the node",
		Example: "  accelfab node get\n  accelfab node get -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return get(cmd, func(n *pb.Node) error { return print(a, cmd, n, nodeColumns, n) })
		},
	}, newHealthCmd(a, get))
	cmd.AddCommand(newNodeBackupCmd(a))
	return cmd
}

var componentColumns = []column[*pb.Health_Component]{
	{"COMPONENT", func(c *pb.Health_Component) any { return c.GetName() }},
	{"STATUS", func(c *pb.Health_Component) any { return enum(c.GetStatus(), "STATUS") }},
	{"REASON", func(c *pb.Health_Component) any { return c.GetReason() }},
	{"SINCE", func(c *pb.Health_Component) any { return c.GetStartTime().AsTime().Local().Format(time.DateTime) }},
	{"MESSAGE", func(c *pb.Health_Component) any { return c.GetMessage() }},
}

var problemColumns = []column[*pb.Health_Problem]{
	{"RESOURCE", func(p *pb.Health_Problem) any { return short(p.GetResource()) }},
	{"REASON", func(p *pb.Health_Problem) any { return p.GetReason() }},
	{"SINCE", func(p *pb.Health_Problem) any { return p.GetStartTime().AsTime().Local().Format(time.DateTime) }},
	{"MESSAGE", func(p *pb.Health_Problem) any { return p.GetMessage() }},
}

// newHealthCmd fails where the node is not well, so that scripts can ask it.
func newHealthCmd(a *app, get func(*cobra.Command, func(*pb.Node) error) error) *cobra.Command {
	return &cobra.Command{
		Use:   "health",
		Short: "Say whether the node is well, and what is wrong with it",
		Long: `Say how well each component of the node works: the store, the wall clock, the cluster,
each device and its ports. Each is OK, DEGRADED (it serves, and something needs a look),
FAILED (it does not serve), UNKNOWN, or NOT_APPLICABLE, with a reason, since when, and what
to do. It clears by itself. Where a component has several faults a second table has all.

The exit status is 0 only if the node is OK: no component is DEGRADED or FAILED, and
the store and all devices are known. A clock that is UNKNOWN does not count.`,
		Example: "  accelfab node health\n  accelfab node health -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return get(cmd, func(n *pb.Node) error {
				h := n.GetHealth()
				if err := print(a, cmd, h, componentColumns, h.GetComponents()...); err != nil {
					return err
				}
				if a.output == "table" && moreProblems(h) {
					fmt.Fprintln(cmd.OutOrStdout())
					if err := table(cmd.OutOrStdout(), problemColumns, h.GetProblems()); err != nil {
						return err
					}
				}
				if h.GetStatus() != pb.Health_STATUS_OK {
					return errors.New(n.GetName() + " is " + enum(h.GetStatus(), "STATUS"))
				}
				return nil
			})
		},
	}
}

// moreProblems says whether there are faults that no component tells.
func moreProblems(h *pb.Health) bool {
	told := 0
	for _, c := range h.GetComponents() {
		if c.GetStatus() == pb.Health_STATUS_DEGRADED || c.GetStatus() == pb.Health_STATUS_FAILED {
			told++
		}
	}
	return len(h.GetProblems()) > told
}
