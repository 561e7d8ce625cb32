package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// card is a device in memory whose objects outlive its handles, as those of
// hardware outlive the daemon.
type card struct {
	info device.Info

	mu      sync.Mutex
	pds     map[device.UID]device.PD
	bufs    map[device.UID]device.Buffer
	mem     map[device.UID][]byte
	regions map[device.UID]device.Region
	qps     map[device.UID]*device.QueuePair
	told    map[device.UID][]device.Transition // all steps of a queue pair
	work    map[device.UID][]device.Completion
	came    chan struct{} // closed and made anew when there are more completions
	next    uint32
	used    uint64
	calls   int               // of batches that create queue pairs
	lists   int               // of ListProtectionDomains: one for each comparison
	refuse  map[string]error  // by method: every entry fails with it
	rtsErr  error             // a step to RTS fails with it
	down    map[int]bool      // ports that were set down
	pulled  map[int]bool      // ports whose cable is out
	changed map[int]time.Time // when those did
	hold    chan struct{}     // where not nil, CreateQueuePairs waits for it
	events  chan device.Event

	pins, walled, mappable bool          // as an importer, and as an exporter; set before use
	opening                chan struct{} // OpenExport waits for its close; nil does not; set before use
}

func newCard(id string, module int) *card {
	c := &card{info: device.Info{ID: id, Driver: "fake", Model: "F1", ModuleID: module, Topology: "fake", Ports: 3, MemoryBytes: 1 << 20,
		Limits: device.Limits{QueuePairs: 4096, ProtectionDomains: 64, Regions: 1024, SendWR: 1024, RecvWR: 1024, SGE: 4,
			MessageBytes: 1 << 30, RDAtomic: 8, MaxMTU: ib.MTU4096, ExportPage: 4096},
		Capabilities: []device.Capability{device.CapRC, device.CapUC, device.CapUD, device.CapSetPort, device.CapExport, device.CapImport, device.CapMove, device.CapReset}}, refuse: map[string]error{}, down: map[int]bool{}, pulled: map[int]bool{}, changed: map[int]time.Time{}, came: make(chan struct{})}
	c.wipe()
	return c
}

// wipe is a reset: all objects are gone.
func (c *card) wipe() {
	c.wipeExports()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pds, c.bufs, c.mem = map[device.UID]device.PD{}, map[device.UID]device.Buffer{}, map[device.UID][]byte{}
	c.regions, c.qps, c.work = map[device.UID]device.Region{}, map[device.UID]*device.QueuePair{}, map[device.UID][]device.Completion{}
	c.told = map[device.UID][]device.Transition{}
	c.used = 0
}

func (c *card) count() (pds, bufs, regions, qps int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pds), len(c.bufs), len(c.regions), len(c.qps)
}

func (c *card) fail(method string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse[method] = err
}

// open gives a handle.
func (c *card) open() *handle {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = make(chan device.Event, 64)
	return &handle{card: c, events: c.events}
}

func (c *card) hint(e device.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events <- e
}

// handle is the card as one daemon has it.
type handle struct {
	*card
	events chan device.Event
	once   sync.Once
}

var _ device.Device = (*handle)(nil)

func (h *handle) Close() error {
	h.once.Do(func() { close(h.events) })
	return nil
}
func (h *handle) Events() <-chan device.Event { return h.events }
func (c *card) Info() device.Info             { return c.info }

func gidOf(module, port int) ib.GID {
	return ib.GIDFromAddr(netip.AddrFrom4([4]byte{10, 0, byte(module), byte(port)}))
}

