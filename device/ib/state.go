package ib

import (
	"fmt"
	"strings"
)

// QPType is the transport service of a queue pair, numbered as in the verbs.
type QPType uint8

// The transport services.
const (
	RC QPType = 2 // reliable connection
	UC QPType = 3 // unreliable connection
	UD QPType = 4 // unreliable datagram
)

// Valid reports whether t is one of the three.
func (t QPType) Valid() bool { return t >= RC && t <= UD }

// String gives the short name.
func (t QPType) String() string {
	switch t {
	case RC:
		return "RC"
	case UC:
		return "UC"
	case UD:
		return "UD"
	}
	return fmt.Sprintf("QPType(%d)", uint8(t))
}

// QPState is the state of a queue pair, numbered as in the verbs.
type QPState uint8

// The states of a queue pair.
const (
	Reset QPState = 0 // as made: nothing is posted, nothing arrives
	Init  QPState = 1 // receives may be posted
	RTR   QPState = 2 // ready to receive
	RTS   QPState = 3 // ready to send
	SQD   QPState = 4 // the send queue drains and starts nothing new
	SQE   QPState = 5 // UC and UD: a send failed, receiving goes on
	Err   QPState = 6 // all work completes as flushed
)

var stateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// Valid reports whether s is one of the seven.
func (s QPState) Valid() bool { return int(s) < len(stateNames) }

// String gives the specification's name in capitals.
func (s QPState) String() string {
	if !s.Valid() {
		return fmt.Sprintf("QPState(%d)", uint8(s))
	}
	return stateNames[s]
}

// AttrMask is a set of queue pair attributes, with the bits of the verbs
// (enum ib_qp_attr_mask).
type AttrMask uint32

// The attributes of a queue pair.
const (
	AttrState           AttrMask = 1 << 0
	AttrCurState        AttrMask = 1 << 1 // the state the caller believes in
	AttrSQDAsyncNotify  AttrMask = 1 << 2
	AttrAccessFlags     AttrMask = 1 << 3
	AttrPKeyIndex       AttrMask = 1 << 4
	AttrPort            AttrMask = 1 << 5
	AttrQKey            AttrMask = 1 << 6
	AttrAV              AttrMask = 1 << 7 // address vector: where the peer is
	AttrPathMTU         AttrMask = 1 << 8
	AttrTimeout         AttrMask = 1 << 9
	AttrRetryCnt        AttrMask = 1 << 10
	AttrRNRRetry        AttrMask = 1 << 11
	AttrRQPSN           AttrMask = 1 << 12 // first PSN expected
	AttrMaxQPRdAtomic   AttrMask = 1 << 13 // as initiator
	AttrAltPath         AttrMask = 1 << 14
	AttrMinRNRTimer     AttrMask = 1 << 15
	AttrSQPSN           AttrMask = 1 << 16 // first PSN sent
	AttrMaxDestRdAtomic AttrMask = 1 << 17 // as responder
	AttrPathMigState    AttrMask = 1 << 18
	AttrCap             AttrMask = 1 << 19
	AttrDestQPN         AttrMask = 1 << 20
	attrEnd                      = 21
)

var attrNames = [attrEnd]string{
	"STATE", "CUR_STATE", "EN_SQD_ASYNC_NOTIFY", "ACCESS_FLAGS", "PKEY_INDEX", "PORT", "QKEY",
	"AV", "PATH_MTU", "TIMEOUT", "RETRY_CNT", "RNR_RETRY", "RQ_PSN", "MAX_QP_RD_ATOMIC",
	"ALT_PATH", "MIN_RNR_TIMER", "SQ_PSN", "MAX_DEST_RD_ATOMIC", "PATH_MIG_STATE", "CAP", "DEST_QPN",
}

// String names the attributes as the verbs do, joined by |; the empty set is "0".
func (m AttrMask) String() string {
	if m == 0 {
		return "0"
	}
	var names []string
	for i, name := range attrNames {
		if m&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	if rest := m >> attrEnd << attrEnd; rest != 0 {
		names = append(names, fmt.Sprintf("%#x", uint32(rest)))
	}
	return strings.Join(names, "|")
}
