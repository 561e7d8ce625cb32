package server

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

func uidText(u device.UID) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// derivedUID gives a UUID of version 5 to what has no record of its own:
// devices, ports and events are told apart by what makes them what they are.
func derivedUID(node device.UID, parts ...string) device.UID {
	h := sha1.New()
	h.Write(node[:])
	h.Write([]byte(strings.Join(parts, "\x00")))
	var u device.UID
	copy(u[:], h.Sum(nil))
	u[6] = u[6]&0x0f | 0x50
	u[8] = u[8]&0x3f | 0x80
	return u
}

// timeOf converts a time; the zero time is unset.
func timeOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// most problems and components that a health tells
const (
	maxProblems   = 100
	maxComponents = 1000
)

func healthToProto(h *fabric.Health) *pb.Health {
	out := &pb.Health{Status: healthStatuses.proto(h.Status)}
	for _, p := range h.Problems[:min(len(h.Problems), maxProblems)] {
		out.Problems = append(out.Problems, &pb.Health_Problem{Resource: p.Resource, Component: p.Component, Reason: string(p.Reason), Message: p.Message, StartTime: timeOf(p.Since)})
	}
	for _, c := range h.Components[:min(len(h.Components), maxComponents)] {
		out.Components = append(out.Components, &pb.Health_Component{Name: c.Name, Resource: c.Resource, Status: healthStatuses.proto(c.Status),
			Reason: string(c.Reason), Message: c.Message, StartTime: timeOf(c.Since)})
	}
	return out
}

func nodeToProto(n *fabric.Node, stopping bool) *pb.Node {
	out := &pb.Node{
		Name: n.Name, Uid: uidText(n.UID), Etag: fabric.Meta{UID: n.UID, Revision: n.Revision}.ETag(),
		CreateTime: timeOf(n.CreateTime), State: pb.Node_STATE_READY,
		BootId: n.BootID, InstanceId: n.InstanceID, Version: n.Version, StartTime: timeOf(n.StartTime),
		Health: healthToProto(&n.Health), DeviceCount: int32(n.Devices),
	}
	switch {
	case stopping:
		out.State = pb.Node_STATE_STOPPING
	case n.Health.Status != fabric.HealthOK:
		out.State = pb.Node_STATE_DEGRADED
		out.Reason = string(n.Health.Reason)
	}
	return out
}

func deviceUID(node device.UID, info *device.Info) device.UID {
	return derivedUID(node, "device", info.ID, info.Driver, info.Serial)
}

func deviceToProto(node device.UID, d *fabric.Device) *pb.Device {
	info := &d.Info
	uid := deviceUID(node, info)
	out := &pb.Device{
		Name: d.Name, Uid: uidText(uid), Etag: hex.EncodeToString(uid[:4]) + "-0",
		State: pb.Device_STATE_READY, Reconciling: d.Condition.Reconciling, Reason: string(d.Condition.Reason),
		Driver: info.Driver, Model: info.Model, Serial: info.Serial, PciAddress: info.PCIAddress,
		ModuleId: uint32(info.ModuleID), PortMap: info.Topology, PortCount: uint32(info.Ports),
		MemoryBytes: info.MemoryBytes, MemoryFreeBytes: info.MemoryBytes - min(info.MemoryBytes, d.Usage.BufferBytes),
		Limits: &pb.Device_Limits{
			QueuePairs: uint32(info.Limits.QueuePairs), ProtectionDomains: uint32(info.Limits.ProtectionDomains),
			MemoryRegions: uint32(info.Limits.Regions), SendWr: uint32(info.Limits.SendWR), RecvWr: uint32(info.Limits.RecvWR),
			Sge: uint32(info.Limits.SGE), RdAtomic: uint32(info.Limits.RDAtomic), MessageBytes: info.Limits.MessageBytes,
			MtuBytes: uint32(info.Limits.MaxMTU.Bytes()), ExportPageBytes: info.Limits.ExportPage,
		},
		Usage: &pb.Device_Usage{
			QueuePairs: uint32(d.Usage.QueuePairs), ProtectionDomains: uint32(d.Usage.ProtectionDomains),
			MemoryRegions: uint32(d.Usage.MemoryRegions), Buffers: uint32(d.Usage.Buffers),
			MemoryExports: uint32(d.Usage.MemoryExports),
		},
	}
	for _, c := range info.Capabilities {
		out.Capabilities = append(out.Capabilities, string(c))
	}
	if d.Condition.Reason != "" {
		out.State = pb.Device_STATE_UNAVAILABLE
	}
	out.Health = healthToProto(&d.Health)
	for _, h := range d.Holders {
		holder := &pb.Device_Holder{Session: h.Session, Mode: sessionModes.proto(h.Exclusive)}
		if h.Identity != "" {
			holder.Owner = ownerToProto(&h.Peer)
		}
		out.Holders = append(out.Holders, holder)
	}
	return out
}

