package fabric

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/accelfab/accelfab/device"
)

// CreateImport says which export a region is to be made of.
type CreateImport struct {
	Upload string // what UploadDescriptor gave
	Offset uint64 // bytes into the export
	Length uint64 // bytes; 0 means to the end of the export
	// IOVA is the address of the first byte for work requests; its place in a
	// page must be that of Offset. 0 means the exporter's device address.
	IOVA uint64
}

// Import is the export that a region is made of.
type Import struct {
	Export string // name
	Offset uint64 // bytes into it
	Length uint64 // bytes
	IOVA   uint64 // asked
	Path   string // how the importer reaches it, for people
}

// taking is what the record of a region made of an export has in memory.
type taking struct {
	file *os.File // until it is made; nil for one that was loaded
	path string
	cut  bool // the export gives no access any more
}

// buildImport checks a region that is to be made of an export, and takes the
// upload. Fabric.mu is held.
func (f *Fabric) buildImport(c Caller, op string, r *CreateMemoryRegion) (*record, error) {
	in := r.Import
	var v violations
	if r.Buffer != "" {
		v.invalid("import_source", "want exactly one of buffer and import_source")
	}
	if r.Offset != 0 {
		v.invalid("offset_bytes", "want 0 with import_source: it has an offset_bytes of its own")
	}
	if r.Length != 0 {
		v.invalid("length_bytes", "want 0 with import_source: it has a length_bytes of its own")
	}
	if err := r.Access.CheckRegion(); err != nil {
		v.invalid("access", err.Error())
	}
	if r.ProtectionDomain == "" {
		v.required("protection_domain", "want "+f.pattern(kindPD))
	}
	if in.Upload == "" {
		v.required("import_source.upload_id", "want what the upload of a descriptor on the descriptor socket gave")
	}
	if (in.Offset^in.IOVA)%pageBytes != 0 && in.IOVA != 0 {
		v.invalid("import_source.iova", fmt.Sprintf("%#x: its place in a page of %d bytes must be that of offset_bytes, %d", in.IOVA, pageBytes, in.Offset%pageBytes))
	}
	var pd *record
	m, err := f.buildObject(c, op, kindRegion, &r.Create, &v, func() (*record, error) {
		var err error
		if pd, err = f.findUsable(c, op, kindPD, "protection_domain", r.ProtectionDomain); err != nil {
			return nil, err
		}
		return pd.sess, nil
	})
	if err != nil {
		return nil, err
	}
	if pd.card != m.card {
		v.invalid("protection_domain", pd.name+" is on another device than "+m.card.name)
	}
	up, err := f.upload(c, op, in.Upload)
	if err != nil {
		return nil, err
	}
	length, err := window(&v, op, in, up.exp.ExportAsk.Length)
	if err == nil {
		err = v.err(op, "")
	}
	if err != nil {
		return nil, err
	}
	m.pd, m.exp = pd, up.exp
	m.RegionAsk = &regionAsk{PD: pd.id, Offset: in.Offset, Length: length, Access: r.Access}
	m.ImportAsk = &importAsk{Export: up.exp.name, ExportUID: up.exp.UID, IOVA: in.IOVA}
	m.take = &taking{}
	if !r.ValidateOnly {
		m.take.file = f.uploads.use(in.Upload)
	}
	return m, nil
}

// window checks a part of an export, and gives its length.
func window(v *violations, op string, in *CreateImport, size uint64) (uint64, error) {
	length := in.Length
	switch {
	case in.Offset >= size:
		v.add("import_source.offset_bytes", OutOfRange, fmt.Sprintf("%d: want less than the export's %d bytes", in.Offset, size))
		return 0, v.err(op, "")
	case length > size-in.Offset:
		v.add("import_source.length_bytes", OutOfRange, fmt.Sprintf("%d: from offset %d the export has %d bytes", length, in.Offset, size-in.Offset))
		return 0, v.err(op, "")
	case length == 0:
		length = size - in.Offset
	}
	if in.IOVA+length < in.IOVA {
		v.invalid("import_source.iova", fmt.Sprintf("%#x: %d bytes from there pass the end of the addresses", in.IOVA, length))
	}
	return length, nil
}

