package client

import (
	"context"
	"errors"
	"io"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// Backup writes a copy of the node's store to w, while the node serves, and gives
// its size in bytes: a file that "accelfabd store restore" takes. After an error
// what was written is of no use. For operators.
func (c *Client) Backup(ctx context.Context, w io.Writer) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Nodes.BackupNode(ctx, &pb.BackupNodeRequest{Name: "nodes/local"})
	if err != nil {
		return 0, err
	}
	var size int64
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return size, nil
		}
		if err != nil {
			return size, err
		}
		n, err := w.Write(r.GetData())
		size += int64(n)
		if err != nil {
			return size, err
		}
	}
}
