package transport

import "github.com/accelfab/accelfab/device/ib"

// Unanswered counts the packets that the requester has outstanding, READ
// responses included.
func (c *QueuePair) Unanswered() int { return c.requester.outstanding() }

// WindowSize is the present window in packets.
func (c *QueuePair) WindowSize() int { return c.requester.window.size }

// Una is the oldest PSN that is not acknowledged.
func (c *QueuePair) Una() ib.PSN { return c.requester.una }

// Expected is the PSN that the responder expects.
func (c *QueuePair) Expected() ib.PSN { return c.responder.expected }

// Queued counts the work in both queues.
func (c *QueuePair) Queued() int { return c.requester.work.count + c.responder.work.count }

// SavedAtomic gives the result that is kept for psn after atomics with the PSNs
// of done, which found 0, 1, 2 and so on.
func SavedAtomic(most int, psn ib.PSN, done ...ib.PSN) (original uint64, ok bool) {
	a := answers{most: most}
	for i, p := range done {
		a.atomic(p, 0, uint64(i))
	}
	if i := a.savedAt(psn); i >= 0 {
		return a.saved[i].original, true
	}
	return 0, false
}
