package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// graphFormats are the writers of topo graph.
var graphFormats = map[string]func(io.Writer, *pb.Topology) error{"dot": writeDOT, "svg": writeSVG}

func newTopoGraphCmd(a *app) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "graph",
		Short: "Draw which cards are cabled to which, as SVG or for Graphviz",
		Long: `Draw the cards and the lanes between them, as an SVG picture or in the DOT language of
Graphviz, to the standard output. An edge has the number of its lanes, active/cabled where
not all are active, and is dashed then. Cards of one island, which reach each other over
active lanes, have one colour.`,
		Example: "  accelfab topo graph\n  accelfab topo graph --format dot",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			write := graphFormats[format]
			if write == nil {
				return usage("--format %q: want dot or svg", format)
			}
			return a.call(cmd, func(ctx context.Context, c *client.Client) error {
				t, err := c.Nodes.GetTopology(ctx, &pb.GetTopologyRequest{Name: localNode + "/topology"})
				if err != nil {
					return err
				}
				return write(cmd.OutOrStdout(), t)
			})
		},
	}
	cmd.Flags().StringVar(&format, "format", "svg", "dot or svg")
	return cmd
}

// islandColors are those of cards, the next for each island, from the first
// again after the last.
var islandColors = []string{"#a6cee3", "#b2df8a", "#fdbf6f", "#cab2d6", "#fb9a99", "#ffff99"}

// noIsland is the colour of a device that is of no island.
const noIsland = "#dddddd"

// islandOf gives the number of a device's island, or -1.
func islandOf(t *pb.Topology, device string) int {
	return slices.IndexFunc(t.GetIslands(), func(i *pb.Topology_Island) bool { return slices.Contains(i.GetDevices(), device) })
}

func islandColor(island int) string {
	if island < 0 {
		return noIsland
	}
	return islandColors[island%len(islandColors)]
}

// lanesText is the lanes of a pair, those that are active first where not all
// are.
func lanesText(p *pb.Topology_Pair) string {
	if p.GetActiveLanes() != p.GetLanes() {
		return fmt.Sprintf("%d/%d", p.GetActiveLanes(), p.GetLanes())
	}
	return fmt.Sprint(p.GetLanes())
}

// scaleOut lists the numbers of a card's ports that lead out.
func scaleOut(c *pb.Topology_Card) string {
	var out []string
	for _, p := range c.GetPorts() {
		if p.GetClass() == pb.Port_CLASS_SCALE_OUT {
			out = append(out, fmt.Sprint(p.GetNumber()))
		}
	}
	return strings.Join(out, ",")
}

// graphTitle says what is drawn.
func graphTitle(t *pb.Topology) string {
	title := strings.TrimSuffix(t.GetName(), "/topology")
	if t.GetPortMap() != "" {
		title += " (" + t.GetPortMap() + ")"
	}
	return title
}

// dotText quotes a text for DOT. A backslash begins an escape there, such as \n
// or \N, and a quotation mark ends the text.
func dotText(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

// writeDOT writes a topology in the DOT language.
func writeDOT(w io.Writer, t *pb.Topology) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "graph topology {\n  label=%s;\n  layout=circo;\n  node [shape=box, style=filled];\n", dotText(graphTitle(t)))
	for _, c := range t.GetCards() {
		fmt.Fprintf(&b, "  %s [fillcolor=%q, tooltip=%s];\n", dotText(short(c.GetDevice())), islandColor(islandOf(t, c.GetDevice())), dotText(cardTitle(t, c)))
	}
	for _, p := range t.GetPairs() {
		style := ""
		if p.GetActiveLanes() != p.GetLanes() {
			style = ", style=dashed"
		}
		fmt.Fprintf(&b, "  %s -- %s [label=%s, penwidth=%d%s];\n", dotText(short(p.GetDeviceA())), dotText(short(p.GetDeviceB())),
			dotText(lanesText(p)), max(1, p.GetActiveLanes()), style)
	}
	b.WriteString("}\n")
	_, err := w.Write(b.Bytes())
	return err
}

