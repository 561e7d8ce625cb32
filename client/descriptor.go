package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// FetchDescriptor gives a new descriptor of an export, which the caller closes.
// It can be passed on, to children and over unix sockets, and is good for
// UploadDescriptor alone. The daemon must run on this machine. Refusals are as
// those of the API: EXPORT_REVOKED, PERMISSION_DENIED, ...
func (c *Client) FetchDescriptor(ctx context.Context, export string) (*os.File, error) {
	reply, file, err := c.exchange(ctx, &pb.DescriptorRequest{Request: &pb.DescriptorRequest_Fetch{Fetch: &pb.FetchDescriptor{Name: export}}}, nil)
	switch {
	case err != nil:
		return nil, err
	case reply.GetFetched() == nil || file == nil:
		if file != nil {
			file.Close()
		}
		return nil, errors.New("the daemon's answer has no descriptor")
	}
	return file, nil
}

// UploadDescriptor hands a descriptor of an export to the daemon, whoever
// fetched it, and gives the id to make a memory region with: good once, for this
// user, until the time told. The descriptor stays the caller's.
func (c *Client) UploadDescriptor(ctx context.Context, descriptor *os.File) (*pb.UploadedDescriptor, error) {
	reply, file, err := c.exchange(ctx, &pb.DescriptorRequest{Request: &pb.DescriptorRequest_Upload{Upload: &pb.UploadDescriptor{}}}, descriptor)
	if file != nil {
		file.Close()
	}
	if err == nil && reply.GetUploaded() == nil {
		err = errors.New("the daemon's answer to the upload is none")
	}
	return reply.GetUploaded(), err
}

// exchange sends one packet and receives one. A refusal is an error.
func (c *Client) exchange(ctx context.Context, r *pb.DescriptorRequest, descriptor *os.File) (*pb.DescriptorReply, *os.File, error) {
	path, err := c.descriptorSocket(ctx)
	if err != nil {
		return nil, nil, err
	}
	b, err := proto.Marshal(r)
	if err != nil {
		return nil, nil, err
	}
	b, file, err := trade(ctx, path, b, descriptor)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.Join(err, ctx.Err())
		}
		return nil, nil, &socketError{path, err}
	}
	var reply pb.DescriptorReply
	if err = proto.Unmarshal(b, &reply); err != nil {
		err = fmt.Errorf("descriptor socket %s: the answer is no DescriptorReply: %w", path, err)
	} else if s := reply.GetError(); s != nil {
		err = status.FromProto(s).Err()
	}
	if err != nil && file != nil {
		file.Close()
		file = nil
	}
	return &reply, file, err
}

// socketError is that of an exchange which had no answer: nobody is there, or went in
// the middle. As of a call over gRPC its code is UNAVAILABLE, or that of the context.
type socketError struct {
	path string
	err  error
}

func (e *socketError) Error() string { return "descriptor socket " + e.path + ": " + e.err.Error() }
func (e *socketError) Unwrap() error { return e.err }

// GRPCStatus is what status.Code and status.FromError ask for.
func (e *socketError) GRPCStatus() *status.Status {
	code := codes.Unavailable
	switch {
	case errors.Is(e.err, context.Canceled):
		code = codes.Canceled
	case errors.Is(e.err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(e.err, os.ErrPermission):
		code = codes.PermissionDenied
	}
	return status.New(code, e.Error())
}

// descriptorSocket finds the socket: as the Client was told, by the file that
// the daemon writes beside its own socket, which every user can read, or by
// asking the daemon.
func (c *Client) descriptorSocket(ctx context.Context) (string, error) {
	if c.DescriptorSocket != "" {
		return c.DescriptorSocket, nil
	}
	if socket, ok := strings.CutPrefix(c.target, "unix://"); ok {
		var ready struct {
			GRPC        []string `json:"grpc"`
			Descriptors string   `json:"descriptors"`
		}
		b, err := os.ReadFile(filepath.Join(filepath.Dir(socket), "accelfabd.json"))
		if err == nil && json.Unmarshal(b, &ready) == nil && ready.Descriptors != "" {
			for _, at := range ready.GRPC {
				if at == "unix://"+socket {
					return ready.Descriptors, nil
				}
			}
		}
	}
	node, err := c.Nodes.GetNode(ctx, &pb.GetNodeRequest{Name: "nodes/local"})
	if err != nil {
		return "", err
	}
	if node.GetDescriptorSocket() == "" {
		return "", fmt.Errorf("the daemon of %s has no descriptor socket", node.GetName())
	}
	return node.GetDescriptorSocket(), nil
}
