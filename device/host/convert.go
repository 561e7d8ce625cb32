package host

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	pb "github.com/accelfab/accelfab/proto/accelfab/device/v1"
)

// mapped converts each entry of a list; an empty list is nil.
func mapped[A, B any](list []A, convert func(A) B) []B {
	if len(list) == 0 {
		return nil
	}
	out := make([]B, len(list))
	for i := range list {
		out[i] = convert(list[i])
	}
	return out
}

func uidBytes(u device.UID) []byte { return u[:] }

// uidOf reads a uid; one of another length is the zero uid, which nothing has.
func uidOf(b []byte) (u device.UID) {
	if len(b) == len(u) {
		copy(u[:], b)
	}
	return u
}

// checkUIDs refuses what is no uid.
func checkUIDs(uids ...[]byte) error {
	for _, b := range uids {
		if len(b) != len(device.UID{}) {
			return &device.FieldError{Field: "uid", Problem: fmt.Sprintf("%d bytes: want %d", len(b), len(device.UID{}))}
		}
	}
	return nil
}

// gidBytes is empty for the zero GID.
func gidBytes(g ib.GID) []byte {
	if g == (ib.GID{}) {
		return nil
	}
	return g[:]
}

func gidOf(b []byte) (g ib.GID) {
	if len(b) == len(g) {
		copy(g[:], b)
	}
	return g
}

func timeProto(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime().Local()
}

func infoProto(i device.Info) *pb.Info {
	l := i.Limits
	return &pb.Info{Id: i.ID, Driver: i.Driver, Model: i.Model, Serial: i.Serial, PciAddress: i.PCIAddress, ModuleId: int32(i.ModuleID),
		Topology: i.Topology, Ports: int32(i.Ports), MemoryBytes: i.MemoryBytes, MemoryBase: i.MemoryBase,
		Limits: &pb.Limits{QueuePairs: int64(l.QueuePairs), ProtectionDomains: int64(l.ProtectionDomains), Regions: int64(l.Regions),
			SendWr: int64(l.SendWR), RecvWr: int64(l.RecvWR), Sge: int64(l.SGE), MessageBytes: l.MessageBytes, RdAtomic: int64(l.RDAtomic),
			ExportPageBytes: l.ExportPage, MaxMtu: uint32(l.MaxMTU)},
		Capabilities: mapped(i.Capabilities, func(c device.Capability) string { return string(c) })}
}

func infoOf(i *pb.Info) device.Info {
	l := i.GetLimits()
	return device.Info{ID: i.GetId(), Driver: i.GetDriver(), Model: i.GetModel(), Serial: i.GetSerial(), PCIAddress: i.GetPciAddress(),
		ModuleID: int(i.GetModuleId()), Topology: i.GetTopology(), Ports: int(i.GetPorts()), MemoryBytes: i.GetMemoryBytes(), MemoryBase: i.GetMemoryBase(),
		Limits: device.Limits{QueuePairs: int(l.GetQueuePairs()), ProtectionDomains: int(l.GetProtectionDomains()), Regions: int(l.GetRegions()),
			SendWR: int(l.GetSendWr()), RecvWR: int(l.GetRecvWr()), SGE: int(l.GetSge()), MessageBytes: l.GetMessageBytes(), RDAtomic: int(l.GetRdAtomic()),
			ExportPage: l.GetExportPageBytes(), MaxMTU: ib.MTU(l.GetMaxMtu())},
		Capabilities: mapped(i.GetCapabilities(), func(c string) device.Capability { return device.Capability(c) })}
}

