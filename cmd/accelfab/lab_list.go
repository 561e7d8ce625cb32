package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// labStatus is what lab list tells of a node.
type labStatus struct {
	Dir    string   `json:"dir"`
	Node   string   `json:"node"`
	State  string   `json:"state"` // RUNNING or ENDED
	PID    int      `json:"pid"`
	Server string   `json:"server"`
	GRPC   []string `json:"grpc"`
	HTTP   string   `json:"http"`
	Log    string   `json:"log"`
}

func newLabListCmd() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List labs and their nodes",
		Long: `List the labs of this user: those below the runtime directory, which is where
they are unless --dir said otherwise, or the one in --dir. A node whose daemon
has ended is listed until "lab down" removes what is left of it.`,
		Example: `  accelfab lab list
  accelfab lab list --dir /tmp/four -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var labs []*lab
			var err error
			if dir == "" {
				labs, err = labsHere()
			} else if dir, err = labDir(dir); err == nil {
				var l *lab
				if l, err = readLab(dir); errors.Is(err, fs.ErrNotExist) {
					err = fmt.Errorf("no lab in %s: %w", dir, err)
				}
				labs = []*lab{l}
			}
			if err != nil {
				return err
			}
			rows := []labStatus{}
			for _, l := range labs {
				for _, n := range l.Nodes {
					rows = append(rows, n.status(l))
				}
			}
			return printReport(cmd, rows, func(w io.Writer) error { return printLabs(w, rows) })
		},
	}
	dirFlag(cmd, &dir)
	return cmd
}

func (n *labNode) status(l *lab) labStatus {
	s := labStatus{
		Dir: l.Dir, Node: n.Name, State: "ENDED", PID: n.Process.PID,
		Server: n.server(), GRPC: n.GRPC, HTTP: n.HTTP, Log: n.logPath(),
	}
	if n.Process.running() {
		s.State = "RUNNING"
	}
	return s
}

func printLabs(w io.Writer, rows []labStatus) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "LAB\tNODE\tSTATE\tPID\tREST\tSERVER")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\n", r.Dir, r.Node, r.State, r.PID, r.HTTP, r.Server)
	}
	return t.Flush()
}
