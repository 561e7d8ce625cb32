package host

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/device"
	pb "github.com/accelfab/accelfab/proto/accelfab/device/v1"
)

var errEOF = io.EOF

func itself(err error) error { return err }

// Port implements device.Device.
func (r *remote) Port(ctx context.Context, number int) (device.Port, error) {
	out, err := ask(ctx, r, callLimit, func(ctx context.Context, s *session) (*pb.GetPortResponse, error) {
		return s.device.GetPort(ctx, &pb.GetPortRequest{Device: r.info.ID, Number: int32(number)})
	})
	if err != nil {
		return device.Port{}, err
	}
	return portOf(out.GetPort()), nil
}

// SetPort implements device.Device.
func (r *remote) SetPort(ctx context.Context, number int, up bool) error {
	return do(ctx, r, func(ctx context.Context, s *session) (*pb.SetPortResponse, error) {
		return s.device.SetPort(ctx, &pb.SetPortRequest{Device: r.info.ID, Number: int32(number), Up: up})
	})
}

// Reset implements device.Maintenance.
func (r *remote) Reset(ctx context.Context) error {
	return do(ctx, r, func(ctx context.Context, s *session) (*pb.ResetResponse, error) {
		return s.device.Reset(ctx, &pb.ResetRequest{Device: r.info.ID})
	})
}

// PeerAccess implements device.Imports.
func (r *remote) PeerAccess(ctx context.Context, exporter string) (device.PeerAccess, error) {
	out, err := ask(ctx, r, callLimit, func(ctx context.Context, s *session) (*pb.GetPeerAccessResponse, error) {
		return s.device.GetPeerAccess(ctx, &pb.GetPeerAccessRequest{Device: r.info.ID, Exporter: exporter})
	})
	if err != nil {
		return device.PeerAccess{}, err
	}
	return device.PeerAccess{Exporter: out.GetExporter(), Importer: out.GetImporter(), Reachable: out.GetReachable(), Path: out.GetPath(), Obstacle: out.GetObstacle()}, nil
}

// CreateProtectionDomains implements device.ProtectionDomains.
func (r *remote) CreateProtectionDomains(ctx context.Context, uids []device.UID) []device.PDResult {
	return batch(ctx, r, uids, func(err error) device.PDResult { return device.PDResult{Err: err} },
		func(ctx context.Context, s *session, part []device.UID) ([]device.PDResult, error) {
			out, err := s.memory.CreateProtectionDomains(ctx, &pb.CreateProtectionDomainsRequest{Device: r.info.ID, Uids: mapped(part, uidBytes)})
			return mapped(out.GetResults(), func(x *pb.ProtectionDomainResult) device.PDResult {
				return device.PDResult{ProtectionDomain: domainOf(x.GetDomain()), Err: decodeError(x.GetError())}
			}), err
		})
}

// ListProtectionDomains implements device.ProtectionDomains.
func (r *remote) ListProtectionDomains(ctx context.Context) ([]device.ProtectionDomain, error) {
	return list(ctx, r, func(ctx context.Context, s *session) (grpc.ServerStreamingClient[pb.ListProtectionDomainsResponse], error) {
		return s.memory.ListProtectionDomains(ctx, &pb.ListProtectionDomainsRequest{Device: r.info.ID})
	}, (*pb.ListProtectionDomainsResponse).GetDomains, domainOf)
}

// DestroyProtectionDomains implements device.ProtectionDomains.
func (r *remote) DestroyProtectionDomains(ctx context.Context, uids []device.UID) []error {
	return batch(ctx, r, uids, itself, func(ctx context.Context, s *session, part []device.UID) ([]error, error) {
		out, err := s.memory.DestroyProtectionDomains(ctx, &pb.DestroyProtectionDomainsRequest{Device: r.info.ID, Uids: mapped(part, uidBytes)})
		return decodeErrors(out.GetErrors(), len(part)), err
	})
}

