package soft

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/accelfab/accelfab/device/ib"
)

// loopbackNet is local on Linux without set-up, every address of it.
var loopbackNet = netip.MustParsePrefix("127.0.0.0/8")

// smallestMTU is what an interface must carry for the smallest path MTU.
const smallestMTU = 256 + headerRoom

// hostAddress is an address of an interface of this machine.
type hostAddress struct {
	prefix netip.Prefix // the address and the length of its network
	iface  string
	mtu    int
}

// hostAddresses lists the addresses of this machine in the order of Linux.
func hostAddresses() ([]hostAddress, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var list []hostAddress
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				list = append(list, hostAddress{prefix, i.Name, i.MTU})
			}
		}
	}
	return list, nil
}

// place is what a port is plugged into: addresses of one interface.
type place struct {
	iface     string
	mtu       int
	linkLocal netip.Addr // the zero Addr where another port has it, or there is none
	addrs     []netip.Addr
}

// ParseNetworks reads a list of networks and addresses with commas or plus
// signs between them, as Config.Networks takes it. Each error names the item.
func ParseNetworks(list string) ([]netip.Prefix, error) {
	var items []netip.Prefix
	for text := range strings.SplitSeq(strings.ReplaceAll(list, "+", ","), ",") {
		item, err := parseItem(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("network %q: %w", text, err)
		}
		items = append(items, item)
	}
	return items, checkItems(items)
}

func parseItem(text string) (netip.Prefix, error) {
	if strings.Contains(text, "/") {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return p, fmt.Errorf("is no network: write it as 10.77.0.0/24 or fd00:77::/64")
		}
		return p, nil
	}
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("is neither an address of this machine, such as 10.77.0.1, nor a network of such addresses, such as 10.77.0.0/24")
	case a.Zone() != "":
		return netip.Prefix{}, fmt.Errorf("has a zone: write %v; link-local addresses also come with the others of their interface", a.WithZone(""))
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}

// checkItems checks a list as far as that goes without the machine's addresses.
func checkItems(items []netip.Prefix) error {
	loopback := -1
	for i, item := range items {
		a := item.Addr()
		fault := func(format string, args ...any) error {
			return fmt.Errorf("network %s: %s", itemText(item), fmt.Sprintf(format, args...))
		}
		switch {
		case !item.IsValid():
			return fault("is not valid")
		case a.Is4In6():
			return fault("is IPv4 written as IPv6: write %v", a.Unmap())
		case item != item.Masked():
			return fault("has bits beyond its length: write %v for the network or %v for the address", item.Masked(), a)
		case a.IsMulticast() || item.IsSingleIP() && a.IsUnspecified():
			return fault("is not the address of one interface")
		case slices.Contains(items[:i], item):
			return fault("is given twice")
		case isLoopbackNetwork(item) && loopback >= 0:
			return fault("is the second network inside %v, after %v: the ports have one", loopbackNet, items[loopback])
		case isLoopbackNetwork(item):
			loopback = i
		}
	}
	return nil
}

// isLoopbackNetwork reports whether an item is a network for all ports that get
// no address of an interface.
func isLoopbackNetwork(item netip.Prefix) bool {
	return loopbackNet.Contains(item.Addr()) && item.Bits() >= loopbackNet.Bits() && !item.IsSingleIP()
}

// splitNetworks sets the loopback network of a list, if there is one, apart from
// what stands for addresses of interfaces.
func splitNetworks(items []netip.Prefix) (loopback netip.Prefix, rest []netip.Prefix) {
	for _, item := range items {
		if isLoopbackNetwork(item) {
			loopback = item
		} else {
			rest = append(rest, item)
		}
	}
	return loopback, rest
}

func itemText(item netip.Prefix) string {
	if item.IsSingleIP() {
		return item.Addr().String()
	}
	return item.String()
}

// covers reports whether an item stands for an address. Wide networks do not
// stand for addresses that are there on every machine.
func covers(item netip.Prefix, a netip.Addr) bool {
	return item.Contains(a) &&
		(!a.IsLoopback() || item.IsSingleIP()) &&
		(!a.IsLinkLocalUnicast() || item.Addr().IsLinkLocalUnicast())
}

