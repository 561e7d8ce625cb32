package transport

// queue is a ring of work. It grows as it is used, up to its limit, so that an
// idle queue pair costs nothing; entries are used again with the memory that
// they own.
type queue[T any] struct {
	entries []T // length 0 or a power of two
	first   int
	count   int
	limit   int
}

// head gives the oldest entry, nil if there is none.
func (q *queue[T]) head() *T {
	if q.count == 0 {
		return nil
	}
	return q.at(0)
}

// at gives an entry by its distance from the oldest. It is valid until the next
// push.
func (q *queue[T]) at(i int) *T { return &q.entries[(q.first+i)&(len(q.entries)-1)] }

// push gives a new entry, which holds what an earlier one left there; nil if
// the queue is full.
func (q *queue[T]) push() *T {
	if q.count >= q.limit {
		return nil
	}
	if q.count == len(q.entries) {
		grown := make([]T, max(4, 2*len(q.entries)))
		for i := range q.count {
			grown[i] = *q.at(i)
		}
		q.entries, q.first = grown, 0
	}
	q.count++
	return q.at(q.count - 1)
}

// pop drops the oldest entry.
func (q *queue[T]) pop() {
	q.first = (q.first + 1) & (len(q.entries) - 1)
	q.count--
}
