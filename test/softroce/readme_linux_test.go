package softroce

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/accelfab/accelfab/test/daemon"
)

// readmePeer is the address of the Linux machine in the README.
const readmePeer = "10.77.0.2"

var readmeLine = regexp.MustCompile(`(?m)^(?:linux|here)#\s+(.*?)\s*&?\s*(?:#.*)?$`)

// TestReadme runs what the README says of a Linux machine: its daemon, and its
// pingpongs with each end as the server.
func TestReadme(t *testing.T) {
	p := thePeer(t, ethernetMTU)
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(readme), "## Against a real Linux machine")
	section, _, _ = strings.Cut(section, "\n## ")
	var linux string
	var daemonArgs []string
	var ours [][]string
	for _, m := range readmeLine.FindAllStringSubmatch(section, -1) {
		switch words := strings.Fields(m[1]); words[0] {
		case "ibv_rc_pingpong":
			linux = m[1]
		case "accelfabd":
			daemonArgs = words[1:]
		case "accelfab":
			ours = append(ours, words[1:])
		}
	}
	if linux == "" || daemonArgs == nil || len(ours) != 2 {
		t.Fatalf("the README says %q, %q, %q", linux, daemonArgs, ours)
	}
	d := daemon.Start(t, daemon.Config{Node: "n1", Netns: p.netns, Args: daemonArgs})
	for _, our := range ours {
		t.Run(strings.Join(our, " "), func(t *testing.T) {
			linuxServes := slices.Contains(our, readmePeer)
			defer record(t, row{"ibv_rc_pingpong", exchange{linuxServes: linuxServes}.role(), "1024", "4096", "as in the README", "ok"})
			// meet adds the host. Fewer messages than the default, for time.
			our := append(slices.DeleteFunc(slices.Clone(our), func(word string) bool { return word == readmePeer }), "-n", "100")
			if m := meet(t, p, d, linuxServes, limited(linux+" -n 100"), our); m.status != 0 || m.err != nil {
				t.Error(m)
			}
		})
	}
}