// cardTitle tells about a card.
func cardTitle(t *pb.Topology, c *pb.Topology_Card) string {
	s := fmt.Sprintf("%s: module %d", short(c.GetDevice()), c.GetModuleId())
	if c.GetModel() != "" {
		s += ", " + c.GetModel()
	}
	if i := islandOf(t, c.GetDevice()); i >= 0 {
		s += fmt.Sprintf(", island %d", i)
	}
	if out := scaleOut(c); out != "" {
		s += ", scale-out ports " + out
	}
	return s
}

// svgText escapes a text for SVG.
func svgText(s string) string {
	var b strings.Builder
	xml.EscapeText(&b, []byte(s)) // a Builder does not fail
	return b.String()
}

// Measures of a picture, in pixels.
const (
	svgSide   = 720 // of the square, beside the title
	svgTop    = 40  // of the title
	svgRadius = 270 // of the circle of cards
	cardWide  = 90  // 16 cards do not overlap
	cardHigh  = 36
)

// writeSVG draws a topology: cards in a circle, lanes as lines as thick as there
// are active ones. Each island is a run of the circle.
func writeSVG(w io.Writer, t *pb.Topology) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="14" text-anchor="middle">`+"\n",
		svgSide, svgSide+svgTop)
	fmt.Fprintf(&b, `<title>%s</title>`+"\n"+`<rect width="100%%" height="100%%" fill="white"/>`+"\n"+`<text x="%d" y="26" font-size="18">%[1]s</text>`+"\n",
		svgText(graphTitle(t)), svgSide/2)
	cards := slices.Clone(t.GetCards())
	slices.SortStableFunc(cards, func(a, b *pb.Topology_Card) int {
		return islandOf(t, a.GetDevice()) - islandOf(t, b.GetDevice())
	})
	type point struct{ x, y float64 }
	at := map[string]point{}
	for i, c := range cards {
		sin, cos := math.Sincos(2*math.Pi*float64(i)/float64(len(cards)) - math.Pi/2)
		at[c.GetDevice()] = point{svgSide/2 + svgRadius*cos, svgTop + svgSide/2 + svgRadius*sin}
	}
	num := func(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) }
	for _, p := range t.GetPairs() {
		from, to := at[p.GetDeviceA()], at[p.GetDeviceB()]
		dash := ""
		if p.GetActiveLanes() != p.GetLanes() {
			dash = ` stroke-dasharray="6 4"`
		}
		// The number is nearer to one end, as the middles of many lines meet.
		x, y := from.x+(to.x-from.x)*0.35, from.y+(to.y-from.y)*0.35
		fmt.Fprintf(&b, `<g class="lanes"><title>%s and %s: %s lanes, %d Gbit/s</title><line x1="%s" y1="%s" x2="%s" y2="%s" stroke="#666666" stroke-width="%d"%s/><text x="%s" y="%s" font-size="11">%s</text></g>`+"\n",
			svgText(short(p.GetDeviceA())), svgText(short(p.GetDeviceB())), lanesText(p), p.GetSpeedMbps()/1000,
			num(from.x), num(from.y), num(to.x), num(to.y), max(1, p.GetActiveLanes()), dash, num(x), num(y-4), lanesText(p))
	}
	for _, c := range cards {
		p := at[c.GetDevice()]
		fmt.Fprintf(&b, `<g class="card"><title>%s</title><rect x="%s" y="%s" width="%d" height="%d" rx="6" fill="%s" stroke="black"/><text x="%s" y="%s">%s</text></g>`+"\n",
			svgText(cardTitle(t, c)), num(p.x-cardWide/2), num(p.y-cardHigh/2), cardWide, cardHigh, islandColor(islandOf(t, c.GetDevice())),
			num(p.x), num(p.y+5), svgText(short(c.GetDevice())))
	}
	b.WriteString("</svg>\n")
	_, err := w.Write(b.Bytes())
	return err
}
