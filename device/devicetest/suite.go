package devicetest

import (
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// Pair is two open devices, which may be the same one, with a port each from
// which packets reach the other. They are empty and close with the test.
type Pair struct {
	A, B         device.Device
	PortA, PortB int
	// NotConnected is a port of A that leads nowhere; -1 if A has none.
	NotConnected int
}

// Run holds devices against the rules of device.Device. Each call of open gives
// a new pair.
func Run(t *testing.T, open func(t *testing.T) Pair) {
	cases := []struct {
		name string
		run  func(*testing.T, Pair)
	}{
		{"info is complete and fixed", testInfo},
		{"ports", testPorts},
		{"protection domains", testDomains},
		{"buffers", testBuffers},
		{"a full device says what is left", testFull},
		{"memory that changes hands is zero", testZeroed},
		{"host access stays inside one buffer", testHostAccess},
		{"regions and their keys", testRegions},
		{"queue pairs", testQueuePairs},
		{"queue pairs that are refused leave nothing (cases L16, Q04)", testRefused},
		{"transitions follow the table", testTransitions},
		{"batches answer each entry by itself", testBatches},
		{"send, write and read move the bytes", testTransfer},
		{"atomics give what was there", testAtomics},
		{"unreliable connections carry messages", testUC},
		{"datagrams carry their source", testUD},
		{"datagrams that are not for a queue pair change nothing", testUDTurnedAway},
		{"a datagram says where it goes", testUDRefused},
		{"a failed send of UC and UD stops sending alone", testSQE},
		{"access is checked at both ends", testAccess},
		{"a key that was taken away reaches nothing", testDeregistered},
		{"work that cannot be done is flushed", testFlush},
		{"completions wait", testCompletionsWait},
		{"a closed device says so", testClosed},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

const everyAccess = ib.LocalWrite | ib.RemoteWrite | ib.RemoteRead

var lastUID atomic.Uint64

// NewUID gives an identity that no other call gave in this process.
func NewUID() (uid device.UID) {
	copy(uid[:], "test")
	binary.BigEndian.PutUint64(uid[8:], lastUID.Add(1))
	return uid
}

// end is what one side of a test has on its device.
type end struct {
	t    *testing.T
	dev  device.Device
	port int
	pd   device.PD
}

func newEnd(t *testing.T, d device.Device, port int) *end {
	t.Helper()
	r := d.CreateProtectionDomains(t.Context(), []device.UID{NewUID()})[0]
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	return &end{t: t, dev: d, port: port, pd: r.PD}
}

func (e *end) buffer(size uint64) device.Buffer {
	e.t.Helper()
	b, err := e.dev.Allocate(e.t.Context(), device.BufferSpec{UID: NewUID(), Size: size})
	if err != nil {
		e.t.Fatal(err)
	}
	return b
}

func (e *end) region(b device.Buffer, access ib.Access) device.Region {
	e.t.Helper()
	r := e.dev.RegisterRegions(e.t.Context(), []device.RegionSpec{{UID: NewUID(), PD: e.pd, Address: b.Address, Length: b.Size, Access: access}})[0]
	if r.Err != nil {
		e.t.Fatal(r.Err)
	}
	return r.Region
}

func (e *end) spec(steps ...device.Transition) device.QueuePairSpec {
	return device.QueuePairSpec{UID: NewUID(), PD: e.pd, Port: e.port, Type: ib.RC, Steps: steps}
}

func (e *end) queuePair(steps ...device.Transition) device.QueuePair {
	e.t.Helper()
	return e.queuePairOf(ib.RC, steps...)
}

func (e *end) queuePairOf(typ ib.QPType, steps ...device.Transition) device.QueuePair {
	e.t.Helper()
	spec := e.spec(steps...)
	spec.Type = typ
	r := e.dev.CreateQueuePairs(e.t.Context(), []device.QueuePairSpec{spec})[0]
	if r.Err != nil {
		e.t.Fatal(r.Err)
	}
	return r.QueuePair
}

func (e *end) get(qp device.QueuePair) device.QueuePair {
	e.t.Helper()
	got, err := e.dev.GetQueuePair(e.t.Context(), qp.UID)
	if err != nil {
		e.t.Fatal(err)
	}
	return got
}

func (e *end) modify(qp device.QueuePair, steps ...device.Transition) device.QueuePairResult {
	e.t.Helper()
	return e.dev.ModifyQueuePairs(e.t.Context(), []device.QueuePairChange{{UID: qp.UID, Steps: steps}})[0]
}

// gid gives the last entry of the port's GID table that is an IPv4 address,
// else the last one.
func (e *end) gid() device.GIDEntry {
	e.t.Helper()
	p, err := e.dev.Port(e.t.Context(), e.port)
	if err != nil {
		e.t.Fatal(err)
	}
	if len(p.GIDs) == 0 {
		e.t.Fatalf("port %d has no GID", e.port)
	}
	best := p.GIDs[len(p.GIDs)-1]
	for _, g := range p.GIDs {
		if g.GID.IsIPv4Mapped() {
			best = g
		}
	}
	return best
}

func toInit(access ib.Access) device.ToInit {
	return device.ToInit{PKey: ib.DefaultPKey, Access: access}
}

// firstPSN makes every test pass the wrap of sequence numbers.
const firstPSN = 1<<24 - 4

func (e *end) toRTR(peer *end, qpn ib.QPN) device.ToRTR {
	e.t.Helper()
	return device.ToRTR{
		Remote:   device.Remote{GID: peer.gid().GID, QPN: qpn, PSN: firstPSN},
		GIDIndex: e.gid().Index, PathMTU: ib.MTU1024, MaxDestRDAtomic: 1, MinRNRTimer: 1,
	}
}

// toRTS gives up after seconds: a busy machine may hold an answer back for as
// long as the usual half second.
func toRTS() device.ToRTS {
	return device.ToRTS{PSN: firstPSN, Timeout: 17, RetryCount: 7, RNRRetry: 7, MaxRDAtomic: 1}
}

// connect makes a queue pair at each end and takes both to RTS.
func connect(a, b *end, access ib.Access) (qa, qb device.QueuePair) {
	a.t.Helper()
	return connectAs(ib.RC, a, b, access)
}

func connectAs(typ ib.QPType, a, b *end, access ib.Access) (qa, qb device.QueuePair) {
	a.t.Helper()
	qa, qb = a.queuePairOf(typ, toInit(access)), b.queuePairOf(typ, toInit(access))
	ra := a.modify(qa, a.toRTR(b, qb.QPN), toRTS())
	rb := b.modify(qb, b.toRTR(a, qa.QPN), toRTS())
	if err := errors.Join(ra.Err, rb.Err); err != nil {
		a.t.Fatal(err)
	}
	if ra.State != ib.RTS || rb.State != ib.RTS {
		a.t.Fatalf("states %v and %v, want RTS", ra.State, rb.State)
	}
	return ra.QueuePair, rb.QueuePair
}

func sge(r device.Region) []device.SGE {
	return []device.SGE{{Address: r.Address, Length: uint32(r.Length), LKey: r.LKey}}
}

func (e *end) post(qp device.QueuePair, requests ...device.WorkRequest) {
	e.t.Helper()
	if err := e.dev.Post(e.t.Context(), qp.UID, requests); err != nil {
		e.t.Fatal(err)
	}
}

// next waits for n completions.
func (e *end) next(qp device.QueuePair, n int) []device.Completion {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), 30*time.Second)
	defer cancel()
	var list []device.Completion
	for len(list) < n {
		more, err := e.dev.Completions(ctx, qp.UID, n-len(list))
		if err != nil {
			e.t.Fatalf("after %d of %d completions: %v; queue pair: %+v", len(list), n, err, e.get(qp))
		}
		list = append(list, more...)
	}
	return list
}

func (e *end) write(address uint64, p []byte) {
	e.t.Helper()
	if err := e.dev.WriteMemory(e.t.Context(), address, p); err != nil {
		e.t.Fatal(err)
	}
}

func (e *end) read(address uint64, n uint64) []byte {
	e.t.Helper()
	p := make([]byte, n)
	if err := e.dev.ReadMemory(e.t.Context(), address, p); err != nil {
		e.t.Fatal(err)
	}
	return p
}

// wantField checks that an error names a field.
func wantField(t *testing.T, err error, field string) {
	t.Helper()
	var f *device.FieldError
	if !errors.As(err, &f) || !errors.Is(err, device.ErrInvalid) {
		t.Errorf("error %v, want a FieldError for %s", err, field)
		return
	}
	if f.Field != field || f.Problem == "" {
		t.Errorf("error names field %q (%s), want %s", f.Field, f.Problem, field)
	}
}

func wantError(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}