// Allocate implements device.Memory.
func (r *remote) Allocate(ctx context.Context, spec device.BufferSpec) (device.Buffer, error) {
	out, err := ask(ctx, r, callLimit, func(ctx context.Context, s *session) (*pb.AllocateResponse, error) {
		return s.memory.Allocate(ctx, &pb.AllocateRequest{Device: r.info.ID, Uid: spec.UID[:], SizeBytes: spec.Size, AlignmentBytes: spec.Alignment})
	})
	if err != nil {
		return device.Buffer{}, err
	}
	return bufferOf(out.GetBuffer()), nil
}

// Free implements device.Memory.
func (r *remote) Free(ctx context.Context, uid device.UID) error {
	return do(ctx, r, func(ctx context.Context, s *session) (*pb.FreeResponse, error) {
		return s.memory.Free(ctx, &pb.FreeRequest{Device: r.info.ID, Uid: uid[:]})
	})
}

// ListBuffers implements device.Memory.
func (r *remote) ListBuffers(ctx context.Context) ([]device.Buffer, error) {
	return list(ctx, r, func(ctx context.Context, s *session) (grpc.ServerStreamingClient[pb.ListBuffersResponse], error) {
		return s.memory.ListBuffers(ctx, &pb.ListBuffersRequest{Device: r.info.ID})
	}, (*pb.ListBuffersResponse).GetBuffers, bufferOf)
}

// MoveBuffer implements device.Maintenance.
func (r *remote) MoveBuffer(ctx context.Context, uid device.UID) (device.Buffer, error) {
	out, err := ask(ctx, r, callLimit, func(ctx context.Context, s *session) (*pb.MoveBufferResponse, error) {
		return s.memory.MoveBuffer(ctx, &pb.MoveBufferRequest{Device: r.info.ID, Uid: uid[:]})
	})
	if err != nil {
		return device.Buffer{}, err
	}
	return bufferOf(out.GetBuffer()), nil
}

// chunks calls for each piece of p; once at least, so that the device sees the
// address of an empty range.
func chunks(address uint64, p []byte, call func(address uint64, p []byte) error) error {
	for {
		n := min(len(p), maxChunk)
		if err := call(address, p[:n]); err != nil {
			return err
		}
		if address, p = address+uint64(n), p[n:]; len(p) == 0 {
			return nil
		}
	}
}

// ReadMemory implements device.Memory. With an error, a part of p may have been
// read.
func (r *remote) ReadMemory(ctx context.Context, address uint64, p []byte) error {
	return chunks(address, p, func(address uint64, p []byte) error {
		out, err := ask(ctx, r, callLimit, func(ctx context.Context, s *session) (*pb.ReadMemoryResponse, error) {
			return s.memory.ReadMemory(ctx, &pb.ReadMemoryRequest{Device: r.info.ID, Address: address, LengthBytes: uint32(len(p))})
		})
		if err == nil && copy(p, out.GetData()) < len(p) {
			err = fmt.Errorf("the device host gave %d bytes of %d", len(out.GetData()), len(p))
		}
		return err
	})
}

// WriteMemory implements device.Memory. With an error, a part of p may have been
// written.
func (r *remote) WriteMemory(ctx context.Context, address uint64, p []byte) error {
	return chunks(address, p, func(address uint64, p []byte) error {
		return do(ctx, r, func(ctx context.Context, s *session) (*pb.WriteMemoryResponse, error) {
			return s.memory.WriteMemory(ctx, &pb.WriteMemoryRequest{Device: r.info.ID, Address: address, Data: p})
		})
	})
}

