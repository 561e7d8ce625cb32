package ib

import (
	"fmt"
	"net/netip"
)

// GID is a 128-bit global identifier. On RoCE v2 it is an IP address: IPv6 as
// it is, IPv4 as ::ffff:a.b.c.d.
type GID [16]byte

// ParseGID reads the text of String. It takes every form of an IPv6 address
// without a zone; a bare IPv4 address is refused, as the table of a port holds
// it in the mapped form.
func ParseGID(s string) (GID, error) {
	addr, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return GID{}, fmt.Errorf("GID %q: want an IPv6 address such as fe80::1 or ::ffff:10.0.0.1", s)
	case addr.Is4():
		return GID{}, fmt.Errorf("GID %q: an IPv4 address is written as ::ffff:%s", s, addr)
	case addr.Zone() != "":
		return GID{}, fmt.Errorf("GID %q: a GID has no zone, write %s", s, addr.WithZone(""))
	}
	return addr.As16(), nil
}

// GIDFromAddr gives the RoCE v2 GID of an address. The zone is dropped; an
// invalid Addr gives the zero GID.
func GIDFromAddr(a netip.Addr) GID {
	if !a.IsValid() {
		return GID{}
	}
	return a.As16()
}

// Addr gives the IP address a RoCE v2 GID stands for: the IPv4 address of a
// mapped GID, else IPv6. GIDFromAddr turns it back into the same GID.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// String gives the address in IPv6 notation, ::ffff:10.0.0.1 for IPv4.
func (g GID) String() string { return netip.AddrFrom16(g).String() }

// IsIPv4Mapped reports whether the GID is ::ffff:a.b.c.d.
func (g GID) IsIPv4Mapped() bool { return netip.AddrFrom16(g).Is4In6() }

// IsLinkLocal reports whether the GID is in fe80::/10.
func (g GID) IsLinkLocal() bool { return g[0] == 0xfe && g[1]&0xc0 == 0x80 }

// Family names the addresses that the GID can reach: "IPv4", "IPv6" or "IPv6
// link-local". The two ends of a path are of one family.
func (g GID) Family() string {
	switch {
	case g.IsIPv4Mapped():
		return "IPv4"
	case g.IsLinkLocal():
		return "IPv6 link-local"
	}
	return "IPv6"
}

// IsZero reports whether all bits are zero, the mark of an empty table entry.
func (g GID) IsZero() bool { return g == GID{} }

// MarshalText gives what String gives.
func (g GID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText reads what ParseGID reads.
func (g *GID) UnmarshalText(b []byte) error {
	v, err := ParseGID(string(b))
	if err != nil {
		return err
	}
	*g = v
	return nil
}

// GIDType says which wire format an entry of a GID table is for. Two entries
// may hold the same GID with different types, so a peer is reached only by an
// entry of its own type.
type GIDType uint8

// The types of GID table entries, numbered as in rdma-core's ibv_gid_type.
const (
	IB     GIDType = 0 // native InfiniBand
	RoCEv1 GIDType = 1 // Ethertype 0x8915
	RoCEv2 GIDType = 2 // UDP port 4791
)

// String gives the names that Linux shows below gid_attrs/types.
func (t GIDType) String() string {
	switch t {
	case IB:
		return "IB"
	case RoCEv1:
		return "RoCE v1"
	case RoCEv2:
		return "RoCE v2"
	}
	return fmt.Sprintf("GIDType(%d)", uint8(t))
}
