package soft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/accelfab/accelfab/device"
)

// maxExports bounds the exports of a card, maxHeld the descriptors of one export
// that are open at a time: each costs the process one of its own.
const (
	maxExports = 65536
	maxHeld    = 1024
)

// export is a range of a buffer that other cards may reach. Guarded by bus.mu.
type export struct {
	device.ExportSpec
	card    *card
	buffer  *buffer // its range stays while the export is not revoked
	revoked bool
	opened  uint64
	tokens  map[*token]struct{} // that are held
	dmabuf  *dmabuf             // what it gives in the place of tokens, or nil
	// attachments are in the order in which they came.
	attachments []*attachment
}

// What a card without accelerator memory answers.
var (
	errNoExport = fmt.Errorf("exporting memory of a NIC: %w", errors.ErrUnsupported)
	errNoMove   = fmt.Errorf("moving memory of a NIC: %w", errors.ErrUnsupported)
)

// exporter says why the card exports nothing now, if so.
func (c *card) exporter(ctx context.Context) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	if c.info.Limits.ExportPage == 0 {
		return errNoExport
	}
	return nil
}

func (c *card) checkExport(spec *device.ExportSpec) error {
	switch page := c.info.Limits.ExportPage; {
	case spec.Length == 0:
		return invalid("length", "is 0: exports are made of whole pages of %d bytes", page)
	case spec.Length%page != 0:
		return invalid("length", "%d bytes: exports are made of whole pages of %d bytes", spec.Length, page)
	case spec.Address%page != 0:
		return invalid("address", "%#x: exports are made of whole pages, so it must be a multiple of %d", spec.Address, page)
	case spec.Address+spec.Length < spec.Address:
		return invalid("length", "%d bytes from %#x end behind the largest address", spec.Length, spec.Address)
	}
	return nil
}

// CreateExport implements device.Exports.
func (c *card) CreateExport(ctx context.Context, spec device.ExportSpec) (device.Export, error) {
	if err := c.exporter(ctx); err != nil {
		return device.Export{}, err
	}
	c.gate.RLock()
	defer c.gate.RUnlock()
	localBus.mu.Lock()
	defer localBus.mu.Unlock()
	if !localBus.has(c) {
		return device.Export{}, device.ErrClosed
	}
	if old := c.exports[spec.UID]; old != nil {
		if old.ExportSpec != spec {
			return device.Export{}, fmt.Errorf("export of %d bytes at %#x: %w", old.Length, old.Address, device.ErrExists)
		}
		return old.read(), nil
	}
	if err := c.checkExport(&spec); err != nil {
		return device.Export{}, err
	}
	if len(c.exports) >= maxExports {
		return device.Export{}, &device.LimitError{Kind: "memory_exports", Asked: 1, Limit: maxExports}
	}
	buf, err := c.memory.hold(&spec)
	if err != nil {
		return device.Export{}, err
	}
	e := &export{ExportSpec: spec, card: c, buffer: buf, tokens: make(map[*token]struct{})}
	if c.udmabuf != nil {
		// Nobody moves the buffer: that takes bus.mu.
		if e.dmabuf, err = c.newDMABuf(buf.place(spec.Address), spec.Length); err != nil {
			c.memory.letGo(buf, spec.UID)
			return device.Export{}, err
		}
		localBus.dmabufs[e.dmabuf.inode] = e
	}
	c.exports[spec.UID] = e
	return e.read(), nil
}

// read describes an export. bus.mu is held.
func (e *export) read() device.Export {
	x := device.Export{
		UID: e.UID, Address: e.Address, Length: e.Length, Revoked: e.revoked,
		Opened: e.opened, Held: len(e.tokens), Mappable: e.dmabuf != nil,
	}
	if e.dmabuf != nil {
		x.Held = e.dmabuf.held()
	}
	if !e.revoked {
		longest := uint64(0)
		for _, a := range e.attachments {
			if n := a.importer.importing.segment; longest == 0 || n < longest {
				longest = n
			}
		}
		x.Segments = e.segments(0, e.Length, longest)
	}
	for _, a := range e.attachments {
		x.Attachments = append(x.Attachments, a.read())
	}
	return x
}

// ListExports implements device.Exports.
func (c *card) ListExports(ctx context.Context) ([]device.Export, error) {
	if err := c.exporter(ctx); err != nil {
		return nil, err
	}
	localBus.mu.Lock()
	defer localBus.mu.Unlock()
	list := make([]device.Export, 0, len(c.exports))
	for _, e := range c.exports {
		list = append(list, e.read())
	}
	return list, nil
}

