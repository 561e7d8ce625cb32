package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

var exports = resource[*pb.MemoryExport]{
	kind: exportKind, command: "export", plural: "exports",
	columns: []column[*pb.MemoryExport]{
		{"EXPORT", func(e *pb.MemoryExport) any { return short(e.GetName()) }},
		{"STATE", func(e *pb.MemoryExport) any { return stateText(enum(e.GetState(), "STATE"), e.GetReason()) }},
		{"BUFFER", func(e *pb.MemoryExport) any { return short(e.GetBuffer()) }},
		{"OFFSET", func(e *pb.MemoryExport) any { return bytesText(e.GetOffsetBytes()) }},
		{"LENGTH", func(e *pb.MemoryExport) any { return bytesText(e.GetLengthBytes()) }},
		{"FETCHED", func(e *pb.MemoryExport) any { return e.GetFetchCount() }},
		{"OPEN", func(e *pb.MemoryExport) any { return e.GetOpenDescriptorCount() }},
		{"ATTACHED", func(e *pb.MemoryExport) any { return len(e.GetAttachments()) }},
		{"ORPHAN", func(e *pb.MemoryExport) any { return e.GetOrphanReason() }},
	},
	more: exportMore,
	get: func(ctx context.Context, c *client.Client, name string) (*pb.MemoryExport, error) {
		return c.Memory.GetMemoryExport(ctx, &pb.GetMemoryExportRequest{Name: name})
	},
	list: func(ctx context.Context, c *client.Client, p page) (proto.Message, []*pb.MemoryExport, string, error) {
		r, err := c.Memory.ListMemoryExports(ctx, &pb.ListMemoryExportsRequest{Parent: p.parent, Filter: p.filter, PageToken: p.token, PageSize: pageSize})
		return r, r.GetMemoryExports(), r.GetNextPageToken(), err
	},
	remove: func(ctx context.Context, c *client.Client, name string, r removal) error {
		_, err := c.Memory.DeleteMemoryExport(ctx, &pb.DeleteMemoryExportRequest{Name: name, Etag: r.etag, ValidateOnly: r.validateOnly})
		return err
	},
}

// exportMore shows the pieces of the memory, who is attached and what to know.
func exportMore(w io.Writer, e *pb.MemoryExport) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(e.GetSegments()) > 0 {
		fmt.Fprintln(tw, "\nDEVICE ADDRESS\tBUS ADDRESS\tLENGTH")
	}
	for _, s := range e.GetSegments() {
		fmt.Fprintf(tw, "%#x\t%#x\t%s\n", s.GetDeviceAddress(), s.GetBusAddress(), bytesText(s.GetLengthBytes()))
	}
	if len(e.GetAttachments()) > 0 {
		fmt.Fprintln(tw, "\nIMPORTER\tMR\tOFFSET\tLENGTH\tDYNAMIC\tSINCE")
	}
	for _, x := range e.GetAttachments() {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%v\t%s\n", short(x.GetDevice()), short(x.GetMemoryRegion()), bytesText(x.GetOffsetBytes()),
			bytesText(x.GetLengthBytes()), x.GetDynamic(), x.GetSinceTime().AsTime().Local().Format(time.DateTime))
	}
	if e.GetMappable() {
		fmt.Fprintln(tw, "\nmappable: its holders may map the memory, and it cannot be revoked")
	}
	return tw.Flush()
}

func newExportCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "export", Short: "Memory that other devices may reach", Example: "  accelfab export list"}
	cmd.AddCommand(newExportCreateCmd(a), exports.listCmd(a), exports.getCmd(a), newExportFetchCmd(a), newExportRevokeCmd(a),
		exports.deleteCmd(a, "delete", "Delete exports that no memory region is made of"))
	return cmd
}

