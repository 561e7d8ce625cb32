package server

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// enum maps values of the domain to those of the contract and back. What has
// no counterpart is the contract's zero value.
type enum[D comparable, P protoEnum] struct {
	to   map[D]P
	from map[P]D
}

type protoEnum interface {
	~int32
	protoreflect.Enum
}

func newEnum[D comparable, P protoEnum](to map[D]P) enum[D, P] {
	e := enum[D, P]{to, make(map[P]D, len(to))}
	for d, p := range to {
		e.from[p] = d
	}
	return e
}

func (e enum[D, P]) proto(d D) P { return e.to[d] }

func (e enum[D, P]) domain(p P) (D, bool) {
	d, ok := e.from[p]
	return d, ok
}

// names lists the contract's names in their order, for people.
func (e enum[D, P]) names() string {
	var ps []P
	for p := range e.from {
		ps = append(ps, p)
	}
	slices.Sort(ps)
	var names []string
	for _, p := range ps {
		names = append(names, string(p.Descriptor().Values().ByNumber(p.Number()).Name()))
	}
	return strings.Join(names, ", ")
}

// shortName gives an enum's value without the prefix that its type gives it:
// READY of STATE_READY.
func shortName(e protoreflect.Enum) string {
	values := e.Descriptor().Values()
	v := values.ByNumber(e.Number())
	if v == nil {
		return ""
	}
	prefix := strings.TrimSuffix(string(values.ByNumber(0).Name()), "UNSPECIFIED")
	return strings.TrimPrefix(string(v.Name()), prefix)
}