// export finds one. bus.mu is held.
func (c *card) export(uid device.UID) (*export, error) {
	if e := c.exports[uid]; e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("export: %w", device.ErrNotFound)
}

// OpenExport implements device.Exports.
func (c *card) OpenExport(ctx context.Context, uid device.UID) (*os.File, error) {
	if err := c.exporter(ctx); err != nil {
		return nil, err
	}
	localBus.mu.Lock()
	defer localBus.mu.Unlock()
	e, err := c.export(uid)
	switch {
	case err != nil:
		return nil, err
	case e.revoked:
		return nil, fmt.Errorf("export of %d bytes at %#x: %w", e.Length, e.Address, device.ErrRevoked)
	case len(e.tokens) >= maxHeld:
		return nil, &device.LimitError{Kind: "export_descriptors", Asked: 1, Limit: maxHeld, Detail: "so many of this export are open"}
	case len(localBus.tokens) >= localBus.keeper.most:
		return nil, &device.LimitError{Kind: "export_descriptors", Asked: 1, Limit: uint64(localBus.keeper.most), Detail: "so many of all exports are open"}
	}
	var f *os.File
	if e.dmabuf != nil {
		f, err = e.dmabuf.open()
	} else {
		f, err = localBus.open(e)
	}
	if err == nil {
		e.opened++
	}
	return f, err
}

// FindExport implements device.Exports.
func (c *card) FindExport(ctx context.Context, f *os.File) (device.UID, error) {
	if err := c.exporter(ctx); err != nil {
		return device.UID{}, err
	}
	m, err := readMark(f)
	if err != nil {
		return device.UID{}, fmt.Errorf("descriptor: %w", err)
	}
	localBus.mu.Lock()
	defer localBus.mu.Unlock()
	e, err := localBus.exportOf(m)
	if err == nil && e.card != c {
		err = fmt.Errorf("it is of %s, and an export of %s: %w", e.card.info.ID, c.info.ID, device.ErrNotFound)
	}
	if err != nil {
		return device.UID{}, err
	}
	return e.UID, nil
}

// RevokeExport implements device.Exports.
func (c *card) RevokeExport(ctx context.Context, uid device.UID) error {
	if err := c.exporter(ctx); err != nil {
		return err
	}
	localBus.mu.Lock()
	defer localBus.mu.Unlock()
	e, err := c.export(uid)
	if err != nil || e.revoked {
		return err
	}
	defer c.memoryChanged()
	if e.dmabuf != nil {
		e.cutOff()
		return fmt.Errorf("export of %d bytes at %#x: it is a dma-buf, which holders may have mapped: %w", e.Length, e.Address, errors.ErrUnsupported)
	}
	e.revoke()
	return nil
}

// cutOff ends all attachments. bus.mu is held.
func (e *export) cutOff() {
	for _, a := range e.attachments {
		a.cutOff()
	}
	e.attachments = nil
}

// revoke cuts importers off. Nothing reaches the memory by the export when it
// returns, and the buffer may be freed. bus.mu is held.
func (e *export) revoke() {
	e.revoked = true
	e.cutOff()
	e.card.memory.letGo(e.buffer, e.UID)
}

// DestroyExport implements device.Exports.
func (c *card) DestroyExport(ctx context.Context, uid device.UID) error {
	if err := c.exporter(ctx); err != nil {
		return err
	}
	localBus.mu.Lock()
	defer localBus.mu.Unlock()
	e, err := c.export(uid)
	if err != nil {
		return err
	}
	if n := len(e.attachments); n > 0 {
		return fmt.Errorf("export of %d bytes at %#x: %d memory regions are made of it, the first on %s: %w",
			e.Length, e.Address, n, e.attachments[0].importer.info.ID, device.ErrBusy)
	}
	e.forget()
	return nil
}

// forget ends an export that is not attached, and its tokens. bus.mu is held.
func (e *export) forget() {
	if !e.revoked {
		e.revoke()
	}
	for t := range e.tokens {
		localBus.release(t)
	}
	if e.dmabuf != nil {
		delete(localBus.dmabufs, e.dmabuf.inode)
		e.dmabuf.file.Close()
	}
	delete(e.card.exports, e.UID)
}

// forgetExports ends all exports of a card. bus.mu is held.
func (c *card) forgetExports() {
	for _, e := range c.exports {
		e.forget()
	}
}

// detach takes one attachment off. bus.mu is held.
func (e *export) detach(a *attachment) {
	if i := slices.Index(e.attachments, a); i >= 0 {
		e.attachments = slices.Delete(e.attachments, i, i+1)
		e.card.memoryChanged()
	}
}
