package server

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// sortBy sorts a list by two numbers.
func sortBy[T any](list []T, key func(T) [2]int) {
	slices.SortFunc(list, func(a, b T) int {
		x, y := key(a), key(b)
		return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1]))
	})
}

func ownerToProto(c *fabric.Caller) *pb.Session_Owner {
	return &pb.Session_Owner{Identity: c.Identity, Uid: c.UID, Gid: c.GID, Pid: c.PID, Command: c.Command}
}

func sessionToProto(s *fabric.Session) *pb.Session {
	return &pb.Session{
		Name: s.Name, Uid: uidText(s.UID), Etag: s.ETag(), CreateTime: timeOf(s.CreateTime), Labels: s.Labels,
		State: sessionStates.proto(s.State), Reconciling: s.Condition.Reconciling, Reason: string(s.Condition.Reason), Message: s.Condition.Message,
		Owner: ownerToProto(&s.Owner), Partition: defaultPartition(s.Name), Devices: s.Devices, Mode: sessionModes.proto(s.Exclusive),
		Ttl: durationpb.New(s.TTL), DrainTimeout: durationpb.New(s.Drain), ExpireTime: timeOf(s.ExpireTime), LastSeenTime: timeOf(s.LastSeen), Generation: s.Generation,
		Usage: &pb.Session_Usage{
			ProtectionDomains: uint32(s.Usage.ProtectionDomains), Buffers: uint32(s.Usage.Buffers),
			MemoryRegions: uint32(s.Usage.MemoryRegions), QueuePairs: uint32(s.Usage.QueuePairs), BufferBytes: s.Usage.BufferBytes,
			MemoryExports: uint32(s.Usage.MemoryExports),
		},
		Process: processToProto(s.Process),
	}
}

func processToProto(p *fabric.Process) *pb.Session_Process {
	if p == nil {
		return nil
	}
	return &pb.Session_Process{Pid: p.PID, Command: p.Command}
}

func processOf(p *pb.Session_Process) *fabric.Process {
	if p == nil {
		return nil
	}
	return &fabric.Process{PID: p.GetPid()}
}

// defaultPartition is the partition that every session is in, on the node of
// the given resource.
func defaultPartition(name string) string {
	parts := strings.SplitN(name, "/", 3)
	return strings.Join(parts[:min(len(parts), 2)], "/") + "/partitions/default"
}

func domainToProto(p *fabric.ProtectionDomain) *pb.ProtectionDomain {
	return &pb.ProtectionDomain{
		Name: p.Name, Uid: uidText(p.UID), Etag: p.ETag(), CreateTime: timeOf(p.CreateTime), Labels: p.Labels,
		State: domainStates.proto(p.State), Reconciling: p.Condition.Reconciling, Reason: string(p.Condition.Reason), Message: p.Condition.Message,
		Session: p.Session, MemoryRegionCount: uint32(p.MemoryRegions), QueuePairCount: uint32(p.QueuePairs),
	}
}

func bufferToProto(b *fabric.Buffer) *pb.Buffer {
	return &pb.Buffer{
		Name: b.Name, Uid: uidText(b.UID), Etag: b.ETag(), CreateTime: timeOf(b.CreateTime), Labels: b.Labels,
		State: bufferStates.proto(b.State), Reconciling: b.Condition.Reconciling, Reason: string(b.Condition.Reason), Message: b.Condition.Message,
		Session: b.Session, SizeBytes: b.Size, AlignmentBytes: b.Alignment, DeviceAddress: b.Address, MemoryRegionCount: uint32(b.MemoryRegions),
		MemoryExportCount: uint32(b.MemoryExports),
	}
}

