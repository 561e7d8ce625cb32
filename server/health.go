package server

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// healthService answers gRPC's health protocol from the node's own health. Its
// services are those of the contract, "" for the whole, and the components of the
// node by their names.
type healthService struct {
	healthpb.UnimplementedHealthServer
	*Server
}

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

// takesChanges says whether the store can be written.
func takesChanges(h *fabric.Health) bool {
	return !slices.ContainsFunc(h.Problems, func(p fabric.Problem) bool {
		return p.Component == fabric.ComponentStore && p.Reason == fabric.StoreUnavailable
	})
}

// componentStatus is how gRPC's health protocol tells the health of a component:
// what is DEGRADED serves.
var componentStatus = map[fabric.HealthStatus]healthpb.HealthCheckResponse_ServingStatus{
	fabric.HealthOK:            healthpb.HealthCheckResponse_SERVING,
	fabric.HealthDegraded:      healthpb.HealthCheckResponse_SERVING,
	fabric.HealthFailed:        healthpb.HealthCheckResponse_NOT_SERVING,
	fabric.HealthUnknown:       healthpb.HealthCheckResponse_UNKNOWN,
	fabric.HealthNotApplicable: healthpb.HealthCheckResponse_SERVICE_UNKNOWN,
}

// status of a service: NOT_SERVING while the daemon ends, and for what makes
// changes while the store cannot be written. A device that does not answer
// takes no service down: the others are served.
func (s healthService) status(service string, h *fabric.Health) healthpb.HealthCheckResponse_ServingStatus {
	if needsStore, ok := changes[service]; ok {
		if s.stopping() || needsStore && !takesChanges(h) {
			return healthpb.HealthCheckResponse_NOT_SERVING
		}
		return healthpb.HealthCheckResponse_SERVING
	}
	for _, c := range h.Components {
		if c.Name == service {
			return componentStatus[c.Status]
		}
	}
	return healthpb.HealthCheckResponse_SERVICE_UNKNOWN
}

func (s healthService) Check(_ context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	h := s.fabric.NodeHealth()
	st := s.status(r.Service, &h)
	if st == healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		return nil, status.Errorf(codes.NotFound, "there is no service or component %q; leave it empty for the whole, or list them", clip(r.Service, maxText))
	}
	return &healthpb.HealthCheckResponse{Status: st}, nil
}

func (s healthService) List(context.Context, *healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	out := &healthpb.HealthListResponse{Statuses: map[string]*healthpb.HealthCheckResponse{}}
	h := s.fabric.NodeHealth()
	for name := range changes {
		out.Statuses[name] = &healthpb.HealthCheckResponse{Status: s.status(name, &h)}
	}
	for _, c := range h.Components[:min(len(h.Components), maxComponents)] {
		out.Statuses[c.Name] = &healthpb.HealthCheckResponse{Status: componentStatus[c.Status]}
	}
	return out, nil
}

func (s healthService) Watch(r *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	told := healthpb.HealthCheckResponse_ServingStatus(-1)
	for {
		changed := s.fabric.HealthChanged()
		h := s.fabric.NodeHealth()
		if st := s.status(r.Service, &h); st != told {
			if err := stream.Send(&healthpb.HealthCheckResponse{Status: st}); err != nil {
				return err
			}
			told = st
		}
		select {
		case <-changed:
		case <-stream.Context().Done(): // also when the daemon ends
			return stream.Context().Err()
		}
	}
}
