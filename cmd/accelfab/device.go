package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

var devices = resource[*pb.Device]{
	kind: deviceKind, command: "device", plural: "devices",
	columns: []column[*pb.Device]{
		{"DEVICE", func(d *pb.Device) any { return short(d.GetName()) }},
		{"STATE", func(d *pb.Device) any { return stateText(enum(d.GetState(), "STATE"), d.GetReason()) }},
		{"DRIVER", func(d *pb.Device) any { return d.GetDriver() }},
		{"MODEL", func(d *pb.Device) any { return d.GetModel() }},
		{"MODULE", func(d *pb.Device) any { return d.GetModuleId() }},
		{"PCI", func(d *pb.Device) any { return d.GetPciAddress() }},
		{"MEMORY", func(d *pb.Device) any { return bytesText(d.GetMemoryBytes()) }},
		{"FREE", func(d *pb.Device) any { return bytesText(d.GetMemoryFreeBytes()) }},
		{"PORTS", func(d *pb.Device) any { return d.GetPortCount() }},
		{"HELD BY", func(d *pb.Device) any { return holders(d.GetHolders()) }},
	},
	get: func(ctx context.Context, c *client.Client, name string) (*pb.Device, error) {
		return c.Devices.GetDevice(ctx, &pb.GetDeviceRequest{Name: name})
	},
	list: func(ctx context.Context, c *client.Client, p page) (proto.Message, []*pb.Device, string, error) {
		r, err := c.Devices.ListDevices(ctx, &pb.ListDevicesRequest{Parent: p.parent, Filter: p.filter, PageToken: p.token, PageSize: pageSize})
		return r, r.GetDevices(), r.GetNextPageToken(), err
	},
}

func holders(list []*pb.Device_Holder) string {
	var names []string
	for _, h := range list {
		names = append(names, short(h.GetSession()))
	}
	return strings.Join(names, ",")
}

func newDeviceCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "device", Short: "Accelerator cards", Example: "  accelfab device list"}
	cmd.AddCommand(devices.listCmd(a), devices.getCmd(a), newDeviceResetCmd(a))
	return cmd
}
