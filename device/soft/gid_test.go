package soft

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// tableOf makes a port with a GID table that packets go from.
func tableOf(addrs ...string) *port {
	p := new(port)
	for i, a := range addrs {
		addr := netip.MustParseAddr(a)
		p.gids = append(p.gids, gidEntry{device.GIDEntry{Index: i, GID: ib.GIDFromAddr(addr), Type: ib.RoCEv2}, &socket{addr: addr}})
	}
	return p
}

// TestCaseQ03 holds case Q03: of a port that has IPv6 GIDs alone a global one is
// chosen, never index 0, which is link-local.
func TestCaseQ03(t *testing.T) {
	p := tableOf("fe80::1", "fd00::1", "fd00::2")
	if e := p.preferred(); e.Index != 1 {
		t.Errorf("preferred is index %d, want 1", e.Index)
	}
	if e, err := p.source(-1, ib.GIDFromAddr(netip.MustParseAddr("fd00:9::9"))); err != nil || e.Index != 1 {
		t.Errorf("%+v, %v, want index 1", e, err)
	}
}

func TestSource(t *testing.T) {
	p := tableOf("fe80::1", "10.0.0.1", "fd00::1", "fd00::2")
	made := &p.gids[3]
	made.socket = nil
	for _, c := range []struct {
		index  int
		remote string
		want   int      // -1: refused
		words  []string // of the refusal
	}{
		{-1, "10.0.0.9", 1, nil},
		{-1, "fd00::9", 2, nil},
		{-1, "fe80::9", 0, nil},
		{2, "fd00::9", 2, nil},
		{1, "fd00::9", -1, []string{"::ffff:10.0.0.1", "fd00::9", "IPv4", "IPv6"}},
		{0, "fd00::9", -1, []string{"fe80::1", "fd00::9", "IPv6 link-local"}},
		{2, "10.0.0.9", -1, []string{"fd00::1", "::ffff:10.0.0.9"}},
		{3, "fd00::9", -1, []string{"carries no packets"}},
		{4, "fd00::9", -1, []string{"4: port 0 has 0 (fe80::1), 1 (::ffff:10.0.0.1), 2 (fd00::1)"}},
	} {
		e, err := p.source(c.index, ib.GIDFromAddr(netip.MustParseAddr(c.remote)))
		switch {
		case c.want >= 0 && (err != nil || e.Index != c.want):
			t.Errorf("%d to %s: %+v, %v, want index %d", c.index, c.remote, e, err, c.want)
		case c.want < 0 && err == nil:
			t.Errorf("%d to %s: index %d, want it refused", c.index, c.remote, e.Index)
		}
		for _, w := range c.words {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%d to %s: error %v, want one with %q", c.index, c.remote, err, w)
			}
		}
	}
	if _, err := tableOf("10.0.0.1").source(-1, ib.GIDFromAddr(netip.MustParseAddr("fd00::9"))); err == nil {
		t.Error("a port of IPv4 alone reaches IPv6")
	}
}
