package devicetest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/accelfab/accelfab/device"
)

// What a Failing device answers, wrapped with the call.
var (
	// ErrRefused is the answer to a call that was refused.
	ErrRefused = errors.New("devicetest: the device failed")
	// ErrCrashed is the answer from a crash on. errors.Is finds
	// device.ErrClosed in the same error.
	ErrCrashed = errors.New("devicetest: the device is gone from here on")
)

// Strike is what a Failing device does at its nth call.
type Strike int

const (
	// Refuse answers the nth call with ErrRefused and does not carry it out;
	// the calls after it work.
	Refuse Strike = iota
	// CrashBefore does not carry the nth call out; it and all after it answer
	// ErrCrashed.
	CrashBefore
	// CrashAfter carries the nth call out, and then it and all after it answer
	// ErrCrashed: it is done, but nobody was told.
	CrashAfter
)

func (s Strike) String() string {
	switch s {
	case Refuse:
		return "Refuse"
	case CrashBefore:
		return "CrashBefore"
	case CrashAfter:
		return "CrashAfter"
	}
	return fmt.Sprintf("Strike(%d)", int(s))
}

// Failing is a device that strikes at the nth call of a method. A struck batch
// fails in every entry. Info, Events and Close pass through and do not count.
type Failing struct {
	device.Device // Info, Events and Close

	method string
	at     int
	strike Strike

	mu      sync.Mutex
	calls   map[string]int
	total   int
	struck  bool
	crashed bool
}

var _ device.Device = (*Failing)(nil)

// NewFailing puts a strike at the nth call (from 1) of a method of d; method ""
// counts the calls of all methods together. With n = 0 it never strikes and
// only counts. Close closes d: a test that lets d live on does not call it.
func NewFailing(d device.Device, method string, n int, strike Strike) *Failing {
	return &Failing{Device: d, method: method, at: n, strike: strike, calls: map[string]int{}}
}

// Calls tells how many calls of a method came so far, "" for all methods.
func (f *Failing) Calls(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if method == "" {
		return f.total
	}
	return f.calls[method]
}

// Struck tells whether the nth call came.
func (f *Failing) Struck() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.struck
}

// enter counts a call. It says whether to carry it out, and what to answer
// instead of its result, nil for the result itself.
func (f *Failing) enter(method string) (act bool, answer error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[method]++
	f.total++
	n := f.calls[method]
	if f.method == "" {
		n = f.total
	}
	if f.crashed {
		return false, fmt.Errorf("%s: %w: %w", method, ErrCrashed, device.ErrClosed)
	}
	if f.at == 0 || n != f.at || f.method != "" && f.method != method {
		return true, nil
	}
	f.struck = true
	if f.strike == Refuse {
		return false, fmt.Errorf("%s, call %d: %w", method, n, ErrRefused)
	}
	f.crashed = true
	return f.strike == CrashAfter, fmt.Errorf("%s, call %d: %w: %w", method, n, ErrCrashed, device.ErrClosed)
}

// one passes a call with one result on, or strikes.
func one[R any](f *Failing, method string, call func() (R, error)) (R, error) {
	var none R
	act, answer := f.enter(method)
	if !act {
		return none, answer
	}
	r, err := call()
	if answer != nil {
		return none, answer
	}
	return r, err
}

// plain passes a call without a result on, or strikes.
func plain(f *Failing, method string, call func() error) error {
	_, err := one(f, method, func() (struct{}, error) { return struct{}{}, call() })
	return err
}

// batch passes a call with a result for each of n entries on, or strikes; fail
// makes the result of an entry that failed.
func batch[R any](f *Failing, method string, n int, call func() []R, fail func(error) R) []R {
	act, answer := f.enter(method)
	var list []R
	if act {
		list = call()
	}
	if answer == nil {
		return list
	}
	list = make([]R, n)
	for i := range list {
		list[i] = fail(answer)
	}
	return list
}

func itself(err error) error { return err }

// Port passes on, or strikes.
func (f *Failing) Port(ctx context.Context, number int) (device.Port, error) {
	return one(f, "Port", func() (device.Port, error) { return f.Device.Port(ctx, number) })
}

// SetPort passes on, or strikes.
func (f *Failing) SetPort(ctx context.Context, number int, up bool) error {
	return plain(f, "SetPort", func() error { return f.Device.SetPort(ctx, number, up) })
}

// CreateProtectionDomains passes on, or strikes.
func (f *Failing) CreateProtectionDomains(ctx context.Context, uids []device.UID) []device.PDResult {
	return batch(f, "CreateProtectionDomains", len(uids),
		func() []device.PDResult { return f.Device.CreateProtectionDomains(ctx, uids) },
		func(err error) device.PDResult { return device.PDResult{Err: err} })
}

