package fabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/accelfab/accelfab/device"
)

// Config is what Open needs.
type Config struct {
	NodeID  string          // last part of the node's name
	BootID  string          // of the machine; a new one tells that device objects are gone
	Version string          // of the daemon
	Store   Store           // closed by Close
	Devices []device.Device // closed by Close; each Info().ID once
	Logger  *slog.Logger    // nil: none
	// Uptime is a clock that counts while the machine sleeps; leases run on
	// it. nil means the system's (CLOCK_BOOTTIME on Linux).
	Uptime func() time.Duration
	// ClockSynchronized says whether something keeps the wall clock right; nil
	// means to ask the system (adjtimex on Linux).
	ClockSynchronized func() (bool, error)
	// OrphanGrace is how long an export that nobody needs is left alone before
	// it is destroyed; 0 means an hour.
	OrphanGrace time.Duration
	// ActTimeout is how long a call whose context has no deadline waits for a
	// device before it answers TIMEOUT (the work goes on); 0 means 30 s.
	ActTimeout time.Duration
}

// Fabric is the domain of one node. All methods may be called concurrently.
type Fabric struct {
	names
	cfg      Config
	log      *slog.Logger
	store    Store
	instance string
	started  time.Time
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	cards    []*card          // in ascending order of id; fixed once Open has loaded
	card     map[string]*card // by id; fixed like cards
	journal  journal
	commits  commits
	leaseDue chan struct{} // a lease may end sooner than the timer
	adding   sync.Mutex    // held by AddDevices, so that devices come one after the other
	health   *health

	asking      chan struct{} // holds a token while Alive asks
	keeperAsked chan struct{} // the keeper takes from it, to show that it is alive

	mu       sync.RWMutex
	idx      index
	closed   bool
	node     *record
	pending  []entry // for the keeper
	pendDue  chan struct{}
	uploads  uploads
	refusals map[string]*refusal   // of descriptors, by identity and kind
	epitaphs map[string]epitaph    // of sessions, by name
	marks    map[string]deviceMark // of devices, by the ids that they have in names; fixed like cards
	sweepDue chan struct{}         // exports are worth a look
}

// openWait is how long Open waits for devices before it serves without them.
const openWait = 15 * time.Second

const system = "system" // the actor of what nobody asked for

// Open loads the store, reads every device, compares, and serves. It returns
// when each device was compared and what it lost was made again, or it did not
// answer (Node tells which). If it fails, the store and the devices are the
// caller's to close; they may be closed already.
func Open(ctx context.Context, cfg Config) (*Fabric, error) {
	if !validID(cfg.NodeID) {
		return nil, &Error{Op: "Open", Field: "node_id", Reason: FieldInvalid, Message: fmt.Sprintf("%q: %s", cfg.NodeID, idRule)}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Uptime == nil {
		cfg.Uptime = uptime
	}
	if cfg.ClockSynchronized == nil {
		cfg.ClockSynchronized = clockSynchronized
	}
	if cfg.ActTimeout == 0 {
		cfg.ActTimeout = 30 * time.Second
	}
	if cfg.OrphanGrace == 0 {
		cfg.OrphanGrace = time.Hour
	}
	f := &Fabric{names: names{node: "nodes/" + cfg.NodeID}, cfg: cfg, log: cfg.Logger, store: cfg.Store, started: time.Now(),
		card: map[string]*card{}, leaseDue: make(chan struct{}, 1), idx: newIndex(), pendDue: make(chan struct{}, 1),
		uploads: uploads{}, refusals: map[string]*refusal{}, epitaphs: map[string]epitaph{}, sweepDue: make(chan struct{}, 1)}
	f.asking, f.keeperAsked = make(chan struct{}, 1), make(chan struct{})
	f.health = newHealth(f.names.node, cfg.Uptime)
	f.instance = uidString(newUID())
	f.ctx, f.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := checkIDs("Open", cfg.Devices); err != nil {
		return nil, err
	}
	if err := f.load(ctx); err != nil {
		f.cancel()
		return nil, err
	}
	f.wg.Go(f.keep)
	f.wg.Go(f.expire)
	f.wg.Go(f.sweep)
	var first []<-chan struct{}
	for _, c := range f.cards {
		first = append(first, c.compared)
		c.start()
	}
	late := time.NewTimer(openWait)
	defer late.Stop()
	for _, done := range first {
		select {
		case <-done:
		case <-late.C:
			f.log.Warn("serving before every device was compared")
			late.Reset(0)
		case <-ctx.Done():
			f.Close()
			return nil, &Error{Op: "Open", Reason: Timeout, Message: "devices were not compared in time", Err: ctx.Err()}
		}
	}
	var clock clock
	f.judgeClock(&clock)
	f.wg.Go(func() { f.watchClock(&clock) })
	f.newsOfHealth()
	f.wg.Go(f.tellHealth)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.idx.sessions.after(0, func(s *record) bool {
		if s.Deleting {
			f.takeDown(s) // it was closing when the daemon ended
		}
		return true
	})
	return f, nil
}

// Close stops the work, and closes the devices and the store. What was asked
// stays asked. Calls that wait end with DEVICE_UNAVAILABLE.
func (f *Fabric) Close() error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil
	}
	f.closed = true
	f.mu.Unlock()
	f.cancel()
	// Devices are closed first: a call that does not heed its context ends by
	// it, and their events end.
	var errs []error
	for _, c := range f.withDevices() {
		errs = append(errs, c.dev.Close())
	}
	f.dropProcesses()
	f.wg.Wait()
	f.dropDescriptors()
	errs = append(errs, f.store.Close())
	return errors.Join(errs...)
}

