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
		err = writeYAML(out, data)
	default:
		err = table(out)
	}
	return err
}

// writeYAML writes a JSON document as YAML, so that both have the same names and
// order.
func writeYAML(w io.Writer, document []byte) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(document, &doc); err != nil {
		return err
	}
	blockStyle(&doc)
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	return e.Encode(&doc)
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