func portProto(p device.Port) *pb.Port {
	return &pb.Port{Number: int32(p.Number), IbPort: p.IBPort, Class: uint32(p.Class), AdminUp: p.AdminUp, State: uint32(p.State),
		SpeedMbps: p.SpeedMbps, ActiveMtu: uint32(p.ActiveMTU), MaxMtu: uint32(p.MaxMTU),
		Gids: mapped(p.GIDs, func(g device.GIDEntry) *pb.Gid {
			return &pb.Gid{Index: int32(g.Index), Gid: gidBytes(g.GID), Type: uint32(g.Type)}
		}),
		PeerModule: int32(p.PeerModule), PeerPort: int32(p.PeerPort), Reason: p.Reason,
		ReceiveBufferBytes: int64(p.ReceiveBuffer), ReceiveBufferAskedBytes: int64(p.ReceiveBufferAsked),
		Counters: countersProto(&p.Counters), ChangeTime: timeProto(p.ChangedAt)}
}

func portOf(p *pb.Port) device.Port {
	return device.Port{Number: int(p.GetNumber()), IBPort: p.GetIbPort(), Class: device.PortClass(p.GetClass()), AdminUp: p.GetAdminUp(),
		State: device.PortState(p.GetState()), SpeedMbps: p.GetSpeedMbps(), ActiveMTU: ib.MTU(p.GetActiveMtu()), MaxMTU: ib.MTU(p.GetMaxMtu()),
		GIDs: mapped(p.GetGids(), func(g *pb.Gid) device.GIDEntry {
			return device.GIDEntry{Index: int(g.GetIndex()), GID: gidOf(g.GetGid()), Type: ib.GIDType(g.GetType())}
		}),
		PeerModule: int(p.GetPeerModule()), PeerPort: int(p.GetPeerPort()), Reason: p.GetReason(),
		ReceiveBuffer: int(p.GetReceiveBufferBytes()), ReceiveBufferAsked: int(p.GetReceiveBufferAskedBytes()),
		Counters: countersOf(p.GetCounters()), ChangedAt: timeOf(p.GetChangeTime())}
}

func domainProto(d device.ProtectionDomain) *pb.ProtectionDomain {
	return &pb.ProtectionDomain{Uid: d.UID[:], Pd: uint32(d.PD)}
}

func domainOf(d *pb.ProtectionDomain) device.ProtectionDomain {
	return device.ProtectionDomain{UID: uidOf(d.GetUid()), PD: device.PD(d.GetPd())}
}

func bufferProto(b device.Buffer) *pb.Buffer {
	return &pb.Buffer{Uid: b.UID[:], Address: b.Address, SizeBytes: b.Size}
}

func bufferOf(b *pb.Buffer) device.Buffer {
	return device.Buffer{UID: uidOf(b.GetUid()), Address: b.GetAddress(), Size: b.GetSizeBytes()}
}

func regionProto(r device.Region) *pb.Region {
	return &pb.Region{Uid: r.UID[:], Pd: uint32(r.PD), Address: r.Address, LengthBytes: r.Length, Access: uint32(r.Access),
		Lkey: uint32(r.LKey), Rkey: uint32(r.RKey), Imported: r.Imported, Revoked: r.Revoked}
}

func regionOf(r *pb.Region) device.Region {
	return device.Region{UID: uidOf(r.GetUid()), PD: device.PD(r.GetPd()), Address: r.GetAddress(), Length: r.GetLengthBytes(), Access: ib.Access(r.GetAccess()),
		LKey: ib.LKey(r.GetLkey()), RKey: ib.RKey(r.GetRkey()), Imported: r.GetImported(), Revoked: r.GetRevoked()}
}

func regionSpecProto(r device.RegionSpec) *pb.RegionSpec {
	return &pb.RegionSpec{Uid: r.UID[:], Pd: uint32(r.PD), Address: r.Address, LengthBytes: r.Length, Access: uint32(r.Access)}
}

func regionSpecOf(r *pb.RegionSpec) device.RegionSpec {
	return device.RegionSpec{UID: uidOf(r.GetUid()), PD: device.PD(r.GetPd()), Address: r.GetAddress(), Length: r.GetLengthBytes(), Access: ib.Access(r.GetAccess())}
}