// load rebuilds the index from the store.
func (f *Fabric) load(ctx context.Context) error {
	type bad struct {
		id     uint64
		name   string
		reason string
	}
	var refused []bad
	var loaded, tombs []*record
	byID := map[uint64]*record{}
	res, err := f.store.Load(ctx, func(sr Record) error {
		s, err := decodeStored(sr.Value)
		if err != nil {
			refused = append(refused, bad{sr.ID, sr.Name, err.Error()})
			return nil
		}
		r := &record{id: sr.ID, name: sr.Name, stored: s, committed: true, made: true}
		switch s.Kind {
		case kindNode:
			f.node = r
		case kindTombstone:
			tombs = append(tombs, r)
		default:
			byID[r.id] = r
			loaded = append(loaded, r)
		}
		return nil
	})
	if err != nil {
		return &Error{Op: "Open", Reason: StoreUnavailable, Message: "cannot load the store", Err: err}
	}
	change := Change{}
	if err := f.place(&change); err != nil {
		return err
	}
	for _, r := range loaded {
		if why := f.adoptRecord(r, byID); why != "" {
			delete(byID, r.id)
			refused = append(refused, bad{r.id, r.name, why})
		}
	}
	slices.SortFunc(tombs, func(a, b *record) int { return cmp.Compare(a.Gone.At, b.Gone.At) })
	for _, t := range tombs {
		f.idx.bury(t)
	}
	f.idx.nextID = max(f.idx.nextID, res.NextID)
	for _, b := range refused {
		if err := f.store.Quarantine(ctx, b.id, b.reason); err != nil {
			return &Error{Op: "Open", Name: b.name, Reason: StoreUnavailable, Message: "cannot set a record aside", Err: err}
		}
		res.Quarantined = append(res.Quarantined, b.name)
		f.log.Warn("record set aside", "name", b.name, "reason", b.reason)
	}
	for i, name := range res.Quarantined {
		fault := Fault{Resource: name, Reason: ReasonRecordSetAside, Message: "the record could not be read and was set aside; the store keeps it in quarantine"}
		f.storeProblem(&change, EventDeleted, fault, i < maxTold)
	}
	if res.Damage != "" {
		f.storeProblem(&change, EventChanged, Fault{Resource: f.names.node, Reason: ReasonStoreMended, Message: "the store was damaged and has been mended: " + res.Damage}, true)
	}
	f.health.known(ComponentStore)
	if err := f.loadNode(&change); err != nil {
		return err
	}
	f.journal.init(res.Revision)
	rev, err := f.store.Commit(ctx, change)
	if err != nil {
		return &Error{Op: "Open", Reason: StoreUnavailable, Message: "cannot write the store", Err: err}
	}
	f.journal.advance(rev)
	return nil
}

// maxTold is of how many records that were set aside health tells; the journal
// and the log tell of all.
const maxTold = 100

// storeProblem tells of something that the open of the store found, in the
// journal and in health, where it stays until the next start.
func (f *Fabric) storeProblem(change *Change, what EventType, fault Fault, inHealth bool) {
	fault.Status = HealthDegraded
	if inHealth {
		f.SetFault(ComponentStore, fault.Resource+" "+string(fault.Reason), fault)
	}
	f.log.Warn("store", "resource", fault.Resource, "problem", fault.Message)
	if b, err := encodeEvent(&Event{Type: what, Resource: fault.Resource, Actor: system, Reason: fault.Reason, Message: fault.Message}); err == nil {
		change.Events = append(change.Events, b)
	}
}

