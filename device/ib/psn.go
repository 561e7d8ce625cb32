package ib

// QPN is a queue pair number, 24 bits.
type QPN uint32

// MaxQPN is the largest queue pair number. On the wire it is the multicast
// queue pair; 0 and 1 belong to management (SMI and GSI).
const MaxQPN QPN = 1<<24 - 1

// PSN is a packet sequence number. It counts modulo 2^24, so two of them are
// compared by their distance and never by < or >.
type PSN uint32

const psnMask = 1<<24 - 1

// Add gives the number n packets after p; n may be negative.
func (p PSN) Add(n int) PSN { return (p + PSN(n)) & psnMask }

// Next gives the number after p.
func (p PSN) Next() PSN { return (p + 1) & psnMask }

// Sub gives the signed distance from o to p, in [-2^23, 2^23): the n for which
// o.Add(n) is p.
func (p PSN) Sub(o PSN) int { return int(int32(uint32(p-o)<<8) >> 8) }

// Before reports whether p comes before o, that is, whether their distance is
// negative. It orders only numbers less than 2^23 apart, which is all that a
// transport ever has in flight.
func (p PSN) Before(o PSN) bool { return p.Sub(o) < 0 }
