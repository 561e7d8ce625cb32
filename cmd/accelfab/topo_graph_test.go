package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

const (
	pickTable = `
DEVICE
soft-0
soft-1

2 cards of island 0, every pair 3 lanes, 3 lanes in all

NOT TAKEN  REASON       WHY
soft-2     DEVICE_BUSY  held shared by nodes/n1/sessions/job1
`
	topologyDOT = `
graph topology {
  label="nodes/n1 (hls-2)";
  layout=circo;
  node [shape=box, style=filled];
  "soft-0" [fillcolor="#a6cee3", tooltip="soft-0: module 0, island 0, scale-out ports 8,22"];
  "soft-1" [fillcolor="#a6cee3", tooltip="soft-1: module 0, island 0, scale-out ports 8"];
  "soft-2" [fillcolor="#a6cee3", tooltip="soft-2: module 0, island 0"];
  "soft-0" -- "soft-1" [label="3", penwidth=3];
  "soft-1" -- "soft-2" [label="2/3", penwidth=2, style=dashed];
}
`
)

// quads is a topology of n cards of which the even and the odd are an island
// each, and one device beside them, with names that need care.
func quads(n int) *pb.Topology {
	t := &pb.Topology{Name: "nodes/n1/topology", PortMap: `a<b&"c\` + "\n", Islands: []*pb.Topology_Island{{}, {}}}
	for i := range n {
		name := fmt.Sprintf("nodes/n1/devices/soft-%d", i)
		t.Cards = append(t.Cards, &pb.Topology_Card{Device: name, ModuleId: uint32(i), Model: `<HL "1">`})
		t.Islands[i%2].Devices = append(t.Islands[i%2].Devices, name)
		for j := i % 2; j < i; j += 2 {
			t.Pairs = append(t.Pairs, &pb.Topology_Pair{DeviceA: t.Cards[j].Device, DeviceB: name, Lanes: 6, ActiveLanes: uint32(6 - i%3), SpeedMbps: 600000})
		}
	}
	t.Cards = append(t.Cards, &pb.Topology_Card{Device: "nodes/n1/devices/nic"})
	return t
}

// svgNode is an element of a picture.
type svgNode struct {
	XMLName xml.Name
	Attrs   []xml.Attr `xml:",any,attr"`
	Text    string     `xml:",chardata"`
	Nodes   []svgNode  `xml:",any"`
}

func (n *svgNode) attr(name string) string {
	for _, a := range n.Attrs {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func (n *svgNode) num(t *testing.T, name string) float64 {
	t.Helper()
	f, err := strconv.ParseFloat(n.attr(name), 64)
	if err != nil {
		t.Fatalf("%s of %s: %v", name, n.XMLName.Local, err)
	}
	return f
}

func TestSVG(t *testing.T) {
	topo := quads(15) // and one more: the most that do not overlap
	var out bytes.Buffer
	if err := writeSVG(&out, topo); err != nil {
		t.Fatal(err)
	}
	var root svgNode
	if err := xml.Unmarshal(out.Bytes(), &root); err != nil {
		t.Fatalf("%v in\n%s", err, &out)
	}
	if root.XMLName.Space != "http://www.w3.org/2000/svg" || root.XMLName.Local != "svg" {
		t.Errorf("root is %v", root.XMLName)
	}
	if title := root.Nodes[0].Text; title != "nodes/n1 (a<b&\"c\\\n)" {
		t.Errorf("title %q", title)
	}
	centre := map[string][2]float64{} // of cards, by name
	fills := map[string]string{}
	var run string // of islands, around the circle
	var lanes []svgNode
	for _, n := range root.Nodes {
		switch n.attr("class") {
		case "card":
			box, name := n.Nodes[1], n.Nodes[2].Text
			x, y, wide, high := box.num(t, "x"), box.num(t, "y"), box.num(t, "width"), box.num(t, "height")
			if x < 0 || y < 0 || x+wide > root.num(t, "width") || y+high > root.num(t, "height") {
				t.Errorf("%s is outside the picture", name)
			}
			for other, at := range centre {
				if dx, dy := at[0]-(x+wide/2), at[1]-(y+high/2); dx > -wide && dx < wide && dy > -high && dy < high {
					t.Errorf("%s lies over %s", name, other)
				}
			}
			centre[name], fills[name] = [2]float64{x + wide/2, y + high/2}, box.attr("fill")
			if len(run) == 0 || run[len(run)-7:] != box.attr("fill") {
				run += box.attr("fill")
			}
		case "lanes":
			lanes = append(lanes, n)
		}
	}
	if len(centre) != 16 || len(lanes) != len(topo.Pairs) || fills["soft-0"] == fills["soft-1"] || fills["soft-0"] != fills["soft-14"] || fills["nic"] != noIsland {
		t.Errorf("%d cards, %d edges, colours %v", len(centre), len(lanes), fills)
	}
	if len(run) != 3*len(noIsland) {
		t.Errorf("the islands are not a run each: %s", run)
	}
	for i, p := range topo.Pairs {
		line, label := lanes[i].Nodes[1], lanes[i].Nodes[2].Text
		from, to := centre[short(p.DeviceA)], centre[short(p.DeviceB)]
		for k, want := range map[string]float64{"x1": from[0], "y1": from[1], "x2": to[0], "y2": to[1]} {
			if got := line.num(t, k); got < want-0.2 || got > want+0.2 { // rounded
				t.Errorf("%s of %s to %s is %v, want %v", k, p.DeviceA, p.DeviceB, got, want)
			}
		}
		if dashed := line.attr("stroke-dasharray") != ""; dashed != (p.ActiveLanes < p.Lanes) || line.attr("stroke-width") != fmt.Sprint(p.ActiveLanes) {
			t.Errorf("%s to %s of %s lanes: dashed %t, %s wide", p.DeviceA, p.DeviceB, label, dashed, line.attr("stroke-width"))
		}
		if label != lanesText(p) {
			t.Errorf("label %q, want %q", label, lanesText(p))
		}
	}
}

// What is in a topology cannot end a text of DOT, and a line of it is a
// statement.
func TestDOTQuotes(t *testing.T) {
	var out bytes.Buffer
	if err := writeDOT(&out, quads(4)); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if want := `  label="nodes/n1 (a<b&\"c\\\n)";`; lines[1] != want {
		t.Errorf("label\n%s, want\n%s", lines[1], want)
	}
	if len(lines) != 4+5+2+1 || !strings.Contains(lines[5], `fillcolor="#b2df8a", tooltip="soft-1: module 1, <HL \"1\">, island 1"`) || !strings.Contains(lines[8], noIsland) {
		t.Errorf("\n%s", &out)
	}
}

func TestGraphIsSVGUnlessAsked(t *testing.T) {
	r := newRecorder(t, nil)
	got := r.run(t, "topo", "graph")
	d := xml.NewDecoder(strings.NewReader(got.stdout))
	texts := 0
	for {
		tok, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, got.stdout)
		}
		if s, ok := tok.(xml.StartElement); ok && s.Name.Local == "text" {
			texts++
		}
	}
	if got.status != 0 || texts != 1+3+2 {
		t.Errorf("%d texts: %+v", texts, got)
	}
}
