package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

func newTopoCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "topo",
		Short:   "Show which cards are cabled to which, by how many lanes",
		Example: "  accelfab topo\n  accelfab topo -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd, func(ctx context.Context, c *client.Client) error {
				t, err := c.Nodes.GetTopology(ctx, &pb.GetTopologyRequest{Name: localNode + "/topology"})
				if err != nil {
					return err
				}
				if a.output != "table" {
					return a.document(cmd.OutOrStdout(), t)
				}
				return matrix(cmd.OutOrStdout(), t)
			})
		},
	}
	cmd.AddCommand(newTopoPickCmd(a), newTopoGraphCmd(a), newPeerAccessCmd(a))
	return cmd
}

// matrix prints the lanes between each two cards, those that are active first
// where not all are, and the ports that lead outside.
func matrix(w io.Writer, t *pb.Topology) error {
	lanes := map[[2]string]string{}
	for _, p := range t.GetPairs() {
		text := lanesText(p)
		lanes[[2]string{p.GetDeviceA(), p.GetDeviceB()}] = text
		lanes[[2]string{p.GetDeviceB(), p.GetDeviceA()}] = text
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(tw, "LANES")
	for _, c := range t.GetCards() {
		fmt.Fprint(tw, "\t", short(c.GetDevice()))
	}
	fmt.Fprintln(tw, "\tSCALE-OUT PORTS")
	for _, row := range t.GetCards() {
		fmt.Fprint(tw, short(row.GetDevice()))
		for _, col := range t.GetCards() {
			text := lanes[[2]string{row.GetDevice(), col.GetDevice()}]
			switch {
			case row == col:
				text = "."
			case text == "":
				text = "-"
			}
			fmt.Fprint(tw, "\t", text)
		}
		fmt.Fprintln(tw, "\t"+scaleOut(row))
	}
	return tw.Flush()
}
