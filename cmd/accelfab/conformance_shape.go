package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// Checks of what may be exported, passed on and imported.

func (t *trial) peerAccess(ctx context.Context) error {
	a, err := t.client.Nodes.CheckPeerAccess(ctx, &pb.CheckPeerAccessRequest{Name: localNode, Exporter: t.exporter, Importer: t.importer})
	if err == nil && !a.GetReachable() {
		err = fmt.Errorf("it does not: %s", a.GetObstacle())
	}
	return err
}

// page is the granularity of exports.
func (t *trial) page() uint64 {
	for _, d := range t.devices {
		if d.GetName() == t.exporter {
			return d.GetLimits().GetExportPageBytes()
		}
	}
	return 0
}

func (t *trial) badExports(ctx context.Context) error {
	if err := t.exports(ctx); err != nil {
		return err
	}
	page := t.page()
	if page == 0 {
		return errors.New("the exporter does not say what a page of an export is")
	}
	for what, x := range map[string]*pb.MemoryExport{
		"misaligned":                 {OffsetBytes: page / 2, LengthBytes: page},
		"no whole page":              {LengthBytes: page / 2},
		"beyond the buffer":          {LengthBytes: trialBytes + page},
		"its end beyond the buffer":  {OffsetBytes: trialBytes - page, LengthBytes: 2 * page},
		"its begin at the end":       {OffsetBytes: trialBytes, LengthBytes: page},
		"offset and length overflow": {OffsetBytes: -page, LengthBytes: 2 * page},
	} {
		x.Buffer = t.near.buffer.GetName()
		_, err := t.client.Memory.CreateMemoryExport(ctx, &pb.CreateMemoryExportRequest{Parent: t.exporter, MemoryExport: x})
		if err := wantReason(what, err, pb.ErrorReason_ERROR_REASON_FIELD_INVALID, pb.ErrorReason_ERROR_REASON_OUT_OF_RANGE); err != nil {
			return err
		}
	}
	return nil
}

func (t *trial) descriptorOnly(ctx context.Context) error {
	if err := t.exports(ctx); err != nil {
		return err
	}
	f, err := t.client.FetchDescriptor(ctx, t.export.GetName())
	if err != nil {
		return err
	}
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var wrong error
	err = raw.Control(func(fd uintptr) { wrong = t.onlyPassedOn(int(fd)) })
	return errors.Join(err, wrong)
}

// onlyPassedOn tries what else a holder might do with a descriptor.
func (t *trial) onlyPassedOn(fd int) error {
	syscall.SetNonblock(fd, true) // reading shall not wait for what never comes
	if n, err := syscall.Read(fd, make([]byte, 64)); n > 0 {
		return fmt.Errorf("%d bytes can be read of it (%v)", n, err)
	}
	if t.export.GetMappable() {
		return nil // a dma-buf of the kernel's, which may be mapped
	}
	if g, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDWR, 0); err == nil {
		g.Close()
		return errors.New("it can be opened again by way of /proc")
	}
	if m, err := syscall.Mmap(fd, 0, int(t.page()), syscall.PROT_READ, syscall.MAP_SHARED); err == nil {
		syscall.Munmap(m)
		return errors.New("it can be mapped, and the export does not say that it is mappable")
	}
	return nil
}

func (t *trial) registered(ctx context.Context) error {
	if err := t.imports(ctx); err != nil {
		return err
	}
	m := t.far.region
	if m.GetLengthBytes() != trialBytes || m.GetRkey() == 0 || m.GetState() != pb.MemoryRegion_STATE_READY || m.GetImportSource().GetMemoryExport() != t.export.GetName() {
		return fmt.Errorf("the region is %v", m)
	}
	e, err := t.registry(ctx, pb.MemoryExport_STATE_ACTIVE, 1)
	if err != nil {
		return err
	}
	if a := e.GetAttachments()[0]; a.GetDevice() != t.importer || a.GetMemoryRegion() != m.GetName() || a.GetOffsetBytes() != 0 || a.GetLengthBytes() != trialBytes {
		return fmt.Errorf("the registry says of who is attached %v", a)
	}
	var sum uint64
	for _, s := range e.GetSegments() {
		if s.GetDeviceAddress() != t.near.buffer.GetDeviceAddress()+sum {
			return fmt.Errorf("a piece is at device address %#x, want %#x", s.GetDeviceAddress(), t.near.buffer.GetDeviceAddress()+sum)
		}
		sum += s.GetLengthBytes()
	}
	if sum != trialBytes {
		return fmt.Errorf("the pieces have %d bytes together, want %d", sum, trialBytes)
	}
	_, err = t.client.Memory.DeleteBuffer(ctx, &pb.DeleteBufferRequest{Name: t.near.buffer.GetName()})
	return wantReason("delete of a buffer that is exported", err, pb.ErrorReason_ERROR_REASON_IN_USE)
}

