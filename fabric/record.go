package fabric

import (
	"slices"
	"sort"
	"sync/atomic"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// record is one resource in memory: what was asked, what the device has of it,
// and what is going on. Fabric.mu guards all of it.
type record struct {
	id   uint64
	name string
	*stored

	sess *record // owner; nil for sessions
	card *card   // nil for sessions
	pd   *record // of regions and queue pairs
	buf  *record // of regions and exports
	exp  *record // of regions made of an export; nil once that is forgotten

	committed bool    // durable; before that nobody sees it
	removed   bool    // forgotten
	op        *change // that works on it now; nobody else may change it
	settled   bool    // its part of op has ended
	queued    bool    // in its card's dirty set
	made      bool    // was on the device before, or may have been
	there     bool    // is on the device, as far as is known
	lost      bool
	leaving   bool // the keeper is about to record or forget it; its card leaves it alone
	regions   int  // in a domain or on a buffer
	qps       int  // in a domain
	exports   int  // of a buffer
	alive     int  // of these, the ones that are on the device

	work    atomic.Int32 // calls that work on it on the device, without the lock
	awaited atomic.Bool  // its destruction waits for their end

	tries   int // failed attempts of the present step
	failure Condition

	is    *present // of the device; nil if there is nothing to tell
	life  *lease   // of sessions
	given *giving  // of exports
	take  *taking  // of regions made of an export
	inbox *inbox   // of queue pairs: completions read and not yet given up
	stale bool     // of queue pairs: the device says that it changed
}

// present is what the device gave.
type present struct {
	pd     device.PD
	addr   uint64
	lkey   ib.LKey
	rkey   ib.RKey
	qpn    ib.QPN
	state  ib.QPState
	gid    ib.GID // zero until connected
	gidIx  int
	mtu    ib.MTU
	sendWR int
	recvWR int
	sge    int
	status ib.WCStatus
	reason string

	revoked bool           // of exports, and regions made of one
	export  *device.Export // of exports
}

// lease is a session's life.
type lease struct {
	identity string        // of the owner; never changes, and may be read without the lock
	deadline time.Duration // on the uptime clock
	seen     time.Time
	lost     bool // of another boot
	process  proc // that it dies with, while it lives; nil if there is none
	orphan   bool // that process has ended
	work     underWay
	draining bool // it ends, and sends that were under way may go on for a while
	drained  bool
	lists    [len(collections)]list
	use      map[*card]*Usage
	objects  int
}

// kids counts what is built on r.
func (r *record) kids() int { return r.regions + r.qps + r.exports }

// gone says whether the object is to leave the device.
func (r *record) gone() bool { return r.Deleting || r.sess != nil && r.sess.Deleting }

// list holds records in ascending order of id. Removal is lazy.
type list struct {
	recs []*record
	dead int
}

func (l *list) add(r *record) {
	// Ids are given and added under one lock, so they ascend; a load adds in
	// order too.
	l.recs = append(l.recs, r)
}

// drop counts a record that was marked removed.
func (l *list) drop() {
	l.dead++
	if l.dead < 32 || l.dead*2 < len(l.recs) {
		return
	}
	live := make([]*record, 0, len(l.recs)-l.dead)
	for _, r := range l.recs {
		if !r.removed {
			live = append(live, r)
		}
	}
	l.recs, l.dead = live, 0
}

// after calls fn for records with an id above after until it returns false.
func (l *list) after(after uint64, fn func(*record) bool) {
	i := sort.Search(len(l.recs), func(i int) bool { return l.recs[i].id > after })
	for _, r := range l.recs[i:] {
		if !r.removed && !fn(r) {
			return
		}
	}
}

// index finds records. Fabric.mu guards it.
type index struct {
	byName   map[string]*record
	byUID    map[device.UID]*record // objects on devices
	byID     map[uint64]*record
	sessions list
	requests map[requestKey]*request
	tombs    []tombstone // oldest first
	nextID   uint64
}

// tombstone is what memory keeps of a record of kindTombstone. There are many.
type tombstone struct {
	id  uint64
	at  int64 // when its object went, nanoseconds of the epoch
	key requestKey
}

// requestKey is a request id of one identity.
type requestKey struct{ identity, id string }

// request is what a request id made.
type request struct {
	sum     uint64
	records []*record
	gone    string // name of one that was deleted since
	left    int    // records and tombstones that name it
}

func newIndex() index {
	return index{byName: map[string]*record{}, byUID: map[device.UID]*record{}, byID: map[uint64]*record{},
		requests: map[requestKey]*request{}, nextID: 1}
}

// owner is the session that r belongs to, or is.
func (r *record) owner() *record {
	if r.Kind == kindSession {
		return r
	}
	return r.sess
}

// add enters a record whose references are set.
func (x *index) add(r *record) {
	x.byName[r.name] = r
	if r.id >= x.nextID {
		x.nextID = r.id + 1
	}
	if r.Kind == kindSession {
		x.byID[r.id] = r
		x.sessions.add(r)
	} else {
		if r.Kind == kindPD || r.Kind == kindBuffer {
			x.byID[r.id] = r
		}
		x.byUID[r.UID] = r
		r.card.lists[r.Kind].add(r)
		r.sess.life.lists[r.Kind].add(r)
		r.sess.life.objects++
		r.count(1)
		if r.exp != nil {
			r.exp.given.imports[r] = true
		}
	}
	if r.Request != "" {
		key := requestKey{r.owner().life.identity, r.Request}
		q := x.requests[key]
		if q == nil {
			q = &request{sum: r.Sum}
			x.requests[key] = q
		}
		q.records = append(q.records, r)
		q.left++
	}
}

// remove takes a record out. Where tomb is not nil, it stands for the record's
// request id from now on.
func (x *index) remove(r *record, tomb *record) {
	r.removed = true
	delete(x.byName, r.name)
	if r.Kind == kindSession {
		delete(x.byID, r.id)
		x.sessions.drop()
	} else {
		if r.Kind == kindPD || r.Kind == kindBuffer {
			delete(x.byID, r.id)
		}
		delete(x.byUID, r.UID)
		r.card.lists[r.Kind].drop()
		r.sess.life.lists[r.Kind].drop()
		r.sess.life.objects--
		r.count(-1)
		r.letGo()
	}
	if r.Request == "" {
		return
	}
	key := requestKey{r.owner().life.identity, r.Request}
	q := x.requests[key]
	if q == nil {
		return
	}
	for i, have := range q.records {
		if have == r {
			q.records = slices.Delete(q.records, i, i+1)
			break
		}
	}
	if len(q.records) == 0 {
		q.records = nil
	}
	if tomb != nil {
		q.gone = tomb.name
		x.tombs = append(x.tombs, tombstone{tomb.id, tomb.Gone.At, key})
		return
	}
	x.release(key, q)
}

// bury enters a tombstone that was loaded.
func (x *index) bury(tomb *record) {
	key := requestKey{tomb.Gone.Identity, tomb.Request}
	q := x.requests[key]
	if q == nil {
		q = &request{sum: tomb.Sum}
		x.requests[key] = q
	}
	q.gone = tomb.name
	q.left++
	x.tombs = append(x.tombs, tombstone{tomb.id, tomb.Gone.At, key})
	if tomb.id >= x.nextID {
		x.nextID = tomb.id + 1
	}
}

// dig takes out the oldest tombstones: all that went before a time, and as many
// as are above the most that are kept. It gives their ids.
func (x *index) dig(before int64, most int) []uint64 {
	n := max(0, len(x.tombs)-most)
	for n < len(x.tombs) && x.tombs[n].at < before {
		n++
	}
	if n == 0 {
		return nil
	}
	ids := make([]uint64, n)
	for i, t := range x.tombs[:n] {
		ids[i] = t.id
		if q := x.requests[t.key]; q != nil {
			x.release(t.key, q)
		}
	}
	x.tombs = slices.Delete(x.tombs, 0, n)
	return ids
}

// release drops one of what names a request.
func (x *index) release(key requestKey, q *request) {
	if q.left--; q.left <= 0 {
		delete(x.requests, key)
	}
}

// count keeps the sums that limits and refusals need.
func (r *record) count(n int) {
	c := r.sess.life.use[r.card]
	if c == nil {
		c = new(Usage)
		r.sess.life.use[r.card] = c
	}
	for _, u := range []*Usage{c, &r.card.usage} {
		switch r.Kind {
		case kindPD:
			u.ProtectionDomains += n
		case kindBuffer:
			u.Buffers += n
			u.BufferBytes += uint64(n) * r.BufferAsk.Size
		case kindRegion:
			u.MemoryRegions += n
		case kindQueuePair:
			u.QueuePairs += n
		case kindExport:
			u.MemoryExports += n
		}
	}
	if *c == (Usage{}) {
		delete(r.sess.life.use, r.card)
	}
	for _, up := range []*record{r.pd, r.buf} {
		switch {
		case up == nil:
		case r.Kind == kindRegion:
			up.regions += n
		case r.Kind == kindExport:
			up.exports += n
		default:
			up.qps += n
		}
	}
}

// state is the resource's state.
func (r *record) state() State {
	switch {
	case r.Kind == kindSession && r.Deleting:
		return StateClosing
	case r.Kind == kindSession && r.life.lost:
		return StateLost
	case r.Kind == kindSession:
		return StateActive
	case r.gone():
		return StateDeleting
	case r.Kind == kindExport && r.ExportAsk.Revoked && r.there && !r.is.revoked:
		return StateRevoking
	case r.Kind == kindExport && (r.ExportAsk.Revoked || r.there && r.is.revoked):
		return StateRevoked
	case r.lost, r.take != nil && r.take.cut:
		return StateLost
	case r.there && r.Kind == kindExport:
		return StateActive
	case r.there:
		return StateReady
	}
	return StatePending
}

// label is the state as events tell it: of queue pairs, the queue pair's own.
func (r *record) label() string {
	if s := r.state(); r.Kind != kindQueuePair || s != StateReady {
		return string(s)
	}
	return r.is.state.String()
}

// event begins an event about r.
func (r *record) event(t EventType, actor string, cause Reason) Event {
	o := r.owner()
	return Event{Type: t, Resource: r.name, ResourceUID: r.UID, Labels: r.Labels, Session: o.name,
		Owner: o.life.identity, Actor: actor, Reason: cause}
}
