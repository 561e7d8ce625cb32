package topology

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// fileFaults are files that Load refuses, with what its error says, in order.
var fileFaults = []struct {
	name, text string
	want       []string
}{
	// The form of the file.
	{"empty", "", []string{"the file is empty"}},
	{"comment alone", "# nothing\n", []string{"the file is empty"}},
	{"no YAML", "cards: [", []string{"yaml: "}},
	{"a list", "- card: 0", []string{"line 1: cannot unmarshal"}},
	{"two documents", "cards: [{card: 0, ports: SO}]\n---\ncards: []", []string{"more than one document"}},
	{"unknown field", "speed: 3\ncards: [{card: 0, ports: SO}]", []string{"line 1: field speed not found"}},
	{"unknown field of a card", "cards:\n- {card: 0, prots: SO}", []string{"line 2: field prots not found"}},
	{"field twice", "cards: [{card: 0, ports: SO}]\nname: a\nname: b", []string{`"name" already defined`}},
	{"speed below zero", "portSpeedMbps: -1\ncards: [{card: 0, ports: SO}]", []string{"line 1: cannot unmarshal"}},
	{"too long", strings.Repeat("#", maxFile+1), []string{"more than 1048576 bytes"}},
	{"name", "name: 'a b'\ncards: [{card: 0, ports: SO}]", []string{`name "a b": `}},
	{"negative expectation", "expect: {internal: -1}\ncards: [{card: 0, ports: SO}]", []string{"expect: "}},

	// Cards.
	{"no cards", "name: x", []string{"no cards"}},
	{"card without number", "cards: [{ports: SO}]", []string{"cards[0]: card: "}},
	{"negative card", "cards: [{card: -2, ports: SO}]", []string{"cards[0]: card: "}},
	{"card twice", "cards: [{card: 0, ports: SO}, {card: 1, ports: SO}, {card: 1, ports: SO}]",
		[]string{"card 1: stands twice"}},
	{"card missing", "cards: [{card: 0, ports: SO}, {card: 2, ports: SO}]",
		[]string{"card 2: stands where card 1 belongs"}},
	{"no ports", "cards: [{card: 0}]", []string{"card 0: 0 ports"}},
	{"too many ports", "cards: [{card: 0, ports: " + strings.Repeat("SO ", 65) + "}]", []string{"card 0: 65 ports"}},
	{"port counts", "cards: [{card: 0, ports: SO NC}, {card: 1, ports: SO}]",
		[]string{"card 1: 1 ports, where card 0 has 2"}},

	// Ports.
	{"cells", "cards: [{card: 0, ports: 'SO so -1 1:x :2 1: +1 0x1 99999 1:2:3'}]", []string{
		`card 0 port 1: "so"`, `card 0 port 2: "-1"`, `card 0 port 3: "1:x"`, `card 0 port 4: ":2"`,
		`card 0 port 5: "1:"`, `card 0 port 6: "+1"`, `card 0 port 7: "0x1"`, `card 0 port 8: "99999"`,
		`card 0 port 9: "1:2:3"`}},
	{"peer card missing", "cards: [{card: 0, ports: SO 7:1}, {card: 1, ports: SO SO}]",
		[]string{"card 0 port 1: cabled to card 7, which is not there (cards are 0 to 1)"}},
	{"peer port missing", "cards: [{card: 0, ports: SO 1:2}, {card: 1, ports: SO SO}]",
		[]string{"card 0 port 1: cabled to card 1 port 2, which is not there (ports are 0 to 1)"}},
	{"itself", "cards: [{card: 0, ports: SO 0:1}]", []string{"card 0 port 1: cabled to itself"}},
	{"own card", "cards: [{card: 0, ports: 0:1 0:0}]", []string{
		"card 0 port 0: cabled to port 1 of its own card", "card 0 port 1: cabled to port 0 of its own card"}},
	{"peer is scale-out", "cards: [{card: 0, ports: 1:0}, {card: 1, ports: SO}]",
		[]string{"card 0 port 0: cabled to card 1 port 0, which is SCALE_OUT"}},
	{"peer is not connected", "cards: [{card: 0, ports: NC}, {card: 1, ports: 0:0}]",
		[]string{"card 1 port 0: cabled to card 0 port 0, which is NOT_CONNECTED"}},
	{"peer does not know", "cards: [{card: 0, ports: 1:0}, {card: 1, ports: IN}]",
		[]string{"card 0 port 0: cabled to card 1 port 0, whose peer is left unknown"}},
	{"not symmetric", "cards: [{card: 0, ports: 1:0 NC}, {card: 1, ports: 2:0 NC}, {card: 2, ports: 0:0 NC}]", []string{
		"card 0 port 0: cabled to card 1 port 0, which is cabled to card 2 port 0",
		"card 1 port 0: cabled to card 2 port 0, which is cabled to card 0 port 0",
		"card 2 port 0: cabled to card 0 port 0, which is cabled to card 1 port 0"}},
	{"one peer of two ports", "cards: [{card: 0, ports: 1:0 1:0}, {card: 1, ports: 0:0 NC}]",
		[]string{"card 0 port 1: cabled to card 1 port 0, to which card 0 port 0 is cabled too"}},
	{"several cards at fault", "cards: [{card: 0, ports: 0:0 1:1}, {card: 1, ports: SO 9:0}]", []string{
		"card 0 port 0: cabled to itself",
		"card 0 port 1: cabled to card 1 port 1, which is cabled to card 9 port 0",
		"card 1 port 1: cabled to card 9, which is not there"}},

	// Expectations.
	{"counts", "expect: {internal: 1, scaleOut: 2, lanesPerPeer: 2}\ncards: [{card: 0, ports: SO SO 1:2}, {card: 1, ports: SO NC 0:2}]", []string{
		"card 0: 1 lanes to card 1, expected 2",
		"card 1: 1 ports are SCALE_OUT, expected 2",
		"card 1: 1 lanes to card 0, expected 2"}},
	{"internal count", "expect: {internal: 2}\ncards: [{card: 0, ports: IN SO}]",
		[]string{"card 0: 1 ports are INTERNAL, expected 2"}},

	// HCL's file.
	{"HCL: unknown field", "HCL_NICS: []\nEXTRA: 1", []string{"line 2: field EXTRA not found"}},
	{"HCL: no cards", "HCL_NICS: []", []string{"no cards"}},
	{"HCL: no location", "HCL_NICS: [{NICS: []}]", []string{"HCL_NICS[0]: CARD_LOCATION: "}},
	{"HCL: half a peer", "HCL_NICS: [{CARD_LOCATION: 0, NICS: [{REMOTE_CARD: -1, REMOTE_NIC: 0}, {REMOTE_CARD: 1}, {REMOTE_NIC: 1}]}]",
		[]string{"card 0 port 1: REMOTE_CARD and REMOTE_NIC", "card 0 port 2: REMOTE_CARD and REMOTE_NIC"}},
	{"HCL: no such peer", "HCL_NICS: [{CARD_LOCATION: 0, NICS: [{REMOTE_CARD: -3, REMOTE_NIC: 0}, {REMOTE_CARD: 1, REMOTE_NIC: -1}]}]",
		[]string{"card 0 port 0: REMOTE_CARD -3", "card 0 port 1: REMOTE_CARD 1 REMOTE_NIC -1"}},
	{"HCL: own card", "HCL_NICS: [{CARD_LOCATION: 0, NICS: [{REMOTE_CARD: 0, REMOTE_NIC: 0}]}]",
		[]string{"card 0 port 0: cabled to itself"}},
}

