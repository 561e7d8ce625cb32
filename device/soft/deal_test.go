package soft

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// machine is the addresses of a made-up machine, as Linux lists them.
func machine(lines ...string) (list []hostAddress) {
	for _, line := range lines {
		var iface, addr string
		var mtu int
		if _, err := fmt.Sscan(line, &iface, &mtu, &addr); err != nil {
			panic(err)
		}
		list = append(list, hostAddress{netip.MustParsePrefix(addr), iface, mtu})
	}
	return list
}

var testMachine = machine(
	"lo 65536 127.0.0.1/8", "lo 65536 ::1/128",
	"eth0 1500 10.77.0.1/24", "eth0 1500 10.77.0.2/24", "eth0 1500 fd00:77::1/64", "eth0 1500 fd00:77::2/64", "eth0 1500 fe80::1/64",
	"eth1 4400 10.78.0.1/24", "eth1 4400 fd00:78::1/64", "eth1 4400 fe80::1/64",
	"eth2 9000 fd00:79::1/64", "eth2 9000 fe80::3/64", "eth2 9000 fe80::4/64",
	"tun0 300 10.79.0.1/24",
)

func TestDeal(t *testing.T) {
	for _, c := range []struct {
		name, items string
		want        []string // a place each: interface, MTU, link-local, addresses
	}{
		{"one address", "10.77.0.1", []string{"eth0 1500 fe80::1 10.77.0.1"}},
		{"an address of many of its interface", "10.77.0.2", []string{"eth0 1500 fe80::1 10.77.0.2"}},
		{"a network: each IPv4 address begins a port, the first has the link-local one", "10.77.0.0/24",
			[]string{"eth0 1500 fe80::1 10.77.0.1", "eth0 1500 - 10.77.0.2"}},
		{"IPv6 goes to the first port of its interface", "fd00:77::/64,10.77.0.0/24",
			[]string{"eth0 1500 fe80::1 10.77.0.1 fd00:77::1 fd00:77::2", "eth0 1500 - 10.77.0.2"}},
		{"in the order of Linux, not of the list", "10.77.0.1,fd00:77::2,fd00:77::1",
			[]string{"eth0 1500 fe80::1 10.77.0.1 fd00:77::1 fd00:77::2"}},
		{"IPv6 alone begins a port", "fd00:79::/64", []string{"eth2 9000 fe80::3 fd00:79::1"}},
		{"one port for all IPv6 of an interface", "fd00:77::1,10.78.0.1,fd00:77::2",
			[]string{"eth0 1500 fe80::1 fd00:77::1 fd00:77::2", "eth1 4400 fe80::1 10.78.0.1"}},
		{"ports in the order of the list", "10.78.0.1,10.77.0.2,10.77.0.1",
			[]string{"eth1 4400 fe80::1 10.78.0.1", "eth0 1500 fe80::1 10.77.0.2", "eth0 1500 - 10.77.0.1"}},
		{"link-local alone", "fe80::3", []string{"eth2 9000 fe80::3"}},
		{"two link-local ones", "fe80::/10,10.77.0.1",
			[]string{"eth1 4400 fe80::1", "eth2 9000 fe80::3 fe80::4", "eth0 1500 fe80::1 10.77.0.1"}},
		{"all IPv6 but what every machine has", "::/0",
			[]string{"eth0 1500 fe80::1 fd00:77::1 fd00:77::2", "eth1 4400 fe80::1 fd00:78::1", "eth2 9000 fe80::3 fd00:79::1"}},
		{"any loopback address by itself", "127.5.6.7,127.5.6.8", []string{"lo 65536 - 127.5.6.7", "lo 65536 - 127.5.6.8"}},
		{"the loopback address of IPv6", "::1", []string{"lo 65536 - ::1"}},
	} {
		items, err := ParseNetworks(c.items)
		if err != nil {
			t.Fatal(err)
		}
		places, err := deal(items, testMachine, 3)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var got []string
		for _, p := range places {
			text := fmt.Sprintf("%s %d", p.iface, p.mtu)
			if p.linkLocal.IsValid() {
				text += " " + p.linkLocal.String()
			} else {
				text += " -"
			}
			for _, a := range p.addrs {
				text += " " + a.String()
			}
			got = append(got, text)
		}
		if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
			t.Errorf("%s (%s):\n%s\nwant\n%s", c.name, c.items, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

func TestDealRefuses(t *testing.T) {
	for _, c := range []struct{ items, want string }{
		{"192.0.2.1", "network 192.0.2.1: no interface of this machine has an address of it"},
		{"10.77.0.1,10.99.0.0/16", "network 10.99.0.0/16: no interface"},
		{"10.77.0.0/24,10.77.0.2", "network 10.77.0.2: 10.77.0.2 is given twice, by 10.77.0.0/24 too"},
		{"10.77.0.0/24,10.78.0.1", "more addresses than the 2 scale-out ports: 10.78.0.1 (of 10.78.0.1) is one too many"},
		{"10.77.0.0/24,fd00:78::/64", "fd00:78::1 (of fd00:78::/64) is one too many"},
		{"10.79.0.1", "network 10.79.0.1: interface tun0 has an MTU of 300 bytes: RoCE needs 336"},
	} {
		items, err := ParseNetworks(c.items)
		if err != nil {
			t.Fatal(err)
		}
		if places, err := deal(items, testMachine, 2); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, error %v, want one with %q", c.items, places, err, c.want)
		}
	}
}

func TestDealTakesAnAddressOnTwoInterfacesOnce(t *testing.T) {
	host := machine("eth0 1500 10.1.0.1/24", "eth1 1500 10.1.0.1/24")
	places, err := deal([]netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}, host, 2)
	if err != nil || len(places) != 1 || places[0].iface != "eth0" {
		t.Errorf("%+v, %v", places, err)
	}
}

func TestParseNetworks(t *testing.T) {
	for _, list := range []string{"127.77.1.0/24", "10.77.0.1,fd00:77::/64", "10.77.0.1+127.77.1.0/24", "10.77.0.1, 10.77.0.2", "0.0.0.0/0"} {
		if _, err := ParseNetworks(list); err != nil {
			t.Errorf("%s: %v", list, err)
		}
	}
	for _, c := range []struct{ list, want string }{
		{"", `network "": is neither`},
		{"10.77.0.1,,10.77.0.2", `network "": is neither`},
		{"eth0", `network "eth0": is neither an address`},
		{"10.77.0.0/33", `network "10.77.0.0/33": is no network`},
		{"10.77.0.1/24", "network 10.77.0.1/24: has bits beyond its length: write 10.77.0.0/24 for the network or 10.77.0.1"},
		{"fe80::1%eth0", `network "fe80::1%eth0": has a zone: write fe80::1`},
		{"::ffff:10.77.0.1", "is IPv4 written as IPv6: write 10.77.0.1"},
		{"10.77.0.1,10.77.0.1", "network 10.77.0.1: is given twice"},
		{"224.0.0.1", "network 224.0.0.1: is not the address of one interface"},
		{"ff02::1", "network ff02::1: is not"},
		{"0.0.0.0", "network 0.0.0.0: is not"},
		{"127.77.1.0/24,127.77.2.0/24", "network 127.77.2.0/24: is the second network inside 127.0.0.0/8, after 127.77.1.0/24"},
	} {
		if _, err := ParseNetworks(c.list); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", c.list, err, c.want)
		}
	}
}
