package fabric_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/accelfab/accelfab/device"
)

// bus is where the fake cards meet: what they export, and who took it. Its lock
// comes before that of a card.
var bus = struct {
	mu      sync.Mutex
	exports map[device.UID]*fakeExport
	imports map[device.UID]*fakeImport // by region
}{exports: map[device.UID]*fakeExport{}, imports: map[device.UID]*fakeImport{}}

type fakeExport struct {
	device.Export
	card   *card
	tokens []os.FileInfo
}

type fakeImport struct {
	export *fakeExport
	card   *card
	spec   device.ImportSpec
	since  time.Time
}

// attached says whether the region is still there and has access. bus.mu is
// held.
func (i *fakeImport) attached() bool {
	i.card.mu.Lock()
	defer i.card.mu.Unlock()
	r, ok := i.card.regions[i.spec.UID]
	return ok && !r.Revoked
}

// view is the export as it is told. bus.mu is held.
func (e *fakeExport) view() device.Export {
	v := e.Export
	for _, i := range bus.imports {
		if i.export == e && i.attached() {
			v.Attachments = append(v.Attachments, device.Attachment{Importer: i.card.info.ID, Region: i.spec.UID, Offset: i.spec.Offset, Length: i.spec.Length,
				Dynamic: !i.card.pins, Since: i.since})
		}
	}
	return v
}

func (c *card) refusal(method string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refuse[method]
}

func (c *card) CreateExport(_ context.Context, s device.ExportSpec) (device.Export, error) {
	if err := c.refusal("CreateExport"); err != nil {
		return device.Export{}, err
	}
	bus.mu.Lock()
	defer bus.mu.Unlock()
	e := bus.exports[s.UID]
	if e == nil {
		e = &fakeExport{card: c, Export: device.Export{UID: s.UID, Address: s.Address, Length: s.Length, Mappable: c.mappable,
			Segments: []device.Segment{{Address: s.Address, Bus: s.Address + 1<<40, Length: s.Length}}}}
		bus.exports[s.UID] = e
	}
	return e.view(), nil
}

func (c *card) ListExports(context.Context) ([]device.Export, error) {
	bus.mu.Lock()
	defer bus.mu.Unlock()
	var out []device.Export
	for _, e := range bus.exports {
		if e.card == c {
			out = append(out, e.view())
		}
	}
	return out, nil
}

// OpenExport gives an end of a pipe, which stands for the export.
func (c *card) OpenExport(_ context.Context, uid device.UID) (*os.File, error) {
	if c.opening != nil {
		<-c.opening
	}
	bus.mu.Lock()
	defer bus.mu.Unlock()
	e := bus.exports[uid]
	if e == nil {
		return nil, device.ErrNotFound
	}
	if e.Revoked {
		return nil, device.ErrRevoked
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	w.Close()
	info, err := r.Stat()
	if err != nil {
		return nil, err
	}
	e.tokens = append(e.tokens, info)
	e.Opened++
	e.Held++
	return r, nil
}

// closed is the last holder's close of a descriptor.
func (c *card) closed(uid device.UID) {
	bus.mu.Lock()
	bus.exports[uid].Held--
	bus.mu.Unlock()
	c.hint(device.Event{Kind: device.MemoryChanged})
}

// tokenOf finds the export of a descriptor. bus.mu is held.
func tokenOf(f *os.File) *fakeExport {
	info, err := f.Stat()
	if err != nil {
		return nil
	}
	for _, e := range bus.exports {
		for _, t := range e.tokens {
			if os.SameFile(t, info) {
				return e
			}
		}
	}
	return nil
}

func (c *card) FindExport(_ context.Context, f *os.File) (device.UID, error) {
	bus.mu.Lock()
	defer bus.mu.Unlock()
	if e := tokenOf(f); e != nil && e.card == c {
		return e.UID, nil
	}
	return device.UID{}, device.ErrNotFound
}

func (c *card) RevokeExport(_ context.Context, uid device.UID) error {
	if err := c.refusal("RevokeExport"); err != nil {
		return err
	}
	bus.mu.Lock()
	defer bus.mu.Unlock()
	e := bus.exports[uid]
	if e == nil {
		return device.ErrNotFound
	}
	e.cut()
	return nil
}

// cut ends the access of all that import it. bus.mu is held.
func (e *fakeExport) cut() {
	e.Revoked = true
	for _, i := range bus.imports {
		if i.export != e {
			continue
		}
		i.card.mu.Lock()
		if r, ok := i.card.regions[i.spec.UID]; ok {
			r.Revoked = true
			i.card.regions[i.spec.UID] = r
		}
		i.card.mu.Unlock()
	}
}

func (c *card) DestroyExport(_ context.Context, uid device.UID) error {
	if err := c.refusal("DestroyExport"); err != nil {
		return err
	}
	bus.mu.Lock()
	defer bus.mu.Unlock()
	e := bus.exports[uid]
	if e == nil {
		return device.ErrNotFound
	}
	if len(e.view().Attachments) > 0 {
		return device.ErrBusy
	}
	delete(bus.exports, uid)
	return nil
}

func (c *card) Import(_ context.Context, s device.ImportSpec, f *os.File) (device.Region, error) {
	if err := c.refusal("Import"); err != nil {
		return device.Region{}, err
	}
	bus.mu.Lock()
	defer bus.mu.Unlock()
	e := tokenOf(f)
	if e == nil {
		return device.Region{}, device.ErrNotFound
	}
	if e.Revoked {
		return device.Region{}, device.ErrRevoked
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.regions[s.UID]
	if !ok {
		c.next++
		addr := s.IOVA
		if addr == 0 {
			addr = e.Address + s.Offset
		}
		r = device.Region{UID: s.UID, PD: s.PD, Address: addr, Length: s.Length, Access: s.Access, LKey: 7, RKey: 8, Imported: true}
		c.regions[s.UID] = r
		bus.imports[s.UID] = &fakeImport{e, c, s, time.Now()}
	}
	return r, nil
}

func (c *card) PeerAccess(_ context.Context, exporter string) (device.PeerAccess, error) {
	if exporter == c.info.ID {
		return device.PeerAccess{Exporter: exporter, Importer: exporter, Reachable: true, Path: "itself"}, nil
	}
	p := device.PeerAccess{Exporter: exporter, Importer: c.info.ID, Reachable: !c.walled, Path: "a test"}
	if c.walled {
		p.Path, p.Obstacle = "", "root port 00:01.0"
	}
	return p, nil
}

// errHolds is of an importer that does not let go.
var errHolds = errors.New("holds on")

// MoveBuffer waits in vain for importers if it is to fail with errHolds.
func (c *card) MoveBuffer(ctx context.Context, uid device.UID) (device.Buffer, error) {
	if err := c.refusal("MoveBuffer"); err == errHolds {
		<-ctx.Done()
		return device.Buffer{}, ctx.Err()
	} else if err != nil {
		return device.Buffer{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bufs[uid], nil
}

func (c *card) Reset(context.Context) error {
	c.wipe()
	c.hint(device.Event{Kind: device.DeviceChanged})
	return nil
}

// wipeExports is the part of wipe that is on the bus.
func (c *card) wipeExports() {
	bus.mu.Lock()
	defer bus.mu.Unlock()
	for uid, e := range bus.exports {
		if e.card == c {
			e.cut()
			delete(bus.exports, uid)
		}
	}
}
