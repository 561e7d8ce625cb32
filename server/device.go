package server

import (
	"context"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

type deviceService struct {
	pb.UnimplementedDeviceServiceServer
	*Server
}

var deviceFields = fields[fabric.Device]{by: map[string]field[fabric.Device]{
	"driver":      text(func(d *fabric.Device) string { return d.Info.Driver }),
	"model":       text(func(d *fabric.Device) string { return d.Info.Model }),
	"serial":      text(func(d *fabric.Device) string { return d.Info.Serial }),
	"pci_address": text(func(d *fabric.Device) string { return d.Info.PCIAddress }),
	"state": ofEnum(pb.Device_State(0), func(d *fabric.Device) protoreflect.Enum {
		if d.Condition.Reason != "" {
			return pb.Device_STATE_UNAVAILABLE
		}
		return pb.Device_STATE_READY
	}),
}, labels: func(*fabric.Device) map[string]string { return nil }}

var portFields = fields[fabric.Port]{by: map[string]field[fabric.Port]{
	"class":       ofEnum(pb.Port_Class(0), func(p *fabric.Port) protoreflect.Enum { return portClasses.proto(p.Class) }),
	"admin_state": ofEnum(pb.Port_AdminState(0), func(p *fabric.Port) protoreflect.Enum { return adminStates.proto(p.AdminUp) }),
	"state":       ofEnum(pb.Port_State(0), func(p *fabric.Port) protoreflect.Enum { return portStates.proto(p.State) }),
}, labels: func(*fabric.Port) map[string]string { return nil }}

func (s deviceService) GetDevice(ctx context.Context, r *pb.GetDeviceRequest) (*pb.Device, error) {
	d, err := s.fabric.GetDevice(ctx, caller(ctx), r.Name)
	if err != nil {
		return nil, err
	}
	return deviceToProto(s.uid, &d), nil
}

func (s deviceService) ListDevices(ctx context.Context, r *pb.ListDevicesRequest) (*pb.ListDevicesResponse, error) {
	items, next, err := list(s.Server, r, deviceFields, func(l fabric.List, match func(*fabric.Device) bool) (fabric.Page[fabric.Device], error) {
		return s.fabric.ListDevices(ctx, caller(ctx), l, match)
	}, func(d *fabric.Device) *pb.Device { return deviceToProto(s.uid, d) })
	if err != nil {
		return nil, err
	}
	return &pb.ListDevicesResponse{Devices: items, NextPageToken: next}, nil
}

func (s deviceService) GetPort(ctx context.Context, r *pb.GetPortRequest) (*pb.Port, error) {
	p, err := s.fabric.GetPort(ctx, caller(ctx), r.Name)
	if err != nil {
		return nil, err
	}
	return portToProto(s.uid, &p), nil
}

func (s deviceService) ListPorts(ctx context.Context, r *pb.ListPortsRequest) (*pb.ListPortsResponse, error) {
	items, next, err := list(s.Server, r, portFields, func(l fabric.List, match func(*fabric.Port) bool) (fabric.Page[fabric.Port], error) {
		return s.fabric.ListPorts(ctx, caller(ctx), l, match)
	}, func(p *fabric.Port) *pb.Port { return portToProto(s.uid, p) })
	if err != nil {
		return nil, err
	}
	return &pb.ListPortsResponse{Ports: items, NextPageToken: next}, nil
}

func (s deviceService) UpdatePort(ctx context.Context, r *pb.UpdatePortRequest) (*pb.Port, error) {
	var v faults
	port := r.GetPort()
	ask := fabric.SetPort{Update: fabric.Update{Name: port.GetName(), ValidateOnly: r.ValidateOnly}}
	change := v.mask(r.GetUpdateMask().GetPaths(), port.ProtoReflect(), []string{"admin_state"}, nil)
	switch up, ok := adminStates.domain(port.GetAdminState()); {
	case port == nil:
		v.required("port", "want the port's name and the fields to change")
	case !change["admin_state"] && len(v) == 0:
		v.required("port.admin_state", "there is nothing to change; it is what can be changed")
	case change["admin_state"] && !ok:
		v.invalid("port.admin_state", "%v: want %s", port.GetAdminState(), adminStates.names())
	default:
		ask.Up = up
	}
	p, err := attempt(v, updatePath("port"), &ask.ValidateOnly, func() (fabric.Port, error) {
		c := caller(ctx)
		if etag := port.GetEtag(); etag != "" {
			now, err := s.fabric.GetPort(ctx, c, ask.Name)
			if err != nil {
				return now, err
			}
			if have := portETag(derivedUID(s.uid, "port", now.Name), now.AdminUp); have != etag {
				return now, &fabric.Error{Name: now.Name, Field: "etag", Reason: fabric.ETagMismatch, Message: "it has changed since; read it again",
					Details: map[string]string{"asked": etag, "present": have}}
			}
		}
		return s.fabric.SetPort(ctx, c, ask)
	})
	if err != nil {
		return nil, err
	}
	return portToProto(s.uid, &p), nil
}