func portToProto(node device.UID, p *fabric.Port) *pb.Port {
	uid := derivedUID(node, "port", p.Name)
	c := &p.Counters
	out := &pb.Port{
		Name: p.Name, Uid: uidText(uid), Etag: portETag(uid, p.AdminUp),
		State: portStates.proto(p.State), Number: uint32(p.Number), IbPort: p.IBPort, Class: portClasses.proto(p.Class),
		AdminState: adminStates.proto(p.AdminUp), SpeedMbps: p.SpeedMbps,
		ActiveMtuBytes: uint32(p.ActiveMTU.Bytes()), MaxMtuBytes: uint32(p.MaxMTU.Bytes()), StateChangeTime: timeOf(p.ChangedAt),
		Peer: peerToProto(p), Message: p.Reason, FlapCount: p.Flaps,
		ReceiveBufferBytes: uint64(max(p.ReceiveBuffer, 0)), ReceiveBufferAskedBytes: uint64(max(p.ReceiveBufferAsked, 0)),
		Counters: &pb.Port_Counters{
			XmitPackets: c.XmitPackets, XmitBytes: c.XmitBytes, RcvPackets: c.RcvPackets, RcvBytes: c.RcvBytes,
			AcksSent: c.AcksSent, NaksSent: c.NAKsSent, RnrNakSent: c.RNRNAKsSent, RnrNakReceived: c.RNRNAKsReceived,
			Retransmits: c.Retransmits, LocalAckTimeoutErr: c.AckTimeouts, PacketSeqErr: c.SequenceErrors,
			OutOfSequence: c.OutOfSequence, DuplicateRequest: c.DuplicateRequests, IcrcErrors: c.ICRCErrors,
			PkeyViolations: c.PKeyViolations, QkeyViolations: c.QKeyViolations, WiringViolations: c.WiringViolations,
			UnknownQps: c.UnknownQPs, Malformed: c.Malformed, IpIdsPredicted: c.IDsPredicted, IpIdsSolved: c.IDsSolved,
			ReceiverDrops: c.ReceiverDrops, CongestionMarks: c.CongestionMarks, CnpsReceived: c.CNPsReceived,
			Truncated: c.Truncated, UnsupportedVersions: c.UnsupportedVersions, UnknownOpcodes: c.UnknownOpcodes,
			RemoteAccessErrors: c.RemoteAccessErrors, InvalidRequests: c.InvalidRequests, UnexpectedPackets: c.UnexpectedPackets,
		},
	}
	for _, g := range p.GIDs {
		out.Gids = append(out.Gids, &pb.Port_Gid{Index: uint32(g.Index), Gid: g.GID.String(), Type: gidTypes.proto(g.Type)})
	}
	return out
}

// portETag is of what can be asked of a port, which is one bit.
func portETag(uid device.UID, up bool) string {
	if up {
		return hex.EncodeToString(uid[:4]) + "-1"
	}
	return hex.EncodeToString(uid[:4]) + "-0"
}

func peerToProto(p *fabric.Port) *pb.Port_Peer {
	if p.PeerModule < 0 || p.PeerPort < 0 || p.Class != device.PortInternal {
		return nil
	}
	out := &pb.Port_Peer{ModuleId: uint32(p.PeerModule), Number: uint32(p.PeerPort)}
	if p.PeerDevice != "" {
		out.Device, out.Port = p.PeerDevice, fmt.Sprintf("%s/ports/%d", p.PeerDevice, p.PeerPort)
	}
	return out
}

func topologyToProto(name string, t *fabric.Topology) *pb.Topology {
	out := &pb.Topology{Name: name, PortMap: t.Map}
	type end struct {
		device string
		port   int
	}
	ports := map[end]*fabric.Port{}
	module := map[string]int{}
	for i := range t.Devices {
		d := &t.Devices[i]
		module[d.Name] = d.Info.ModuleID
		card := &pb.Topology_Card{Device: d.Name, ModuleId: uint32(d.Info.ModuleID), Model: d.Info.Model}
		for j := range d.Ports {
			p := &d.Ports[j]
			ports[end{d.Name, p.Number}] = p
			card.Ports = append(card.Ports, &pb.Topology_Link{Port: p.Name, Number: uint32(p.Number), Class: portClasses.proto(p.Class),
				Peer: peerToProto(p), State: portStates.proto(p.State)})
		}
		out.Cards = append(out.Cards, card)
	}
	sortBy(out.Cards, func(c *pb.Topology_Card) [2]int { return [2]int{int(c.ModuleId), 0} })
	pairs := map[[2]string]*pb.Topology_Pair{}
	for at, p := range ports {
		other := ports[end{p.PeerDevice, p.PeerPort}]
		// Each cable is counted from its end at the lower module id.
		if p.Class != device.PortInternal || other == nil || module[at.device] >= module[p.PeerDevice] {
			continue
		}
		key := [2]string{at.device, p.PeerDevice}
		pair := pairs[key]
		if pair == nil {
			pair = &pb.Topology_Pair{DeviceA: at.device, DeviceB: p.PeerDevice}
			pairs[key] = pair
			out.Pairs = append(out.Pairs, pair)
		}
		pair.Lanes++
		if p.State == device.PortActive && other.State == device.PortActive {
			pair.ActiveLanes++
			pair.SpeedMbps += uint64(min(p.SpeedMbps, other.SpeedMbps))
		}
	}
	for _, island := range t.Islands {
		out.Islands = append(out.Islands, &pb.Topology_Island{Devices: island})
	}
	sortBy(out.Pairs, func(p *pb.Topology_Pair) [2]int { return [2]int{module[p.DeviceA], module[p.DeviceB]} })
	return out
}

func eventToProto(node *fabric.Node, e *fabric.Event) *pb.Event {
	cursor := utoa(e.Cursor)
	out := &pb.Event{
		Name: node.Name + "/events/" + cursor, Uid: uidText(derivedUID(node.UID, "event", cursor)), Cursor: e.Cursor,
		CreateTime: timeOf(e.Time), Labels: e.Labels, Type: eventTypes.proto(e.Type), Resource: e.Resource,
		Session: e.Session, Actor: e.Actor, Before: e.Before, After: e.After, Reason: string(e.Reason), Message: e.Message,
	}
	if e.ResourceUID != (device.UID{}) {
		out.ResourceUid = uidText(e.ResourceUID)
	}
	return out
}

func gidText(g ib.GID) string {
	if g.IsZero() {
		return ""
	}
	return g.String()
}
