package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// Checks of memory that is in use.

// inUse is an import that packets reach.
func (t *trial) inUse(ctx context.Context) error {
	if err := t.connect(ctx); err != nil {
		return err
	}
	return t.imports(ctx)
}

func (t *trial) through(ctx context.Context) error {
	if err := t.inUse(ctx); err != nil {
		return err
	}
	sum, err := t.source.fill(ctx)
	if err != nil {
		return err
	}
	if _, err := t.pair.requester.transfer(ctx, pb.WorkRequest_OPCODE_RDMA_WRITE, t.source, t.far); err != nil {
		return fmt.Errorf("WRITE: %w", err)
	}
	if err := t.near.holds(ctx, sum); err != nil {
		return fmt.Errorf("what WRITE wrote through the importer, read by the exporter: %w", err)
	}
	if sum, err = t.near.fill(ctx); err != nil {
		return err
	}
	if _, err := t.pair.requester.transfer(ctx, pb.WorkRequest_OPCODE_RDMA_READ, t.source, t.far); err != nil {
		return fmt.Errorf("READ: %w", err)
	}
	if err := t.source.holds(ctx, sum); err != nil {
		return fmt.Errorf("what the exporter has, by READ through the importer: %w", err)
	}
	return nil
}

// writeOne writes some bytes of the source to an address by a key, and gives how
// that ended.
func (t *trial) writeOne(ctx context.Context, length uint32, to uint64, rkey uint32) (pb.CompletionStatus, error) {
	e := t.pair.requester
	if _, err := t.client.Transfers.PostWork(ctx, &pb.PostWorkRequest{Name: e.qp.GetName(), Requests: []*pb.WorkRequest{{
		Opcode: pb.WorkRequest_OPCODE_RDMA_WRITE, Signaled: true,
		Sges:          []*pb.WorkRequest_Sge{{Lkey: t.source.region.GetLkey(), Address: t.source.region.GetIova(), LengthBytes: length}},
		RemoteAddress: to, Rkey: rkey,
	}}}); err != nil {
		return 0, err
	}
	done, err := e.completions(ctx, 1)
	if err != nil {
		return 0, err
	}
	return done[0].GetStatus(), nil
}

func (t *trial) windows(ctx context.Context) error {
	if err := t.inUse(ctx); err != nil {
		return err
	}
	page, want := t.page(), make([]byte, trialBytes)
	if err := t.client.Upload(ctx, t.near.buffer.GetName(), want); err != nil {
		return err
	}
	if _, err := t.source.fill(ctx); err != nil {
		return err
	}
	from, err := t.client.Download(ctx, t.source.buffer.GetName(), int(page))
	if err != nil {
		return err
	}
	for _, offset := range []uint64{page, 3 * page} {
		m, err := t.window(ctx, offset, page)
		if err != nil {
			return err
		}
		if m.GetLengthBytes() != page || m.GetImportSource().GetOffsetBytes() != offset {
			return fmt.Errorf("window of %d bytes at %d: the region is %v", page, offset, m)
		}
		status, err := t.writeOne(ctx, uint32(page), m.GetIova(), m.GetRkey())
		if err != nil || status != pb.CompletionStatus_COMPLETION_STATUS_SUCCESS {
			return fmt.Errorf("write of a window: %v, %w", status, err)
		}
		copy(want[offset:], from)
		for _, at := range []uint64{m.GetIova() - 1, m.GetIova() + 1} { // a byte before, a byte behind
			status, err := t.writeOne(ctx, uint32(page), at, m.GetRkey())
			if err != nil || status != pb.CompletionStatus_COMPLETION_STATUS_REM_ACCESS_ERR {
				return fmt.Errorf("write of %d bytes at %#x of a window at %#x: %v, want REM_ACCESS_ERR: %w", page, at, m.GetIova(), status, err)
			}
			if err := t.pair.again(ctx); err != nil {
				return err
			}
		}
	}
	got, err := t.client.Download(ctx, t.near.buffer.GetName(), trialBytes)
	if err == nil && string(got) != string(want) {
		err = errors.New("the buffer differs outside of the windows, or inside")
	}
	return err
}