// ListProtectionDomains passes on, or strikes.
func (f *Failing) ListProtectionDomains(ctx context.Context) ([]device.ProtectionDomain, error) {
	return one(f, "ListProtectionDomains", func() ([]device.ProtectionDomain, error) { return f.Device.ListProtectionDomains(ctx) })
}

// DestroyProtectionDomains passes on, or strikes.
func (f *Failing) DestroyProtectionDomains(ctx context.Context, uids []device.UID) []error {
	return batch(f, "DestroyProtectionDomains", len(uids),
		func() []error { return f.Device.DestroyProtectionDomains(ctx, uids) }, itself)
}

// Allocate passes on, or strikes.
func (f *Failing) Allocate(ctx context.Context, spec device.BufferSpec) (device.Buffer, error) {
	return one(f, "Allocate", func() (device.Buffer, error) { return f.Device.Allocate(ctx, spec) })
}

// Free passes on, or strikes.
func (f *Failing) Free(ctx context.Context, uid device.UID) error {
	return plain(f, "Free", func() error { return f.Device.Free(ctx, uid) })
}

// ListBuffers passes on, or strikes.
func (f *Failing) ListBuffers(ctx context.Context) ([]device.Buffer, error) {
	return one(f, "ListBuffers", func() ([]device.Buffer, error) { return f.Device.ListBuffers(ctx) })
}

// ReadMemory passes on, or strikes.
func (f *Failing) ReadMemory(ctx context.Context, address uint64, p []byte) error {
	return plain(f, "ReadMemory", func() error { return f.Device.ReadMemory(ctx, address, p) })
}

// WriteMemory passes on, or strikes.
func (f *Failing) WriteMemory(ctx context.Context, address uint64, p []byte) error {
	return plain(f, "WriteMemory", func() error { return f.Device.WriteMemory(ctx, address, p) })
}

// RegisterRegions passes on, or strikes.
func (f *Failing) RegisterRegions(ctx context.Context, specs []device.RegionSpec) []device.RegionResult {
	return batch(f, "RegisterRegions", len(specs),
		func() []device.RegionResult { return f.Device.RegisterRegions(ctx, specs) },
		func(err error) device.RegionResult { return device.RegionResult{Err: err} })
}

// ListRegions passes on, or strikes.
func (f *Failing) ListRegions(ctx context.Context) ([]device.Region, error) {
	return one(f, "ListRegions", func() ([]device.Region, error) { return f.Device.ListRegions(ctx) })
}

// DeregisterRegions passes on, or strikes.
func (f *Failing) DeregisterRegions(ctx context.Context, uids []device.UID) []error {
	return batch(f, "DeregisterRegions", len(uids),
		func() []error { return f.Device.DeregisterRegions(ctx, uids) }, itself)
}

// CreateQueuePairs passes on, or strikes.
func (f *Failing) CreateQueuePairs(ctx context.Context, specs []device.QueuePairSpec) []device.QueuePairResult {
	return batch(f, "CreateQueuePairs", len(specs),
		func() []device.QueuePairResult { return f.Device.CreateQueuePairs(ctx, specs) },
		func(err error) device.QueuePairResult { return device.QueuePairResult{Err: err} })
}

// ModifyQueuePairs passes on, or strikes.
func (f *Failing) ModifyQueuePairs(ctx context.Context, changes []device.QueuePairChange) []device.QueuePairResult {
	return batch(f, "ModifyQueuePairs", len(changes),
		func() []device.QueuePairResult { return f.Device.ModifyQueuePairs(ctx, changes) },
		func(err error) device.QueuePairResult { return device.QueuePairResult{Err: err} })
}

// ListQueuePairs passes on, or strikes.
func (f *Failing) ListQueuePairs(ctx context.Context) ([]device.QueuePair, error) {
	return one(f, "ListQueuePairs", func() ([]device.QueuePair, error) { return f.Device.ListQueuePairs(ctx) })
}

// GetQueuePair passes on, or strikes.
func (f *Failing) GetQueuePair(ctx context.Context, uid device.UID) (device.QueuePair, error) {
	return one(f, "GetQueuePair", func() (device.QueuePair, error) { return f.Device.GetQueuePair(ctx, uid) })
}

// DestroyQueuePairs passes on, or strikes.
func (f *Failing) DestroyQueuePairs(ctx context.Context, uids []device.UID) []error {
	return batch(f, "DestroyQueuePairs", len(uids),
		func() []error { return f.Device.DestroyQueuePairs(ctx, uids) }, itself)
}

// Post passes on, or strikes.
func (f *Failing) Post(ctx context.Context, qp device.UID, requests []device.WorkRequest) error {
	return plain(f, "Post", func() error { return f.Device.Post(ctx, qp, requests) })
}

// Completions passes on, or strikes.
func (f *Failing) Completions(ctx context.Context, qp device.UID, limit int) ([]device.Completion, error) {
	return one(f, "Completions", func() ([]device.Completion, error) { return f.Device.Completions(ctx, qp, limit) })
}
