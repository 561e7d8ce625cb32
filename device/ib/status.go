package ib

import "fmt"

// WCStatus is the status of a work completion, numbered as in the verbs (enum
// ib_wc_status).
type WCStatus uint8

// The completion statuses. The numbers left out belong to reliable datagrams.
const (
	Success            WCStatus = 0
	LocLenErr          WCStatus = 1  // message does not fit the local buffers or the port's limit
	LocQPOpErr         WCStatus = 2  // the queue pair cannot do it
	LocProtErr         WCStatus = 4  // local buffer is not in a region of the same domain
	WRFlushErr         WCStatus = 5  // flushed, as the queue pair is in ERR or SQE
	MWBindErr          WCStatus = 6  // memory window
	BadRespErr         WCStatus = 7  // responder sent an unexpected opcode
	LocAccessErr       WCStatus = 8  // responder side: local buffer not valid for the incoming write
	RemInvReqErr       WCStatus = 9  // NAK invalid request
	RemAccessErr       WCStatus = 10 // NAK remote access error: R_Key, range or permission
	RemOpErr           WCStatus = 11 // NAK remote operational error
	RetryExcErr        WCStatus = 12 // no answer after all retries
	RNRRetryExcErr     WCStatus = 13 // the peer posted no receive for all RNR retries
	RemAbortErr        WCStatus = 16 // responder aborted
	FatalErr           WCStatus = 19
	ResponseTimeoutErr WCStatus = 20
	GeneralErr         WCStatus = 21
)

var statusNames = [...]string{
	Success:            "SUCCESS",
	LocLenErr:          "LOC_LEN_ERR",
	LocQPOpErr:         "LOC_QP_OP_ERR",
	LocProtErr:         "LOC_PROT_ERR",
	WRFlushErr:         "WR_FLUSH_ERR",
	MWBindErr:          "MW_BIND_ERR",
	BadRespErr:         "BAD_RESP_ERR",
	LocAccessErr:       "LOC_ACCESS_ERR",
	RemInvReqErr:       "REM_INV_REQ_ERR",
	RemAccessErr:       "REM_ACCESS_ERR",
	RemOpErr:           "REM_OP_ERR",
	RetryExcErr:        "RETRY_EXC_ERR",
	RNRRetryExcErr:     "RNR_RETRY_EXC_ERR",
	RemAbortErr:        "REM_ABORT_ERR",
	FatalErr:           "FATAL_ERR",
	ResponseTimeoutErr: "RESP_TIMEOUT_ERR",
	GeneralErr:         "GENERAL_ERR",
}

// String gives the verbs' name without its IBV_WC prefix.
func (s WCStatus) String() string {
	if int(s) < len(statusNames) && statusNames[s] != "" {
		return statusNames[s]
	}
	return fmt.Sprintf("WCStatus(%d)", uint8(s))
}

// WCOpcode says what completed, numbered as in the verbs (enum ib_wc_opcode).
// With a status other than Success it means nothing.
type WCOpcode uint8

// The completion opcodes. Bit 7 marks those of the receive queue.
const (
	WCSend            WCOpcode = 0
	WCRDMAWrite       WCOpcode = 1
	WCRDMARead        WCOpcode = 2
	WCCompSwap        WCOpcode = 3
	WCFetchAdd        WCOpcode = 4
	WCRecv            WCOpcode = 128
	WCRecvRDMAWithImm WCOpcode = 129
)

// String gives the verbs' name without its IBV_WC prefix.
func (o WCOpcode) String() string {
	switch o {
	case WCSend:
		return "SEND"
	case WCRDMAWrite:
		return "RDMA_WRITE"
	case WCRDMARead:
		return "RDMA_READ"
	case WCCompSwap:
		return "COMP_SWAP"
	case WCFetchAdd:
		return "FETCH_ADD"
	case WCRecv:
		return "RECV"
	case WCRecvRDMAWithImm:
		return "RECV_RDMA_WITH_IMM"
	}
	return fmt.Sprintf("WCOpcode(%d)", uint8(o))
}
