package soft

import (
	"strings"
	"testing"
)

func TestParseSpec(t *testing.T) {
	cfg, err := ParseSpec("soft:HLS-2,cards=3,memory=64MiB,name=a-1,network=127.77.1.0/24+10.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Map.Name != "hls-2" || cfg.Cards != 3 || cfg.MemoryBytes != 64<<20 || cfg.Name != "a-1" || itemsText(cfg.Networks) != "127.77.1.0/24, 10.0.0.1" {
		t.Errorf("%+v", cfg)
	}
	for _, c := range []struct{ spec, want string }{
		{"hls-2", "soft:TOPOLOGY"},
		{"soft:", "no topology"},
		{"soft:hls-9", "hls-3-rack"}, // the known ones are listed
		{"soft:./nowhere.yaml", "nowhere.yaml"},
		{"soft:hls-2,cards", "KEY=VALUE"},
		{"soft:hls-2,cards=", "KEY=VALUE"},
		{"soft:hls-2,cards=9", "cards=9: a number from 1 to 8"},
		{"soft:hls-2,cards=two", "cards=two"},
		{"soft:hls-2,cards=1,cards=2", "cards is given twice"},
		{"soft:hls-2,memory=64MB", "memory=64MB: a size is"},
		{"soft:hls-2,memory=1", "memory of 1 bytes"},
		{"soft:hls-2,memory=99999999999999TiB", "memory=9999"},
		{"soft:hls-2,network=10.0.0.1+10.0.0.1", "network=10.0.0.1+10.0.0.1: network 10.0.0.1: is given twice"},
		{"soft:hls-2,name=A", `name "A"`},
		{"soft:hls-2,colour=red", "the options are cards, memory, name, network, bar"},
	} {
		if _, err := ParseSpec(c.spec); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", c.spec, err, c.want)
		}
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]uint64{"4096": 4096, "4KiB": 4096, "3MiB": 3 << 20, "1GiB": 1 << 30, "1TiB": 1 << 40} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
}
