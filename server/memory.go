package server

import (
	"context"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

type memoryService struct {
	pb.UnimplementedMemoryServiceServer
	*Server
}

var domainFields = fields[fabric.ProtectionDomain]{by: map[string]field[fabric.ProtectionDomain]{
	"session": resource(func(p *fabric.ProtectionDomain) string { return p.Session }),
	"state":   ofEnum(pb.ProtectionDomain_State(0), func(p *fabric.ProtectionDomain) protoreflect.Enum { return domainStates.proto(p.State) }),
}, labels: func(p *fabric.ProtectionDomain) map[string]string { return p.Labels }}

var bufferFields = fields[fabric.Buffer]{by: map[string]field[fabric.Buffer]{
	"session": resource(func(b *fabric.Buffer) string { return b.Session }),
	"state":   ofEnum(pb.Buffer_State(0), func(b *fabric.Buffer) protoreflect.Enum { return bufferStates.proto(b.State) }),
}, labels: func(b *fabric.Buffer) map[string]string { return b.Labels }}

var regionFields = fields[fabric.MemoryRegion]{by: map[string]field[fabric.MemoryRegion]{
	"session":           resource(func(m *fabric.MemoryRegion) string { return m.Session }),
	"protection_domain": resource(func(m *fabric.MemoryRegion) string { return m.ProtectionDomain }),
	"buffer":            resource(func(m *fabric.MemoryRegion) string { return m.Buffer }),
	"memory_export": resource(func(m *fabric.MemoryRegion) string {
		if m.Import == nil {
			return ""
		}
		return m.Import.Export
	}),
	"state": ofEnum(pb.MemoryRegion_State(0), func(m *fabric.MemoryRegion) protoreflect.Enum { return regionStates.proto(m.State) }),
}, labels: func(m *fabric.MemoryRegion) map[string]string { return m.Labels }}

func (s memoryService) CreateProtectionDomain(ctx context.Context, r *pb.CreateProtectionDomainRequest) (*pb.ProtectionDomain, error) {
	var v faults
	in := r.GetProtectionDomain()
	if in == nil {
		v.required("protection_domain", "want the protection domain that is asked for")
	}
	ask := fabric.CreateProtectionDomain{Create: create(r.Parent, r.ProtectionDomainId, r.RequestId, in.GetLabels(), r.ValidateOnly), Session: in.GetSession()}
	out, err := attempt(v, createPath("protection_domain"), &ask.ValidateOnly, func() (fabric.ProtectionDomain, error) {
		return s.fabric.CreateProtectionDomain(ctx, caller(ctx), ask)
	})
	if err != nil {
		return nil, err
	}
	return domainToProto(&out), nil
}

func (s memoryService) GetProtectionDomain(ctx context.Context, r *pb.GetProtectionDomainRequest) (*pb.ProtectionDomain, error) {
	out, err := s.fabric.GetProtectionDomain(ctx, caller(ctx), r.Name)
	if err != nil {
		return nil, err
	}
	return domainToProto(&out), nil
}

func (s memoryService) ListProtectionDomains(ctx context.Context, r *pb.ListProtectionDomainsRequest) (*pb.ListProtectionDomainsResponse, error) {
	items, next, err := list(s.Server, r, domainFields, func(l fabric.List, match func(*fabric.ProtectionDomain) bool) (fabric.Page[fabric.ProtectionDomain], error) {
		return s.fabric.ListProtectionDomains(ctx, caller(ctx), l, match)
	}, domainToProto)
	if err != nil {
		return nil, err
	}
	return &pb.ListProtectionDomainsResponse{ProtectionDomains: items, NextPageToken: next}, nil
}

func (s memoryService) DeleteProtectionDomain(ctx context.Context, r *pb.DeleteProtectionDomainRequest) (*emptypb.Empty, error) {
	return empty(s.fabric.DeleteProtectionDomain(ctx, caller(ctx), fabric.Delete{Name: r.Name, ETag: r.Etag, ValidateOnly: r.ValidateOnly}))
}

func (s memoryService) CreateBuffer(ctx context.Context, r *pb.CreateBufferRequest) (*pb.Buffer, error) {
	var v faults
	in := r.GetBuffer()
	if in == nil {
		v.required("buffer", "want the buffer that is asked for")
	}
	ask := fabric.CreateBuffer{Create: create(r.Parent, r.BufferId, r.RequestId, in.GetLabels(), r.ValidateOnly),
		Session: in.GetSession(), Size: in.GetSizeBytes(), Alignment: in.GetAlignmentBytes()}
	out, err := attempt(v, createPath("buffer"), &ask.ValidateOnly, func() (fabric.Buffer, error) {
		return s.fabric.CreateBuffer(ctx, caller(ctx), ask)
	})
	if err != nil {
		return nil, err
	}
	return bufferToProto(&out), nil
}

func (s memoryService) GetBuffer(ctx context.Context, r *pb.GetBufferRequest) (*pb.Buffer, error) {
	out, err := s.fabric.GetBuffer(ctx, caller(ctx), r.Name)
	if err != nil {
		return nil, err
	}
	return bufferToProto(&out), nil
}

func (s memoryService) ListBuffers(ctx context.Context, r *pb.ListBuffersRequest) (*pb.ListBuffersResponse, error) {
	items, next, err := list(s.Server, r, bufferFields, func(l fabric.List, match func(*fabric.Buffer) bool) (fabric.Page[fabric.Buffer], error) {
		return s.fabric.ListBuffers(ctx, caller(ctx), l, match)
	}, bufferToProto)
	if err != nil {
		return nil, err
	}
	return &pb.ListBuffersResponse{Buffers: items, NextPageToken: next}, nil
}

func (s memoryService) DeleteBuffer(ctx context.Context, r *pb.DeleteBufferRequest) (*emptypb.Empty, error) {
	return empty(s.fabric.DeleteBuffer(ctx, caller(ctx), fabric.Delete{Name: r.Name, ETag: r.Etag, ValidateOnly: r.ValidateOnly}))
}

func (s memoryService) CreateMemoryRegion(ctx context.Context, r *pb.CreateMemoryRegionRequest) (*pb.MemoryRegion, error) {
	var v faults
	in := r.GetMemoryRegion()
	if in == nil {
		v.required("memory_region", "want the memory region that is asked for")
	}
	ask := fabric.CreateMemoryRegion{Create: create(r.Parent, r.MemoryRegionId, r.RequestId, in.GetLabels(), r.ValidateOnly),
		ProtectionDomain: in.GetProtectionDomain(), Buffer: in.GetBuffer(), Offset: in.GetOffsetBytes(), Length: in.GetLengthBytes(),
		Access: v.access("memory_region.access", in.GetAccess())}
	if x := in.GetImportSource(); x != nil {
		ask.Import = &fabric.CreateImport{Upload: x.UploadId, Offset: x.OffsetBytes, Length: x.LengthBytes, IOVA: x.Iova}
	}
	out, err := attempt(v, createPath("memory_region"), &ask.ValidateOnly, func() (fabric.MemoryRegion, error) {
		return s.fabric.CreateMemoryRegion(ctx, caller(ctx), ask)
	})
	if err != nil {
		return nil, err
	}
	return regionToProto(&out), nil
}

func (s memoryService) GetMemoryRegion(ctx context.Context, r *pb.GetMemoryRegionRequest) (*pb.MemoryRegion, error) {
	out, err := s.fabric.GetMemoryRegion(ctx, caller(ctx), r.Name)
	if err != nil {
		return nil, err
	}
	return regionToProto(&out), nil
}

func (s memoryService) ListMemoryRegions(ctx context.Context, r *pb.ListMemoryRegionsRequest) (*pb.ListMemoryRegionsResponse, error) {
	items, next, err := list(s.Server, r, regionFields, func(l fabric.List, match func(*fabric.MemoryRegion) bool) (fabric.Page[fabric.MemoryRegion], error) {
		return s.fabric.ListMemoryRegions(ctx, caller(ctx), l, match)
	}, regionToProto)
	if err != nil {
		return nil, err
	}
	return &pb.ListMemoryRegionsResponse{MemoryRegions: items, NextPageToken: next}, nil
}

func (s memoryService) DeleteMemoryRegion(ctx context.Context, r *pb.DeleteMemoryRegionRequest) (*emptypb.Empty, error) {
	return empty(s.fabric.DeleteMemoryRegion(ctx, caller(ctx), fabric.Delete{Name: r.Name, ETag: r.Etag, ValidateOnly: r.ValidateOnly}))
}

// empty is the answer of what has nothing to say but an error.
func empty(err error) (*emptypb.Empty, error) {
	if err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}