// loadNode makes the node's own record, or takes it over.
func (f *Fabric) loadNode(change *Change) error {
	e := Event{Type: EventChanged, Resource: f.names.node, Actor: system, After: "READY", Reason: CauseRequested}
	switch {
	case f.node == nil:
		f.node = &record{id: f.idx.nextID, name: f.names.node, stored: &stored{Kind: kindNode, UID: newUID(), Created: f.started.UnixNano()}}
		f.idx.nextID++
		e.Type = EventCreated
	case f.node.name != f.names.node:
		return &Error{Op: "Open", Field: "node_id", Reason: FieldInvalid,
			Message: fmt.Sprintf("the store belongs to %s, not to %s; give that node id or another state directory", f.node.name, f.names.node)}
	}
	f.node.Revision++
	now := &nodeLife{BootID: f.cfg.BootID, Instance: f.instance, Version: f.cfg.Version}
	e.Message = now.after(f.node.Life)
	f.node.Life, f.node.Devices = now, f.marks
	e.ResourceUID = f.node.UID
	v, err := f.node.encode()
	if err != nil {
		return &Error{Op: "Open", Reason: Internal, Err: err}
	}
	change.Put = append(change.Put, Record{ID: f.node.id, Name: f.node.name, Value: v})
	b, err := encodeEvent(&e)
	if err != nil {
		return &Error{Op: "Open", Reason: Internal, Err: err}
	}
	change.Events = append(change.Events, b)
	return nil
}

// adoptRecord enters a loaded record. It gives a reason if it cannot.
func (f *Fabric) adoptRecord(r *record, byID map[uint64]*record) string {
	if f.idx.byName[r.name] != nil {
		return "another record has this name"
	}
	if r.Kind == kindPort {
		f.adoptPort(r)
		return ""
	}
	if _, ok := f.object(r.Kind, r.name); !ok {
		return "the name is not one of this node and kind"
	}
	if r.Kind == kindSession {
		f.startLease(r, r.SessionAsk.BootID != f.cfg.BootID)
		f.idx.add(r)
		f.resumeWatch(r)
		return ""
	}
	ref := func(id uint64, k kind) *record {
		if x := byID[id]; x != nil && x.Kind == k {
			return x
		}
		return nil
	}
	r.card = f.cardOf(r.name)
	if r.sess = ref(r.Session, kindSession); r.sess == nil {
		return "its session is missing"
	}
	switch r.Kind {
	case kindRegion:
		r.pd, r.buf = ref(r.RegionAsk.PD, kindPD), ref(r.RegionAsk.Buffer, kindBuffer)
		if r.pd == nil || r.buf == nil && r.ImportAsk == nil {
			return "its protection domain or buffer is missing"
		}
		f.adoptImport(r)
	case kindExport:
		if r.buf = ref(r.ExportAsk.Buffer, kindBuffer); r.buf == nil {
			return "its buffer is missing"
		}
		f.startGiving(r)
	case kindQueuePair:
		if r.pd = ref(r.QPAsk.PD, kindPD); r.pd == nil {
			return "its protection domain is missing"
		}
	}
	f.idx.add(r)
	return ""
}

// commit makes a change durable. It is not bound to a caller's context, so
// that its outcome is known.
func (f *Fabric) commit(op string, change Change) error {
	began := time.Now()
	rev, err := f.store.Commit(f.ctx, change)
	f.commits.add(time.Since(began), err)
	if err != nil {
		f.log.Error("store", "op", op, "error", err)
		e := &Error{Op: op, Reason: StoreUnavailable, Message: "the change cannot be recorded; nothing was changed", RetryAfter: time.Second, Err: err}
		if f.ctx.Err() == nil {
			f.setStoreProblem(e)
		}
		return e
	}
	f.journal.advance(rev)
	return nil
}

// setStoreProblem notes whether the store can be written. That it cannot is itself
// an entry for the keeper, which tries until it can.
func (f *Fabric) setStoreProblem(err error) {
	if err == nil {
		f.ClearFault(ComponentStore, "write")
		return
	}
	f.SetFault(ComponentStore, "write", Fault{Status: HealthDegraded, Reason: StoreUnavailable, Message: err.Error()})
}

// put appends a record to a change.
func (c *Change) put(r *record) error {
	v, err := r.stored.encode()
	if err != nil {
		return &Error{Name: r.name, Reason: Internal, Message: "the record cannot be encoded", Err: err}
	}
	c.Put = append(c.Put, Record{ID: r.id, Name: r.name, Value: v})
	return nil
}

// event appends an event to a change.
func (c *Change) event(e Event) error {
	b, err := encodeEvent(&e)
	if err != nil {
		return &Error{Name: e.Resource, Reason: Internal, Message: "the event cannot be encoded", Err: err}
	}
	c.Events = append(c.Events, b)
	return nil
}

func uidString(u device.UID) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