// adoptImport takes over a loaded region that was made of an export. Its
// descriptor is gone, so what the device lost of it is lost.
func (f *Fabric) adoptImport(r *record) {
	if r.ImportAsk == nil {
		return
	}
	r.take = &taking{}
	if e := f.idx.byUID[r.ImportAsk.ExportUID]; e != nil && e.Kind == kindExport {
		r.exp = e
		r.take.cut = e.ExportAsk.Revoked
	}
}

// importing is an import that is to be asked of the device.
type importing struct {
	c        *card
	at       int
	spec     device.ImportSpec
	file     *os.File
	exporter string // id of the device
	take     *taking
}

// importing prepares an import. Fabric.mu is held.
func (c *card) importing(at int, r *record) importing {
	x := importing{c: c, at: at, file: r.take.file, take: r.take, spec: device.ImportSpec{UID: r.UID, PD: r.pd.is.pd,
		Offset: r.RegionAsk.Offset, Length: r.RegionAsk.Length, IOVA: r.ImportAsk.IOVA, Access: r.RegionAsk.Access}}
	if r.exp != nil {
		x.exporter = r.exp.card.info.ID
	}
	return x
}

func (x importing) do(ctx context.Context) (*present, error) {
	if x.file == nil {
		return nil, device.ErrNotFound
	}
	m, err := x.c.dev.Import(ctx, x.spec, x.file)
	if isNotFound(err) {
		// It stands for an export of this node, as the exporter has said: is that
		// anywhere the importer can see?
		if _, far := x.c.dev.PeerAccess(ctx, x.exporter); isNotFound(far) {
			err = &device.AttachError{Reason: device.NotReachable, Problem: x.c.id + " and " + x.exporter + " are not on the same bus"}
		}
	}
	if err != nil {
		return nil, err
	}
	path := ""
	if pa, err := x.c.dev.PeerAccess(ctx, x.exporter); err == nil {
		path = pa.Path
	}
	x.c.f.mu.Lock()
	x.take.path = path
	x.c.f.mu.Unlock()
	return presentRegion(&m), nil
}

// imported closes the descriptor of a region that was made, and tells the
// export's watchers. Fabric.mu is held.
func (f *Fabric) imported(r *record) {
	if r.take == nil {
		return
	}
	r.closeFile()
	if e := r.exp; e != nil {
		ev := e.event(EventChanged, r.owner().life.identity, CauseRequested)
		ev.Before, ev.After = e.label(), e.label()
		ev.Message = fmt.Sprintf("imported: bytes %d to %d by %s", r.RegionAsk.Offset, r.RegionAsk.Offset+r.RegionAsk.Length-1, r.name)
		f.enter(entry{events: []Event{ev}})
	}
}

func (r *record) closeFile() {
	if r.take != nil && r.take.file != nil {
		r.take.file.Close()
		r.take.file = nil
	}
}

// letGo unties a record that is forgotten from what it was made of, and from
// what was made of it. Fabric.mu is held.
func (r *record) letGo() {
	r.closeFile()
	if r.exp != nil {
		delete(r.exp.given.imports, r)
	}
	if r.given != nil {
		for m := range r.given.imports {
			m.exp = nil
		}
	}
}

// importField gives a field of device.ImportSpec the contract's name.
func importField(field string) string {
	switch field {
	case "offset", "length":
		return "import_source." + field + "_bytes"
	case "offset_bytes", "length_bytes", "iova":
		return "import_source." + field
	}
	return field
}

// attachFault adds who cannot attach what, and who could. Fabric.mu is held.
func (f *Fabric) attachFault(e *Error, r *record, a *device.AttachError) {
	e.Details = map[string]string{"importer": r.card.name}
	if r.exp != nil {
		e.Details["exporter"] = r.exp.card.name
	}
	if len(a.Alternatives) == 0 {
		e.Message += "; no device of this node could"
		return
	}
	names := make([]string, len(a.Alternatives))
	for i, id := range a.Alternatives {
		names[i] = f.nameOf(id)
	}
	e.Details["alternatives"] = strings.Join(names, ",")
	e.Message += "; these could: " + strings.Join(a.Alternatives, ", ")
}