func regionToProto(m *fabric.MemoryRegion) *pb.MemoryRegion {
	out := &pb.MemoryRegion{
		Name: m.Name, Uid: uidText(m.UID), Etag: m.ETag(), CreateTime: timeOf(m.CreateTime), Labels: m.Labels,
		State: regionStates.proto(m.State), Reconciling: m.Condition.Reconciling, Reason: string(m.Condition.Reason), Message: m.Condition.Message,
		Session: m.Session, ProtectionDomain: m.ProtectionDomain, Buffer: m.Buffer, OffsetBytes: m.Offset, LengthBytes: m.Length,
		Access: accessToProto(m.Access), Lkey: uint32(m.LKey), Rkey: uint32(m.RKey), Iova: m.IOVA,
	}
	if x := m.Import; x != nil {
		out.ImportSource = &pb.MemoryRegion_ImportSource{OffsetBytes: x.Offset, LengthBytes: x.Length, Iova: x.IOVA, MemoryExport: x.Export, Path: x.Path}
	}
	return out
}

// accessToProto lists the flags in ascending order.
func accessToProto(a ib.Access) []pb.MemoryRegion_Access {
	var out []pb.MemoryRegion_Access
	for bit := ib.Access(1); bit != 0; bit <<= 1 {
		if a&bit != 0 {
			if p := accessFlags.proto(bit); p != 0 {
				out = append(out, p)
			}
		}
	}
	return out
}

func queuePairToProto(q *fabric.QueuePair) *pb.QueuePair {
	out := &pb.QueuePair{
		Name: q.Name, Uid: uidText(q.UID), Etag: q.ETag(), CreateTime: timeOf(q.CreateTime), Labels: q.Labels,
		State: queuePairState(q), Reconciling: q.Condition.Reconciling, Reason: string(q.Condition.Reason), Message: q.Condition.Message,
		Session: q.Session, ProtectionDomain: q.ProtectionDomain, Port: q.PortName, Type: queuePairTypes.proto(q.Type),
		Capacities:  &pb.QueuePair_Capacities{SendWr: uint32(q.SendWR), RecvWr: uint32(q.RecvWR), Sge: uint32(q.SGE)},
		TargetState: queuePairStates.proto(q.Target), Attributes: attributesToProto(&q.Attributes),
	}
	if q.Remote != nil {
		out.RemoteEndpoint = endpointToProto(q.Remote)
	}
	if q.Local.QPN != 0 || !q.Local.GID.IsZero() {
		out.LocalEndpoint = endpointToProto(&q.Local)
	}
	if q.State == fabric.StateReady && (q.QPState == ib.Err || q.QPState == ib.SQE) && (q.Status != ib.Success || q.StatusText != "") {
		out.Error = &pb.QueuePair_Error{Status: completionStatuses.proto(q.Status), Message: q.StatusText}
		if q.Status == ib.Success { // asked for, not failed
			out.Error.Status = 0
		}
	}
	return out
}

func endpointToProto(e *fabric.Endpoint) *pb.QueuePair_Endpoint {
	out := &pb.QueuePair_Endpoint{Gid: gidText(e.GID), Qpn: uint32(e.QPN), Psn: uint32(e.PSN), GidIndex: uint32(max(e.GIDIndex, 0)),
		Pkey: uint32(e.PKey), ActiveMtuBytes: uint32(e.ActiveMTU.Bytes()), Port: e.Port}
	if e.HasType {
		out.GidType = gidTypes.proto(e.GIDType)
	}
	return out
}

func attributesToProto(a *fabric.Attributes) *pb.QueuePair_Attributes {
	out := &pb.QueuePair_Attributes{
		Timeout: wide(a.Timeout), RetryCount: wide(a.RetryCount), RnrRetry: wide(a.RNRRetry), MinRnrTimer: wide(a.MinRNRTimer),
		MaxRdAtomic: wide(a.MaxRDAtomic), MaxDestRdAtomic: wide(a.MaxDestRDAtomic), TrafficClass: wide(a.TrafficClass),
		HopLimit: wide(a.HopLimit), Psn: wide(a.PSN), Qkey: wide(a.QKey),
	}
	if a.PathMTU.Valid() {
		out.PathMtuBytes = proto.Uint32(uint32(a.PathMTU.Bytes()))
	}
	if a.GIDIndex != nil && *a.GIDIndex >= 0 {
		out.GidIndex = wide(a.GIDIndex)
	}
	if a.Access != nil {
		out.Access = accessToProto(*a.Access)
	}
	return out
}