func exportProto(e device.Export) *pb.Export {
	return &pb.Export{Uid: e.UID[:], Address: e.Address, LengthBytes: e.Length, Revoked: e.Revoked, Mappable: e.Mappable, Opened: e.Opened, Held: int64(e.Held),
		Segments: mapped(e.Segments, func(s device.Segment) *pb.Segment {
			return &pb.Segment{Address: s.Address, BusAddress: s.Bus, LengthBytes: s.Length}
		}),
		Attachments: mapped(e.Attachments, func(a device.Attachment) *pb.Attachment {
			return &pb.Attachment{Importer: a.Importer, Region: uidBytes(a.Region), OffsetBytes: a.Offset, LengthBytes: a.Length, Dynamic: a.Dynamic, SinceTime: timeProto(a.Since)}
		})}
}

func exportOf(e *pb.Export) device.Export {
	return device.Export{UID: uidOf(e.GetUid()), Address: e.GetAddress(), Length: e.GetLengthBytes(), Revoked: e.GetRevoked(), Mappable: e.GetMappable(),
		Opened: e.GetOpened(), Held: int(e.GetHeld()),
		Segments: mapped(e.GetSegments(), func(s *pb.Segment) device.Segment {
			return device.Segment{Address: s.GetAddress(), Bus: s.GetBusAddress(), Length: s.GetLengthBytes()}
		}),
		Attachments: mapped(e.GetAttachments(), func(a *pb.Attachment) device.Attachment {
			return device.Attachment{Importer: a.GetImporter(), Region: uidOf(a.GetRegion()), Offset: a.GetOffsetBytes(), Length: a.GetLengthBytes(), Dynamic: a.GetDynamic(), Since: timeOf(a.GetSinceTime())}
		})}
}

func remoteProto(r device.Remote) *pb.Remote {
	return &pb.Remote{Gid: gidBytes(r.GID), Qpn: uint32(r.QPN), Psn: uint32(r.PSN)}
}

func remoteOf(r *pb.Remote) device.Remote {
	return device.Remote{GID: gidOf(r.GetGid()), QPN: ib.QPN(r.GetQpn()), PSN: ib.PSN(r.GetPsn())}
}

func queuePairProto(q device.QueuePair) *pb.QueuePair {
	out := &pb.QueuePair{Uid: q.UID[:], Qpn: uint32(q.QPN), Pd: uint32(q.PD), Port: int32(q.Port), Type: uint32(q.Type),
		SendWr: int32(q.SendWR), RecvWr: int32(q.RecvWR), Sge: int32(q.SGE), State: uint32(q.State),
		Gid: gidBytes(q.GID), GidIndex: int32(q.GIDIndex), PathMtu: uint32(q.PathMTU), Status: uint32(q.Status), Reason: q.Reason,
		Outstanding: int32(q.Outstanding)}
	if q.Remote != (device.Remote{}) {
		out.Remote = remoteProto(q.Remote)
	}
	return out
}

func queuePairOf(q *pb.QueuePair) device.QueuePair {
	return device.QueuePair{UID: uidOf(q.GetUid()), QPN: ib.QPN(q.GetQpn()), PD: device.PD(q.GetPd()), Port: int(q.GetPort()), Type: ib.QPType(q.GetType()),
		SendWR: int(q.GetSendWr()), RecvWR: int(q.GetRecvWr()), SGE: int(q.GetSge()), State: ib.QPState(q.GetState()),
		GID: gidOf(q.GetGid()), GIDIndex: int(q.GetGidIndex()), Remote: remoteOf(q.GetRemote()), PathMTU: ib.MTU(q.GetPathMtu()),
		Status: ib.WCStatus(q.GetStatus()), Reason: q.GetReason(), Outstanding: int(q.GetOutstanding())}
}

