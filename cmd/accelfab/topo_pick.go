package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// maxPick is the most devices that a daemon picks.
const maxPick = 16

func newTopoPickCmd(a *app) *cobra.Command {
	var degraded bool
	cmd := &cobra.Command{
		Use:   "pick K",
		Short: "Choose the best K free cards for a job, and say why",
		Long: `Choose the best K of the cards that no session holds and that are well, by the lanes that
are active now: on the fewest islands, then with the most lanes between the two that have
the fewest, then with the most lanes in all, then so that whole islands stay free for
others, then those with the lowest module ids. K is 1 to 16.

Nothing is held by it: create a session on the cards to have them. Where fewer than K are
free it fails, and names who has the others.`,
		Example: "  accelfab topo pick 4\n  accelfab topo pick 2 --allow-degraded -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := strconv.Atoi(args[0])
			if err != nil || k < 1 || k > maxPick {
				return usage("%q: want a number of cards, 1 to %d", args[0], maxPick)
			}
			return a.call(cmd, func(ctx context.Context, c *client.Client) error {
				p, err := c.Nodes.PickDevices(ctx, &pb.PickDevicesRequest{Name: localNode, Count: int32(k), AllowDegraded: degraded})
				if err != nil {
					return err
				}
				if err := print(a, cmd, p, []column[string]{{"DEVICE", func(name string) any { return short(name) }}}, p.GetDevices()...); err != nil || a.output != "table" {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "\n%s\n", p.GetReason())
				if len(p.GetExcluded()) == 0 {
					return nil
				}
				fmt.Fprintln(cmd.OutOrStdout())
				return table(cmd.OutOrStdout(), []column[*pb.PickDevicesResponse_Excluded]{
					{"NOT TAKEN", func(x *pb.PickDevicesResponse_Excluded) any { return short(x.GetDevice()) }},
					{"REASON", func(x *pb.PickDevicesResponse_Excluded) any { return x.GetReason() }},
					{"WHY", func(x *pb.PickDevicesResponse_Excluded) any { return x.GetMessage() }},
				}, p.GetExcluded())
			})
		},
	}
	cmd.Flags().BoolVar(&degraded, "allow-degraded", false, "also take cards whose health is DEGRADED")
	return cmd
}
