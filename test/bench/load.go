package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// outcome is what callers did in a window.
type outcome struct {
	calls   int
	elapsed time.Duration
	p50     time.Duration // of a call
}

func (o outcome) rate() float64 { return float64(o.calls) / o.elapsed.Seconds() }

// load has callers call, each again as soon as it has its answer, until the
// window is over or calls were begun. The first error ends it.
func load(ctx context.Context, callers int, window time.Duration, calls int, call func(ctx context.Context, caller int) error) (outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		begun atomic.Int64
		wg    sync.WaitGroup
		took  = make([][]time.Duration, callers)
		errs  = make([]error, callers)
		start = time.Now()
	)
	for i := range callers {
		wg.Go(func() {
			for at := start; at.Sub(start) < window && ctx.Err() == nil && begun.Add(1) <= int64(calls); {
				if errs[i] = call(ctx, i); errs[i] != nil {
					cancel()
					return
				}
				now := time.Now()
				took[i] = append(took[i], now.Sub(at))
				at = now
			}
		})
	}
	wg.Wait()
	o := outcome{elapsed: time.Since(start)}
	if err := errors.Join(errs...); err != nil {
		return o, firstOf(errs)
	}
	if err := ctx.Err(); err != nil {
		return o, err
	}
	all := slices.Concat(took...)
	slices.Sort(all)
	o.calls = len(all)
	if o.calls > 0 {
		o.p50 = all[o.calls/2]
	}
	return o, nil
}

// firstOf gives the first error that is not what the end of the others' call
// made of theirs.
func firstOf(errs []error) error {
	var canceled error
	for _, err := range errs {
		switch {
		case err == nil:
		case isCanceled(err):
			canceled = err
		default:
			return err
		}
	}
	return canceled
}
