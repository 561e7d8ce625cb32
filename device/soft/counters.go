package soft

import (
	"sync/atomic"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/soft/transport"
)

// counters are the live form of device.PortCounters.
type counters struct {
	xmitPackets, xmitBytes, rcvPackets, rcvBytes     atomic.Uint64
	acksSent, naksSent, rnrNAKsSent, rnrNAKsReceived atomic.Uint64
	retransmits, ackTimeouts, sequenceErrors         atomic.Uint64
	icrcErrors, pkeyViolations                       atomic.Uint64
	wiringViolations, unknownQPs, truncated          atomic.Uint64
	unsupportedVersions, unknownOpcodes, malformed   atomic.Uint64
	idsPredicted, idsSolved                          atomic.Uint64
	receiverDrops, congestionMarks, cnpsReceived     atomic.Uint64

	packets [transport.Fates]atomic.Uint64 // those that reached a queue pair, by transport.Fate
}

func (c *counters) read() device.PortCounters {
	fate := func(f transport.Fate) uint64 { return c.packets[f].Load() }
	return device.PortCounters{
		XmitPackets:         c.xmitPackets.Load(),
		XmitBytes:           c.xmitBytes.Load(),
		RcvPackets:          c.rcvPackets.Load(),
		RcvBytes:            c.rcvBytes.Load(),
		AcksSent:            c.acksSent.Load(),
		NAKsSent:            c.naksSent.Load(),
		RNRNAKsSent:         c.rnrNAKsSent.Load(),
		RNRNAKsReceived:     c.rnrNAKsReceived.Load(),
		Retransmits:         c.retransmits.Load(),
		AckTimeouts:         c.ackTimeouts.Load(),
		SequenceErrors:      c.sequenceErrors.Load(),
		OutOfSequence:       fate(transport.OutOfSequence),
		DuplicateRequests:   fate(transport.Duplicate),
		ICRCErrors:          c.icrcErrors.Load(),
		PKeyViolations:      c.pkeyViolations.Load(),
		QKeyViolations:      fate(transport.QKeyViolation),
		WiringViolations:    c.wiringViolations.Load(),
		UnknownQPs:          c.unknownQPs.Load(),
		Truncated:           c.truncated.Load(),
		UnsupportedVersions: c.unsupportedVersions.Load(),
		UnknownOpcodes:      c.unknownOpcodes.Load(),
		Malformed:           c.malformed.Load() + fate(transport.Malformed),
		RemoteAccessErrors:  fate(transport.RemoteAccessError),
		InvalidRequests:     fate(transport.InvalidRequest),
		UnexpectedPackets:   fate(transport.Unexpected),
		IDsPredicted:        c.idsPredicted.Load(),
		IDsSolved:           c.idsSolved.Load(),
		ReceiverDrops:       c.receiverDrops.Load(),
		CongestionMarks:     c.congestionMarks.Load(),
		CNPsReceived:        c.cnpsReceived.Load(),
	}
}
