// Package soft is the software device: a chassis of accelerator cards that
// speak real RoCE v2, for machines that have no such cards.
//
// [Open] makes a chassis from a port map of device/topology: a number of cards,
// each with its memory and its ports. Each port has an IPv4 address of its own
// and a UDP socket on port 4791, and nothing but packets goes from one card to
// another, also inside one chassis. Internal ports accept packets only from the
// port that the map cables them to; scale-out ports meet on one switch, across
// chassis and machines, and accept only what comes from outside their own
// chassis. All else is dropped and counted (WiringViolations).
//
// # Addresses
//
// The addresses are a network that the configuration gives, which must belong
// to an interface, or by default the lowest free /24 of 127.64.0.0/10, all of
// which is local on Linux: so several nodes run on one machine without set-up.
// A lock file says which are taken. Port p of card c has address
// 1 + c*ports + p of the network. Its GID table is as Linux builds it, RoCE v2
// entries alone: index 0 is link-local, made from a made-up MAC address, and
// index 1 is the IPv4 address. Only IPv4 carries packets.
//
// # Inside
//
// What becomes of packets is decided in package transport, which knows no socket and
// no clock. Here is what drives it: a goroutine for each connected port that
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
// Limits: IPv4 only; no end-to-end credits, path migration, shared receive queues
// or memory windows; congestion marks are counted, not obeyed. Nobody answers at
// queue pair 1, so RDMA-CM finds no one here. It needs Linux.
package soft
