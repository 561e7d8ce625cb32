package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

var buffers = resource[*pb.Buffer]{
	kind: bufferKind, command: "buffer", plural: "buffers",
	columns: []column[*pb.Buffer]{
		{"BUFFER", func(b *pb.Buffer) any { return short(b.GetName()) }},
		{"STATE", func(b *pb.Buffer) any { return stateText(enum(b.GetState(), "STATE"), b.GetReason()) }},
		{"SESSION", func(b *pb.Buffer) any { return short(b.GetSession()) }},
		{"SIZE", func(b *pb.Buffer) any { return bytesText(b.GetSizeBytes()) }},
		{"ADDRESS", func(b *pb.Buffer) any { return fmt.Sprintf("%#x", b.GetDeviceAddress()) }},
		{"MRS", func(b *pb.Buffer) any { return b.GetMemoryRegionCount() }},
	},
	get: func(ctx context.Context, c *client.Client, name string) (*pb.Buffer, error) {
		return c.Memory.GetBuffer(ctx, &pb.GetBufferRequest{Name: name})
	},
	list: func(ctx context.Context, c *client.Client, p page) (proto.Message, []*pb.Buffer, string, error) {
		r, err := c.Memory.ListBuffers(ctx, &pb.ListBuffersRequest{Parent: p.parent, Filter: p.filter, PageToken: p.token, PageSize: pageSize})
		return r, r.GetBuffers(), r.GetNextPageToken(), err
	},
	remove: func(ctx context.Context, c *client.Client, name string, r removal) error {
		_, err := c.Memory.DeleteBuffer(ctx, &pb.DeleteBufferRequest{Name: name, Etag: r.etag, ValidateOnly: r.validateOnly})
		return err
	},
}

func newBufferCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "buffer", Short: "Memory of the cards", Example: "  accelfab buffer list"}
	cmd.AddCommand(newBufferCreateCmd(a), buffers.listCmd(a), buffers.getCmd(a),
		buffers.deleteCmd(a, "delete", "Give buffers back; their contents are zeroed"), newBufferWriteCmd(a), newBufferReadCmd(a), newBufferMoveCmd(a))
	return cmd
}

func newBufferCreateCmd(a *app) *cobra.Command {
	var cr creation
	var session string
	var size, alignment sizeFlag
	cmd := on(a, devices, &cobra.Command{
		Use:     "create DEVICE",
		Short:   "Take memory of a card; it reads as zeros",
		Example: "  accelfab buffer create soft-0 --id b1 --session job1 --size 64MiB",
	}, func(parent string) (call[*pb.Buffer], error) {
		owner, err := sessionKind.name(session)
		req := &pb.CreateBufferRequest{
			Parent: parent, BufferId: cr.id, RequestId: cr.requestID, ValidateOnly: cr.validateOnly,
			Buffer: &pb.Buffer{Session: owner, Labels: cr.labels, SizeBytes: uint64(size), AlignmentBytes: uint64(alignment)},
		}
		return func(ctx context.Context, c *client.Client) (*pb.Buffer, error) {
			return c.Memory.CreateBuffer(ctx, req)
		}, err
	}, buffers.print)
	cr.flags(cmd)
	sessionFlag(a, cmd, &session)
	cmd.Flags().Var(&size, "size", "bytes, such as 64MiB")
	cmd.Flags().Var(&alignment, "alignment", "of the device address, a power of two; 0 for the device's page")
	_ = cmd.MarkFlagRequired("size")
	return cmd
}

