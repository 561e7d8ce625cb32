package topology

import (
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const peerFileText = `
name: lab
cards:
  - {card: 0, ports: 1:0 SO}
  - {card: 1, ports: 0:0 SO}
peerAccess:
  - {importer: nic, exporter: "0", path: PCIe switch 03:00.0}
  - {importer: nic, exporter: "*", obstacle: root port 0000:00:01.0}
  - {importer: 1, exporter: 0, obstacle: ACS}
`

func TestPeerRule(t *testing.T) {
	m, err := Load(strings.NewReader(peerFileText), "lab")
	if err != nil {
		t.Fatal(err)
	}
	nic := PeerDevice{Card: -1, ID: "nic"}
	card := func(n int) PeerDevice { return PeerDevice{Card: n, ID: "soft-" + string(rune('0'+n))} }
	for _, c := range []struct {
		importer, exporter PeerDevice
		path, obstacle     string
	}{
		{nic, card(0), "PCIe switch 03:00.0", ""},
		{nic, card(1), "", "root port 0000:00:01.0"},
		{card(1), card(0), "", "ACS"},
		{card(0), card(1), "", ""},                             // no rule
		{PeerDevice{Card: -1, ID: "other-1"}, card(0), "", ""}, // card 1 of another map
	} {
		r, ok := m.PeerRule(c.importer, c.exporter)
		if ok != (c.path+c.obstacle != "") || r.Path != c.path || r.Obstacle != c.obstacle {
			t.Errorf("%v to %v: %+v, %v", c.importer, c.exporter, r, ok)
		}
	}
	data, err := yaml.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Load(strings.NewReader(string(data)), "lab"); err != nil || !reflect.DeepEqual(m, again) {
		t.Errorf("printed and loaded again: %+v, %v", again, err)
	}
	one, err := m.Truncate(1)
	if err != nil || len(one.PeerAccess) != 2 || len(m.PeerAccess) != 3 {
		t.Errorf("rules of one card: %+v, %v", one.PeerAccess, err)
	}
	if err := one.Check(); err != nil {
		t.Error(err)
	}
}

func TestBadPeerRules(t *testing.T) {
	for rule, want := range map[string]string{
		`{importer: "2", exporter: "0", obstacle: x}`:          "peerAccess[0]: importer: card 2 is not there (cards are 0 to 1)",
		`{importer: "-1", exporter: "0", obstacle: x}`:         "card -1 is not there",
		`{exporter: "0", obstacle: x}`:                         `peerAccess[0]: importer: give a module id`,
		`{importer: "*", exporter: "0"}`:                       "give either a path",
		`{importer: "*", exporter: "0", path: a, obstacle: b}`: "give either a path",
		`{importer: "*", exporter: "0", way: b}`:               "field way not found",
	} {
		text := peerFileText[:strings.Index(peerFileText, "peerAccess")] + "peerAccess:\n  - " + rule + "\n"
		if _, err := Load(strings.NewReader(text), "lab"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", rule, err, want)
		}
	}
}