// RegisterRegions implements device.Regions.
func (r *remote) RegisterRegions(ctx context.Context, specs []device.RegionSpec) []device.RegionResult {
	return batch(ctx, r, specs, func(err error) device.RegionResult { return device.RegionResult{Err: err} },
		func(ctx context.Context, s *session, part []device.RegionSpec) ([]device.RegionResult, error) {
			out, err := s.memory.RegisterRegions(ctx, &pb.RegisterRegionsRequest{Device: r.info.ID, Specs: mapped(part, regionSpecProto)})
			return mapped(out.GetResults(), func(x *pb.RegionResult) device.RegionResult {
				return device.RegionResult{Region: regionOf(x.GetRegion()), Err: decodeError(x.GetError())}
			}), err
		})
}

// ListRegions implements device.Regions.
func (r *remote) ListRegions(ctx context.Context) ([]device.Region, error) {
	return list(ctx, r, func(ctx context.Context, s *session) (grpc.ServerStreamingClient[pb.ListRegionsResponse], error) {
		return s.memory.ListRegions(ctx, &pb.ListRegionsRequest{Device: r.info.ID})
	}, (*pb.ListRegionsResponse).GetRegions, regionOf)
}

// DeregisterRegions implements device.Regions.
func (r *remote) DeregisterRegions(ctx context.Context, uids []device.UID) []error {
	return batch(ctx, r, uids, itself, func(ctx context.Context, s *session, part []device.UID) ([]error, error) {
		out, err := s.memory.DeregisterRegions(ctx, &pb.DeregisterRegionsRequest{Device: r.info.ID, Uids: mapped(part, uidBytes)})
		return decodeErrors(out.GetErrors(), len(part)), err
	})
}

// CreateExport implements device.Exports.
func (r *remote) CreateExport(ctx context.Context, spec device.ExportSpec) (device.Export, error) {
	out, err := ask(ctx, r, callLimit, func(ctx context.Context, s *session) (*pb.CreateExportResponse, error) {
		return s.exports.CreateExport(ctx, &pb.CreateExportRequest{Device: r.info.ID, Uid: spec.UID[:], Address: spec.Address, LengthBytes: spec.Length})
	})
	if err != nil {
		return device.Export{}, err
	}
	return exportOf(out.GetExport()), nil
}

// ListExports implements device.Exports.
func (r *remote) ListExports(ctx context.Context) ([]device.Export, error) {
	return list(ctx, r, func(ctx context.Context, s *session) (grpc.ServerStreamingClient[pb.ListExportsResponse], error) {
		return s.exports.ListExports(ctx, &pb.ListExportsRequest{Device: r.info.ID})
	}, (*pb.ListExportsResponse).GetExports, exportOf)
}

// OpenExport implements device.Exports.
func (r *remote) OpenExport(ctx context.Context, uid device.UID) (*os.File, error) {
	return ask(ctx, r, callLimit, func(ctx context.Context, s *session) (*os.File, error) {
		out, err := s.exports.OpenExport(ctx, &pb.OpenExportRequest{Device: r.info.ID, Uid: uid[:]})
		if err != nil {
			return nil, err
		}
		if len(out.GetDescriptorId()) != len(descriptorID{}) {
			return nil, errShort
		}
		return transfer(ctx, beside(r.link.Socket, ".fds"), descriptorID(out.GetDescriptorId()), nil)
	})
}

// leave hands a descriptor to the host.
func (r *remote) leave(ctx context.Context, f *os.File) ([]byte, error) {
	id, err := leave(ctx, beside(r.link.Socket, ".fds"), f)
	return id[:], err
}

// FindExport implements device.Exports.
func (r *remote) FindExport(ctx context.Context, f *os.File) (device.UID, error) {
	out, err := ask(ctx, r, callLimit, func(ctx context.Context, s *session) (*pb.FindExportResponse, error) {
		id, err := r.leave(ctx, f)
		if err != nil {
			return nil, err
		}
		return s.exports.FindExport(ctx, &pb.FindExportRequest{Device: r.info.ID, DescriptorId: id})
	})
	if err != nil {
		return device.UID{}, err
	}
	return uidOf(out.GetUid()), nil
}

