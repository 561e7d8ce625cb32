// Package transport is the transport of the software RoCE NIC, as state machines
// without a clock, a socket, a lock or a goroutine.
//
// A QueuePair is the transport half of one queue pair of type RC, UC or UD. Work
// is posted to it, packets that arrived for it are handed to Receive, and
// Transmit gives the packets that should leave to a Sink. Time is an argument;
// Deadline says when Expire wants to be called. So the driver of a QueuePair
// decides about batching and scheduling, and a test can lose, repeat and reorder
// packets at will. Each packet that is handed to Receive has one Fate, which is
// counted.
//
// A requester keeps the send queue, a responder the receive queue; they share
// nothing but the queue pair's state. How messages are cut into packets
// (message.go), and what a packet of a message does to memory, is the same for
// all transports.
//
// # RC
//
//   - The requester (rc_requester.go sends, rc_completer.go takes the answers)
//     gives every packet of every work request its PSN at posting; three PSNs say
//     what is going on: una, the oldest one not acknowledged, next, the one to
//     send next, and high, one past the newest ever sent. Loss is repaired by
//     going back: next becomes una.
//   - The responder (rc_responder.go takes requests, rc_answers.go answers them)
//     knows the one PSN that it expects. Answers that carry data (READ, atomics)
//     wait in a short list ordered by PSN; one flag says that an acknowledgement
//     is due after them, one field holds the one NAK that may be due.
//
// Three choices are worth knowing:
//
//   - A long READ is sent as several READ requests of part of a window each.
//     The wire allows it, and it is the only way for a requester to bound what
//     arrives at its own receive buffer.
//   - Acknowledgements are coalesced: the responder owes at most one, for the
//     newest packet, and pays when Transmit is called. So a driver that takes a
//     whole batch from its socket before it calls Transmit acknowledges once.
//   - A NAK for a gap is honoured once for each PSN (as a responder sends it
//     once), and only an expired ACK timer counts against retry_count.
//
// # UC and UD
//
// Packets leave once, in order, and as fast as Transmit is called; work is done
// when its last packet has left. A send that fails locally takes the queue pair
// to SQE, where it goes on to receive. What arrives damaged or incomplete is
// dropped without a word; only a receive that is too small, or not writable,
// takes the queue pair to ERR. On UC the first packet of a message is always in
// its place. A datagram is received with 40 bytes of network header in front.
//
// # Limits
//
// Credits are advertised as 31, which turns end-to-end flow control off. SEND
// with invalidate is refused as an invalid request. There is no path migration.
// Checking the ICRC, the P_Key and the sender of what arrives, the size of
// completion queues and the legality of transitions are the caller's.
//
// Where the specification leaves a choice, the behaviour of Linux Soft-RoCE
// (drivers/infiniband/sw/rxe) decided.
package transport
