package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// jsonForm is how the REST API writes messages.
var jsonForm = protojson.MarshalOptions{EmitDefaultValues: true}

// column is one of a table.
type column[M any] struct {
	title string
	value func(M) any
}

// print prints a message: rows as a table, or all of it as JSON or YAML.
func print[M any](a *app, cmd *cobra.Command, all proto.Message, columns []column[M], rows ...M) error {
	if a.output == "table" {
		return table(cmd.OutOrStdout(), columns, rows)
	}
	return a.document(cmd.OutOrStdout(), all)
}

func table[M any](w io.Writer, columns []column[M], rows []M) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	cells := make([]string, len(columns))
	for i, c := range columns {
		cells[i] = c.title
	}
	fmt.Fprintln(t, strings.Join(cells, "\t"))
	for _, r := range rows {
		for i, c := range columns {
			if cells[i] = fmt.Sprint(c.value(r)); cells[i] == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

// document prints a message as JSON or YAML.
func (a *app) document(w io.Writer, m proto.Message) error {
	b, err := jsonForm.Marshal(m)
	if err != nil {
		return err
	}
	if a.output == "yaml" {
		return writeYAML(w, b)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, out.String())
	return err
}

// enum is an enum's value without its prefix: RTS for STATE_RTS.
func enum(v fmt.Stringer, prefix string) string {
	s := strings.TrimPrefix(v.String(), prefix+"_")
	if s == "UNSPECIFIED" {
		return ""
	}
	return s
}

// bytesText is a size in the largest binary unit that divides it.
func bytesText(n uint64) string {
	unit := ""
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if n == 0 || n%1024 != 0 {
			break
		}
		n, unit = n/1024, u
	}
	if unit == "" {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d%s", n, unit)
}

// labelsText is labels in one word.
func labelsText(labels map[string]string) string {
	b, _ := json.Marshal(labels)
	if len(labels) == 0 {
		return ""
	}
	return string(b)
}

// stateText is a state, and why it is not as asked.
func stateText(state, reason string) string {
	if reason == "" {
		return state
	}
	return state + " (" + reason + ")"
}

// done says in a table's place that something was done.
func (a *app) done(cmd *cobra.Command, format string, args ...any) error {
	if a.output != "table" {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "{}")
		return err
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), format+"\n", args...)
	return err
}