// Port: 0 is cabled to port 0 of the card with the other module id, 1 leads to
// a switch, 2 has no cable.
func (c *card) Port(_ context.Context, n int) (device.Port, error) {
	if n < 0 || n > 2 {
		return device.Port{}, device.ErrNotFound
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := device.Port{Number: n, AdminUp: !c.down[n], State: device.PortActive, ActiveMTU: ib.MTU1024, MaxMTU: ib.MTU4096, PeerModule: -1, PeerPort: -1,
		Class: device.PortScaleOut, GIDs: []device.GIDEntry{
			{Index: 0, GID: ib.GID{0: 0xfe, 1: 0x80, 15: byte(n + 1)}, Type: ib.RoCEv2},
			{Index: 1, GID: gidOf(c.info.ModuleID, n), Type: ib.RoCEv1},
			{Index: 3, GID: gidOf(c.info.ModuleID, n), Type: ib.RoCEv2}}}
	p.ChangedAt = c.changed[n]
	if c.down[n] || c.pulled[n] {
		p.State = device.PortDown
	}
	switch n {
	case 0:
		p.Class, p.PeerModule, p.PeerPort = device.PortInternal, 1-c.info.ModuleID, 0
	case 2:
		p.Class, p.State, p.GIDs = device.PortNotConnected, device.PortDown, nil
	}
	return p, nil
}

func (c *card) SetPort(_ context.Context, n int, up bool) error {
	if n == 2 {
		return &device.FieldError{Field: "port", Problem: "has no cable"}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down[n] = !up
	return nil
}

func (c *card) CreateProtectionDomains(_ context.Context, uids []device.UID) []device.PDResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]device.PDResult, len(uids))
	for i, uid := range uids {
		if out[i].Err = c.refuse["CreateProtectionDomains"]; out[i].Err != nil {
			continue
		}
		if _, ok := c.pds[uid]; !ok {
			c.next++
			c.pds[uid] = device.PD(c.next)
		}
		out[i].ProtectionDomain = device.ProtectionDomain{UID: uid, PD: c.pds[uid]}
	}
	return out
}

func (c *card) ListProtectionDomains(context.Context) ([]device.ProtectionDomain, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists++
	var out []device.ProtectionDomain
	for uid, pd := range c.pds {
		out = append(out, device.ProtectionDomain{UID: uid, PD: pd})
	}
	return out, c.refuse["List"]
}

func (c *card) DestroyProtectionDomains(_ context.Context, uids []device.UID) []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]error, len(uids))
	for i, uid := range uids {
		pd, ok := c.pds[uid]
		out[i] = c.refuse["DestroyProtectionDomains"]
		if !ok {
			out[i] = device.ErrNotFound
		}
		for _, r := range c.regions {
			if r.PD == pd {
				out[i] = device.ErrBusy
			}
		}
		for _, q := range c.qps {
			if q.PD == pd {
				out[i] = device.ErrBusy
			}
		}
		if out[i] == nil {
			delete(c.pds, uid)
		}
	}
	return out
}

func (c *card) Allocate(_ context.Context, s device.BufferSpec) (device.Buffer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b, ok := c.bufs[s.UID]; ok {
		return b, nil
	}
	if err := c.refuse["Allocate"]; err != nil {
		return device.Buffer{}, err
	}
	if c.used+s.Size > c.info.MemoryBytes {
		return device.Buffer{}, &device.LimitError{Kind: "memory_bytes", Asked: s.Size, Available: c.info.MemoryBytes - c.used, Limit: c.info.MemoryBytes}
	}
	c.next++
	b := device.Buffer{UID: s.UID, Address: uint64(c.next) << 32, Size: s.Size}
	c.bufs[s.UID], c.mem[s.UID] = b, make([]byte, s.Size)
	c.used += s.Size
	return b, nil
}

func (c *card) Free(_ context.Context, uid device.UID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, ok := c.bufs[uid]
	if !ok {
		return device.ErrNotFound
	}
	if err := c.refuse["Free"]; err != nil {
		return err
	}
	for _, r := range c.regions {
		if r.Address >= b.Address && r.Address < b.Address+b.Size {
			return device.ErrBusy
		}
	}
	delete(c.bufs, uid)
	delete(c.mem, uid)
	c.used -= b.Size
	return nil
}

func (c *card) ListBuffers(context.Context) ([]device.Buffer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []device.Buffer
	for _, b := range c.bufs {
		out = append(out, b)
	}
	return out, nil
}

