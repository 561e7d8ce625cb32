package soft

import "time"

// quarantine keeps numbers that were given back from being given out again too
// soon: a late packet or a stale work request must not find a new owner behind
// an old name.
type quarantine[N comparable] struct {
	resting map[N]struct{}
	queue   []rest[N] // by until
}

type rest[N comparable] struct {
	number N
	until  time.Time
}

// add puts a number to rest until a time, which must not go back from call to
// call.
func (q *quarantine[N]) add(n N, until time.Time) {
	if q.resting == nil {
		q.resting = make(map[N]struct{})
	}
	q.resting[n] = struct{}{}
	q.queue = append(q.queue, rest[N]{n, until})
}

// holds reports whether a number rests at the time now.
func (q *quarantine[N]) holds(n N, now time.Time) bool {
	done := 0
	for done < len(q.queue) && !now.Before(q.queue[done].until) {
		delete(q.resting, q.queue[done].number)
		done++
	}
	q.queue = q.queue[done:]
	_, ok := q.resting[n]
	return ok
}