func (t *trial) badWindows(ctx context.Context) error {
	if err := t.imports(ctx); err != nil {
		return err
	}
	page := t.page()
	for what, w := range map[string]*pb.MemoryRegion_ImportSource{
		"begins at the end":          {OffsetBytes: trialBytes, LengthBytes: 1},
		"longer than the export":     {LengthBytes: trialBytes + 1},
		"ends beyond the export":     {OffsetBytes: page, LengthBytes: trialBytes},
		"offset and length overflow": {OffsetBytes: 1<<64 - 1, LengthBytes: 2},
		"another place in the page":  {OffsetBytes: 1, LengthBytes: page, Iova: 1 << 30},
	} {
		id, err := t.upload(ctx)
		if err != nil {
			return err
		}
		w.UploadId = id
		_, err = t.importAs(ctx, t.importer, t.pd, w)
		if err := wantReason(what, err, pb.ErrorReason_ERROR_REASON_OUT_OF_RANGE, pb.ErrorReason_ERROR_REASON_FIELD_INVALID); err != nil {
			return err
		}
	}
	_, err := t.registry(ctx, pb.MemoryExport_STATE_ACTIVE, 1)
	return err
}

func (t *trial) badUploads(ctx context.Context) error {
	if err := t.imports(ctx); err != nil {
		return err
	}
	id, err := t.upload(ctx)
	if err != nil {
		return err
	}
	if _, err := t.importAs(ctx, t.importer, t.pd, &pb.MemoryRegion_ImportSource{UploadId: id}); err != nil {
		return err
	}
	_, err = t.importAs(ctx, t.importer, t.pd, &pb.MemoryRegion_ImportSource{UploadId: id})
	if err := wantReason("an upload id that was used", err, pb.ErrorReason_ERROR_REASON_NOT_FOUND); err != nil {
		return err
	}
	none, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer none.Close()
	_, err = t.client.UploadDescriptor(ctx, none)
	return wantReason("a descriptor of /dev/null", err, pb.ErrorReason_ERROR_REASON_NOT_AN_EXPORT)
}

// unreachable tries every importer that says it cannot reach the exporter.
func (t *trial) unreachable(ctx context.Context) error {
	if err := t.exports(ctx); err != nil {
		return err
	}
	var could, cannot []string
	for _, d := range t.devices {
		a, err := t.client.Nodes.CheckPeerAccess(ctx, &pb.CheckPeerAccessRequest{Name: localNode, Exporter: t.exporter, Importer: d.GetName()})
		switch {
		case err != nil:
			return err
		case d.GetName() == t.exporter:
		case a.GetReachable():
			could = append(could, d.GetName())
		default:
			cannot = append(cannot, d.GetName())
		}
	}
	if len(cannot) == 0 {
		return notApplicable("every device of the node reaches the exporter")
	}
	for _, device := range cannot {
		if err := t.refusedBy(ctx, device, len(could) > 0); err != nil {
			return fmt.Errorf("%s: %w", short(device), err)
		}
	}
	return nil
}

// refusedBy lets a device that cannot reach the exporter try. Where others could,
// the refusal names them.
func (t *trial) refusedBy(ctx context.Context, device string, others bool) error {
	n := rdmaNode{client: t.client}
	other := *t.conformance
	other.importer, other.path = device, nil
	if err := (&trial{conformance: &other}).begin(ctx, &n); err != nil {
		return err
	}
	defer t.end(context.WithoutCancel(ctx), n)
	pd, err := n.createDomain(ctx, device)
	if err != nil {
		return err
	}
	id, err := t.upload(ctx)
	if err != nil {
		return err
	}
	_, err = t.importAs(ctx, device, pd, &pb.MemoryRegion_ImportSource{UploadId: id})
	if err := wantReason("import", err, pb.ErrorReason_ERROR_REASON_P2P_UNSUPPORTED, pb.ErrorReason_ERROR_REASON_IMPORT_UNSUPPORTED,
		pb.ErrorReason_ERROR_REASON_PATH_NOT_REACHABLE, pb.ErrorReason_ERROR_REASON_OUTSIDE_APERTURE, pb.ErrorReason_ERROR_REASON_SEGMENT_UNSUPPORTED); err != nil {
		return err
	}
	if others && client.Details(err)["alternatives"] == "" {
		return fmt.Errorf("the refusal names no device that could: %w", err)
	}
	return nil
}