func (c *card) memory(addr uint64, n int) ([]byte, error) {
	for uid, b := range c.bufs {
		if addr >= b.Address && addr+uint64(n) <= b.Address+b.Size {
			return c.mem[uid][addr-b.Address:][:n], nil
		}
	}
	return nil, &device.FieldError{Field: "address", Problem: "is in no buffer"}
}

func (c *card) ReadMemory(_ context.Context, addr uint64, p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := c.memory(addr, len(p))
	copy(p, m)
	return err
}

func (c *card) WriteMemory(_ context.Context, addr uint64, p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := c.memory(addr, len(p))
	copy(m, p)
	return err
}

func (c *card) RegisterRegions(_ context.Context, specs []device.RegionSpec) []device.RegionResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]device.RegionResult, len(specs))
	for i, s := range specs {
		if out[i].Err = c.refuse["RegisterRegions"]; out[i].Err != nil {
			continue
		}
		r, ok := c.regions[s.UID]
		if !ok {
			c.next++
			r = device.Region{UID: s.UID, PD: s.PD, Address: s.Address, Length: s.Length, Access: s.Access, LKey: ib.LKey(c.next), RKey: ib.RKey(c.next)}
			c.regions[s.UID] = r
		}
		out[i].Region = r
	}
	return out
}

func (c *card) ListRegions(context.Context) ([]device.Region, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []device.Region
	for _, r := range c.regions {
		out = append(out, r)
	}
	return out, nil
}

func (c *card) DeregisterRegions(_ context.Context, uids []device.UID) []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]error, len(uids))
	for i, uid := range uids {
		if _, ok := c.regions[uid]; !ok {
			out[i] = device.ErrNotFound
		} else if out[i] = c.refuse["DeregisterRegions"]; out[i] == nil {
			delete(c.regions, uid)
		}
	}
	return out
}

func (c *card) steps(q *device.QueuePair, steps []device.Transition) error {
	for _, s := range steps {
		c.told[q.UID] = append(c.told[q.UID], s)
		if s.Target() == ib.RTS && c.rtsErr != nil {
			return c.rtsErr
		}
		if rtr, ok := s.(device.ToRTR); ok && q.Type != ib.UD {
			if q.State != ib.Init {
				return &ib.TransitionError{Type: q.Type, From: q.State, To: ib.RTR}
			}
			q.Remote, q.PathMTU, q.GIDIndex, q.GID = rtr.Remote, rtr.PathMTU, rtr.GIDIndex, gidOf(c.info.ModuleID, q.Port)
		}
		if _, ok := s.(device.ToReset); ok {
			q.Remote, q.PathMTU, q.GIDIndex, q.GID = device.Remote{}, 0, -1, ib.GID{}
		}
		q.State = s.Target()
	}
	return nil
}

func (c *card) CreateQueuePairs(ctx context.Context, specs []device.QueuePairSpec) []device.QueuePairResult {
	c.mu.Lock()
	hold := c.hold
	c.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	out := make([]device.QueuePairResult, len(specs))
	for i, s := range specs {
		if out[i].Err = c.refuse["CreateQueuePairs"]; out[i].Err != nil {
			continue
		}
		q, ok := c.qps[s.UID]
		switch {
		case !ok && len(c.qps) >= c.info.Limits.QueuePairs:
			out[i].Err = &device.LimitError{Kind: "queue_pairs", Asked: 1, Limit: uint64(c.info.Limits.QueuePairs)}
			continue
		case !ok:
			c.next++
			q = &device.QueuePair{UID: s.UID, QPN: ib.QPN(c.next + 16), PD: s.PD, Port: s.Port, Type: s.Type, SendWR: s.SendWR, RecvWR: s.RecvWR, SGE: s.SGE, GIDIndex: -1}
			if err := c.steps(q, s.Steps); err != nil {
				out[i].Err = err
				continue
			}
			c.qps[s.UID] = q
		}
		out[i].QueuePair = *q
	}
	return out
}

