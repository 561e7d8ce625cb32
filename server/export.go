package server

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

var exportFields = fields[fabric.MemoryExport]{by: map[string]field[fabric.MemoryExport]{
	"session":       resource(func(e *fabric.MemoryExport) string { return e.Session }),
	"buffer":        resource(func(e *fabric.MemoryExport) string { return e.Buffer }),
	"state":         ofEnum(pb.MemoryExport_State(0), func(e *fabric.MemoryExport) protoreflect.Enum { return exportStates.proto(e.State) }),
	"orphan_reason": text(func(e *fabric.MemoryExport) string { return e.Orphan }),
}, labels: func(e *fabric.MemoryExport) map[string]string { return e.Labels }}

func (s memoryService) CreateMemoryExport(ctx context.Context, r *pb.CreateMemoryExportRequest) (*pb.MemoryExport, error) {
	var v faults
	in := r.GetMemoryExport()
	if in == nil {
		v.required("memory_export", "want the export that is asked for")
	}
	ask := fabric.CreateMemoryExport{Create: create(r.Parent, r.MemoryExportId, r.RequestId, in.GetLabels(), r.ValidateOnly),
		Buffer: in.GetBuffer(), Offset: in.GetOffsetBytes(), Length: in.GetLengthBytes(), TTL: v.duration("memory_export.ttl", in.GetTtl())}
	if t := in.GetTtl(); t != nil && ask.TTL == 0 && len(v) == 0 {
		v.invalid("memory_export.ttl", "0s: want 1 s to 24 h, or leave it out")
	}
	for i, x := range in.GetFetchers() {
		ask.Fetchers = append(ask.Fetchers, v.fetcher(fmt.Sprintf("memory_export.fetchers[%d]", i), x))
	}
	out, err := attempt(v, createPath("memory_export"), &ask.ValidateOnly, func() (fabric.MemoryExport, error) {
		return s.fabric.CreateMemoryExport(ctx, caller(ctx), ask)
	})
	if err != nil {
		return nil, err
	}
	return exportToProto(&out), nil
}

func (v *faults) fetcher(field string, x *pb.MemoryExport_Fetcher) fabric.Fetcher {
	var out fabric.Fetcher
	switch who := x.GetWho().(type) {
	case *pb.MemoryExport_Fetcher_Uid:
		out.UID = proto.Uint32(who.Uid)
	case *pb.MemoryExport_Fetcher_Gid:
		out.GID = proto.Uint32(who.Gid)
	case *pb.MemoryExport_Fetcher_Session:
		if out.Session = who.Session; who.Session == "" {
			v.required(field+".session", "want nodes/{node}/sessions/{session}")
		}
	}
	return out
}

func (s memoryService) GetMemoryExport(ctx context.Context, r *pb.GetMemoryExportRequest) (*pb.MemoryExport, error) {
	out, err := s.fabric.GetMemoryExport(ctx, caller(ctx), r.Name)
	if err != nil {
		return nil, err
	}
	return exportToProto(&out), nil
}

func (s memoryService) ListMemoryExports(ctx context.Context, r *pb.ListMemoryExportsRequest) (*pb.ListMemoryExportsResponse, error) {
	items, next, err := list(s.Server, r, exportFields, func(l fabric.List, match func(*fabric.MemoryExport) bool) (fabric.Page[fabric.MemoryExport], error) {
		return s.fabric.ListMemoryExports(ctx, caller(ctx), l, match)
	}, exportToProto)
	if err != nil {
		return nil, err
	}
	return &pb.ListMemoryExportsResponse{MemoryExports: items, NextPageToken: next}, nil
}

func (s memoryService) DeleteMemoryExport(ctx context.Context, r *pb.DeleteMemoryExportRequest) (*emptypb.Empty, error) {
	return empty(s.fabric.DeleteMemoryExport(ctx, caller(ctx), fabric.Delete{Name: r.Name, ETag: r.Etag, ValidateOnly: r.ValidateOnly}))
}