// RevokeExport implements device.Exports.
func (r *remote) RevokeExport(ctx context.Context, uid device.UID) error {
	return do(ctx, r, func(ctx context.Context, s *session) (*pb.RevokeExportResponse, error) {
		return s.exports.RevokeExport(ctx, &pb.RevokeExportRequest{Device: r.info.ID, Uid: uid[:]})
	})
}

// DestroyExport implements device.Exports.
func (r *remote) DestroyExport(ctx context.Context, uid device.UID) error {
	return do(ctx, r, func(ctx context.Context, s *session) (*pb.DestroyExportResponse, error) {
		return s.exports.DestroyExport(ctx, &pb.DestroyExportRequest{Device: r.info.ID, Uid: uid[:]})
	})
}

// Import implements device.Imports.
func (r *remote) Import(ctx context.Context, spec device.ImportSpec, f *os.File) (device.Region, error) {
	out, err := ask(ctx, r, callLimit, func(ctx context.Context, s *session) (*pb.ImportResponse, error) {
		id, err := r.leave(ctx, f)
		if err != nil {
			return nil, err
		}
		return s.exports.Import(ctx, &pb.ImportRequest{Device: r.info.ID, Uid: spec.UID[:], Pd: uint32(spec.PD), OffsetBytes: spec.Offset,
			LengthBytes: spec.Length, Iova: spec.IOVA, Access: uint32(spec.Access), DescriptorId: id})
	})
	if err != nil {
		return device.Region{}, err
	}
	return regionOf(out.GetRegion()), nil
}

// CreateQueuePairs implements device.QueuePairs.
func (r *remote) CreateQueuePairs(ctx context.Context, specs []device.QueuePairSpec) []device.QueuePairResult {
	return batch(ctx, r, specs, failedPair, func(ctx context.Context, s *session, part []device.QueuePairSpec) ([]device.QueuePairResult, error) {
		out, err := s.pairs.CreateQueuePairs(ctx, &pb.CreateQueuePairsRequest{Device: r.info.ID, Specs: mapped(part, queuePairSpecProto)})
		return mapped(out.GetResults(), queuePairResultOf), err
	})
}

func failedPair(err error) device.QueuePairResult { return device.QueuePairResult{Err: err} }

// ModifyQueuePairs implements device.QueuePairs.
func (r *remote) ModifyQueuePairs(ctx context.Context, changes []device.QueuePairChange) []device.QueuePairResult {
	return batch(ctx, r, changes, failedPair, func(ctx context.Context, s *session, part []device.QueuePairChange) ([]device.QueuePairResult, error) {
		out, err := s.pairs.ModifyQueuePairs(ctx, &pb.ModifyQueuePairsRequest{Device: r.info.ID, Changes: mapped(part, func(c device.QueuePairChange) *pb.QueuePairChange {
			return &pb.QueuePairChange{Uid: uidBytes(c.UID), Steps: mapped(c.Steps, stepProto)}
		})})
		return mapped(out.GetResults(), queuePairResultOf), err
	})
}

// ListQueuePairs implements device.QueuePairs.
func (r *remote) ListQueuePairs(ctx context.Context) ([]device.QueuePair, error) {
	return list(ctx, r, func(ctx context.Context, s *session) (grpc.ServerStreamingClient[pb.ListQueuePairsResponse], error) {
		return s.pairs.ListQueuePairs(ctx, &pb.ListQueuePairsRequest{Device: r.info.ID})
	}, (*pb.ListQueuePairsResponse).GetQueuePairs, queuePairOf)
}

// GetQueuePair implements device.QueuePairs.
func (r *remote) GetQueuePair(ctx context.Context, uid device.UID) (device.QueuePair, error) {
	out, err := ask(ctx, r, callLimit, func(ctx context.Context, s *session) (*pb.GetQueuePairResponse, error) {
		return s.pairs.GetQueuePair(ctx, &pb.GetQueuePairRequest{Device: r.info.ID, Uid: uid[:]})
	})
	if err != nil {
		return device.QueuePair{}, err
	}
	return queuePairOf(out.GetQueuePair()), nil
}

