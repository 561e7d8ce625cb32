package soft

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/accelfab/accelfab/device/topology"
)

func TestSearchTakesTheLowestFreeNetwork(t *testing.T) {
	dir := t.TempDir()
	search := func(cards int, use func(*network) error) *network {
		t.Helper()
		n, err := searchNetworks(dir, cards, 24, use)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.close() })
		return n
	}
	take := func(*network) error { return nil }
	want := func(n *network, prefix string) {
		t.Helper()
		if n.prefix.String() != prefix {
			t.Errorf("got %v, want %s", n.prefix, prefix)
		}
	}
	first := search(8, take)
	want(first, "127.64.0.0/24")
	want(search(8, take), "127.64.1.0/24")
	if err := first.close(); err != nil {
		t.Fatal(err)
	}
	// 16 cards of 24 ports need 384 addresses.
	want(search(16, take), "127.64.2.0/23")
	want(search(8, take), "127.64.0.0/24")
	// The fifth is free by its lock file, but its addresses are taken.
	want(search(8, func(n *network) error {
		if n.prefix.String() == "127.64.4.0/24" {
			return errHeld
		}
		return nil
	}), "127.64.5.0/24")

	broken := errors.New("broken")
	if _, err := searchNetworks(dir, 1, 24, func(*network) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("error %v, want the one of use", err)
	}
	if f, err := lockFile(filepath.Join(dir, "127-64-6-0.lock")); err != nil {
		t.Errorf("a network that failed is still held: %v", err)
	} else {
		f.Close()
	}
}

func TestNetworkAddresses(t *testing.T) {
	n, err := fixedNetwork(netip.MustParsePrefix("127.77.1.0/24"), 8, 24)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		card, port int
		want       string
	}{{0, 0, "127.77.1.1"}, {0, 23, "127.77.1.24"}, {1, 0, "127.77.1.25"}, {7, 23, "127.77.1.192"}} {
		got := n.address(c.card, c.port)
		if got.String() != c.want || !n.owns(got) {
			t.Errorf("card %d port %d has %v (owned: %v), want %s", c.card, c.port, got, n.owns(got), c.want)
		}
	}
	for _, other := range []string{"127.77.1.0", "127.77.1.193", "127.77.2.1", "127.77.0.255"} {
		if n.owns(netip.MustParseAddr(other)) {
			t.Errorf("%s is taken for a port", other)
		}
	}
	for _, bad := range []string{"127.77.1.0/25", "127.77.1.0/31"} {
		if _, err := fixedNetwork(netip.MustParsePrefix(bad), 8, 24); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("network %s: error %v", bad, err)
		}
	}
}

func networks(items ...string) (list []netip.Prefix) {
	for _, item := range items {
		list = append(list, netip.MustParsePrefix(item))
	}
	return list
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	m, err := topology.Lookup("hls-2")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, "no port map"},
		{Config{Map: m, Cards: 9}, "9 cards"},
		{Config{Map: m, MemoryBytes: 100}, "memory of 100 bytes"},
		{Config{Map: m, Name: "Soft"}, `name "Soft"`},
		{Config{Map: m, Networks: networks("127.77.1.0/28")}, "127.77.1.0/28"},
		{Config{Map: m, Networks: networks("127.77.1.0/24", "127.78.1.0/24")}, "second network inside"},
		// TEST-NET-3 belongs to no interface.
		{Config{Map: m, Networks: networks("203.0.113.0/24")}, "network 203.0.113.0/24: no interface"},
	} {
		c.cfg.LockDir = t.TempDir()
		if c.cfg.MemoryBytes == 0 {
			c.cfg.MemoryBytes = 1 << 20
		}
		before := descriptors(t)
		ch, err := Open(c.cfg)
		if err == nil {
			ch.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one with %q", err, c.want)
		}
		if after := descriptors(t); len(after) > len(before) {
			t.Errorf("%q left descriptors: %v, before %v", c.want, after, before)
		}
	}
}

// descriptors lists what this process has open, but the poller's own.
func descriptors(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && !strings.HasPrefix(to, "anon_inode:") && !strings.HasPrefix(to, "/proc/") {
			list = append(list, to)
		}
	}
	slices.Sort(list)
	return list
}