// find gives the addresses of host that an item stands for, in their order.
func find(item netip.Prefix, host []hostAddress) (list []hostAddress) {
	for _, h := range host {
		switch {
		case covers(item, h.prefix.Addr()):
		case item.IsSingleIP() && item.Addr().Is4() && h.prefix.Addr().IsLoopback() && h.prefix.Contains(item.Addr()):
			h.prefix = netip.PrefixFrom(item.Addr(), h.prefix.Bits()) // the whole network is local
		default:
			continue
		}
		list = append(list, h)
	}
	return list
}

// deal gives out the addresses of host that the items stand for, each IPv4
// address to a port of its own, in their order. The IPv6 addresses of an
// interface, and its link-local one whether it is asked for or not, go to the
// first port on it, or to a port of their own if no IPv4 address of it is asked
// for. There are at most ports places in the answer.
func deal(items []netip.Prefix, host []hostAddress, ports int) ([]place, error) {
	var (
		places []place
		first  = map[string]int{}              // by interface: its first place
		of     = map[netip.Addr]netip.Prefix{} // by address, with the zone of a link-local one: the item it is of
		asked  []hostAddress
	)
	for _, item := range items {
		found := find(item, host)
		if len(found) == 0 {
			return nil, fmt.Errorf("network %s: no interface of this machine has an address of it; give one to an interface, or use a network inside %v", itemText(item), loopbackNet)
		}
		for _, h := range found {
			key := h.key()
			if other, twice := of[key]; twice && other != item {
				return nil, fmt.Errorf("network %s: %v is given twice, by %s too", itemText(item), h.prefix.Addr(), itemText(other))
			} else if twice {
				continue // on two interfaces
			}
			if ib.LargestMTU(h.mtu-headerRoom) == 0 {
				return nil, fmt.Errorf("network %s: interface %s has an MTU of %d bytes: RoCE needs %d", itemText(item), h.iface, h.mtu, smallestMTU)
			}
			of[key] = item
			asked = append(asked, h)
		}
	}
	open := func(h hostAddress) {
		if _, ok := first[h.iface]; !ok {
			first[h.iface] = len(places)
		}
		places = append(places, place{iface: h.iface, mtu: h.mtu})
	}
	hasIPv4 := func(iface string) bool {
		return slices.ContainsFunc(asked, func(h hostAddress) bool { return h.iface == iface && h.prefix.Addr().Is4() })
	}
	for _, h := range asked {
		if a := h.prefix.Addr(); a.Is4() {
			open(h)
			places[len(places)-1].addrs = []netip.Addr{a}
		} else if _, ok := first[h.iface]; !ok && !hasIPv4(h.iface) {
			open(h)
		}
		if len(places) > ports {
			return nil, fmt.Errorf("networks %s: more addresses than the %d scale-out ports: %v (of %s) is one too many; list the addresses to use",
				itemsText(items), ports, h.prefix.Addr(), itemText(of[h.key()]))
		}
	}
	for _, h := range host { // as the tables of Linux are in its order
		i, ok := first[h.iface]
		a := h.prefix.Addr()
		switch _, asked := of[h.key()]; {
		case !ok || a.Is4():
		case a.IsLinkLocalUnicast() && !places[i].linkLocal.IsValid():
			places[i].linkLocal = a
		case asked:
			places[i].addrs = append(places[i].addrs, a)
		}
	}
	return places, nil
}

// key sets an address apart from all others of the machine.
func (h hostAddress) key() netip.Addr {
	if a := h.prefix.Addr(); a.Is6() && a.IsLinkLocalUnicast() {
		return a.WithZone(h.iface)
	}
	return h.prefix.Addr()
}

func itemsText(items []netip.Prefix) string {
	list := make([]string, len(items))
	for i, item := range items {
		list[i] = itemText(item)
	}
	return strings.Join(list, ", ")
}

// mtuOf gives the MTU of the interface whose network an address is in, 0 if
// there is none.
func mtuOf(host []hostAddress, addr netip.Addr) int {
	mtu, length := 0, -1
	for _, h := range host {
		if h.prefix.Contains(addr) && h.prefix.Bits() > length {
			mtu, length = h.mtu, h.prefix.Bits()
		}
	}
	return mtu
}