func (c *card) ModifyQueuePairs(_ context.Context, changes []device.QueuePairChange) []device.QueuePairResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]device.QueuePairResult, len(changes))
	for i, ch := range changes {
		q, ok := c.qps[ch.UID]
		if !ok {
			out[i].Err = device.ErrNotFound
			continue
		}
		out[i].Err = c.steps(q, ch.Steps)
		out[i].QueuePair = *q
	}
	return out
}

func (c *card) ListQueuePairs(context.Context) ([]device.QueuePair, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []device.QueuePair
	for _, q := range c.qps {
		out = append(out, *q)
	}
	return out, nil
}

func (c *card) GetQueuePair(_ context.Context, uid device.UID) (device.QueuePair, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q, ok := c.qps[uid]
	if !ok {
		return device.QueuePair{}, device.ErrNotFound
	}
	return *q, c.refuse["GetQueuePair"]
}

func (c *card) DestroyQueuePairs(_ context.Context, uids []device.UID) []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]error, len(uids))
	for i, uid := range uids {
		if _, ok := c.qps[uid]; !ok {
			out[i] = device.ErrNotFound
		} else if out[i] = c.refuse["DestroyQueuePairs"]; out[i] == nil {
			delete(c.qps, uid)
		}
	}
	return out
}

// Post completes everything at once, but what has an id of 13.
func (c *card) Post(_ context.Context, qp device.UID, rs []device.WorkRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.qps[qp] == nil {
		return device.ErrNotFound
	}
	for i, r := range rs {
		if r.ID == 13 {
			return &device.PostError{Index: i, Err: &device.FieldError{Field: "id", Problem: "13 is unlucky"}}
		}
		if r.Opcode == device.WorkSend && c.qps[qp].State != ib.RTS {
			return &device.PostError{Index: i, Err: &device.StateError{State: c.qps[qp].State, Want: "RTS"}}
		}
		c.complete(qp, device.Completion{ID: r.ID})
	}
	return nil
}

// complete adds a completion. c.mu is held.
func (c *card) complete(qp device.UID, wc device.Completion) {
	c.work[qp] = append(c.work[qp], wc)
	close(c.came)
	c.came = make(chan struct{})
}

// fell is a queue pair that the device takes to SQE or ERR.
func (c *card) fell(qp device.UID, to ib.QPState, status ib.WCStatus, reason string) {
	c.mu.Lock()
	q := c.qps[qp]
	q.State, q.Status, q.Reason = to, status, reason
	c.mu.Unlock()
	c.hint(device.Event{Kind: device.QueuePairChanged, QP: qp})
}

// lastTold gives the newest step of a kind that a queue pair was taken.
func lastTold[T device.Transition](c *card, qp device.UID) T {
	c.mu.Lock()
	defer c.mu.Unlock()
	var last T
	for _, s := range c.told[qp] {
		if s, ok := s.(T); ok {
			last = s
		}
	}
	return last
}

// receive completes a receive, as a packet of a peer does.
func (c *card) receive(qp device.UID, wc device.Completion) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wc.Receive = true
	c.complete(qp, wc)
}

func (c *card) Completions(ctx context.Context, qp device.UID, limit int) ([]device.Completion, error) {
	if limit < 1 {
		return nil, &device.FieldError{Field: "limit", Problem: "want 1 or more"}
	}
	for {
		c.mu.Lock()
		if c.qps[qp] == nil {
			c.mu.Unlock()
			return nil, device.ErrNotFound
		}
		w, came := c.work[qp], c.came
		n := min(limit, len(w))
		out := append([]device.Completion(nil), w[:n]...)
		c.work[qp] = w[n:]
		c.mu.Unlock()
		if n > 0 {
			return out, nil
		}
		select {
		case <-came:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// errIO is a fault that may pass.
var errIO = errors.New("input/output error")

func (c *card) String() string { return fmt.Sprintf("card %s", c.info.ID) }
