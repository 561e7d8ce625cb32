package soft

import (
	"net/netip"

	"github.com/accelfab/accelfab/device/ib"
)

// header is what the invariant CRC covers of the IP and UDP headers of packets
// from one address to another.
type header struct {
	is6 bool
	v4  ib.PseudoIPv4
	v6  ib.PseudoIPv6
}

// newHeader is for two addresses of one family.
func newHeader(src, dst netip.AddrPort) header {
	if src.Addr().Is6() {
		return header{is6: true, v6: ib.PseudoIPv6{
			Src: src.Addr().As16(), Dst: dst.Addr().As16(), SrcPort: src.Port(), DstPort: dst.Port(),
		}}
	}
	return header{v4: ib.PseudoIPv4{
		Src: src.Addr().As4(), Dst: dst.Addr().As4(), SrcPort: src.Port(), DstPort: dst.Port(), DontFragment: true,
	}}
}

// icrc computes the invariant CRC of a packet from its BTH through its pad. id
// is the IPv4 identification, which IPv6 does not have.
func (h *header) icrc(id uint16, body []byte) uint32 {
	if h.is6 {
		return h.v6.ICRC(body)
	}
	v4 := h.v4
	v4.ID = id
	return v4.ICRC(body)
}
