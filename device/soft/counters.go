package soft

import (
	"sync/atomic"

	"github.com/accelfab/accelfab/device"
)

// counters are the live form of device.PortCounters.
type counters struct {
	xmitPackets, xmitBytes, rcvPackets, rcvBytes     atomic.Uint64
	acksSent, naksSent, rnrNAKsSent, rnrNAKsReceived atomic.Uint64
	retransmits, ackTimeouts, sequenceErrors         atomic.Uint64
	outOfSequence, duplicateRequests                 atomic.Uint64
	icrcErrors, pkeyViolations, qkeyViolations       atomic.Uint64
	wiringViolations, unknownQPs, malformed          atomic.Uint64
	idsPredicted, idsSolved                          atomic.Uint64
	receiverDrops, congestionMarks, cnpsReceived     atomic.Uint64
}

func (c *counters) read() device.PortCounters {
	return device.PortCounters{
		XmitPackets:       c.xmitPackets.Load(),
		XmitBytes:         c.xmitBytes.Load(),
		RcvPackets:        c.rcvPackets.Load(),
		RcvBytes:          c.rcvBytes.Load(),
		AcksSent:          c.acksSent.Load(),
		NAKsSent:          c.naksSent.Load(),
		RNRNAKsSent:       c.rnrNAKsSent.Load(),
		RNRNAKsReceived:   c.rnrNAKsReceived.Load(),
		Retransmits:       c.retransmits.Load(),
		AckTimeouts:       c.ackTimeouts.Load(),
		SequenceErrors:    c.sequenceErrors.Load(),
		OutOfSequence:     c.outOfSequence.Load(),
		DuplicateRequests: c.duplicateRequests.Load(),
		ICRCErrors:        c.icrcErrors.Load(),
		PKeyViolations:    c.pkeyViolations.Load(),
		QKeyViolations:    c.qkeyViolations.Load(),
		WiringViolations:  c.wiringViolations.Load(),
		UnknownQPs:        c.unknownQPs.Load(),
		Malformed:         c.malformed.Load(),
		IDsPredicted:      c.idsPredicted.Load(),
		IDsSolved:         c.idsSolved.Load(),
		ReceiverDrops:     c.receiverDrops.Load(),
		CongestionMarks:   c.congestionMarks.Load(),
		CNPsReceived:      c.cnpsReceived.Load(),
	}
}