func newExportCreateCmd(a *app) *cobra.Command {
	var cr creation
	var buffer string
	var offset, length sizeFlag
	var ttl time.Duration
	var fetchers []string
	var cmd *cobra.Command
	cmd = on(a, devices, &cobra.Command{
		Use:   "create DEVICE",
		Short: "Export a range of a buffer, in whole pages",
		Long: `Export a range of a buffer, in whole pages. Its descriptor, which "export fetch" gives, is
good for one thing: to let a device of this node make a memory region of it.`,
		Example: `  accelfab export create soft-0 --id export1 --buffer soft-0/buffer1
  accelfab export create soft-0 --buffer soft-0/buffer1 --offset 4KiB --length 64KiB --ttl 10m --fetcher uid:1001 --fetcher session:job2`,
	}, func(parent string) (call[*pb.MemoryExport], error) {
		e := &pb.MemoryExport{Labels: cr.labels, OffsetBytes: uint64(offset), LengthBytes: uint64(length)}
		var err error
		if e.Buffer, err = bufferKind.name(buffer); err != nil {
			return nil, err
		}
		if cmd.Flags().Changed("ttl") {
			e.Ttl = durationpb.New(ttl)
		}
		for _, text := range fetchers {
			f, err := parseFetcher(text)
			if err != nil {
				return nil, err
			}
			e.Fetchers = append(e.Fetchers, f)
		}
		req := &pb.CreateMemoryExportRequest{
			Parent: parent, MemoryExportId: cr.id, RequestId: cr.requestID, ValidateOnly: cr.validateOnly, MemoryExport: e,
		}
		return func(ctx context.Context, c *client.Client) (*pb.MemoryExport, error) {
			return c.Memory.CreateMemoryExport(ctx, req)
		}, nil
	}, exports.print)
	cr.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&buffer, "buffer", "", "buffer")
	f.Var(&offset, "offset", "where in the buffer the export begins, bytes")
	f.Var(&length, "length", "bytes; 0 for up to the buffer's end")
	f.DurationVar(&ttl, "ttl", 0, "how long until it is revoked (default: it lives as long as its session)")
	f.StringArrayVar(&fetchers, "fetcher", nil, "who may fetch its descriptor beside the owner: uid:N, gid:N or session:ID (repeatable)")
	_ = cmd.MarkFlagRequired("buffer")
	_ = cmd.RegisterFlagCompletionFunc("buffer", buffers.complete(a))
	return cmd
}

func parseFetcher(text string) (*pb.MemoryExport_Fetcher, error) {
	kind, value, _ := strings.Cut(text, ":")
	n, err := strconv.ParseUint(value, 10, 32)
	switch {
	case kind == "uid" && err == nil:
		return &pb.MemoryExport_Fetcher{Who: &pb.MemoryExport_Fetcher_Uid{Uid: uint32(n)}}, nil
	case kind == "gid" && err == nil:
		return &pb.MemoryExport_Fetcher{Who: &pb.MemoryExport_Fetcher_Gid{Gid: uint32(n)}}, nil
	case kind == "session":
		name, err := sessionKind.name(value)
		return &pb.MemoryExport_Fetcher{Who: &pb.MemoryExport_Fetcher_Session{Session: name}}, err
	}
	return nil, usage("--fetcher %q: want uid:N, gid:N or session:ID", text)
}

func newExportRevokeCmd(a *app) *cobra.Command {
	var how removal
	cmd := on(a, exports, &cobra.Command{
		Use:   exports.use("revoke"),
		Short: "End all access by an export",
		Long: `End all access by an export. When this returns nothing reaches the memory by it any more;
memory regions that were made of it are lost.`,
		Example: "  accelfab export revoke soft-0/export1",
	}, func(name string) (call[*pb.MemoryExport], error) {
		return func(ctx context.Context, c *client.Client) (*pb.MemoryExport, error) {
			return c.Memory.RevokeMemoryExport(ctx, &pb.RevokeMemoryExportRequest{Name: name, Etag: how.etag, ValidateOnly: how.validateOnly})
		}, nil
	}, exports.print)
	cmd.Flags().StringVar(&how.etag, "etag", "", "refuse if the export has changed since it had this etag")
	validateOnlyFlag(cmd, &how.validateOnly)
	return cmd
}

func newExportFetchCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "fetch DEVICE/ID -- PROGRAM [ARGUMENT]...",
		Short: "Run a program with an export's descriptor as its descriptor 3",
		Long: `Run a program with an export's descriptor as its descriptor 3. The program can pass it on,
or have a device import it: "accelfab mr create --import-fd 3". The exit status is the program's.`,
		Example:           "  accelfab export fetch soft-0/export1 -- accelfab mr create soft-1 --pd soft-1/pd1 --import-fd 3",
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: first(exports.complete(a)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := exportKind.name(args[0])
			if err != nil {
				return err
			}
			var file *os.File
			err = a.call(cmd, func(ctx context.Context, c *client.Client) error {
				file, err = c.FetchDescriptor(ctx, name)
				return err
			})
			if err != nil {
				return err
			}
			defer file.Close()
			return runHolding(cmd, file, args[1:])
		},
	}
}

// runHolding runs a program that has a descriptor as its descriptor 3.
func runHolding(cmd *cobra.Command, file *os.File, args []string) error {
	p := exec.CommandContext(cmd.Context(), args[0], args[1:]...)
	p.Stdin, p.Stdout, p.Stderr, p.ExtraFiles = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr(), []*os.File{file}
	return statusOf(p.Run())
}

