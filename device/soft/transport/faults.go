package transport

import (
	"fmt"

	"github.com/accelfab/accelfab/device/ib"
)

// fault is what a responder finds wrong with a request.
type fault uint8

const (
	noFault fault = iota
	faultSequence
	faultUnsupported
	faultLength
	faultTotal
	faultTooLong
	faultAlignment
	faultResources
	faultRemoteAccess
	faultRecvSpace
	faultRecvMemory
)

// faults says what becomes of a request that is wrong, and what its packet counts
// as.
//
// On RC each takes the responder to ERR with status, which the receive that the
// request used, if any, completes with too. The requester gets the NAK and
// completes its request with the status that nakStatus has for it, which takes it
// to ERR too. On UC and UD only the faults of a receive do so; the others cost
// the message and nobody is told.
var faults = [...]struct {
	nak    ib.NakCode
	status ib.WCStatus
	fate   Fate
	text   string
}{
	faultSequence:     {ib.InvalidRequest, ib.RemInvReqErr, InvalidRequest, "packet out of its place in a message"},
	faultUnsupported:  {ib.InvalidRequest, ib.RemInvReqErr, InvalidRequest, "operation that this queue pair does not allow"},
	faultLength:       {ib.InvalidRequest, ib.RemInvReqErr, Malformed, "payload of the wrong length for its place in a message"},
	faultTotal:        {ib.InvalidRequest, ib.RemInvReqErr, InvalidRequest, "payload that is not of the length that the RETH says"},
	faultTooLong:      {ib.InvalidRequest, ib.RemInvReqErr, InvalidRequest, "message of more than 2^31 bytes"},
	faultAlignment:    {ib.InvalidRequest, ib.RemInvReqErr, InvalidRequest, "atomic operation on an address that is not a multiple of 8"},
	faultResources:    {ib.InvalidRequest, ib.RemInvReqErr, InvalidRequest, "more READs and atomics at once than max_dest_rd_atomic"},
	faultRemoteAccess: {ib.RemoteAccessError, ib.RemAccessErr, RemoteAccessError, "R_Key, range or access not valid in this protection domain"},
	faultRecvSpace:    {ib.InvalidRequest, ib.LocLenErr, InvalidRequest, "message longer than the receive posted for it"},
	faultRecvMemory:   {ib.RemoteOperationalError, ib.LocProtErr, Taken, "memory of the receive not writable in this protection domain"},
}

// ofReceive reports whether the receive is what is wrong, or too small.
func (f fault) ofReceive() bool { return f == faultRecvSpace || f == faultRecvMemory }

// nakStatus is what a requester completes with.
var nakStatus = map[ib.NakCode]ib.WCStatus{
	ib.InvalidRequest:         ib.RemInvReqErr,
	ib.RemoteAccessError:      ib.RemAccessErr,
	ib.RemoteOperationalError: ib.RemOpErr,
	ib.InvalidRDRequest:       ib.RemInvReqErr,
}

// remoteFailure gives the status and the reason of a NAK of w.
func remoteFailure(code ib.NakCode, w *sendWork, qpn ib.QPN, psn ib.PSN) (ib.WCStatus, string) {
	status, ok := nakStatus[code]
	if !ok {
		status = ib.RemOpErr
	}
	reason := fmt.Sprintf("QPN 0x%x answered PSN 0x%06x with NAK %v", qpn, psn, code)
	if wc := w.wcOpcode(); wc != ib.WCSend {
		reason += fmt.Sprintf(": %v of %d bytes at 0x%x with R_Key 0x%08x", wc, w.length, w.RemoteAddr, uint32(w.RKey))
	} else {
		reason += fmt.Sprintf(": SEND of %d bytes", w.length)
	}
	return status, reason
}
