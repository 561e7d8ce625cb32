package host

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	pb "github.com/accelfab/accelfab/proto/accelfab/device/v1"
)

// deviceService serves what concerns a device as a whole.
type deviceService struct {
	pb.UnimplementedDeviceServiceServer
	*server
}

func (s deviceService) GetPort(ctx context.Context, r *pb.GetPortRequest) (*pb.GetPortResponse, error) {
	d, err := s.device(r.GetDevice())
	if err != nil {
		return nil, err
	}
	p, err := d.Port(ctx, int(r.GetNumber()))
	return &pb.GetPortResponse{Port: portProto(p)}, err
}

func (s deviceService) SetPort(ctx context.Context, r *pb.SetPortRequest) (*pb.SetPortResponse, error) {
	d, err := s.device(r.GetDevice())
	if err != nil {
		return nil, err
	}
	return &pb.SetPortResponse{}, d.SetPort(ctx, int(r.GetNumber()), r.GetUp())
}

func (s deviceService) GetPeerAccess(ctx context.Context, r *pb.GetPeerAccessRequest) (*pb.GetPeerAccessResponse, error) {
	d, err := s.device(r.GetDevice())
	if err != nil {
		return nil, err
	}
	a, err := d.PeerAccess(ctx, r.GetExporter())
	return &pb.GetPeerAccessResponse{Exporter: a.Exporter, Importer: a.Importer, Reachable: a.Reachable, Path: a.Path, Obstacle: a.Obstacle}, err
}

func (s deviceService) Reset(ctx context.Context, r *pb.ResetRequest) (*pb.ResetResponse, error) {
	d, err := s.device(r.GetDevice())
	if err != nil {
		return nil, err
	}
	return &pb.ResetResponse{}, d.Reset(ctx)
}

