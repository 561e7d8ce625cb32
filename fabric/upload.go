package fabric

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/accelfab/accelfab/device"
)

// Descriptors come and go here: fetched ones leave, uploaded ones wait in
// memory until a region is made of them. They are closed on every way.

// Bounds of uploads.
const (
	uploadLife = 30 * time.Second
	maxUploads = 64 // of one identity
)

// Upload is a descriptor that waits to be imported.
type Upload struct {
	ID      string // 128 random bits; good once, for the same identity
	Expires time.Time
	Export  string // name of what the descriptor stands for
	Length  uint64 // of it, bytes
}

// upload is one that waits.
type upload struct {
	identity string
	exp      *record
	file     *os.File
	timer    *time.Timer
}

// uploads are those that wait, by their ids. Fabric.mu guards them.
type uploads map[string]*upload

// use takes an upload out and gives its descriptor, the caller's from now on.
func (us uploads) use(id string) *os.File {
	u := us[id]
	u.timer.Stop()
	delete(us, id)
	return u.file
}

// drop ends an upload, if it is still there.
func (us uploads) drop(id string) {
	if us[id] != nil {
		us.use(id).Close()
	}
}

// UploadDescriptor takes in a descriptor of an export, whoever made that; it is
// closed in any case, at last when the upload ends. NOT_AN_EXPORT for any other
// descriptor.
func (f *Fabric) UploadDescriptor(ctx context.Context, c Caller, file *os.File) (Upload, error) {
	const op = "UploadDescriptor"
	u, err := f.takeUpload(ctx, op, c, file)
	if err != nil {
		file.Close()
	}
	return u, err
}

