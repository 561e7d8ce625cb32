package fabric

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/accelfab/accelfab/device"
)

// MemoryExport is a range of a buffer that other devices may reach. Opened,
// Held, Segments and Attachments are as the device last told.
type MemoryExport struct {
	Meta
	Session  string
	Buffer   string
	Offset   uint64 // bytes into the buffer
	Length   uint64 // bytes
	TTL      time.Duration
	Expires  time.Time // zero without a TTL
	Fetchers []Fetcher

	State       State
	Condition   Condition
	Segments    []device.Segment
	Attachments []Attachment
	Held        int    // descriptors that are open somewhere
	Fetches     uint64 // since the daemon started
	LastFetch   time.Time
	Mappable    bool
	Orphan      string // why nobody seems to need it: one of the Orphan constants
	OrphanSince time.Time
}

// Why an export is an orphan.
const (
	OrphanUnfetched = "NEVER_FETCHED"
	OrphanAbandoned = "ABANDONED" // descriptors closed, nothing attached
	OrphanSession   = "SESSION_DIED"
)

// Fetcher is who may fetch a descriptor, beside the owner: one field is set.
type Fetcher struct {
	UID     *uint32
	GID     *uint32
	Session string // its owner
}

// Attachment is an importer's hold on an export.
type Attachment struct {
	Device string
	Region string // empty where no record knows it
	device.Attachment
}

// CreateMemoryExport asks for an export. Its session is that of the buffer.
type CreateMemoryExport struct {
	Create
	Buffer   string
	Offset   uint64 // bytes, whole pages
	Length   uint64 // bytes, whole pages; 0 means to the end of the buffer
	TTL      time.Duration
	Fetchers []Fetcher
}

// giving is what an export's record has in memory.
type giving struct {
	imports   map[*record]bool // regions made of it, of whatever session
	ttl       time.Duration    // end on the uptime clock; 0: none
	expires   time.Time
	fetches   uint64
	lastFetch time.Time
	orphan    string
	orphaned  time.Duration // since when, on the uptime clock
	since     time.Time     // the same for people
}

// maxFetchers bounds who may fetch.
const maxFetchers = 64

// startGiving begins the life of an export that was made or loaded: it gets one
// full ttl.
func (f *Fabric) startGiving(r *record) {
	r.given = &giving{imports: map[*record]bool{}}
	if ttl := time.Duration(r.ExportAsk.TTL); ttl > 0 {
		r.given.ttl, r.given.expires = f.cfg.Uptime()+ttl, time.Now().Add(ttl)
	}
}

// CreateMemoryExport exports a range of a buffer.
func (f *Fabric) CreateMemoryExport(ctx context.Context, c Caller, r CreateMemoryExport) (MemoryExport, error) {
	const op = "CreateMemoryExport"
	var out MemoryExport
	err := f.create(ctx, creation{op, c, r.RequestID, r.ValidateOnly, r, func() ([]*record, error) {
		e, err := f.buildExport(c, op, &r)
		return []*record{e}, err
	}}, func(recs []*record) { out = f.viewExport(recs[0]) })
	f.lookAtExports() // its ttl may be the next to end
	return out, err
}

func (f *Fabric) buildExport(c Caller, op string, r *CreateMemoryExport) (*record, error) {
	var v violations
	if r.Buffer == "" {
		v.required("buffer", "want "+f.pattern(kindBuffer))
	}
	if r.TTL != 0 {
		checkTTL(&v, r.TTL)
	}
	fetchers := f.askFetchers(&v, r.Fetchers)
	var buf *record
	e, err := f.buildObject(c, op, kindExport, &r.Create, &v, func() (*record, error) {
		var err error
		if buf, err = f.findUsable(c, op, kindBuffer, "buffer", r.Buffer); err != nil {
			return nil, err
		}
		return buf.sess, nil
	})
	if err != nil {
		return nil, err
	}
	page := e.card.info.Limits.ExportPage
	if page == 0 || !slices.Contains(e.card.info.Capabilities, device.CapExport) {
		return nil, &Error{Op: op, Name: e.card.name, Field: "parent", Reason: Unsupported, Message: "the device exports no memory",
			Details: map[string]string{"capability": string(device.CapExport)}}
	}
	if buf.card != e.card {
		v.invalid("buffer", buf.name+" is on another device than "+e.card.name)
	}
	length := checkPages(&v, r.Offset, r.Length, buf.BufferAsk.Size, page)
	if err := v.err(op, ""); err != nil {
		return nil, err
	}
	e.buf = buf
	e.ExportAsk = &exportAsk{Buffer: buf.id, Offset: r.Offset, Length: length, TTL: int64(r.TTL), Fetchers: fetchers}
	f.startGiving(e)
	return e, nil
}