func (s memoryService) RevokeMemoryExport(ctx context.Context, r *pb.RevokeMemoryExportRequest) (*pb.MemoryExport, error) {
	out, err := s.fabric.RevokeMemoryExport(ctx, caller(ctx), fabric.Update{Name: r.Name, ETag: r.Etag, ValidateOnly: r.ValidateOnly})
	if err != nil {
		return nil, err
	}
	return exportToProto(&out), nil
}

func (s memoryService) MoveBuffer(ctx context.Context, r *pb.MoveBufferRequest) (*pb.Buffer, error) {
	out, err := s.fabric.MoveBuffer(ctx, caller(ctx), fabric.Update{Name: r.Name, ETag: r.Etag, ValidateOnly: r.ValidateOnly})
	if err != nil {
		return nil, err
	}
	return bufferToProto(&out), nil
}

func (s deviceService) ResetDevice(ctx context.Context, r *pb.ResetDeviceRequest) (*pb.Device, error) {
	c := caller(ctx)
	if r.Etag != "" {
		d, err := s.fabric.GetDevice(ctx, c, r.Name)
		if err != nil {
			return nil, err
		}
		if have := deviceToProto(s.uid, &d).Etag; have != r.Etag {
			return nil, &fabric.Error{Name: d.Name, Field: "etag", Reason: fabric.ETagMismatch, Message: "it is another device than the one that was read; read it again",
				Details: map[string]string{"asked": r.Etag, "present": have}}
		}
	}
	d, err := s.fabric.ResetDevice(ctx, c, fabric.Update{Name: r.Name, ValidateOnly: r.ValidateOnly})
	if err != nil {
		return nil, err
	}
	return deviceToProto(s.uid, &d), nil
}

func (s nodeService) CheckPeerAccess(ctx context.Context, r *pb.CheckPeerAccessRequest) (*pb.PeerAccess, error) {
	if err := s.checkNode("name", r.Name, ""); err != nil {
		return nil, err
	}
	a, err := s.fabric.CheckPeerAccess(ctx, caller(ctx), r.Exporter, r.Importer)
	if err != nil {
		return nil, err
	}
	return &pb.PeerAccess{Exporter: a.Exporter, Importer: a.Importer, Reachable: a.Reachable, Path: a.Path, Obstacle: a.Obstacle}, nil
}

func exportToProto(e *fabric.MemoryExport) *pb.MemoryExport {
	out := &pb.MemoryExport{
		Name: e.Name, Uid: uidText(e.UID), Etag: e.ETag(), CreateTime: timeOf(e.CreateTime), Labels: e.Labels,
		State: exportStates.proto(e.State), Reconciling: e.Condition.Reconciling, Reason: string(e.Condition.Reason), Message: e.Condition.Message,
		Session: e.Session, Buffer: e.Buffer, OffsetBytes: e.Offset, LengthBytes: e.Length, ExpireTime: timeOf(e.Expires),
		OpenDescriptorCount: uint32(e.Held), FetchCount: e.Fetches, LastFetchTime: timeOf(e.LastFetch), Mappable: e.Mappable,
		OrphanReason: e.Orphan, OrphanTime: timeOf(e.OrphanSince),
	}
	if e.TTL > 0 {
		out.Ttl = durationpb.New(e.TTL)
	}
	for _, x := range e.Fetchers {
		f := &pb.MemoryExport_Fetcher{}
		switch {
		case x.UID != nil:
			f.Who = &pb.MemoryExport_Fetcher_Uid{Uid: *x.UID}
		case x.GID != nil:
			f.Who = &pb.MemoryExport_Fetcher_Gid{Gid: *x.GID}
		default:
			f.Who = &pb.MemoryExport_Fetcher_Session{Session: x.Session}
		}
		out.Fetchers = append(out.Fetchers, f)
	}
	for _, x := range e.Segments {
		out.Segments = append(out.Segments, &pb.MemoryExport_Segment{DeviceAddress: x.Address, BusAddress: x.Bus, LengthBytes: x.Length})
	}
	for _, x := range e.Attachments {
		out.Attachments = append(out.Attachments, &pb.MemoryExport_Attachment{Device: x.Device, MemoryRegion: x.Region, Dynamic: x.Dynamic,
			OffsetBytes: x.Offset, LengthBytes: x.Length, SinceTime: timeOf(x.Since)})
	}
	return out
}