func TestLoadSaysAllThatIsWrong(t *testing.T) {
	for _, test := range fileFaults {
		t.Run(test.name, func(t *testing.T) {
			m, err := Load(strings.NewReader(test.text), "rig")
			if m != nil || err == nil {
				t.Fatalf("Load = %v, %v", m, err)
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(test.want) {
				t.Fatalf("%d faults, want %d:\n%v", len(lines), len(test.want), err)
			}
			for i, line := range lines {
				if !strings.HasPrefix(line, "topology rig: ") || !strings.Contains(line, test.want[i]) {
					t.Errorf("%q does not say %q", line, test.want[i])
				}
				if strings.Contains(line, "topology.") {
					t.Errorf("%q tells of a Go type", line)
				}
			}
		})
	}
}

// Faults that a file cannot hold, of maps made by a program.
func TestCheckOfMadeMaps(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*Map)
		want   string
	}{
		{"no class", func(m *Map) { m.Cards[0].Ports[3].Class = 7 }, "card 0 port 3: Class(7)"},
		{"scale-out with a peer", func(m *Map) { m.Cards[0].Ports[2].PeerCard = 1 }, "card 0 port 2: is SCALE_OUT and cannot be cabled to card 1 port -1"},
		{"not connected with a peer", func(m *Map) { m.Cards[1].Ports[3].PeerPort = 0 }, "card 1 port 3: is NOT_CONNECTED and cannot be cabled to card -1 port 0"},
		{"half a peer", func(m *Map) { m.Cards[0].Ports[0].PeerCard = -1 }, "card 0 port 0: cabled to card -1, which is not there"},
		{"other half", func(m *Map) { m.Cards[0].Ports[0].PeerPort = -1 }, "card 0 port 0: cabled to card 1 port -1, which is not there"},
		{"zero port", func(m *Map) { m.Cards[1].Ports[3] = Port{} }, "card 1 port 0: stands where port 3 belongs"},
		{"zero card", func(m *Map) { m.Cards[1] = Card{} }, "card 0: stands twice in the map"},
		{"name", func(m *Map) { m.Name = "Lab" }, `name "Lab": `},
		{"no cards", func(m *Map) { m.Cards = nil }, "no cards"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := smallMap()
			if err := m.Check(); err != nil {
				t.Fatal(err)
			}
			test.change(m)
			if err := m.Check(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Check() = %v, want %q", err, test.want)
			}
		})
	}
}

// A changed cable anywhere in any built-in map is seen, and named.
func TestCheckSeesEveryChangedCable(t *testing.T) {
	for _, name := range Names() {
		if name == "hls-1" {
			continue
		}
		m := lookup(t, name)
		for c := range m.Cards {
			for p := range m.Cards[c].Ports {
				port := &m.Cards[c].Ports[p]
				was := *port
				if was.Class == Internal {
					port.PeerPort = (was.PeerPort + 1) % 24
				} else {
					port.Class, port.PeerCard, port.PeerPort = Internal, (c+1)%len(m.Cards), p
				}
				if !slices.ContainsFunc(faultsOf(t, m.Check()), func(f *Fault) bool { return f.Card == c && f.Port == p }) {
					t.Errorf("%s: a change of card %d port %d is not named", name, c, p)
				}
				*port = was
			}
		}
		if err := m.Check(); err != nil {
			t.Error(err)
		}
	}
}

// faultsOf takes the joined error of Check apart.
func faultsOf(t *testing.T, err error) []*Fault {
	t.Helper()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("%v joins no errors", err)
	}
	var all []*Fault
	for _, err := range joined.Unwrap() {
		var f *Fault
		if !errors.As(err, &f) {
			t.Fatalf("%v is no Fault", err)
		}
		all = append(all, f)
	}
	return all
}
