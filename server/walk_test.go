package server

import (
	"bytes"
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

const card0, card1 = "nodes/local/devices/soft-0", "nodes/local/devices/soft-1"

// A job from its session to data on the wire and back to nothing.
func TestAJobFromSessionToData(t *testing.T) {
	h := newHouse(t)
	ctx := context.Background()
	session := must[*pb.Session](t)(h.session.CreateSession(ctx, &pb.CreateSessionRequest{Parent: "nodes/local", SessionId: "job",
		Session: &pb.Session{Labels: map[string]string{"job": "7"}, Ttl: durationpb.New(time.Hour)}}))
	if session.Name != "nodes/n/sessions/job" || len(session.Devices) != 2 || session.Partition != "nodes/n/partitions/default" || session.Mode != pb.Session_MODE_SHARED {
		t.Fatalf("session is %v", session)
	}
	topo := must[*pb.Topology](t)(h.node.GetTopology(ctx, &pb.GetTopologyRequest{Name: "nodes/local/topology"}))
	if len(topo.Cards) != 2 || len(topo.Pairs) != 1 || topo.Pairs[0].Lanes != 3 {
		t.Fatalf("topology of two cards of an HLS-2: %v", topo.Pairs)
	}
	var local *pb.Topology_Link
	for _, p := range topo.Cards[0].Ports {
		if p.Class == pb.Port_CLASS_INTERNAL && p.Peer.GetDevice() != "" {
			local = p
			break
		}
	}
	type end struct {
		qp *pb.QueuePair
		mr *pb.MemoryRegion
		b  *pb.Buffer
	}
	var ends [2]end
	for i, port := range []string{local.Port, local.Peer.Port} {
		card := []string{card0, card1}[i]
		pd := must[*pb.ProtectionDomain](t)(h.memory.CreateProtectionDomain(ctx, &pb.CreateProtectionDomainRequest{Parent: card,
			ProtectionDomain: &pb.ProtectionDomain{Session: session.Name}}))
		ends[i].b = must[*pb.Buffer](t)(h.memory.CreateBuffer(ctx, &pb.CreateBufferRequest{Parent: card, Buffer: &pb.Buffer{Session: session.Name, SizeBytes: 65536}}))
		ends[i].mr = must[*pb.MemoryRegion](t)(h.memory.CreateMemoryRegion(ctx, &pb.CreateMemoryRegionRequest{Parent: card,
			MemoryRegion: &pb.MemoryRegion{ProtectionDomain: pd.Name, Buffer: ends[i].b.Name,
				Access: []pb.MemoryRegion_Access{pb.MemoryRegion_ACCESS_LOCAL_WRITE, pb.MemoryRegion_ACCESS_REMOTE_WRITE, pb.MemoryRegion_ACCESS_REMOTE_READ}}}))
		ends[i].qp = must[*pb.QueuePair](t)(h.qp.CreateQueuePair(ctx, &pb.CreateQueuePairRequest{Parent: card, QueuePairId: "q",
			QueuePair: &pb.QueuePair{ProtectionDomain: pd.Name, Port: port, Type: pb.QueuePair_TYPE_RC}}))
		if ends[i].qp.State != pb.QueuePair_STATE_INIT || ends[i].qp.LocalEndpoint.GetQpn() == 0 {
			t.Fatalf("queue pair is %v", ends[i].qp)
		}
	}
	for i := range ends {
		q := must[*pb.QueuePair](t)(h.qp.ConnectQueuePair(ctx, &pb.ConnectQueuePairRequest{Name: ends[i].qp.Name, RemoteEndpoint: ends[1-i].qp.LocalEndpoint}))
		if q.State != pb.QueuePair_STATE_RTS || q.Attributes.GetPathMtuBytes() == 0 {
			t.Fatalf("connected queue pair is %v", q)
		}
	}
	data := bytes.Repeat([]byte("accelfab"), 4096)
	must[*pb.WriteBufferResponse](t)(h.transfer.WriteBuffer(ctx, &pb.WriteBufferRequest{Name: ends[0].b.Name, Data: data}))
	must[*pb.PostWorkResponse](t)(h.transfer.PostWork(ctx, &pb.PostWorkRequest{Name: ends[0].qp.Name, Requests: []*pb.WorkRequest{{
		WrId: 5, Opcode: pb.WorkRequest_OPCODE_RDMA_WRITE, Signaled: true, RemoteAddress: ends[1].mr.Iova + 4096, Rkey: ends[1].mr.Rkey,
		Sges: []*pb.WorkRequest_Sge{{Lkey: ends[0].mr.Lkey, Address: ends[0].mr.Iova, LengthBytes: uint32(len(data))}}}}}))
	got := must[*pb.PollCompletionsResponse](t)(h.transfer.PollCompletions(ctx, &pb.PollCompletionsRequest{Name: ends[0].qp.Name, Wait: durationpb.New(10 * time.Second)}))
	if len(got.Completions) != 1 || got.Completions[0].WrId != 5 || got.Completions[0].Status != pb.CompletionStatus_COMPLETION_STATUS_SUCCESS {
		t.Fatalf("completions %v", got)
	}
	read := must[*pb.ReadBufferResponse](t)(h.transfer.ReadBuffer(ctx, &pb.ReadBufferRequest{Name: ends[1].b.Name, OffsetBytes: 4096}))
	if len(read.Data) != 65536-4096 || !bytes.Equal(read.Data[:len(data)], data) {
		t.Errorf("read %d bytes that are not those written", len(read.Data))
	}
	if _, err := h.session.DeleteSession(ctx, &pb.DeleteSessionRequest{Name: session.Name}); err != nil {
		t.Fatal(err)
	}
	left := must[*pb.ListQueuePairsResponse](t)(h.qp.ListQueuePairs(ctx, &pb.ListQueuePairsRequest{Parent: "nodes/local/devices/-"}))
	if len(left.QueuePairs) != 0 {
		t.Errorf("left: %v", left)
	}
}
