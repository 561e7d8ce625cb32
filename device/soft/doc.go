// Package soft is the software device: a chassis of accelerator cards that
// speak real RoCE v2, for machines that have no such cards.
//
// [Open] makes a chassis from a port map of device/topology: a number of cards,
// each with its memory and its ports. Each port that leads somewhere has
// addresses of its own and a UDP socket on port 4791 of each, and nothing but
// packets goes from one card to another, also inside one chassis. Internal ports
// accept packets only from the port that the map cables them to; scale-out ports
// meet on one switch, across chassis and machines, and accept only what comes
// from outside their own chassis. All else is dropped and counted
// (WiringViolations).
//
// # Addresses
//
// By default all ports are on one network, the lowest free /24 of 127.64.0.0/10,
// all of which is local on Linux: so several nodes run on one machine without
// set-up. A lock file says which are taken. Port p of card c has the address
// 1 + c*ports + p of the network. Config.Networks may name another network inside
// 127.0.0.0/8.
//
// To reach other machines, among them Linux with Soft-RoCE or a RoCE card, name
// addresses of this machine's interfaces, or networks that they are in, in
// Config.Networks (accelfabd --soft-network 10.77.0.1, or network=10.77.0.1 in
// the text of a device). They are dealt out to the scale-out ports in the order
// of the list, cards and ports: each IPv4 address to the next port; IPv6
// addresses to the first port on their interface, or to a port of their own
// where no IPv4 address of the interface is named; so does its link-local
// address, named or not. Scale-out ports for which nothing is left are down,
// and internal ports stay on a loopback network. What no interface has, what is
// named twice and what is more than there are ports is refused. Addresses and
// MTUs are read once, by Open; the active MTU of a port is the largest that the
// interface carries beside 80 bytes of headers: 1024 for 1500, 4096 for 4400.
// Linux's own Soft-RoCE takes UDP port 4791 of all addresses, so a machine is one
// or the other.
//
// The GID table of a port is as Linux builds it, RoCE v2 entries alone: index 0
// is the link-local address of the interface and left out where another port has
// that, index 1 and up are the others in the order of Linux. On a loopback
// network index 0 is made from a made-up MAC address, and carries nothing. Both
// ends of a connection must be of one family: IPv4, IPv6, or IPv6 link-local.
//
// # Memory of others
//
// A card exports ranges of its buffers, in whole pages of 4096 bytes, and any other
// card of the node imports them, as RDMA devices do with dma-buf: what reaches the
// importer by the key of such a region is read and written in the exporter's
// memory, by no other path than these bytes. All that is in one process and has
// the same NodeID is one node.
//
// A descriptor of an export is a token: an end of a socket pair made for it, whose
// other end stays here. It can be passed on and closed. It cannot be mapped, nor
// opened again by way of /proc, nothing can be read from it and what is written
// to it fails. When it comes back, by whatever way and in whatever copy, it is
// known by the cookie of the socket and by who made it in which network
// namespace. The end that stays sees when the last copy is closed; a holder who
// shuts the socket down counts as one who closed it. One epoll descriptor and one
// goroutine watch all tokens of the process, for as long as a card is open. An
// export has at most 1024 descriptors open at a time, and all exports half as many
// as the process may open.
//
// Cards sit on a made-up bus, each with an aperture over the beginning of its
// memory (bar=SIZE; all of it by default): what is outside has no segments and
// cannot be attached. As
// an importer a card is dynamic, pinned or none, may be one that reaches nothing
// but host memory (p2p=off), and takes pieces up to a size (segment=SIZE). The
// peerAccess rules of the port maps say whether there is a way between two cards,
// the exporter's map first; without a rule there is one inside a node. The checks
// are made in this order: whether the importer imports at all, does peer-to-peer,
// has a way, finds the window in the aperture, can take the pieces.
//
// An importer's region is cut off when its export is revoked, and when the exporter
// is reset or closed: it stays, says that it is revoked, and access by its keys
// fails as by keys that were never given out. Revoking detaches all importers, so
// the buffer can be freed and the export destroyed. A buffer that moves keeps its
// device address: places in the memory file are given out apart from addresses,
// of which a card has 2 TiB. While it is copied the regions on it are locked, its
// own and those of dynamic importers, which let go before and attach anew; so
// packets wait and none fails. An importer that pins it, or that would lose it
// because the new place is outside of the aperture, keeps it where it is.
//
// With dmabuf=udmabuf the exports of a chassis are real dma-bufs over the memory
// files of its cards (/dev/udmabuf), for importers in the kernel and for programs
// that map: one memory, seen by all. Such an export cannot be revoked and its buffer
// not moved. Who holds one when its buffer is freed keeps the pages, which are the
// card's no longer. Who holds it is counted by the kernel, without an event.
//
// A device of soft-nic ([ParseNIC]) is a host NIC beside the accelerators: a card
// of its own with scale-out ports alone, which exports nothing and imports as any
// other. It has 64 MiB of host memory, so that receive queues have a place.
// Atomic operations through two cards are not atomic against each other.
//
// # Inside
//
// What becomes of packets is decided in package transport, which knows no socket and
// no clock. Here is what drives it: a goroutine for each socket that
// receives, one for each card that keeps time, and callers who post. They meet
// at the lock of a queue pair, under which packets are also sent, so that a
// queue pair's packets leave in order. Locks are taken in the order queue pair,
// memory regions; what is held while packets are read or written is a read lock
// on the regions, so a key that was taken away is not in use any more.
//
// Exports and attachments of the process are under one lock, that of the bus,
// which no packet takes. Control takes locks in the order gate of the card, bus,
// memory of the exporter, regions (of several cards: by their slot on the bus).
// Who holds regions takes no other of these, and who holds the bus no queue pair.
//
// Card memory is a sparse memory file that belongs to this user alone. What is
// freed is punched out of it at once and reads as zeros.
//
// Queue pairs are RC (SEND, WRITE, READ and atomics), UC (SEND and WRITE) and UD.
// Limits: no end-to-end credits, path migration, shared receive queues or memory
// windows; congestion marks are counted, not obeyed. Nobody answers at
// queue pair 1, so RDMA-CM finds no one here. It needs Linux.
package soft