// everyOrder ends a descriptor, the region, the export and the buffer in each
// order. What needs another is refused until that is gone.
func (t *trial) everyOrder(ctx context.Context) error {
	const descriptor, region, export, buffer = 0, 1, 2, 3
	before := map[int][]int{export: {region}, buffer: {region, export}}
	for _, order := range orders(4) {
		if err := t.imports(ctx); err != nil {
			return err
		}
		f, err := t.client.FetchDescriptor(ctx, t.export.GetName())
		if err != nil {
			return err
		}
		if _, err := t.client.Memory.DeleteMemoryRegion(ctx, &pb.DeleteMemoryRegionRequest{Name: t.near.region.GetName()}); err != nil {
			return errors.Join(err, f.Close())
		}
		ends := [4]func() error{f.Close, func() error {
			_, err := t.client.Memory.DeleteMemoryRegion(ctx, &pb.DeleteMemoryRegionRequest{Name: t.far.region.GetName()})
			return err
		}, func() error {
			_, err := t.client.Memory.DeleteMemoryExport(ctx, &pb.DeleteMemoryExportRequest{Name: t.export.GetName()})
			return err
		}, func() error {
			_, err := t.client.Memory.DeleteBuffer(ctx, &pb.DeleteBufferRequest{Name: t.near.buffer.GetName()})
			return err
		}}
		if err := endInOrder(order, before, ends); err != nil {
			f.Close()
			return fmt.Errorf("descriptor, region, export and buffer in the order %v: %w", order, err)
		}
	}
	return nil
}

func endInOrder(order []int, before map[int][]int, ends [4]func() error) error {
	gone := map[int]bool{}
	for len(gone) < len(ends) {
		for _, what := range order {
			if gone[what] {
				continue
			}
			early := false
			for _, b := range before[what] {
				early = early || !gone[b]
			}
			err := ends[what]()
			switch {
			case early:
				if err := wantReason("what is needed yet", err, pb.ErrorReason_ERROR_REASON_IN_USE); err != nil {
					return err
				}
			case err != nil:
				return err
			default:
				gone[what] = true
			}
		}
	}
	return nil
}

// orders gives all orders of the numbers below n.
func orders(n int) (all [][]int) {
	if n == 0 {
		return [][]int{nil}
	}
	for _, rest := range orders(n - 1) {
		for at := range n {
			order := append([]int{}, rest[:at]...)
			all = append(all, append(append(order, n-1), rest[at:]...))
		}
	}
	return all
}

// during does something while the path writes into the import, over and over, and
// gives how the writer ended.
func (t *trial) during(ctx context.Context, do func() error) (trafficEnd, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	flowing, ended := make(chan struct{}), make(chan trafficEnd, 1)
	go func() { ended <- t.pair.requester.writeUntilRefused(ctx, t.source, t.far, flowing) }()
	select {
	case <-flowing:
	case end := <-ended:
		return end, fmt.Errorf("traffic ended before anything was done: %v: %w", end.status, end.err)
	}
	err := do()
	if err != nil {
		cancel()
	}
	end := <-ended
	return end, errors.Join(err, end.err)
}

// cutOff checks that what took the import away did: the writer was told, and
// nothing is written any more.
func (t *trial) cutOff(ctx context.Context, take func() error) error {
	if _, err := t.source.fill(ctx); err != nil {
		return err
	}
	end, err := t.during(ctx, take)
	if err != nil {
		return err
	}
	if end.status != pb.CompletionStatus_COMPLETION_STATUS_REM_ACCESS_ERR {
		return fmt.Errorf("the writer was told %v, want REM_ACCESS_ERR", end.status)
	}
	m, err := t.client.Memory.GetMemoryRegion(ctx, &pb.GetMemoryRegionRequest{Name: t.far.region.GetName()})
	if err == nil && (m.GetState() != pb.MemoryRegion_STATE_LOST || m.GetReason() == "") {
		err = fmt.Errorf("the region is %v (%q), want LOST with a reason", m.GetState(), m.GetReason())
	}
	if err != nil {
		return err
	}
	if err := t.pair.again(ctx); err != nil {
		return err
	}
	status, err := t.writeOne(ctx, trafficMessage, t.far.region.GetIova(), t.far.region.GetRkey())
	if err == nil && status != pb.CompletionStatus_COMPLETION_STATUS_REM_ACCESS_ERR {
		err = fmt.Errorf("the old R_Key over a new connection: %v, want REM_ACCESS_ERR", status)
	}
	return err
}

