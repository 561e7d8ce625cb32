package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

var eventColumns = []column[*pb.Event]{
	{"CURSOR", func(e *pb.Event) any { return e.GetCursor() }},
	{"TIME", func(e *pb.Event) any { return e.GetCreateTime().AsTime().Local().Format("15:04:05.000") }},
	{"TYPE", func(e *pb.Event) any { return enum(e.GetType(), "TYPE") }},
	{"RESOURCE", func(e *pb.Event) any { return resourceText(e.GetResource()) }},
	{"WHO", func(e *pb.Event) any { return e.GetActor() }},
	{"BEFORE", func(e *pb.Event) any { return e.GetBefore() }},
	{"AFTER", func(e *pb.Event) any { return e.GetAfter() }},
	{"REASON", func(e *pb.Event) any { return e.GetReason() }},
	{"MESSAGE", func(e *pb.Event) any { return e.GetMessage() }},
}

// resourceText is a name without its node, as a journal holds all kinds.
func resourceText(name string) string {
	p := strings.Split(name, "/")
	if len(p) < 4 {
		return name
	}
	return p[len(p)-2] + "/" + short(name)
}

func newEventCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "event", Short: "The journal: every change, with who and why", Example: "  accelfab event list"}
	cmd.AddCommand(newEventListCmd(a), newEventWatchCmd(a))
	return cmd
}

func newEventListCmd(a *app) *cobra.Command {
	var after uint64
	var filter string
	var limit int
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List what the journal holds",
		Example: "  accelfab event list\n  accelfab event list --after 4711 --limit 100",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd, func(ctx context.Context, c *client.Client) error {
				all := &pb.ListEventsResponse{}
				for token := ""; ; {
					size := pageSize
					if limit > 0 {
						size = min(size, limit-len(all.Events))
					}
					r, err := c.Events.ListEvents(ctx, &pb.ListEventsRequest{
						Parent: localNode, After: after, Filter: filter, PageToken: token, PageSize: int32(size),
					})
					if err != nil {
						return err
					}
					all.Events = append(all.Events, r.GetEvents()...)
					token = r.GetNextPageToken()
					if token == "" || limit > 0 && len(all.Events) >= limit {
						return print(a, cmd, all, eventColumns, all.Events...)
					}
				}
			})
		},
	}
	cmd.Flags().Uint64Var(&after, "after", 0, "only events after this cursor")
	filterFlag(cmd, &filter)
	cmd.Flags().IntVar(&limit, "limit", 0, "at most so many; 0 for all")
	return cmd
}

func newEventWatchCmd(a *app) *cobra.Command {
	var since uint64
	var filter string
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Follow the journal until interrupted",
		Long: `Follow the journal until interrupted, through restarts of the daemon. Each event is a
line; with -o json each is a JSON document on a line. --since begins after a cursor
(0: with the oldest event that is kept) rather than with the events to come.`,
		Example: "  accelfab event watch\n  accelfab event watch --since 0 -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := client.Watch{Node: localNode, Filter: filter}
			if cmd.Flags().Changed("since") {
				w.After = &since
			}
			return a.dial(a.server, func(c *client.Client) error {
				for m, err := range c.Watch(cmd.Context(), w) {
					if err == nil {
						err = a.writeEvent(cmd, m)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().Uint64Var(&since, "since", 0, "cursor after which to begin (default: events to come)")
	filterFlag(cmd, &filter)
	return cmd
}

// writeEvent writes one message of a watch as one line, or one YAML document.
func (a *app) writeEvent(cmd *cobra.Command, m *pb.WatchEventsResponse) error {
	out := cmd.OutOrStdout()
	switch {
	case a.output == "yaml":
		fmt.Fprintln(out, "---")
		return a.document(out, m)
	case a.output == "json":
		b, err := jsonForm.Marshal(m)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(json.RawMessage(b))
	}
	if g := m.GetGap(); g != nil {
		_, err := fmt.Fprintf(out, "GAP: events after %d and before %d are not kept any more\n", g.GetAfter(), g.GetOldest())
		return err
	}
	e := m.GetEvent()
	_, err := fmt.Fprintf(out, "%d %s %s %s %s: %q -> %q %s %s\n", e.GetCursor(), e.GetCreateTime().AsTime().Local().Format(time.RFC3339),
		enum(e.GetType(), "TYPE"), resourceText(e.GetResource()), e.GetActor(), e.GetBefore(), e.GetAfter(), e.GetReason(), e.GetMessage())
	return err
}