func queuePairResultProto(r device.QueuePairResult) *pb.QueuePairResult {
	return &pb.QueuePairResult{QueuePair: queuePairProto(r.QueuePair), Error: encodeError(r.Err)}
}

func queuePairResultOf(r *pb.QueuePairResult) device.QueuePairResult {
	return device.QueuePairResult{QueuePair: queuePairOf(r.GetQueuePair()), Err: decodeError(r.GetError())}
}

func stepProto(t device.Transition) *pb.Transition {
	switch t := t.(type) {
	case device.ToReset:
		return &pb.Transition{To: &pb.Transition_Reset_{Reset_: &pb.ToReset{}}}
	case device.ToInit:
		return &pb.Transition{To: &pb.Transition_Init{Init: &pb.ToInit{Pkey: uint32(t.PKey), Access: uint32(t.Access), Qkey: uint32(t.QKey)}}}
	case device.ToRTR:
		return &pb.Transition{To: &pb.Transition_Rtr{Rtr: &pb.ToRtr{Remote: remoteProto(t.Remote), GidIndex: int32(t.GIDIndex), PathMtu: uint32(t.PathMTU),
			MaxDestRdAtomic: int32(t.MaxDestRDAtomic), MinRnrTimer: uint32(t.MinRNRTimer), TrafficClass: uint32(t.TrafficClass), HopLimit: uint32(t.HopLimit)}}}
	case device.ToRTS:
		return &pb.Transition{To: &pb.Transition_Rts{Rts: &pb.ToRts{Psn: uint32(t.PSN), Timeout: uint32(t.Timeout), RetryCount: uint32(t.RetryCount),
			RnrRetry: uint32(t.RNRRetry), MaxRdAtomic: int32(t.MaxRDAtomic)}}}
	case device.ToSQD:
		return &pb.Transition{To: &pb.Transition_Sqd{Sqd: &pb.ToSqd{}}}
	case device.ToErr:
		return &pb.Transition{To: &pb.Transition_Err{Err: &pb.ToErr{}}}
	}
	return &pb.Transition{}
}

// errStep is the answer to a step that this version does not know.
var errStep = errors.New("a step of the request is none that this version of the device host knows")

func stepOf(t *pb.Transition) (device.Transition, error) {
	switch t := t.GetTo().(type) {
	case *pb.Transition_Reset_:
		return device.ToReset{}, nil
	case *pb.Transition_Init:
		return device.ToInit{PKey: ib.PKey(t.Init.GetPkey()), Access: ib.Access(t.Init.GetAccess()), QKey: ib.QKey(t.Init.GetQkey())}, nil
	case *pb.Transition_Rtr:
		r := t.Rtr
		return device.ToRTR{Remote: remoteOf(r.GetRemote()), GIDIndex: int(r.GetGidIndex()), PathMTU: ib.MTU(r.GetPathMtu()), MaxDestRDAtomic: int(r.GetMaxDestRdAtomic()),
			MinRNRTimer: uint8(r.GetMinRnrTimer()), TrafficClass: uint8(r.GetTrafficClass()), HopLimit: uint8(r.GetHopLimit())}, nil
	case *pb.Transition_Rts:
		r := t.Rts
		return device.ToRTS{PSN: ib.PSN(r.GetPsn()), Timeout: uint8(r.GetTimeout()), RetryCount: uint8(r.GetRetryCount()), RNRRetry: uint8(r.GetRnrRetry()), MaxRDAtomic: int(r.GetMaxRdAtomic())}, nil
	case *pb.Transition_Sqd:
		return device.ToSQD{}, nil
	case *pb.Transition_Err:
		return device.ToErr{}, nil
	}
	return nil, errStep
}