func (t *trial) revokedInUse(ctx context.Context) error {
	if err := t.inUse(ctx); err != nil {
		return err
	}
	if t.export.GetMappable() {
		_, err := t.client.Memory.RevokeMemoryExport(ctx, &pb.RevokeMemoryExportRequest{Name: t.export.GetName()})
		return wantReason("revoke of a mappable export", err, pb.ErrorReason_ERROR_REASON_UNSUPPORTED)
	}
	var after [32]byte
	err := t.cutOff(ctx, func() (err error) {
		if _, err = t.client.Memory.RevokeMemoryExport(ctx, &pb.RevokeMemoryExportRequest{Name: t.export.GetName()}); err == nil {
			after, err = t.near.sum(ctx)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := t.near.holds(ctx, after); err != nil {
		return fmt.Errorf("the memory changed after the revoke returned: %w", err)
	}
	if _, err := t.registry(ctx, pb.MemoryExport_STATE_REVOKED, 0); err != nil {
		return err
	}
	_, err = t.client.FetchDescriptor(ctx, t.export.GetName())
	return wantReason("fetch of a revoked export", err, pb.ErrorReason_ERROR_REASON_EXPORT_REVOKED)
}

func (t *trial) exporterGone(ctx context.Context) error {
	if err := t.inUse(ctx); err != nil {
		return err
	}
	return t.cutOff(ctx, func() error { return t.end(ctx, t.from) })
}

func (t *trial) movedInUse(ctx context.Context) error {
	switch {
	case !t.capable(t.exporter, "MOVE"):
		return notApplicable("the exporter moves no buffers")
	case t.capable(t.exporter, "MAPPABLE"):
		return notApplicable("a mappable export keeps its buffer where it is")
	}
	if err := t.inUse(ctx); err != nil {
		return err
	}
	move := func() error {
		_, err := t.client.Memory.MoveBuffer(ctx, &pb.MoveBufferRequest{Name: t.near.buffer.GetName()})
		return err
	}
	if !t.capable(t.importer, "MOVE_NOTIFY") {
		err := move()
		if client.Reason(err) == pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED {
			return notApplicable("only operators may move buffers")
		}
		return wantReason("move of what a pinned importer holds", err, pb.ErrorReason_ERROR_REASON_IN_USE)
	}
	sum, err := t.source.fill(ctx)
	if err != nil {
		return err
	}
	for range 4 {
		if err := move(); err != nil {
			if r := client.Reason(err); r == pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED || r == pb.ErrorReason_ERROR_REASON_EXHAUSTED {
				return notApplicable(client.Explain(err))
			}
			return err
		}
		if _, err := t.pair.requester.transfer(ctx, pb.WorkRequest_OPCODE_RDMA_WRITE, t.source, t.far); err != nil {
			return fmt.Errorf("WRITE after the move: %w", err)
		}
		if err := t.near.holds(ctx, sum); err != nil {
			return err
		}
	}
	stop := errors.New("enough")
	end, err := t.during(ctx, func() error {
		for range 8 {
			if err := move(); err != nil {
				return err
			}
		}
		return stop
	})
	if end.status != pb.CompletionStatus_COMPLETION_STATUS_SUCCESS {
		return fmt.Errorf("while the buffer moved the writer was told %v", end.status)
	}
	if !errors.Is(err, stop) {
		return err
	}
	return nil
}

func (t *trial) resetInUse(ctx context.Context) error {
	switch {
	case !t.disruptive:
		return notApplicable("it ends what others have on the exporter; --disruptive makes it")
	case !t.capable(t.exporter, "RESET"):
		return notApplicable("the exporter cannot be reset")
	case t.path != nil && t.path.device == t.exporter:
		return notApplicable("the way to the importer begins at the exporter")
	}
	if err := t.inUse(ctx); err != nil {
		return err
	}
	if err := t.cutOff(ctx, func() error {
		_, err := t.client.Devices.ResetDevice(ctx, &pb.ResetDeviceRequest{Name: t.exporter})
		return err
	}); err != nil {
		if client.Reason(err) == pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED {
			return notApplicable("only operators may reset devices")
		}
		return err
	}
	_, err := t.registry(ctx, pb.MemoryExport_STATE_LOST, 0)
	return err
}