var (
	sessionStates = newEnum(map[fabric.State]pb.Session_State{
		fabric.StateActive:  pb.Session_STATE_ACTIVE,
		fabric.StateClosing: pb.Session_STATE_CLOSING,
		fabric.StateLost:    pb.Session_STATE_LOST,
	})
	domainStates = newEnum(map[fabric.State]pb.ProtectionDomain_State{
		fabric.StatePending:  pb.ProtectionDomain_STATE_PENDING,
		fabric.StateReady:    pb.ProtectionDomain_STATE_READY,
		fabric.StateLost:     pb.ProtectionDomain_STATE_LOST,
		fabric.StateDeleting: pb.ProtectionDomain_STATE_DELETING,
	})
	bufferStates = newEnum(map[fabric.State]pb.Buffer_State{
		fabric.StatePending:  pb.Buffer_STATE_PENDING,
		fabric.StateReady:    pb.Buffer_STATE_READY,
		fabric.StateLost:     pb.Buffer_STATE_LOST,
		fabric.StateDeleting: pb.Buffer_STATE_DELETING,
	})
	regionStates = newEnum(map[fabric.State]pb.MemoryRegion_State{
		fabric.StatePending:  pb.MemoryRegion_STATE_PENDING,
		fabric.StateReady:    pb.MemoryRegion_STATE_READY,
		fabric.StateLost:     pb.MemoryRegion_STATE_LOST,
		fabric.StateDeleting: pb.MemoryRegion_STATE_DELETING,
	})
	exportStates = newEnum(map[fabric.State]pb.MemoryExport_State{
		fabric.StatePending:  pb.MemoryExport_STATE_PENDING,
		fabric.StateActive:   pb.MemoryExport_STATE_ACTIVE,
		fabric.StateRevoking: pb.MemoryExport_STATE_REVOKING,
		fabric.StateRevoked:  pb.MemoryExport_STATE_REVOKED,
		fabric.StateLost:     pb.MemoryExport_STATE_LOST,
		fabric.StateDeleting: pb.MemoryExport_STATE_DELETING,
	})
	// queuePairPhases are the states of a queue pair that the device does not
	// have; in READY it is in one of queuePairStates.
	queuePairPhases = newEnum(map[fabric.State]pb.QueuePair_State{
		fabric.StatePending:  pb.QueuePair_STATE_PENDING,
		fabric.StateLost:     pb.QueuePair_STATE_LOST,
		fabric.StateDeleting: pb.QueuePair_STATE_DELETING,
	})
	queuePairStates = newEnum(map[ib.QPState]pb.QueuePair_State{
		ib.Reset: pb.QueuePair_STATE_RESET,
		ib.Init:  pb.QueuePair_STATE_INIT,
		ib.RTR:   pb.QueuePair_STATE_RTR,
		ib.RTS:   pb.QueuePair_STATE_RTS,
		ib.SQD:   pb.QueuePair_STATE_SQD,
		ib.SQE:   pb.QueuePair_STATE_SQE,
		ib.Err:   pb.QueuePair_STATE_ERR,
	})
	queuePairTypes = newEnum(map[ib.QPType]pb.QueuePair_Type{
		ib.RC: pb.QueuePair_TYPE_RC,
		ib.UC: pb.QueuePair_TYPE_UC,
		ib.UD: pb.QueuePair_TYPE_UD,
	})
	accessFlags = newEnum(map[ib.Access]pb.MemoryRegion_Access{
		ib.LocalWrite:   pb.MemoryRegion_ACCESS_LOCAL_WRITE,
		ib.RemoteWrite:  pb.MemoryRegion_ACCESS_REMOTE_WRITE,
		ib.RemoteRead:   pb.MemoryRegion_ACCESS_REMOTE_READ,
		ib.RemoteAtomic: pb.MemoryRegion_ACCESS_REMOTE_ATOMIC,
	})
	// A native InfiniBand GID has no counterpart: the contract is RoCE's.
	gidTypes = newEnum(map[ib.GIDType]pb.GidType{
		ib.RoCEv1: pb.GidType_GID_TYPE_ROCE_V1,
		ib.RoCEv2: pb.GidType_GID_TYPE_ROCE_V2,
	})
	portStates = newEnum(map[device.PortState]pb.Port_State{
		device.PortDown:   pb.Port_STATE_DOWN,
		device.PortInit:   pb.Port_STATE_INIT,
		device.PortArmed:  pb.Port_STATE_ARMED,
		device.PortActive: pb.Port_STATE_ACTIVE,
	})
	portClasses = newEnum(map[device.PortClass]pb.Port_Class{
		device.PortInternal:     pb.Port_CLASS_INTERNAL,
		device.PortScaleOut:     pb.Port_CLASS_SCALE_OUT,
		device.PortNotConnected: pb.Port_CLASS_NOT_CONNECTED,
	})
	adminStates = newEnum(map[bool]pb.Port_AdminState{
		true:  pb.Port_ADMIN_STATE_ENABLED,
		false: pb.Port_ADMIN_STATE_DISABLED,
	})
	sessionModes = newEnum(map[bool]pb.Session_Mode{
		true:  pb.Session_MODE_EXCLUSIVE,
		false: pb.Session_MODE_SHARED,
	})
	workOpcodes = newEnum(map[device.WorkOpcode]pb.WorkRequest_Opcode{
		device.WorkSend:        pb.WorkRequest_OPCODE_SEND,
		device.WorkSendImm:     pb.WorkRequest_OPCODE_SEND_WITH_IMM,
		device.WorkWrite:       pb.WorkRequest_OPCODE_RDMA_WRITE,
		device.WorkWriteImm:    pb.WorkRequest_OPCODE_RDMA_WRITE_WITH_IMM,
		device.WorkRead:        pb.WorkRequest_OPCODE_RDMA_READ,
		device.WorkCompareSwap: pb.WorkRequest_OPCODE_COMPARE_SWAP,
		device.WorkFetchAdd:    pb.WorkRequest_OPCODE_FETCH_ADD,
		device.WorkRecv:        pb.WorkRequest_OPCODE_RECV,
	})
	completionOpcodes = newEnum(map[ib.WCOpcode]pb.Completion_Opcode{
		ib.WCSend:            pb.Completion_OPCODE_SEND,
		ib.WCRDMAWrite:       pb.Completion_OPCODE_RDMA_WRITE,
		ib.WCRDMARead:        pb.Completion_OPCODE_RDMA_READ,
		ib.WCCompSwap:        pb.Completion_OPCODE_COMPARE_SWAP,
		ib.WCFetchAdd:        pb.Completion_OPCODE_FETCH_ADD,
		ib.WCRecv:            pb.Completion_OPCODE_RECV,
		ib.WCRecvRDMAWithImm: pb.Completion_OPCODE_RECV_RDMA_WITH_IMM,
	})
	// A memory window's bind error has no counterpart: nobody can bind one.
	completionStatuses = newEnum(map[ib.WCStatus]pb.CompletionStatus{
		ib.Success:            pb.CompletionStatus_COMPLETION_STATUS_SUCCESS,
		ib.LocLenErr:          pb.CompletionStatus_COMPLETION_STATUS_LOC_LEN_ERR,
		ib.LocQPOpErr:         pb.CompletionStatus_COMPLETION_STATUS_LOC_QP_OP_ERR,
		ib.LocProtErr:         pb.CompletionStatus_COMPLETION_STATUS_LOC_PROT_ERR,
		ib.WRFlushErr:         pb.CompletionStatus_COMPLETION_STATUS_WR_FLUSH_ERR,
		ib.BadRespErr:         pb.CompletionStatus_COMPLETION_STATUS_BAD_RESP_ERR,
		ib.LocAccessErr:       pb.CompletionStatus_COMPLETION_STATUS_LOC_ACCESS_ERR,
		ib.RemInvReqErr:       pb.CompletionStatus_COMPLETION_STATUS_REM_INV_REQ_ERR,
		ib.RemAccessErr:       pb.CompletionStatus_COMPLETION_STATUS_REM_ACCESS_ERR,
		ib.RemOpErr:           pb.CompletionStatus_COMPLETION_STATUS_REM_OP_ERR,
		ib.RetryExcErr:        pb.CompletionStatus_COMPLETION_STATUS_RETRY_EXC_ERR,
		ib.RNRRetryExcErr:     pb.CompletionStatus_COMPLETION_STATUS_RNR_RETRY_EXC_ERR,
		ib.RemAbortErr:        pb.CompletionStatus_COMPLETION_STATUS_REM_ABORT_ERR,
		ib.FatalErr:           pb.CompletionStatus_COMPLETION_STATUS_FATAL_ERR,
		ib.ResponseTimeoutErr: pb.CompletionStatus_COMPLETION_STATUS_RESP_TIMEOUT_ERR,
		ib.GeneralErr:         pb.CompletionStatus_COMPLETION_STATUS_GENERAL_ERR,
	})
	healthStatuses = newEnum(map[fabric.HealthStatus]pb.Health_Status{
		fabric.HealthOK:            pb.Health_STATUS_OK,
		fabric.HealthUnknown:       pb.Health_STATUS_UNKNOWN,
		fabric.HealthDegraded:      pb.Health_STATUS_DEGRADED,
		fabric.HealthFailed:        pb.Health_STATUS_FAILED,
		fabric.HealthNotApplicable: pb.Health_STATUS_NOT_APPLICABLE,
	})
	eventTypes = newEnum(map[fabric.EventType]pb.Event_Type{
		fabric.EventCreated:  pb.Event_TYPE_CREATED,
		fabric.EventChanged:  pb.Event_TYPE_CHANGED,
		fabric.EventDeleted:  pb.Event_TYPE_DELETED,
		fabric.EventSnapshot: pb.Event_TYPE_SNAPSHOT,
	})
)

// queuePairState is what the contract shows as one state.
func queuePairState(q *fabric.QueuePair) pb.QueuePair_State {
	if q.State == fabric.StateReady {
		return queuePairStates.proto(q.QPState)
	}
	return queuePairPhases.proto(q.State)
}