func stepsOf(list []*pb.Transition) ([]device.Transition, error) {
	var out []device.Transition
	for _, t := range list {
		s, err := stepOf(t)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func queuePairSpecProto(q device.QueuePairSpec) *pb.QueuePairSpec {
	return &pb.QueuePairSpec{Uid: q.UID[:], Pd: uint32(q.PD), Port: int32(q.Port), Type: uint32(q.Type), SendWr: int32(q.SendWR), RecvWr: int32(q.RecvWR),
		Sge: int32(q.SGE), Steps: mapped(q.Steps, stepProto)}
}

func queuePairSpecOf(q *pb.QueuePairSpec) (device.QueuePairSpec, error) {
	steps, err := stepsOf(q.GetSteps())
	return device.QueuePairSpec{UID: uidOf(q.GetUid()), PD: device.PD(q.GetPd()), Port: int(q.GetPort()), Type: ib.QPType(q.GetType()),
		SendWR: int(q.GetSendWr()), RecvWR: int(q.GetRecvWr()), SGE: int(q.GetSge()), Steps: steps}, err
}

func datagramProto(d device.Datagram) *pb.Datagram {
	return &pb.Datagram{Gid: gidBytes(d.GID), Qpn: uint32(d.QPN), Qkey: uint32(d.QKey)}
}

func datagramOf(d *pb.Datagram) device.Datagram {
	return device.Datagram{GID: gidOf(d.GetGid()), QPN: ib.QPN(d.GetQpn()), QKey: ib.QKey(d.GetQkey())}
}

func workProto(w device.WorkRequest) *pb.WorkRequest {
	out := &pb.WorkRequest{Id: w.ID, Opcode: uint32(w.Opcode), RemoteAddress: w.RemoteAddr, Rkey: uint32(w.RKey), Imm: w.Imm, Compare: w.Compare, Swap: w.Swap,
		Signaled: w.Signaled, Solicited: w.Solicited,
		Sgl: mapped(w.SGL, func(s device.SGE) *pb.Sge {
			return &pb.Sge{Address: s.Address, LengthBytes: s.Length, Lkey: uint32(s.LKey)}
		})}
	if w.Dest != nil {
		out.Destination = datagramProto(*w.Dest)
	}
	return out
}

func workOf(w *pb.WorkRequest) device.WorkRequest {
	out := device.WorkRequest{ID: w.GetId(), Opcode: device.WorkOpcode(w.GetOpcode()), RemoteAddr: w.GetRemoteAddress(), RKey: ib.RKey(w.GetRkey()), Imm: w.GetImm(),
		Compare: w.GetCompare(), Swap: w.GetSwap(), Signaled: w.GetSignaled(), Solicited: w.GetSolicited(),
		SGL: mapped(w.GetSgl(), func(s *pb.Sge) device.SGE {
			return device.SGE{Address: s.GetAddress(), Length: s.GetLengthBytes(), LKey: ib.LKey(s.GetLkey())}
		})}
	if w.GetDestination() != nil {
		d := datagramOf(w.GetDestination())
		out.Dest = &d
	}
	return out
}

func completionProto(c device.Completion) *pb.Completion {
	out := &pb.Completion{Id: c.ID, Status: uint32(c.Status), Opcode: uint32(c.Opcode), LengthBytes: c.Length, Imm: c.Imm, HasImm: c.HasImm,
		Receive: c.Receive, Solicited: c.Solicited, HasGrh: c.HasGRH, VendorError: c.VendorErr}
	if c.Source != (device.Datagram{}) {
		out.Source = datagramProto(c.Source)
	}
	return out
}

func completionOf(c *pb.Completion) device.Completion {
	return device.Completion{ID: c.GetId(), Status: ib.WCStatus(c.GetStatus()), Opcode: ib.WCOpcode(c.GetOpcode()), Length: c.GetLengthBytes(), Imm: c.GetImm(), HasImm: c.GetHasImm(),
		Receive: c.GetReceive(), Solicited: c.GetSolicited(), Source: datagramOf(c.GetSource()), HasGRH: c.GetHasGrh(), VendorErr: c.GetVendorError()}
}
