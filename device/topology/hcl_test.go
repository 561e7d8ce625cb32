package topology

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

const hclSmall = `{
  "SPOTLIGHT_TYPE": 0,
  "HCL_NICS": [
    {"CARD_LOCATION": 1, "NICS": [
      {"REMOTE_CARD": 0, "REMOTE_NIC": 0, "REMOTE_SUB_NIC": 0},
      {"REMOTE_CARD": -1, "REMOTE_NIC": 1, "REMOTE_SUB_NIC": 0},
      {"REMOTE_CARD": 0, "REMOTE_NIC": 1, "REMOTE_SUB_NIC": 1},
      {"REMOTE_CARD": -2, "REMOTE_NIC": 3, "REMOTE_SUB_NIC": 0}]},
    {"CARD_LOCATION": 0, "NICS": [
      {"REMOTE_CARD": 1, "REMOTE_NIC": 0, "REMOTE_SUB_NIC": 0},
      {"REMOTE_CARD": 1, "REMOTE_NIC": 2, "REMOTE_SUB_NIC": 1},
      {"REMOTE_CARD": -1, "REMOTE_NIC": 2, "REMOTE_SUB_NIC": 0},
      {"REMOTE_CARD": -2, "REMOTE_NIC": 3, "REMOTE_SUB_NIC": 0}]}
  ]
}`

func TestLoadTakesTheFileOfHCL(t *testing.T) {
	want := &Map{Name: "test", Cards: smallMap().Cards}
	if got := mustLoad(t, hclSmall); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// A built-in map written as HCL wants it says the same.
func TestHCLFileOfABuiltinMap(t *testing.T) {
	m := lookup(t, "hls-3")
	type nic struct {
		Card   int `json:"REMOTE_CARD"`
		NIC    int `json:"REMOTE_NIC"`
		SubNIC int `json:"REMOTE_SUB_NIC"`
	}
	type card struct {
		Location int   `json:"CARD_LOCATION"`
		NICs     []nic `json:"NICS"`
	}
	var file struct {
		Spotlight int    `json:"SPOTLIGHT_TYPE"`
		Cards     []card `json:"HCL_NICS"`
	}
	for _, c := range m.Cards {
		hc := card{Location: c.Number}
		for _, p := range c.Ports {
			if p.Class == ScaleOut {
				hc.NICs = append(hc.NICs, nic{Card: -1, NIC: p.Number})
			} else {
				hc.NICs = append(hc.NICs, nic{Card: p.PeerCard, NIC: p.PeerPort})
			}
		}
		file.Cards = append(file.Cards, hc)
	}
	data, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Load(strings.NewReader(string(data)), "hls-3")
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.Cards, m.Cards) {
		t.Error("the cards differ")
	}
}