// parts sends a list in parts of bounded size.
func parts[A, B any](list []A, convert func(A) B, send func([]B) error) error {
	for len(list) > 0 {
		n := min(len(list), maxBatch)
		if err := send(mapped(list[:n], convert)); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

func checkBatch(n int) error {
	if n > maxBatch {
		return &device.FieldError{Field: "entries", Problem: fmt.Sprintf("%d: want at most %d", n, maxBatch)}
	}
	return nil
}

// memoryService serves domains, memory and regions.
type memoryService struct {
	pb.UnimplementedMemoryServiceServer
	*server
}

// batch finds the device of a batch and checks the uids of its entries.
func (s *server) batch(id string, uids [][]byte) (*offered, []device.UID, error) {
	d, err := s.device(id)
	if err == nil {
		err = checkBatch(len(uids))
	}
	if err == nil {
		err = checkUIDs(uids...)
	}
	if err != nil {
		return nil, nil, err
	}
	return d, mapped(uids, uidOf), nil
}

// one finds the device of a call and checks the uid of its object.
func (s *server) one(id string, uid []byte) (*offered, device.UID, error) {
	d, err := s.device(id)
	if err == nil {
		err = checkUIDs(uid)
	}
	return d, uidOf(uid), err
}

func (s memoryService) CreateProtectionDomains(ctx context.Context, r *pb.CreateProtectionDomainsRequest) (*pb.CreateProtectionDomainsResponse, error) {
	d, uids, err := s.batch(r.GetDevice(), r.GetUids())
	if err != nil {
		return nil, err
	}
	return &pb.CreateProtectionDomainsResponse{Results: mapped(d.CreateProtectionDomains(ctx, uids), func(x device.PDResult) *pb.ProtectionDomainResult {
		return &pb.ProtectionDomainResult{Domain: domainProto(x.ProtectionDomain), Error: encodeError(x.Err)}
	})}, nil
}

func (s memoryService) ListProtectionDomains(r *pb.ListProtectionDomainsRequest, stream grpc.ServerStreamingServer[pb.ListProtectionDomainsResponse]) error {
	d, err := s.device(r.GetDevice())
	if err != nil {
		return err
	}
	list, err := d.ListProtectionDomains(stream.Context())
	if err != nil {
		return err
	}
	return parts(list, domainProto, func(p []*pb.ProtectionDomain) error {
		return stream.Send(&pb.ListProtectionDomainsResponse{Domains: p})
	})
}

func (s memoryService) DestroyProtectionDomains(ctx context.Context, r *pb.DestroyProtectionDomainsRequest) (*pb.DestroyProtectionDomainsResponse, error) {
	d, uids, err := s.batch(r.GetDevice(), r.GetUids())
	if err != nil {
		return nil, err
	}
	return &pb.DestroyProtectionDomainsResponse{Errors: encodeErrors(d.DestroyProtectionDomains(ctx, uids))}, nil
}

func (s memoryService) Allocate(ctx context.Context, r *pb.AllocateRequest) (*pb.AllocateResponse, error) {
	d, uid, err := s.one(r.GetDevice(), r.GetUid())
	if err != nil {
		return nil, err
	}
	b, err := d.Allocate(ctx, device.BufferSpec{UID: uid, Size: r.GetSizeBytes(), Alignment: r.GetAlignmentBytes()})
	return &pb.AllocateResponse{Buffer: bufferProto(b)}, err
}

func (s memoryService) Free(ctx context.Context, r *pb.FreeRequest) (*pb.FreeResponse, error) {
	d, uid, err := s.one(r.GetDevice(), r.GetUid())
	if err != nil {
		return nil, err
	}
	return &pb.FreeResponse{}, d.Free(ctx, uid)
}

func (s memoryService) ListBuffers(r *pb.ListBuffersRequest, stream grpc.ServerStreamingServer[pb.ListBuffersResponse]) error {
	d, err := s.device(r.GetDevice())
	if err != nil {
		return err
	}
	list, err := d.ListBuffers(stream.Context())
	if err != nil {
		return err
	}
	return parts(list, bufferProto, func(p []*pb.Buffer) error { return stream.Send(&pb.ListBuffersResponse{Buffers: p}) })
}

func (s memoryService) MoveBuffer(ctx context.Context, r *pb.MoveBufferRequest) (*pb.MoveBufferResponse, error) {
	d, uid, err := s.one(r.GetDevice(), r.GetUid())
	if err != nil {
		return nil, err
	}
	b, err := d.MoveBuffer(ctx, uid)
	return &pb.MoveBufferResponse{Buffer: bufferProto(b)}, err
}

func (s memoryService) ReadMemory(ctx context.Context, r *pb.ReadMemoryRequest) (*pb.ReadMemoryResponse, error) {
	d, err := s.device(r.GetDevice())
	if err != nil {
		return nil, err
	}
	if n := r.GetLengthBytes(); n > maxChunk {
		return nil, &device.FieldError{Field: "length_bytes", Problem: fmt.Sprintf("%d: want at most %d", n, maxChunk)}
	}
	p := make([]byte, r.GetLengthBytes())
	if err := d.ReadMemory(ctx, r.GetAddress(), p); err != nil {
		return nil, err
	}
	return &pb.ReadMemoryResponse{Data: p}, nil
}

func (s memoryService) WriteMemory(ctx context.Context, r *pb.WriteMemoryRequest) (*pb.WriteMemoryResponse, error) {
	d, err := s.device(r.GetDevice())
	if err != nil {
		return nil, err
	}
	if n := len(r.GetData()); n > maxChunk {
		return nil, &device.FieldError{Field: "data", Problem: fmt.Sprintf("%d bytes: want at most %d", n, maxChunk)}
	}
	return &pb.WriteMemoryResponse{}, d.WriteMemory(ctx, r.GetAddress(), r.GetData())
}

func (s memoryService) RegisterRegions(ctx context.Context, r *pb.RegisterRegionsRequest) (*pb.RegisterRegionsResponse, error) {
	d, _, err := s.batch(r.GetDevice(), mapped(r.GetSpecs(), (*pb.RegionSpec).GetUid))
	if err != nil {
		return nil, err
	}
	return &pb.RegisterRegionsResponse{Results: mapped(d.RegisterRegions(ctx, mapped(r.GetSpecs(), regionSpecOf)), func(x device.RegionResult) *pb.RegionResult {
		return &pb.RegionResult{Region: regionProto(x.Region), Error: encodeError(x.Err)}
	})}, nil
}

func (s memoryService) ListRegions(r *pb.ListRegionsRequest, stream grpc.ServerStreamingServer[pb.ListRegionsResponse]) error {
	d, err := s.device(r.GetDevice())
	if err != nil {
		return err
	}
	list, err := d.ListRegions(stream.Context())
	if err != nil {
		return err
	}
	return parts(list, regionProto, func(p []*pb.Region) error { return stream.Send(&pb.ListRegionsResponse{Regions: p}) })
}

func (s memoryService) DeregisterRegions(ctx context.Context, r *pb.DeregisterRegionsRequest) (*pb.DeregisterRegionsResponse, error) {
	d, uids, err := s.batch(r.GetDevice(), r.GetUids())
	if err != nil {
		return nil, err
	}
	return &pb.DeregisterRegionsResponse{Errors: encodeErrors(d.DeregisterRegions(ctx, uids))}, nil
}

// exportService serves memory that other devices reach.
type exportService struct {
	pb.UnimplementedExportServiceServer
	*server
}

func (s exportService) CreateExport(ctx context.Context, r *pb.CreateExportRequest) (*pb.CreateExportResponse, error) {
	d, uid, err := s.one(r.GetDevice(), r.GetUid())
	if err != nil {
		return nil, err
	}
	e, err := d.CreateExport(ctx, device.ExportSpec{UID: uid, Address: r.GetAddress(), Length: r.GetLengthBytes()})
	return &pb.CreateExportResponse{Export: exportProto(e)}, err
}

func (s exportService) ListExports(r *pb.ListExportsRequest, stream grpc.ServerStreamingServer[pb.ListExportsResponse]) error {
	d, err := s.device(r.GetDevice())
	if err != nil {
		return err
	}
	list, err := d.ListExports(stream.Context())
	if err != nil {
		return err
	}
	return parts(list, exportProto, func(p []*pb.Export) error { return stream.Send(&pb.ListExportsResponse{Exports: p}) })
}

func (s exportService) OpenExport(ctx context.Context, r *pb.OpenExportRequest) (*pb.OpenExportResponse, error) {
	d, uid, err := s.one(r.GetDevice(), r.GetUid())
	if err != nil {
		return nil, err
	}
	f, err := d.OpenExport(ctx, uid)
	if err != nil {
		return nil, err
	}
	id := newDescriptorID()
	if err := s.waiting.put(id, f); err != nil {
		return nil, err
	}
	return &pb.OpenExportResponse{DescriptorId: id[:]}, nil
}

func (s exportService) FindExport(ctx context.Context, r *pb.FindExportRequest) (*pb.FindExportResponse, error) {
	d, err := s.device(r.GetDevice())
	if err != nil {
		return nil, err
	}
	f, err := s.left(r.GetDescriptorId())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	uid, err := d.FindExport(ctx, f)
	return &pb.FindExportResponse{Uid: uid[:]}, err
}

func (s exportService) RevokeExport(ctx context.Context, r *pb.RevokeExportRequest) (*pb.RevokeExportResponse, error) {
	d, uid, err := s.one(r.GetDevice(), r.GetUid())
	if err != nil {
		return nil, err
	}
	return &pb.RevokeExportResponse{}, d.RevokeExport(ctx, uid)
}

func (s exportService) DestroyExport(ctx context.Context, r *pb.DestroyExportRequest) (*pb.DestroyExportResponse, error) {
	d, uid, err := s.one(r.GetDevice(), r.GetUid())
	if err != nil {
		return nil, err
	}
	return &pb.DestroyExportResponse{}, d.DestroyExport(ctx, uid)
}

func (s exportService) Import(ctx context.Context, r *pb.ImportRequest) (*pb.ImportResponse, error) {
	// The descriptor is taken first: whatever is wrong, it is closed.
	f, err := s.left(r.GetDescriptorId())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	d, uid, err := s.one(r.GetDevice(), r.GetUid())
	if err != nil {
		return nil, err
	}
	m, err := d.Import(ctx, device.ImportSpec{UID: uid, PD: device.PD(r.GetPd()), Offset: r.GetOffsetBytes(), Length: r.GetLengthBytes(),
		IOVA: r.GetIova(), Access: ib.Access(r.GetAccess())}, f)
	return &pb.ImportResponse{Region: regionProto(m)}, err
}