// importFlags say which descriptor a memory region is to be made of.
type importFlags struct {
	fd     int
	export string
	iova   uint64
}

func (i *importFlags) flags(a *app, cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&i.fd, "import-fd", -1, "instead of a buffer: the export whose descriptor this process has by this number")
	f.StringVar(&i.export, "import-export", "", "instead of a buffer: this export; its descriptor is fetched")
	f.Uint64Var(&i.iova, "iova", 0, "address of an import's first byte for work requests (default: the exporter's device address)")
	_ = cmd.RegisterFlagCompletionFunc("import-export", exports.complete(a))
}

func (i *importFlags) given() bool { return i.fd >= 0 || i.export != "" }

// upload hands the descriptor in, and gives the id to import by.
func (i *importFlags) upload(ctx context.Context, c *client.Client) (string, error) {
	var file *os.File
	if i.export != "" {
		name, err := exportKind.name(i.export)
		if err == nil {
			file, err = c.FetchDescriptor(ctx, name)
		}
		if err != nil {
			return "", err
		}
	} else {
		file = os.NewFile(uintptr(i.fd), "import-fd")
		if _, err := file.Stat(); err != nil {
			return "", usage("--import-fd %d: this process has no such descriptor open", i.fd)
		}
	}
	defer file.Close()
	up, err := c.UploadDescriptor(ctx, file)
	if err != nil {
		return "", err
	}
	return up.GetUploadId(), nil
}

func newPeerAccessCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "peer-access EXPORTER IMPORTER",
		Short:   "Say whether one device can reach the memory of another, and what is in the way",
		Example: "  accelfab topo peer-access soft-0 soft-1",
		Args:    cobra.ExactArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 1 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return devices.complete(a)(cmd, args, begin)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			exporter, err := deviceKind.name(args[0])
			if err != nil {
				return err
			}
			importer, err := deviceKind.name(args[1])
			if err != nil {
				return err
			}
			return a.call(cmd, func(ctx context.Context, c *client.Client) error {
				p, err := c.Nodes.CheckPeerAccess(ctx, &pb.CheckPeerAccessRequest{Name: localNode, Exporter: exporter, Importer: importer})
				if err != nil {
					return err
				}
				return print(a, cmd, p, []column[*pb.PeerAccess]{
					{"EXPORTER", func(p *pb.PeerAccess) any { return short(p.GetExporter()) }},
					{"IMPORTER", func(p *pb.PeerAccess) any { return short(p.GetImporter()) }},
					{"REACHABLE", func(p *pb.PeerAccess) any { return p.GetReachable() }},
					{"BY", func(p *pb.PeerAccess) any { return p.GetPath() }},
					{"OBSTACLE", func(p *pb.PeerAccess) any { return p.GetObstacle() }},
				}, p)
			})
		},
	}
}

func newBufferMoveCmd(a *app) *cobra.Command {
	var how removal
	cmd := on(a, buffers, &cobra.Command{
		Use:   buffers.use("move"),
		Short: "Put a buffer at another place of its card's memory (operators)",
		Long: `Put a buffer at another place of its card's memory, the lowest that is free. Contents and
device address stay. Importers that follow are told before; one that pins it refuses.`,
		Example: "  accelfab buffer move soft-0/buffer1",
	}, func(name string) (call[*pb.Buffer], error) {
		return func(ctx context.Context, c *client.Client) (*pb.Buffer, error) {
			return c.Memory.MoveBuffer(ctx, &pb.MoveBufferRequest{Name: name, Etag: how.etag, ValidateOnly: how.validateOnly})
		}, nil
	}, buffers.print)
	cmd.Flags().StringVar(&how.etag, "etag", "", "refuse if the buffer has changed since it had this etag")
	validateOnlyFlag(cmd, &how.validateOnly)
	return cmd
}

func newDeviceResetCmd(a *app) *cobra.Command {
	var how removal
	cmd := on(a, devices, &cobra.Command{
		Use:   devices.use("reset"),
		Short: "Make a device as new (operators)",
		Long: `Make a device as new. What was on it is gone, its memory reads as zeros, its exports are
revoked. Ports stay as they are.`,
		Example: "  accelfab device reset soft-0",
	}, func(name string) (call[*pb.Device], error) {
		return func(ctx context.Context, c *client.Client) (*pb.Device, error) {
			return c.Devices.ResetDevice(ctx, &pb.ResetDeviceRequest{Name: name, Etag: how.etag, ValidateOnly: how.validateOnly})
		}, nil
	}, devices.print)
	cmd.Flags().StringVar(&how.etag, "etag", "", "refuse if the device has another etag")
	validateOnlyFlag(cmd, &how.validateOnly)
	return cmd
}
