package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// printReport prints what a lab or a demo tells: v in the form that -o asks
// for, or the table.
func printReport(cmd *cobra.Command, v any, table func(io.Writer) error) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	switch outputFlag(cmd) {
	case "json":
		_, err = fmt.Fprintf(out, "%s\n", data)
	case "yaml":
		// By way of JSON, so that both have the same names and order.
		var doc yaml.Node
		if err = yaml.Unmarshal(data, &doc); err == nil {
			blockStyle(&doc)
			e := yaml.NewEncoder(out)
			e.SetIndent(2)
			err = e.Encode(&doc)
		}
	default:
		err = table(out)
	}
	return err
}

// blockStyle takes off the braces and quotes that JSON brought.
func blockStyle(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		blockStyle(c)
	}
}

// outputFlag is the value of -o, which all commands inherit.
func outputFlag(cmd *cobra.Command) string {
	if f := cmd.Flag("output"); f != nil {
		return f.Value.String()
	}
	return "table"
}
