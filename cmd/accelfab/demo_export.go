package main

import (
	"context"
	"fmt"
	"time"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// demoExport is accelerator memory of the first node that its NIC reaches.
type demoExport struct {
	export *pb.MemoryExport
	near   *rdmaRegion // the memory, on the accelerator
	far    *rdmaRegion // the same memory, as a region of the NIC
	pair   rdmaPair    // from the other node to the NIC
}

// exported takes memory of an accelerator to another node by way of a NIC that
// imported it, and takes it back from the NIC while the other node writes.
func (d *demo) exported(ctx context.Context) error {
	var x demoExport
	if err := d.exportMemory(ctx, &x); err != nil {
		return err
	}
	if err := d.writeByNIC(ctx, &x); err != nil {
		return err
	}
	if err := d.revokeUnderTraffic(ctx, &x); err != nil {
		return err
	}
	return d.removeExport(ctx, &x)
}

// exportMemory exports a buffer of the accelerator, hands the descriptor to the
// NIC and connects the other node to that.
func (d *demo) exportMemory(ctx context.Context, x *demoExport) error {
	ctx, cancel := context.WithTimeout(ctx, demoCall)
	defer cancel()
	began := time.Now()
	c := d.a.client
	var err error
	if x.near, err = d.a.createRegion(ctx, d.lane.card, d.source.pd, demoBytes, d.back.region.GetAccess()); err != nil {
		return err
	}
	if x.export, err = c.Memory.CreateMemoryExport(ctx, &pb.CreateMemoryExportRequest{
		Parent: d.lane.card, MemoryExport: &pb.MemoryExport{Buffer: x.near.buffer.GetName()},
	}); err != nil {
		return fmt.Errorf("export of %s: %w", x.near.buffer.GetName(), err)
	}
	descriptor, err := c.FetchDescriptor(ctx, x.export.GetName())
	if err != nil {
		return fmt.Errorf("fetch of %s: %w", x.export.GetName(), err)
	}
	upload, err := c.UploadDescriptor(ctx, descriptor)
	descriptor.Close()
	if err != nil {
		return fmt.Errorf("upload of the descriptor of %s: %w", x.export.GetName(), err)
	}
	pd, err := d.a.createDomain(ctx, d.a.nic)
	if err != nil {
		return err
	}
	region, err := c.Memory.CreateMemoryRegion(ctx, &pb.CreateMemoryRegionRequest{Parent: d.a.nic, MemoryRegion: &pb.MemoryRegion{
		ProtectionDomain: pd,
		ImportSource:     &pb.MemoryRegion_ImportSource{UploadId: upload.GetUploadId()},
		Access:           d.target.region.GetAccess(),
	}})
	if err != nil {
		return fmt.Errorf("import of %s by %s: %w", x.export.GetName(), d.a.nic, err)
	}
	x.far = &rdmaRegion{node: &d.a.rdmaNode, card: d.a.nic, pd: pd, buffer: x.near.buffer, region: region}
	if x.pair.requester, err = d.b.createEnd(ctx, d.b.card, d.target.pd, d.b.port); err != nil {
		return err
	}
	if x.pair.responder, err = d.a.createEnd(ctx, d.a.nic, pd, d.a.nicPort); err != nil {
		return err
	}
	if err := x.pair.connect(ctx); err != nil {
		return err
	}
	took := time.Since(began)
	d.took("memory exported, imported by a NIC, and connected", took)
	d.say("%s of %s exported, its descriptor taken in by %s as %s, in %s", x.export.GetName(), x.near.buffer.GetName(), d.a.nic, region.GetName(), rounded(took))
	return d.sayExport(ctx, x, pb.MemoryExport_STATE_ACTIVE, 1)
}

// sayExport shows what the registry knows of the export, and checks it.
func (d *demo) sayExport(ctx context.Context, x *demoExport, state pb.MemoryExport_State, attached int) error {
	e, err := d.a.client.Memory.GetMemoryExport(ctx, &pb.GetMemoryExportRequest{Name: x.export.GetName()})
	if err != nil {
		return err
	}
	if e.GetState() != state || len(e.GetAttachments()) != attached {
		return fmt.Errorf("%s is %v with %d attachments, want %v with %d", e.GetName(), e.GetState(), len(e.GetAttachments()), state, attached)
	}
	text := "nobody attached"
	for _, a := range e.GetAttachments() {
		if a.GetMemoryRegion() != x.far.region.GetName() {
			return fmt.Errorf("%s is attached by %s, want %s", e.GetName(), a.GetMemoryRegion(), x.far.region.GetName())
		}
		text = fmt.Sprintf("attached by %s, %d pieces on the bus, the first at %#x", a.GetMemoryRegion(), len(e.GetSegments()), e.GetSegments()[0].GetBusAddress())
	}
	d.say("the registry: %s, %s", enum(e.GetState(), "STATE"), text)
	return nil
}

// writeByNIC writes from the other node through the NIC into the accelerator,
// and reads what is there by the accelerator.
func (d *demo) writeByNIC(ctx context.Context, x *demoExport) error {
	sum, err := d.target.fill(ctx)
	if err != nil {
		return err
	}
	const what = "RDMA WRITE between nodes, by a NIC into an accelerator"
	took, err := x.pair.requester.transfer(ctx, pb.WorkRequest_OPCODE_RDMA_WRITE, d.target, x.far)
	if err != nil {
		return err
	}
	if err := x.near.holds(ctx, sum); err != nil {
		return err
	}
	d.say("%s: %s; SHA-256 as at the source", what, d.moved(what, demoBytes, took))
	return nil
}

// revokeUnderTraffic revokes the export while the other node writes. The writer
// is told, and the memory does not change any more once the revoke returned.
func (d *demo) revokeUnderTraffic(ctx context.Context, x *demoExport) error {
	ctx, cancel := context.WithTimeout(ctx, demoCall)
	defer cancel()
	flowing, ended := make(chan struct{}), make(chan trafficEnd, 1)
	go func() { ended <- x.pair.requester.writeUntilRefused(ctx, d.target, x.far, flowing) }()
	select {
	case <-flowing:
	case end := <-ended:
		return fmt.Errorf("traffic before the revoke: %v: %w", end.status, end.err)
	}
	began := time.Now()
	if _, err := d.a.client.Memory.RevokeMemoryExport(ctx, &pb.RevokeMemoryExportRequest{Name: x.export.GetName()}); err != nil {
		return fmt.Errorf("revoke of %s: %w", x.export.GetName(), err)
	}
	took := time.Since(began)
	after, err := x.near.sum(ctx)
	if err != nil {
		return err
	}
	end := <-ended
	if end.err != nil {
		return end.err
	}
	if end.status != pb.CompletionStatus_COMPLETION_STATUS_REM_ACCESS_ERR {
		return fmt.Errorf("the writer's first failure after the revoke is %v, want REM_ACCESS_ERR", end.status)
	}
	d.took("export revoked under traffic", took)
	d.say("revoked under traffic in %s; the writer, %d MiB on, got REM_ACCESS_ERR", rounded(took), end.bytes>>20)
	if end, err = d.writeAgain(ctx, x); err != nil {
		return err
	}
	if end.bytes > 0 || end.status != pb.CompletionStatus_COMPLETION_STATUS_REM_ACCESS_ERR {
		return fmt.Errorf("over a new connection %d bytes were written and the first failure is %v, want none and REM_ACCESS_ERR", end.bytes, end.status)
	}
	if err := x.near.holds(ctx, after); err != nil {
		return fmt.Errorf("after the revoke returned the memory changed: %w", err)
	}
	d.say("the old R_Key over a new connection: REM_ACCESS_ERR; nothing was written after the revoke returned")
	if err := d.sayExport(ctx, x, pb.MemoryExport_STATE_REVOKED, 0); err != nil {
		return err
	}
	_, err = d.a.client.FetchDescriptor(ctx, x.export.GetName())
	if err := refusedWith(err, pb.ErrorReason_ERROR_REASON_EXPORT_REVOKED); err != nil {
		return fmt.Errorf("fetch of a revoked export: %w", err)
	}
	d.say("a new fetch is refused: %s", client.Explain(err))
	return nil
}

// writeAgain connects both ends anew and writes to the old address by the old
// R_Key.
func (d *demo) writeAgain(ctx context.Context, x *demoExport) (trafficEnd, error) {
	for _, e := range []*rdmaEnd{x.pair.requester, x.pair.responder} {
		if _, err := e.node.client.QueuePairs.ModifyQueuePair(ctx, &pb.ModifyQueuePairRequest{
			Name: e.qp.GetName(), TargetState: pb.QueuePair_STATE_INIT,
		}); err != nil {
			return trafficEnd{}, err
		}
	}
	if err := x.pair.connect(ctx); err != nil {
		return trafficEnd{}, err
	}
	end := x.pair.requester.writeUntilRefused(ctx, d.target, x.far, make(chan struct{}))
	return end, end.err
}

// removeExport takes down what this step made.
func (d *demo) removeExport(ctx context.Context, x *demoExport) error {
	ctx, cancel := context.WithTimeout(ctx, demoCall)
	defer cancel()
	for _, e := range []*rdmaEnd{x.pair.requester, x.pair.responder} {
		if err := e.remove(ctx); err != nil {
			return err
		}
	}
	m := d.a.client.Memory
	if _, err := m.DeleteMemoryRegion(ctx, &pb.DeleteMemoryRegionRequest{Name: x.far.region.GetName()}); err != nil {
		return err
	}
	if _, err := m.DeleteProtectionDomain(ctx, &pb.DeleteProtectionDomainRequest{Name: x.far.pd}); err != nil {
		return err
	}
	if _, err := m.DeleteMemoryExport(ctx, &pb.DeleteMemoryExportRequest{Name: x.export.GetName()}); err != nil {
		return err
	}
	return x.near.remove(ctx)
}
