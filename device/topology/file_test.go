package topology

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"go.yaml.in/yaml/v3"
)

// mustLoad loads a map that is right, with the name "test".
func mustLoad(t *testing.T, text string) *Map {
	t.Helper()
	m, err := Load(strings.NewReader(text), "test")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// small is what the package comment gives as an example.
const small = `
name: Lab-4
asic: Gaudi2
model: HL-225H
portSpeedMbps: 100000
expect:
  internal: 2
  scaleOut: 1
  lanesPerPeer: 2
cards:
  - {card: 0, ports: 1:0 1:2 SO NC}
  - {card: 1, ports: 0:0 SO 0:1 NC}
`

func smallMap() *Map {
	return &Map{
		Name: "lab-4", Model: "HL-225H", ASIC: "Gaudi2", PortSpeedMbps: 100_000,
		Expect: Expect{Internal: 2, ScaleOut: 1, LanesPerPeer: 2},
		Cards: []Card{
			{0, []Port{{0, Internal, 1, 0}, {1, Internal, 1, 2}, {2, ScaleOut, -1, -1}, {3, NotConnected, -1, -1}}},
			{1, []Port{{0, Internal, 0, 0}, {1, ScaleOut, -1, -1}, {2, Internal, 0, 1}, {3, NotConnected, -1, -1}}},
		},
	}
}

func TestLoad(t *testing.T) {
	for name, text := range map[string]string{
		"as documented": small,
		"JSON": `{"name": "lab-4", "asic": "Gaudi2", "model": "HL-225H", "portSpeedMbps": 100000,
			"expect": {"internal": 2, "scaleOut": 1, "lanesPerPeer": 2},
			"cards": [{"card": 0, "ports": "1:0 1:2 SO NC"}, {"card": 1, "ports": "0:0 SO 0:1 NC"}]}`,
		"cards in any order": strings.Replace(small, "cards:\n  - {card: 0, ports: 1:0 1:2 SO NC}\n",
			"cards:\n", 1) + "  - {card: 0, ports: 1:0 1:2 SO NC}\n",
		"same port number": strings.Replace(small, "ports: 1:0 1:2", "ports: 1 1:2", 1),
		"folded rows":      strings.Replace(small, "{card: 0, ports: 1:0 1:2 SO NC}", "card: 0\n    ports: >\n      1:0 1:2\n      SO  NC", 1),
	} {
		if got := mustLoad(t, text); !reflect.DeepEqual(got, smallMap()) {
			t.Errorf("%s: %+v, want %+v", name, got, smallMap())
		}
	}
}

func TestLoadNamesTheMap(t *testing.T) {
	text := "cards: [{card: 0, ports: SO}]"
	if m := mustLoad(t, text); m.Name != "test" {
		t.Errorf("name %q", m.Name)
	}
	path := filepath.Join(t.TempDir(), "Rig.07.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := LoadFile(path)
	if err != nil || m.Name != "rig.07" {
		t.Errorf("LoadFile: %v, %v", m, err)
	}
}

func TestLoadFileErrorsNameThePath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bad.yaml")
	if _, err := LoadFile(path); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(path, []byte("cards: [{card: 0, ports: SO 0:0}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadFile(path); err == nil || !strings.Contains(err.Error(), path+": card 0 port 1: ") {
		t.Errorf("fault: %v", err)
	}
}

func TestLoadHandsOnReadErrors(t *testing.T) {
	lost := errors.New("lost")
	if m, err := Load(iotest.ErrReader(lost), "net"); m != nil || !errors.Is(err, lost) {
		t.Errorf("Load = %v, %v", m, err)
	}
}

func TestExampleOfHLS1IsComplete(t *testing.T) {
	m, err := LoadFile("testdata/hls-1-example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	builtin, _ := Lookup("hls-1")
	for card := range m.Cards {
		for _, class := range []Class{Internal, ScaleOut, NotConnected} {
			if got, want := m.Mask(card, class), builtin.Mask(card, class); got != want {
				t.Errorf("card %d: %v mask %#x, want %#x", card, class, got, want)
			}
		}
	}
	if got := m.Islands(); len(got) != 1 {
		t.Errorf("islands %v", got)
	}
}

func TestUnknownPeersComeWithTheMap(t *testing.T) {
	m, err := Load(strings.NewReader(`
expect: {internal: 2, lanesPerPeer: 2} # lanes cannot be counted yet
cards: [{card: 0, ports: SO IN 1:2}, {card: 1, ports: IN SO 0:2}]`), "half")
	if m == nil || !errors.Is(err, ErrPeersUnknown) {
		t.Fatalf("Load = %v, %v", m, err)
	}
	for _, want := range []string{"half", "card 0 port 1", "2 ports in all"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if _, _, class, ok := m.Peer(0, 1); class != Internal || ok {
		t.Errorf("class %v, peer known %v", class, ok)
	}
}

// With another fault beside it the map is not usable, and no test for
// ErrPeersUnknown may say it is.
func TestUnknownPeersBesideAFault(t *testing.T) {
	m, err := Load(strings.NewReader("cards: [{card: 0, ports: 1:1 IN}, {card: 1, ports: IN SO}]"), "half")
	if m != nil || err == nil || errors.Is(err, ErrPeersUnknown) {
		t.Fatalf("Load = %v, %v", m, err)
	}
}

func TestMarshalledMapLoadsAgain(t *testing.T) {
	all := []*Map{smallMap()}
	for _, name := range Names() {
		m, _ := Lookup(name)
		cut, err := m.Truncate(3)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m, cut)
	}
	for _, m := range all {
		for form, marshal := range map[string]func(any) ([]byte, error){"YAML": yaml.Marshal, "JSON": json.Marshal} {
			for _, v := range []any{m, *m} {
				data, err := marshal(v)
				if err != nil {
					t.Fatalf("%s: %s: %v", m.Name, form, err)
				}
				got, err := Load(strings.NewReader(string(data)), "again")
				if err != nil && !(errors.Is(err, ErrPeersUnknown) && m.Name == "hls-1") {
					t.Fatalf("%s: %s: %v\n%s", m.Name, form, err, data)
				}
				if !reflect.DeepEqual(got, m) {
					t.Errorf("%s: %s: %+v, want %+v", m.Name, form, got, m)
				}
			}
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(small)
	f.Add(hclSmall)
	for _, name := range Names() {
		data, err := maps.ReadFile("maps/" + name + ".yaml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	for _, fault := range fileFaults {
		if len(fault.text) < maxFile {
			f.Add(fault.text)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := Load(strings.NewReader(text), "fuzz")
		if err != nil && !errors.Is(err, ErrPeersUnknown) {
			if m != nil {
				t.Fatalf("a map beside %v", err)
			}
			return
		}
		if again := m.Check(); (again == nil) != (err == nil) {
			t.Fatalf("Load says %v, Check %v", err, again)
		}
		// All methods hold for any map that Load returns, and it can be kept.
		m.Islands()
		for card := range m.Cards {
			for port := range m.Cards[card].Ports {
				if peer, peerPort, _, ok := m.Peer(card, port); ok {
					if c, p, _, _ := m.Peer(peer, peerPort); c != card || p != port {
						t.Fatalf("card %d port %d: the way back leads to card %d port %d", card, port, c, p)
					}
				}
			}
		}
		if _, err := m.Truncate(1); err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := Load(strings.NewReader(string(data)), "fuzz"); !reflect.DeepEqual(m, again) {
			t.Fatalf("%s loads as %+v, was %+v", data, again, m)
		}
	})
}
