package soft

import (
	"container/heap"
	"sync"
	"time"
)

// timers keeps time for the queue pairs of a card. One goroutine serves them
// all; a queue pair has an alarm set only while it waits for something.
type timers struct {
	mu     sync.Mutex
	alarms alarms
	wake   chan struct{} // the earliest alarm changed; holds one
	done   chan struct{}
}

type alarm struct {
	at time.Time
	qp *queuePair
}

// alarms is a heap by time.
type alarms []alarm

func (a alarms) Len() int           { return len(a) }
func (a alarms) Less(i, j int) bool { return a[i].at.Before(a[j].at) }
func (a alarms) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *alarms) Push(x any)        { *a = append(*a, x.(alarm)) }
func (a *alarms) Pop() any {
	last := len(*a) - 1
	x := (*a)[last]
	(*a)[last] = alarm{}
	*a = (*a)[:last]
	return x
}

func newTimers() *timers {
	return &timers{wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// set makes the goroutine call qp.alarmed(at) when the time has come.
func (t *timers) set(qp *queuePair, at time.Time) {
	t.mu.Lock()
	heap.Push(&t.alarms, alarm{at, qp})
	first := t.alarms[0].qp == qp && t.alarms[0].at.Equal(at)
	t.mu.Unlock()
	if first {
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
}

// next takes the earliest alarm if it is due, else says how long until then.
// wait is negative when there is no alarm at all.
func (t *timers) next(now time.Time) (a alarm, due bool, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.alarms) == 0 {
		return alarm{}, false, -1
	}
	if wait = t.alarms[0].at.Sub(now); wait > 0 {
		return alarm{}, false, wait
	}
	return heap.Pop(&t.alarms).(alarm), true, 0
}

// run serves alarms until close.
func (t *timers) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		a, due, wait := t.next(time.Now())
		if due {
			a.qp.alarmed(a.at)
			continue
		}
		var ring <-chan time.Time
		if wait >= 0 {
			timer.Reset(wait)
			ring = timer.C
		}
		select {
		case <-ring:
		case <-t.wake:
		case <-t.done:
			return
		}
	}
}

// close ends run. It must be called once.
func (t *timers) close() { close(t.done) }