func (f *Fabric) takeUpload(ctx context.Context, op string, c Caller, file *os.File) (Upload, error) {
	uid, err := f.findExport(ctx, op, file)
	if err != nil {
		return Upload{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.idx.byUID[uid]
	switch {
	case f.closed:
		return Upload{}, f.closing(op)
	case r == nil || r.Kind != kindExport || !r.committed:
		return Upload{}, notAnExport(op)
	}
	if err := usableExport(op, r); err != nil {
		return Upload{}, err
	}
	n := 0
	for _, u := range f.uploads {
		if u.identity == c.Identity {
			n++
		}
	}
	if n >= maxUploads {
		return Upload{}, &Error{Op: op, Reason: Exhausted, Message: "so many descriptors that you uploaded wait to be used; use them, or wait until they end",
			Shortage: &Shortage{Kind: "uploads", Asked: 1, Limit: maxUploads}, RetryAfter: uploadLife}
	}
	var bits [16]byte
	rand.Read(bits[:]) // never fails (crypto/rand)
	id := hex.EncodeToString(bits[:])
	f.uploads[id] = &upload{identity: c.Identity, exp: r, file: file, timer: time.AfterFunc(uploadLife, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.uploads.drop(id)
	})}
	return Upload{ID: id, Expires: time.Now().Add(uploadLife), Export: r.name, Length: r.ExportAsk.Length}, nil
}

// findExport asks the devices which of their exports a descriptor stands for.
func (f *Fabric) findExport(ctx context.Context, op string, file *os.File) (device.UID, error) {
	var failed error
	for _, c := range f.withDevices() {
		if c.info.Limits.ExportPage == 0 {
			continue
		}
		uid, err := c.dev.FindExport(ctx, file)
		switch {
		case err == nil:
			return uid, nil
		case !isNotFound(err) && !errors.Is(err, errors.ErrUnsupported):
			failed = &Error{Op: op, Name: c.name, Reason: DeviceUnavailable, Message: "the device does not say whether the descriptor is of an export of its own", RetryAfter: time.Second, Err: err}
		}
	}
	if failed != nil {
		return device.UID{}, failed
	}
	return device.UID{}, notAnExport(op)
}

func notAnExport(op string) *Error {
	return &Error{Op: op, Field: "descriptor", Reason: NotAnExport,
		Message: "the descriptor stands for no export of this node in this boot; fetch that of an export that is ACTIVE"}
}

// usableExport says whether descriptors of r are of use. Fabric.mu is held.
func usableExport(op string, r *record) error {
	switch s := r.state(); s {
	case StateActive:
		return nil
	case StateRevoking, StateRevoked:
		return &Error{Op: op, Name: r.name, Reason: ExportRevoked, Message: "the export was revoked: nothing reaches its memory any more; make another",
			Details: map[string]string{"memory_export": r.name}}
	case StateLost:
		return &Error{Op: op, Name: r.name, Reason: Lost, Message: "the device lost the export with its memory; delete it and make another"}
	default:
		return &Error{Op: op, Name: r.name, Reason: StateInvalid, Message: "the export is " + string(s) + ": want ACTIVE",
			Details: map[string]string{"state": string(s), "asked": string(StateActive)}}
	}
}

// upload finds an upload that the caller may use. Fabric.mu is held.
func (f *Fabric) upload(c Caller, op, id string) (*upload, error) {
	const field = "import_source.upload_id"
	u := f.uploads[id]
	if u == nil {
		return nil, &Error{Op: op, Field: field, Reason: NotFound,
			Message: fmt.Sprintf("there is no such upload: an id is good once, for %v, until the export is revoked; upload the descriptor again", uploadLife)}
	}
	if u.identity != c.Identity {
		f.refused(c, u.exp, "use of an upload id that is another's")
		return nil, &Error{Op: op, Field: field, Reason: PermissionDenied, Message: fmt.Sprintf("%q did not upload it; upload the descriptor yourself", c.Identity),
			Details: map[string]string{"identity": c.Identity}}
	}
	if err := usableExport(op, u.exp); err != nil {
		err.(*Error).Field = field
		return nil, err
	}
	return u, nil
}

// FetchDescriptor gives a new descriptor of an export, which the caller closes.
// PERMISSION_DENIED to all but the owner and who is named in the export.
func (f *Fabric) FetchDescriptor(ctx context.Context, c Caller, name string) (*os.File, error) {
	const op = "FetchDescriptor"
	r, uid, err := f.fetchable(c, op, name)
	if err != nil {
		return nil, err
	}
	file, err := r.card.dev.OpenExport(ctx, uid)
	if err != nil {
		return nil, f.workFault(ctx, op, r, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	r.given.fetches++
	r.given.lastFetch, r.given.orphan = time.Now(), ""
	ev := r.event(EventChanged, c.Identity, CauseRequested)
	ev.Before, ev.After, ev.Message = r.label(), r.label(), "descriptor fetched by "+c.process()
	f.enter(entry{events: []Event{ev}})
	return file, nil
}

// fetchable resolves an export that c may fetch, and its UID: the record must
// not be read without the lock.
func (f *Fabric) fetchable(c Caller, op, name string) (*record, device.UID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, device.UID{}, f.closing(op)
	}
	// Who may fetch need not be one who may see: look as an operator does.
	r, err := f.find(Caller{Operator: true}, op, kindExport, "name", name)
	if err != nil {
		return nil, device.UID{}, err
	}
	if !f.mayFetch(c, r) {
		f.refused(c, r, "fetch of the descriptor")
		return nil, device.UID{}, &Error{Op: op, Name: r.name, Reason: PermissionDenied, Details: map[string]string{"identity": c.Identity},
			Message: fmt.Sprintf("it is another's, and %q is not among its fetchers", c.Identity)}
	}
	return r, r.UID, usableExport(op, r)
}

// process says who calls, for people.
func (c Caller) process() string {
	if !c.HasPeer {
		return c.Identity
	}
	return fmt.Sprintf("%s, pid %d", c.Identity, c.PID)
}

// refusal bounds what one identity can write into the journal of one kind.
type refusal struct {
	next   time.Time // tell none before
	untold int
}

// refusalPause is the time between two refusals of one kind that the journal
// tells of one identity; those between are counted.
const (
	refusalPause  = time.Second
	maxRefusals   = 1024
	refusalMemory = time.Minute
)

// refused tells in the journal that c was refused something about an export.
// Fabric.mu is held.
func (f *Fabric) refused(c Caller, r *record, what string) {
	now, key := time.Now(), c.Identity+"\x00"+what
	x := f.refusals[key]
	if x == nil {
		for k, old := range f.refusals {
			if now.Sub(old.next) > refusalMemory || len(f.refusals) >= maxRefusals {
				delete(f.refusals, k)
			}
		}
		x = new(refusal)
		f.refusals[key] = x
	}
	if now.Before(x.next) {
		x.untold++
		return
	}
	ev := r.event(EventChanged, c.Identity, PermissionDenied)
	ev.Before, ev.After, ev.Message = r.label(), r.label(), what+" refused to "+c.process()
	if x.untold > 0 {
		ev.Message += fmt.Sprintf(" (and %d more of this identity before)", x.untold)
	}
	x.next, x.untold = now.Add(refusalPause), 0
	f.enter(entry{events: []Event{ev}})
}

// dropDescriptors closes what is still held when the fabric is closed.
func (f *Fabric) dropDescriptors() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.uploads {
		f.uploads.drop(id)
	}
	for _, c := range f.cards {
		c.lists[kindRegion].after(0, func(r *record) bool {
			r.closeFile()
			return true
		})
	}
}
