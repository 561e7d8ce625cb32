package ib

import "time"

// rnrTimers has the delays by code, in units of 10 us (enum ib_rnr_timeout in
// include/rdma/ib_verbs.h). Code 0 is the longest, the others ascend.
var rnrTimers = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12,
	16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072,
	4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRTimer gives the delay of an RNR timer code, of which the low five bits
// count: code 0 is 655.36 ms, code 1 is 0.01 ms, code 31 is 491.52 ms.
func RNRTimer(code uint8) time.Duration {
	return time.Duration(rnrTimers[code&31]) * 10 * time.Microsecond
}

// AckTimeout gives the local ACK timeout of a code, of which the low five bits
// count: 4.096 us times 2 to the power of code. Code 0 waits for ever, which is
// told as 0.
func AckTimeout(code uint8) time.Duration {
	if code &= 31; code == 0 {
		return 0
	}
	return 4096 << code
}
