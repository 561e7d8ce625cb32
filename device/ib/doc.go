// Package ib is the InfiniBand and RoCE specification as Go values: numbers,
// tables, packet headers and the invariant CRC.
//
// It holds what every backend and every test must agree on and nothing that
// runs: no socket, clock, lock or goroutine. Numbers are types of their own
// (QPN, PSN, PKey, GID, MTU); what the specification gives as a table is a
// table here (CheckTransition, Opcode, RNRTimer); headers are values with
// Append and Parse, which do not allocate.
//
// A RoCE v2 packet is IP, UDP to port 4791, then what Packet describes, then
// four bytes of ICRC:
//
//	BTH (12 bytes) | extension headers by opcode | payload | 0 to 3 bytes pad | ICRC
//
// Enumerations have the numeric values of the verbs (include/uapi/rdma/ib_user_verbs.h,
// include/rdma/ib_verbs.h and rdma-core's verbs.h), so that a driver may cast.
//
// Limits: the transports are RC, UC and UD. Reliable datagrams, XRC, FLUSH,
// ATOMIC WRITE and the headers of native InfiniBand links (LRH, GRH) are not
// here; a packet with such an opcode fails with ErrOpcode.
package ib