// wide gives an optional number in the contract's width.
func wide[N ~uint8 | ~int | ~uint32](p *N) *uint32 {
	if p == nil {
		return nil
	}
	return proto.Uint32(uint32(*p))
}

// endpoint converts the other end of a connection. What else than gid, qpn and
// psn is wrong with it is found here; those three the domain checks.
func (v *faults) endpoint(field string, e *pb.QueuePair_Endpoint) *fabric.Endpoint {
	if e == nil {
		return nil
	}
	out := &fabric.Endpoint{GID: v.gid(field+".gid", e.Gid), QPN: ib.QPN(e.Qpn), PSN: ib.PSN(e.Psn), GIDIndex: -1,
		ActiveMTU: v.mtu(field+".active_mtu_bytes", e.ActiveMtuBytes), Port: e.Port}
	if e.GidType != 0 {
		var ok bool
		if out.GIDType, ok = gidTypes.domain(e.GidType); !ok {
			v.invalid(field+".gid_type", "%d: want one of %s", e.GidType, gidTypes.names())
		}
		out.HasType = ok
	}
	if e.Pkey > 0xffff {
		v.invalid(field+".pkey", "%#x: want 16 bits", e.Pkey)
	}
	out.PKey = ib.PKey(e.Pkey)
	if e.Port != "" && !isName(e.Port, "nodes", "devices", "ports") {
		v.invalid(field+".port", "%q: want nodes/{node}/devices/{device}/ports/{port}", clip(e.Port, maxText))
	}
	return out
}

// attributes converts attributes; those not set stay nil.
func (v *faults) attributes(field string, a *pb.QueuePair_Attributes) fabric.Attributes {
	if a == nil {
		return fabric.Attributes{}
	}
	out := fabric.Attributes{
		Timeout:         v.byteOf(field+".timeout", a.Timeout, 0, 31),
		RetryCount:      v.byteOf(field+".retry_count", a.RetryCount, 0, 7),
		RNRRetry:        v.byteOf(field+".rnr_retry", a.RnrRetry, 0, 7),
		MinRNRTimer:     v.byteOf(field+".min_rnr_timer", a.MinRnrTimer, 0, 31),
		TrafficClass:    v.byteOf(field+".traffic_class", a.TrafficClass, 0, 255),
		HopLimit:        v.byteOf(field+".hop_limit", a.HopLimit, 1, 255),
		MaxRDAtomic:     intOf(a.MaxRdAtomic),
		MaxDestRDAtomic: intOf(a.MaxDestRdAtomic),
		GIDIndex:        intOf(a.GidIndex),
	}
	if a.PathMtuBytes != nil {
		if *a.PathMtuBytes == 0 {
			v.invalid(field+".path_mtu_bytes", "0: want 256, 512, 1024, 2048 or 4096")
		}
		out.PathMTU = v.mtu(field+".path_mtu_bytes", *a.PathMtuBytes)
	}
	if a.Psn != nil {
		psn := ib.PSN(*a.Psn)
		out.PSN = &psn
	}
	if a.Qkey != nil {
		qkey := ib.QKey(*a.Qkey)
		out.QKey = &qkey
	}
	if len(a.Access) > 0 {
		access := v.access(field+".access", a.Access)
		if access&ib.LocalWrite != 0 {
			v.invalid(field+".access", "LOCAL_WRITE is a memory region's: want REMOTE_WRITE, REMOTE_READ or REMOTE_ATOMIC")
		}
		out.Access = &access
	}
	return out
}
