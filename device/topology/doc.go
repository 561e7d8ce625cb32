// Package topology says which port of which card is cabled to which: the port
// maps of servers whose accelerators carry their own network ports.
//
// A [Map] is one server. Each of its cards has the same number of ports, and
// each port is of one [Class]: cabled to a port of another card of the server
// (INTERNAL), leading out of the server to a switch (SCALE_OUT), or leading
// nowhere (NOT_CONNECTED). Cards are numbered by their module id (the
// module_id of HL_INFO, "card location" in HCL), which is stable over reboots;
// the index of /dev/accel is not. Ports are numbered from 0 as the hardware
// does it.
//
// # Built-in maps
//
// [Lookup] finds the maps of known servers by name:
//
//	hls-1       8 Gaudi,    10 x 100 Gbit/s: 7 internal, 3 scale-out; peers unknown
//	hls-2       8 Gaudi2,   24 x 100 Gbit/s: 3 lanes a peer, 3 scale-out
//	hl-288      8 Gaudi2,   24 x 100 Gbit/s: two quads, 6 lanes a peer, 4 scale-out
//	hls-3       8 Gaudi3,   24 x 200 Gbit/s: 3 lanes a peer, 3 scale-out (numbers differ by card)
//	hl-338      8 Gaudi3,   24 x 200 Gbit/s: two quads, 6 lanes a peer, 4 scale-out
//	hls-3-rack  16 Gaudi3,  24 x 200 Gbit/s: two groups of 8 cabled as hls-2
//
// The cabling is a matter of fact about these machines, taken from the
// connectivity tables of HabanaAI/HCL at commit 54fed3a (Gaudi2 and Gaudi3)
// and the CSV files that the scale_up_tool of HabanaAI/perftest derives from
// them. Of HLS-1 only the masks of internal (0xFD) and external (0x302) ports
// are public: its map has internal ports with no peer, [ErrPeersUnknown] says
// so, and a file by the operator must give the cabling.
//
// # Files
//
// A map file is YAML, or JSON, which is a subset. Fields that are not known are
// refused, and all faults are reported at once:
//
//	name: lab-4                # lower-cased; optional, else the file's own name
//	asic: Gaudi2               # optional
//	model: HL-225H             # the card; optional
//	portSpeedMbps: 100000      # optional
//	expect:                    # optional counts that Check holds each card to
//	  internal: 2
//	  scaleOut: 1
//	  lanesPerPeer: 2
//	cards:                     # numbered from 0 without gap
//	  - {card: 0, ports: 1:0 1:2 SO NC}
//	  - {card: 1, ports: 0:0 SO 0:1 NC}
//	peerAccess:                # optional: who reaches whose memory over the bus
//	  - {importer: soft-nic, exporter: "*", path: PCIe switch 03:00.0}
//	  - {importer: "1", exporter: "0", obstacle: "ACS of root port 00:01.0"}
//
// The cells of ports are, for port 0, 1, 2 and on, "CARD:PORT" for the port at
// the other end of the cable, "CARD" if that port has the same number, "SO" for
// scale-out, "NC" for not connected and "IN" for an internal port whose peer is
// not known. peerAccess is for who exports and imports memory: importer and
// exporter are the module id of a card of the map, the id of any device of the
// node, or "*"; path says how the importer reaches the exporter, obstacle why it
// does not. The first rule that fits counts, and what none speaks of has nothing
// in its way. A [Map] marshals to this form in YAML and in JSON, so that what is
// printed can be loaded again. [Load] also takes the JSON file that HCL reads
// its port mapping from (HCL_NICS).
package topology
