package server

import (
	"bufio"
	"bytes"
	"context"
	"strings"

	"google.golang.org/grpc"

	"github.com/accelfab/accelfab/fabric"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

type nodeService struct {
	pb.UnimplementedNodeServiceServer
	*Server
}

// canonical turns "nodes/local/..." into the node's real name.
func (s *Server) canonical(name string) string {
	if rest, ok := strings.CutPrefix(name, "nodes/local"); ok && (rest == "" || rest[0] == '/') {
		return s.node + rest
	}
	return name
}

// isName says whether a name alternates the given collections with ids.
func isName(name string, collections ...string) bool {
	parts := strings.Split(name, "/")
	if len(parts) != 2*len(collections) {
		return false
	}
	for i, c := range collections {
		if parts[2*i] != c || parts[2*i+1] == "" {
			return false
		}
	}
	return true
}

// checkNode checks a field that names this node. tail follows the node's name.
func (s *Server) checkNode(field, name, tail string) error {
	var v faults
	head, ok := strings.CutSuffix(s.canonical(name), tail)
	switch {
	case name == "":
		v.required(field, "want nodes/{node}"+tail)
	case !ok || !isName(head, "nodes"):
		v.invalid(field, "%q: want nodes/{node}%s", clip(name, maxText), tail)
	case head != s.node:
		return &fabric.Error{Name: clip(name, maxText), Field: field, Reason: fabric.NotFound,
			Message: "this is " + s.node + "; ask that node's own daemon"}
	}
	return v.err()
}

func (s nodeService) GetNode(_ context.Context, r *pb.GetNodeRequest) (*pb.Node, error) {
	if err := s.checkNode("name", r.Name, ""); err != nil {
		return nil, err
	}
	n := s.fabric.Node()
	out := nodeToProto(&n, s.stopping())
	out.DescriptorSocket = s.DescriptorSocket()
	return out, nil
}

func (s nodeService) GetTopology(ctx context.Context, r *pb.GetTopologyRequest) (*pb.Topology, error) {
	if err := s.checkNode("name", r.Name, "/topology"); err != nil {
		return nil, err
	}
	t, err := s.fabric.Topology(ctx, caller(ctx))
	if err != nil {
		return nil, err
	}
	return topologyToProto(s.node+"/topology", &t), nil
}

func (s nodeService) PickDevices(ctx context.Context, r *pb.PickDevicesRequest) (*pb.PickDevicesResponse, error) {
	if err := s.checkNode("name", r.Name, ""); err != nil {
		return nil, err
	}
	p, err := s.fabric.PickDevices(ctx, caller(ctx), fabric.PickDevices{Count: int(r.Count), AllowDegraded: r.AllowDegraded})
	if err != nil {
		return nil, err
	}
	out := &pb.PickDevicesResponse{Devices: p.Devices, Reason: p.Reason, MinLanes: uint32(p.MinLanes), Lanes: uint32(p.Lanes)}
	for _, x := range p.Excluded {
		out.Excluded = append(out.Excluded, &pb.PickDevicesResponse_Excluded{Device: x.Device, Reason: string(x.Reason), Message: x.Message})
	}
	return out, nil
}

// backupPiece is the size of a message of a backup, in bytes.
const backupPiece = 1 << 20

func (s nodeService) BackupNode(r *pb.BackupNodeRequest, stream grpc.ServerStreamingServer[pb.BackupNodeResponse]) error {
	ctx := stream.Context()
	w := bufio.NewWriterSize(pieces{stream}, backupPiece)
	if _, err := s.fabric.Backup(ctx, caller(ctx), r.Name, w); err != nil {
		return err
	}
	return w.Flush()
}

// pieces sends what is written to it.
type pieces struct {
	stream grpc.ServerStreamingServer[pb.BackupNodeResponse]
}

func (p pieces) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		n := min(len(rest), backupPiece)
		if err := p.stream.Send(&pb.BackupNodeResponse{Data: bytes.Clone(rest[:n])}); err != nil {
			return len(b) - len(rest), err
		}
		rest = rest[n:]
	}
	return len(b), nil
}