func newBufferWriteCmd(a *app) *cobra.Command {
	var offset sizeFlag
	cmd := &cobra.Command{
		Use:               "write DEVICE/ID [FILE]",
		Short:             "Write a file, or the standard input, into a buffer",
		Example:           "  accelfab buffer write soft-0/buffer1 weights.bin\n  echo hello | accelfab buffer write soft-0/buffer1 --offset 4KiB",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: first(buffers.complete(a)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := bufferKind.name(args[0])
			if err != nil {
				return err
			}
			from := cmd.InOrStdin()
			if len(args) == 2 {
				f, err := os.Open(args[1])
				if err != nil {
					return err
				}
				defer f.Close()
				from = f
			}
			return a.dial(a.server, func(c *client.Client) error {
				n, err := a.writeFrom(cmd.Context(), c, name, uint64(offset), from)
				if err != nil {
					return fmt.Errorf("after %d bytes: %w", n, err)
				}
				return a.done(cmd, "%d bytes written to %s", n, short(name))
			})
		},
	}
	cmd.Flags().Var(&offset, "offset", "where in the buffer to begin, bytes")
	return cmd
}

// writeFrom writes all that comes, a chunk at a time. --timeout bounds each, as
// nobody knows how long it takes to come.
func (a *app) writeFrom(ctx context.Context, c *client.Client, buffer string, offset uint64, from io.Reader) (written uint64, err error) {
	chunk := make([]byte, client.Chunk)
	for {
		n, readErr := io.ReadFull(from, chunk)
		if n > 0 {
			call, cancel := context.WithTimeout(ctx, a.timeout)
			_, err := c.Transfers.WriteBuffer(call, &pb.WriteBufferRequest{Name: buffer, OffsetBytes: offset + written, Data: chunk[:n]})
			cancel()
			if err != nil {
				return written, err
			}
			written += uint64(n)
		}
		switch readErr {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return written, nil
		default:
			return written, readErr
		}
	}
}

func newBufferReadCmd(a *app) *cobra.Command {
	var offset, length sizeFlag
	cmd := &cobra.Command{
		Use:               "read DEVICE/ID [FILE]",
		Short:             "Read a buffer into a file, or to the standard output",
		Example:           "  accelfab buffer read soft-0/buffer1 weights.bin\n  accelfab buffer read soft-0/buffer1 --length 6",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: first(buffers.complete(a)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := bufferKind.name(args[0])
			if err != nil {
				return err
			}
			return a.dial(a.server, func(c *client.Client) error {
				ctx := cmd.Context()
				call, cancel := context.WithTimeout(ctx, a.timeout)
				b, err := c.Memory.GetBuffer(call, &pb.GetBufferRequest{Name: name})
				cancel()
				if err != nil {
					return err
				}
				size := b.GetSizeBytes()
				if uint64(offset) > size {
					return fmt.Errorf("--offset %d: %s has %d bytes", offset, short(name), size)
				}
				if !cmd.Flags().Changed("length") {
					length = sizeFlag(size) - offset
				}
				to := cmd.OutOrStdout()
				if len(args) == 1 {
					return a.readTo(ctx, c, name, uint64(offset), uint64(length), to)
				}
				f, err := os.Create(args[1])
				if err != nil {
					return err
				}
				if err := a.readTo(ctx, c, name, uint64(offset), uint64(length), f); err != nil {
					f.Close()
					return err
				}
				return f.Close()
			})
		},
	}
	cmd.Flags().Var(&offset, "offset", "where in the buffer to begin, bytes")
	cmd.Flags().Var(&length, "length", "bytes to read (default: up to the buffer's end)")
	return cmd
}

// readTo reads length bytes, a chunk at a time, each bounded by --timeout.
func (a *app) readTo(ctx context.Context, c *client.Client, buffer string, offset, length uint64, to io.Writer) error {
	for length > 0 {
		call, cancel := context.WithTimeout(ctx, a.timeout)
		r, err := c.Transfers.ReadBuffer(call, &pb.ReadBufferRequest{Name: buffer, OffsetBytes: offset, LengthBytes: min(length, client.Chunk)})
		cancel()
		if err != nil {
			return err
		}
		n := uint64(len(r.GetData()))
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		if _, err := to.Write(r.GetData()); err != nil {
			return err
		}
		offset, length = offset+n, length-min(n, length)
	}
	return nil
}
