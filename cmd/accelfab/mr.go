package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

var mrs = resource[*pb.MemoryRegion]{
	kind: mrKind, command: "mr", plural: "memory regions",
	columns: []column[*pb.MemoryRegion]{
		{"MR", func(m *pb.MemoryRegion) any { return short(m.GetName()) }},
		{"STATE", func(m *pb.MemoryRegion) any { return stateText(enum(m.GetState(), "STATE"), m.GetReason()) }},
		{"PD", func(m *pb.MemoryRegion) any { return short(m.GetProtectionDomain()) }},
		{"BUFFER", func(m *pb.MemoryRegion) any { return short(m.GetBuffer()) }},
		{"OFFSET", func(m *pb.MemoryRegion) any { return bytesText(m.GetOffsetBytes()) }},
		{"LENGTH", func(m *pb.MemoryRegion) any { return bytesText(m.GetLengthBytes()) }},
		{"IOVA", func(m *pb.MemoryRegion) any { return fmt.Sprintf("%#x", m.GetIova()) }},
		{"LKEY", func(m *pb.MemoryRegion) any { return fmt.Sprintf("%#x", m.GetLkey()) }},
		{"RKEY", func(m *pb.MemoryRegion) any { return fmt.Sprintf("%#x", m.GetRkey()) }},
		{"ACCESS", func(m *pb.MemoryRegion) any { return accessText(m.GetAccess()) }},
	},
	get: func(ctx context.Context, c *client.Client, name string) (*pb.MemoryRegion, error) {
		return c.Memory.GetMemoryRegion(ctx, &pb.GetMemoryRegionRequest{Name: name})
	},
	list: func(ctx context.Context, c *client.Client, p page) (proto.Message, []*pb.MemoryRegion, string, error) {
		r, err := c.Memory.ListMemoryRegions(ctx, &pb.ListMemoryRegionsRequest{Parent: p.parent, Filter: p.filter, PageToken: p.token, PageSize: pageSize})
		return r, r.GetMemoryRegions(), r.GetNextPageToken(), err
	},
	remove: func(ctx context.Context, c *client.Client, name string, r removal) error {
		_, err := c.Memory.DeleteMemoryRegion(ctx, &pb.DeleteMemoryRegionRequest{Name: name, Etag: r.etag, ValidateOnly: r.validateOnly})
		return err
	},
}

func accessText(list []pb.MemoryRegion_Access) string {
	names := make([]string, len(list))
	for i, x := range list {
		names[i] = strings.ToLower(strings.ReplaceAll(enum(x, "ACCESS"), "_", "-"))
	}
	return strings.Join(names, ",")
}

func parseAccess(names []string) ([]pb.MemoryRegion_Access, error) {
	var list []pb.MemoryRegion_Access
	for _, n := range names {
		x, err := parseEnum[pb.MemoryRegion_Access]("--access", n, "ACCESS")
		if err != nil {
			return nil, err
		}
		list = append(list, x)
	}
	return list, nil
}

func newMRCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "mr", Short: "Memory regions: what RDMA may reach", Example: "  accelfab mr list"}
	cmd.AddCommand(newMRCreateCmd(a), mrs.listCmd(a), mrs.getCmd(a), mrs.deleteCmd(a, "delete", "Deregister memory regions"))
	return cmd
}

func newMRCreateCmd(a *app) *cobra.Command {
	var cr creation
	var pd, buffer string
	var offset, length sizeFlag
	var access []string
	cmd := on(a, devices, &cobra.Command{
		Use:   "create DEVICE",
		Short: "Register a range of a buffer",
		Example: `  accelfab mr create soft-0 --id mr1 --pd soft-0/pd1 --buffer soft-0/buffer1
  accelfab mr create soft-0 --pd soft-0/pd1 --buffer soft-0/buffer1 --offset 4KiB --length 64KiB --access remote-read`,
	}, func(parent string) (call[*pb.MemoryRegion], error) {
		m := &pb.MemoryRegion{Labels: cr.labels, OffsetBytes: uint64(offset), LengthBytes: uint64(length)}
		var err error
		if m.ProtectionDomain, err = pdKind.name(pd); err != nil {
			return nil, err
		}
		if m.Buffer, err = bufferKind.name(buffer); err != nil {
			return nil, err
		}
		if m.Access, err = parseAccess(access); err != nil {
			return nil, err
		}
		req := &pb.CreateMemoryRegionRequest{
			Parent: parent, MemoryRegionId: cr.id, RequestId: cr.requestID, ValidateOnly: cr.validateOnly, MemoryRegion: m,
		}
		return func(ctx context.Context, c *client.Client) (*pb.MemoryRegion, error) {
			return c.Memory.CreateMemoryRegion(ctx, req)
		}, nil
	}, mrs.print)
	cr.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&pd, "pd", "", "protection domain")
	f.StringVar(&buffer, "buffer", "", "buffer")
	f.Var(&offset, "offset", "where in the buffer the region begins, bytes")
	f.Var(&length, "length", "bytes; 0 for up to the buffer's end")
	f.StringSliceVar(&access, "access", []string{"local-write", "remote-write", "remote-read"}, "local-write, remote-write, remote-read, remote-atomic")
	_ = cmd.MarkFlagRequired("pd")
	_ = cmd.MarkFlagRequired("buffer")
	_ = cmd.RegisterFlagCompletionFunc("pd", pds.complete(a))
	_ = cmd.RegisterFlagCompletionFunc("buffer", buffers.complete(a))
	return cmd
}
