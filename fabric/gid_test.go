package fabric

import (
	"errors"
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// TestCaseQ03 holds case Q03: of a port that has IPv6 GIDs alone a global one is
// told to peers and used by default, never index 0, which is link-local.
func TestCaseQ03(t *testing.T) {
	gid := func(text string) ib.GID {
		g, err := ib.ParseGID(text)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	port := &device.Port{GIDs: []device.GIDEntry{
		{Index: 0, GID: gid("fe80::1"), Type: ib.RoCEv2},
		{Index: 1, GID: gid("fd00::1"), Type: ib.RoCEv1},
		{Index: 2, GID: gid("fd00::1"), Type: ib.RoCEv2},
		{Index: 3, GID: gid("fd00::2"), Type: ib.RoCEv2},
	}}
	if e := localGID(port, -1); e == nil || e.Index != 2 {
		t.Errorf("peers are told %+v, want index 2", e)
	}
	refusal := errors.New("refused")
	fault := func(Reason, string, string, map[string]string) error { return refusal }
	for _, c := range []struct {
		remote string
		asked  int
		want   int // -1: refused
	}{
		{"fd00:9::9", -1, 2},
		{"fe80::9", -1, 0}, // nothing else reaches it
		{"fd00:9::9", 3, 3},
		{"fd00:9::9", 0, -1},
		{"fd00:9::9", 1, -1},
		{"::ffff:10.0.0.1", -1, -1},
	} {
		got, err := pickGID(fault, port, &qpAsk{GIDIndex: c.asked}, &Endpoint{GID: gid(c.remote)})
		if c.want < 0 && err != refusal || c.want >= 0 && (err != nil || got != c.want) {
			t.Errorf("to %s with index %d: %d, %v, want %d", c.remote, c.asked, got, err, c.want)
		}
	}
}