// DestroyQueuePairs implements device.QueuePairs.
func (r *remote) DestroyQueuePairs(ctx context.Context, uids []device.UID) []error {
	defer r.read.drop(uids...)
	return batch(ctx, r, uids, itself, func(ctx context.Context, s *session, part []device.UID) ([]error, error) {
		out, err := s.pairs.DestroyQueuePairs(ctx, &pb.DestroyQueuePairsRequest{Device: r.info.ID, Uids: mapped(part, uidBytes)})
		return decodeErrors(out.GetErrors(), len(part)), err
	})
}

// Post implements device.Work.
func (r *remote) Post(ctx context.Context, qp device.UID, requests []device.WorkRequest) error {
	for at := 0; ; at += maxBatch {
		part := requests[at:min(len(requests), at+maxBatch)]
		err := do(ctx, r, func(ctx context.Context, s *session) (*pb.PostResponse, error) {
			return s.work.Post(ctx, &pb.PostRequest{Device: r.info.ID, QueuePair: qp[:], Requests: mapped(part, workProto)})
		})
		if refused, ok := err.(*device.PostError); ok && at > 0 {
			err = &device.PostError{Index: at + refused.Index, Err: refused.Err}
		} else if err != nil && at > 0 {
			err = &device.PostError{Index: at, Err: err}
		}
		if err != nil || at+maxBatch >= len(requests) {
			return err
		}
	}
}

// oneWait is the longest that one call of the host waits for completions.
const oneWait = 20 * time.Second

// Completions implements device.Work, by numbers too: a call that the caller has
// given up loses nothing.
func (r *remote) Completions(ctx context.Context, qp device.UID, limit int) ([]device.Completion, error) {
	if limit < 1 {
		return nil, &device.FieldError{Field: "limit", Problem: fmt.Sprintf("%d: at least 1", limit)}
	}
	for {
		have := r.read.get(qp)
		got, err := r.CompletionsAfter(ctx, qp, device.AskCompletions{After: have, GivenUp: have, Limit: min(limit, maxKept), Wait: oneWait})
		if err != nil || len(got.List) > 0 && r.read.advance(qp, have, got.First+uint64(len(got.List))-1) {
			return got.List, err
		}
	}
}

// numbers are those of the completions that Completions has given, by queue pair.
type numbers struct {
	mu sync.Mutex
	of map[device.UID]uint64
}

func (n *numbers) get(qp device.UID) uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.of[qp]
}

// advance reports whether the caller is the one that gets what is new.
func (n *numbers) advance(qp device.UID, from, to uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of[qp] != from {
		return false // another caller was faster
	}
	if n.of == nil {
		n.of = map[device.UID]uint64{}
	}
	n.of[qp] = to
	return true
}

func (n *numbers) drop(qps ...device.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, qp := range qps {
		delete(n.of, qp)
	}
}

// CompletionsAfter implements device.NumberedWork.
func (r *remote) CompletionsAfter(ctx context.Context, qp device.UID, a device.AskCompletions) (device.NumberedCompletions, error) {
	out, err := ask(ctx, r, max(a.Wait, 0)+callLimit, func(ctx context.Context, s *session) (*pb.ListCompletionsResponse, error) {
		return s.work.ListCompletions(ctx, &pb.ListCompletionsRequest{Device: r.info.ID, QueuePair: qp[:], Limit: int32(a.Limit),
			After: a.After, GivenUp: a.GivenUp, Wait: durationpb.New(a.Wait)})
	})
	if err != nil {
		return device.NumberedCompletions{}, err
	}
	return device.NumberedCompletions{First: out.GetFirst(), List: mapped(out.GetCompletions(), completionOf), Newest: out.GetNewest()}, nil
}