// checkPages checks a range of whole pages inside a buffer, and gives its
// length.
func checkPages(v *violations, offset, length, size, page uint64) uint64 {
	if offset%page != 0 {
		v.invalid("offset_bytes", fmt.Sprintf("%d: want a multiple of the device's export page, %d", offset, page))
	}
	switch {
	case offset >= size:
		v.invalid("offset_bytes", fmt.Sprintf("%d: want less than the buffer's %d bytes", offset, size))
	case length > size-offset:
		v.invalid("length_bytes", fmt.Sprintf("%d: from offset %d the buffer has %d bytes", length, offset, size-offset))
	case length == 0:
		if length = size - offset; length%page != 0 {
			v.invalid("length_bytes", fmt.Sprintf("from offset %d the buffer has %d bytes, no multiple of the device's export page, %d: give a length that is, or make the buffer of whole pages",
				offset, length, page))
		}
		return length
	}
	if length%page != 0 {
		v.invalid("length_bytes", fmt.Sprintf("%d: want a multiple of the device's export page, %d", length, page))
	}
	return length
}

// askFetchers checks who may fetch. Fabric.mu is held.
func (f *Fabric) askFetchers(v *violations, list []Fetcher) []fetcherAsk {
	if len(list) > maxFetchers {
		v.invalid("fetchers", fmt.Sprintf("%d: want at most %d", len(list), maxFetchers))
		return nil
	}
	var out []fetcherAsk
	for i, x := range list {
		field := fmt.Sprintf("fetchers[%d]", i)
		ask := fetcherAsk{UID: x.UID, GID: x.GID}
		switch {
		case x.UID == nil && x.GID == nil && x.Session == "":
			v.required(field, "want uid, gid or session")
		case x.UID != nil && *x.UID == math.MaxUint32, x.GID != nil && *x.GID == math.MaxUint32:
			v.invalid(field, "4294967295 is nobody's id")
		case x.Session != "":
			full, ok := f.object(kindSession, x.Session)
			s := f.idx.byName[full]
			if !ok || s == nil || !s.committed {
				v.invalid(field+".session", fmt.Sprintf("%q: want a session that is there, %s", x.Session, f.pattern(kindSession)))
				continue
			}
			uid := s.UID
			ask.Session, ask.SessionUID = full, &uid
		}
		out = append(out, ask)
	}
	return out
}

// mayFetch says whether c may fetch a descriptor of r: the owner, and who is
// named. Fabric.mu is held.
func (f *Fabric) mayFetch(c Caller, r *record) bool {
	if f.owns(c, r) {
		return true
	}
	for _, x := range r.ExportAsk.Fetchers {
		switch {
		case x.UID != nil:
			if c.HasPeer && c.UID == *x.UID {
				return true
			}
		case x.GID != nil:
			if c.HasPeer && (c.GID == *x.GID || slices.Contains(c.Groups, *x.GID)) {
				return true
			}
		case x.SessionUID != nil:
			s := f.idx.byName[x.Session]
			if s != nil && s.UID == *x.SessionUID && s.state() == StateActive && f.owns(c, s) {
				return true
			}
		}
	}
	return false
}

func (f *Fabric) viewExport(r *record) MemoryExport {
	a, g := r.ExportAsk, r.given
	v := MemoryExport{Meta: r.meta(), Session: r.sess.name, Buffer: r.buf.name, Offset: a.Offset, Length: a.Length, TTL: time.Duration(a.TTL),
		Expires: g.expires, State: r.state(), Condition: r.condition(), Fetches: g.fetches, LastFetch: g.lastFetch}
	for _, x := range a.Fetchers {
		v.Fetchers = append(v.Fetchers, Fetcher{x.UID, x.GID, x.Session})
	}
	if r.there {
		x := r.is.export
		v.Segments, v.Held, v.Mappable = x.Segments, x.Held, x.Mappable
		for _, at := range x.Attachments {
			if !r.is.revoked { // else they hold nothing
				v.Attachments = append(v.Attachments, f.viewAttachment(at))
			}
		}
	}
	switch {
	case r.sess.life.lost: // it goes when the lease of the session ends
		v.Orphan = OrphanSession
	case v.State == StateActive:
		v.Orphan, v.OrphanSince = g.orphan, g.since
	}
	return v
}

func (f *Fabric) viewAttachment(at device.Attachment) Attachment {
	v := Attachment{Device: f.nameOf(at.Importer), Attachment: at}
	if m := f.idx.byUID[at.Region]; m != nil {
		v.Region = m.name
	}
	return v
}

// revokedCondition says why an export is revoked.
func revokedCondition(r *record) Condition {
	why := "it was revoked"
	switch r.Cause {
	case CauseExpired:
		why = "its ttl of " + time.Duration(r.ExportAsk.TTL).String() + " ended"
	case CauseOrphan:
		why = "nobody needed it"
	}
	return Condition{Reason: ExportRevoked, Message: why + ": nothing reaches its memory by it; delete it"}
}

