package main

import (
	"cmp"
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
		{"OF", func(m *pb.MemoryRegion) any {
			return short(cmp.Or(m.GetBuffer(), m.GetImportSource().GetMemoryExport()))
		}},
		{"OFFSET", func(m *pb.MemoryRegion) any {
			return bytesText(m.GetOffsetBytes() + m.GetImportSource().GetOffsetBytes())
		}},
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
	var source importFlags
	var offset, length sizeFlag
	var access []string
	cmd := on(a, devices, &cobra.Command{
		Use:   "create DEVICE",
		Short: "Register a range of a buffer, or of another device's export",
		Example: `  accelfab mr create soft-0 --id mr1 --pd soft-0/pd1 --buffer soft-0/buffer1
  accelfab mr create soft-0 --pd soft-0/pd1 --buffer soft-0/buffer1 --offset 4KiB --length 64KiB --access remote-read
  accelfab mr create soft-1 --pd soft-1/pd1 --import-export soft-0/export1`,
	}, func(parent string) (call[*pb.MemoryRegion], error) {
		m := &pb.MemoryRegion{Labels: cr.labels, OffsetBytes: uint64(offset), LengthBytes: uint64(length)}
		var err error
		if m.ProtectionDomain, err = pdKind.name(pd); err != nil {
			return nil, err
		}
		switch {
		case source.given() == (buffer != "") || source.fd >= 0 && source.export != "":
			return nil, usage("want exactly one of --buffer, --import-fd and --import-export")
		case source.given():
			m.ImportSource = &pb.MemoryRegion_ImportSource{OffsetBytes: uint64(offset), LengthBytes: uint64(length), Iova: source.iova}
			m.OffsetBytes, m.LengthBytes = 0, 0
		case source.iova != 0:
			return nil, usage("--iova goes with --import-fd and --import-export")
		default:
			if m.Buffer, err = bufferKind.name(buffer); err != nil {
				return nil, err
			}
		}
		if m.Access, err = parseAccess(access); err != nil {
			return nil, err
		}
		req := &pb.CreateMemoryRegionRequest{
			Parent: parent, MemoryRegionId: cr.id, RequestId: cr.requestID, ValidateOnly: cr.validateOnly, MemoryRegion: m,
		}
		return func(ctx context.Context, c *client.Client) (*pb.MemoryRegion, error) {
			if m.ImportSource != nil {
				if m.ImportSource.UploadId, err = source.upload(ctx, c); err != nil {
					return nil, err
				}
			}
			return c.Memory.CreateMemoryRegion(ctx, req)
		}, nil
	}, mrs.print)
	cr.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&pd, "pd", "", "protection domain")
	f.StringVar(&buffer, "buffer", "", "buffer")
	f.Var(&offset, "offset", "where in the buffer or export the region begins, bytes")
	f.Var(&length, "length", "bytes; 0 for up to the end of the buffer or export")
	source.flags(a, cmd)
	f.StringSliceVar(&access, "access", []string{"local-write", "remote-write", "remote-read"}, "local-write, remote-write, remote-read, remote-atomic")
	_ = cmd.MarkFlagRequired("pd")
	_ = cmd.RegisterFlagCompletionFunc("pd", pds.complete(a))
	_ = cmd.RegisterFlagCompletionFunc("buffer", buffers.complete(a))
	return cmd
}
