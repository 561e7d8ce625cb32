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
// Card memory is a sparse memory file that belongs to this user alone. What is
// freed is punched out of it at once and reads as zeros.
//
// Queue pairs are RC (SEND, WRITE, READ and atomics), UC (SEND and WRITE) and UD.
// Limits: no end-to-end credits, path migration, shared receive queues or memory
// windows; congestion marks are counted, not obeyed. Nobody answers at
// queue pair 1, so RDMA-CM finds no one here. It needs Linux.
package soft
