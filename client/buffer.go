package client

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// Chunk is the most bytes that one call moves into or out of a buffer.
const Chunk = 1 << 20

// chunksAtOnce is how many calls move one buffer's contents side by side.
const chunksAtOnce = 4

// Upload writes data to the begin of a buffer, in chunks. On an error any part
// of it may have been written.
func (c *Client) Upload(ctx context.Context, buffer string, data []byte) error {
	return inChunks(ctx, len(data), func(ctx context.Context, from, to int) error {
		_, err := c.Transfers.WriteBuffer(ctx, &pb.WriteBufferRequest{Name: buffer, OffsetBytes: uint64(from), Data: data[from:to]})
		return err
	})
}

// Download reads the first size bytes of a buffer, in chunks.
func (c *Client) Download(ctx context.Context, buffer string, size int) ([]byte, error) {
	data := make([]byte, size)
	err := inChunks(ctx, size, func(ctx context.Context, from, to int) error {
		r, err := c.Transfers.ReadBuffer(ctx, &pb.ReadBufferRequest{Name: buffer, OffsetBytes: uint64(from), LengthBytes: uint64(to - from)})
		if err != nil {
			return err
		}
		if n := len(r.GetData()); n != to-from {
			return fmt.Errorf("%s: %d bytes came from offset %d, want %d", buffer, n, from, to-from)
		}
		copy(data[from:], r.GetData())
		return nil
	})
	if err != nil {
		return nil, err
	}
	return data, nil
}

// inChunks has all of size moved, some chunks side by side.
func inChunks(ctx context.Context, size int, move func(ctx context.Context, from, to int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(chunksAtOnce)
	for from := 0; from < size; from += Chunk {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err // another chunk failed, or the caller gave up
			}
			return move(ctx, from, min(from+Chunk, size))
		})
	}
	return g.Wait()
}
