package server

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// healthService answers gRPC's health protocol from the node's own health.
type healthService struct {
	healthpb.UnimplementedHealthServer
	*Server
}

// watchInterval is how often a watch of the health looks.
const watchInterval = time.Second

// changes says of each service whether it makes changes, which need the store.
// "" is the whole.
var changes = map[string]bool{
	"": true,
	pb.SessionService_ServiceDesc.ServiceName:   true,
	pb.MemoryService_ServiceDesc.ServiceName:    true,
	pb.QueuePairService_ServiceDesc.ServiceName: true,
	pb.NodeService_ServiceDesc.ServiceName:      false,
	pb.DeviceService_ServiceDesc.ServiceName:    false,
	pb.EventService_ServiceDesc.ServiceName:     false,
	pb.TransferService_ServiceDesc.ServiceName:  false,
}

// status of a service: NOT_SERVING while the daemon ends, and for what makes
// changes while the store cannot be written. A device that does not answer
// takes no service down: the others are served.
func (s healthService) status(service string) healthpb.HealthCheckResponse_ServingStatus {
	needsStore, ok := changes[service]
	switch {
	case !ok:
		return healthpb.HealthCheckResponse_SERVICE_UNKNOWN
	case s.stopping():
		return healthpb.HealthCheckResponse_NOT_SERVING
	case needsStore:
		for _, p := range s.fabric.NodeHealth().Problems {
			if p.Component == fabric.ComponentStore && p.Reason == fabric.StoreUnavailable {
				return healthpb.HealthCheckResponse_NOT_SERVING
			}
		}
	}
	return healthpb.HealthCheckResponse_SERVING
}

func (s healthService) Check(_ context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	st := s.status(r.Service)
	if st == healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		return nil, status.Errorf(codes.NotFound, "there is no service %q; leave it empty for the whole", clip(r.Service, maxText))
	}
	return &healthpb.HealthCheckResponse{Status: st}, nil
}

func (s healthService) List(context.Context, *healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	out := &healthpb.HealthListResponse{Statuses: map[string]*healthpb.HealthCheckResponse{}}
	for name := range changes {
		out.Statuses[name] = &healthpb.HealthCheckResponse{Status: s.status(name)}
	}
	return out, nil
}

func (s healthService) Watch(r *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	told := healthpb.HealthCheckResponse_ServingStatus(-1)
	for {
		if st := s.status(r.Service); st != told {
			if err := stream.Send(&healthpb.HealthCheckResponse{Status: st}); err != nil {
				return err
			}
			told = st
		}
		select {
		case <-tick.C:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}