// GetMemoryExport reads an export, with what the device says of it now.
func (f *Fabric) GetMemoryExport(ctx context.Context, c Caller, name string) (MemoryExport, error) {
	const op = "GetMemoryExport"
	f.mu.RLock()
	r, err := f.find(c, op, kindExport, "name", name)
	f.mu.RUnlock()
	if err != nil {
		return MemoryExport{}, err
	}
	// Where the device does not answer, what it last told does.
	_ = r.card.readExports(ctx)
	return get(f, c, op, kindExport, name, f.viewExport)
}

// ListMemoryExports lists the exports that the caller may see.
func (f *Fabric) ListMemoryExports(ctx context.Context, c Caller, r List, match func(*MemoryExport) bool) (Page[MemoryExport], error) {
	f.readAllExports(ctx)
	return page(f, c, "ListMemoryExports", kindExport, r, match, f.viewExport)
}

// DeleteMemoryExport destroys an export. IN_USE while regions are made of it
// that it has not cut off.
func (f *Fabric) DeleteMemoryExport(ctx context.Context, c Caller, r Delete) error {
	return f.remove(ctx, c, "DeleteMemoryExport", kindExport, r.ValidateOnly, []Delete{r})
}

// unattached refuses to delete an export by which regions reach its memory.
// Fabric.mu is held.
func (f *Fabric) unattached(op string, r *record) error {
	var names []string
	for m := range r.given.imports {
		if !m.take.cut && m.state() != StateLost {
			names = append(names, m.name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	e := &Error{Op: op, Name: r.name, Reason: InUse, Details: map[string]string{"count": itoa(len(names))}, Shortage: &Shortage{Kind: "children"}}
	e.Message = fmt.Sprintf("%d memory regions are made of it; revoke it, or delete them, first", len(names))
	for i, name := range names[:min(len(names), 5)] {
		e.Message += []string{": ", ", "}[min(i, 1)] + name
		e.Shortage.Holders = append(e.Shortage.Holders, Holder{Name: name})
	}
	return e
}

// RevokeMemoryExport ends all access by an export. When it returns without
// error nothing reaches the memory by it any more.
func (f *Fabric) RevokeMemoryExport(ctx context.Context, c Caller, r Update) (MemoryExport, error) {
	const op = "RevokeMemoryExport"
	var out MemoryExport
	var e *record
	var ch *change
	err := f.withIdle(ctx, op, func() ([]*record, error) {
		x, err := f.find(c, op, kindExport, "name", r.Name)
		if err == nil {
			err = checkETag(op, r.ETag, x)
		}
		e = x
		return []*record{x}, err
	}, func(recs []*record) error {
		switch {
		case e.gone():
			return &Error{Op: op, Name: e.name, Reason: StateInvalid, Message: "it is being deleted", Details: map[string]string{"state": string(StateDeleting)}}
		case e.there && e.is.export.Mappable:
			return &Error{Op: op, Name: e.name, Reason: Unsupported, Message: "its descriptor is a dma-buf that its holders may have mapped, which nobody can take back; have them close it and delete the export",
				Details: map[string]string{"capability": string(device.CapMappable)}}
		case r.ValidateOnly || e.state() == StateRevoked:
			out = f.viewExport(e)
			return nil
		}
		ch = newChange(changeRevoke, op, c.Identity, recs)
		ch.claim()
		return f.markRevoked(ch, CauseRequested)
	})
	if err != nil || ch == nil {
		return out, err
	}
	if err := f.wait(ctx, ch); err != nil {
		return out, err
	}
	return get(f, c, op, kindExport, r.Name, f.viewExport)
}

// markRevoked records that the one export of ch, which is claimed, is to be
// revoked, and lets its device do it. What cannot be recorded is not asked.
// Fabric.mu is held, but not during the commit.
func (f *Fabric) markRevoked(ch *change, cause Reason) error {
	r := ch.records[0]
	if r.ExportAsk.Revoked { // recorded before, and not done yet
		r.card.push(r)
		return nil
	}
	before := r.stored
	ev := r.event(EventChanged, ch.actor, cause)
	ev.Before, ev.After = r.label(), string(StateRevoking)
	r.stored = r.with(func(s *stored) {
		ask := *s.ExportAsk
		ask.Revoked = true
		s.ExportAsk, s.Cause = &ask, cause
	})
	var change Change
	err := change.put(r)
	if err == nil {
		err = change.event(ev)
	}
	if err == nil {
		err = f.record(ch, change)
	}
	if err != nil {
		r.stored = before
		ch.release()
	}
	return err
}
