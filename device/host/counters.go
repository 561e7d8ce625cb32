package host

import (
	"github.com/accelfab/accelfab/device"
	pb "github.com/accelfab/accelfab/proto/accelfab/device/v1"
)

func countersProto(c *device.PortCounters) *pb.PortCounters {
	return &pb.PortCounters{
		XmitPackets:         c.XmitPackets,
		XmitBytes:           c.XmitBytes,
		RcvPackets:          c.RcvPackets,
		RcvBytes:            c.RcvBytes,
		AcksSent:            c.AcksSent,
		NaksSent:            c.NAKsSent,
		RnrNaksSent:         c.RNRNAKsSent,
		RnrNaksReceived:     c.RNRNAKsReceived,
		Retransmits:         c.Retransmits,
		AckTimeouts:         c.AckTimeouts,
		SequenceErrors:      c.SequenceErrors,
		OutOfSequence:       c.OutOfSequence,
		DuplicateRequests:   c.DuplicateRequests,
		IcrcErrors:          c.ICRCErrors,
		PkeyViolations:      c.PKeyViolations,
		QkeyViolations:      c.QKeyViolations,
		WiringViolations:    c.WiringViolations,
		UnknownQps:          c.UnknownQPs,
		Truncated:           c.Truncated,
		UnsupportedVersions: c.UnsupportedVersions,
		UnknownOpcodes:      c.UnknownOpcodes,
		Malformed:           c.Malformed,
		RemoteAccessErrors:  c.RemoteAccessErrors,
		InvalidRequests:     c.InvalidRequests,
		UnexpectedPackets:   c.UnexpectedPackets,
		IdsPredicted:        c.IDsPredicted,
		IdsSolved:           c.IDsSolved,
		ReceiverDrops:       c.ReceiverDrops,
		CongestionMarks:     c.CongestionMarks,
		CnpsReceived:        c.CNPsReceived,
	}
}

func countersOf(c *pb.PortCounters) device.PortCounters {
	return device.PortCounters{
		XmitPackets:         c.GetXmitPackets(),
		XmitBytes:           c.GetXmitBytes(),
		RcvPackets:          c.GetRcvPackets(),
		RcvBytes:            c.GetRcvBytes(),
		AcksSent:            c.GetAcksSent(),
		NAKsSent:            c.GetNaksSent(),
		RNRNAKsSent:         c.GetRnrNaksSent(),
		RNRNAKsReceived:     c.GetRnrNaksReceived(),
		Retransmits:         c.GetRetransmits(),
		AckTimeouts:         c.GetAckTimeouts(),
		SequenceErrors:      c.GetSequenceErrors(),
		OutOfSequence:       c.GetOutOfSequence(),
		DuplicateRequests:   c.GetDuplicateRequests(),
		ICRCErrors:          c.GetIcrcErrors(),
		PKeyViolations:      c.GetPkeyViolations(),
		QKeyViolations:      c.GetQkeyViolations(),
		WiringViolations:    c.GetWiringViolations(),
		UnknownQPs:          c.GetUnknownQps(),
		Truncated:           c.GetTruncated(),
		UnsupportedVersions: c.GetUnsupportedVersions(),
		UnknownOpcodes:      c.GetUnknownOpcodes(),
		Malformed:           c.GetMalformed(),
		RemoteAccessErrors:  c.GetRemoteAccessErrors(),
		InvalidRequests:     c.GetInvalidRequests(),
		UnexpectedPackets:   c.GetUnexpectedPackets(),
		IDsPredicted:        c.GetIdsPredicted(),
		IDsSolved:           c.GetIdsSolved(),
		ReceiverDrops:       c.GetReceiverDrops(),
		CongestionMarks:     c.GetCongestionMarks(),
		CNPsReceived:        c.GetCnpsReceived(),
	}
}
