package transport

// window bounds the packets that are outstanding. A loss halves it, and each
// window that was acknowledged adds step packets to it.
//
// Step is what the driver sends in one call. Going back wastes half a window
// for each loss, while a call costs as much as some tens of packets; what the two
// cost together is least for a window of about sqrt(2 step / p) packets, p being
// the part that is lost. That is where these rules settle, too, whatever p is: at
// 1 % and steps of 60 packets near 100, where steps of one packet settle at 12
// and lose most of what batches gain.
//
// After a time-out nothing is known of the way but that all or the answer to all
// was lost, as where a receive buffer is too small for all who send to it. So it
// starts from the floor.
type window struct {
	size, most int
	step       int
	grown      int  // towards the next packet, in parts of size
	closed     bool // it was full, and what came free since is not worth a call
}

// minWindow keeps an acknowledgement on its way while data flows.
const minWindow = 4

// callBytes is about what a driver sends in one call: an IP packet's worth.
const callBytes = 60 << 10

func (w *window) start(most, mtu int) {
	*w = window{size: most, most: most, step: max(1, min(callBytes/mtu, 64))}
}

func (w *window) acknowledged(n int) {
	w.grown += n * w.step
	if more := w.grown / w.size; more > 0 {
		w.grown -= more * w.size
		w.size = min(w.size+more, w.most)
	}
}

// gap is after a NAK: what came after the lost packet arrived.
func (w *window) gap() { w.shrink(w.size / 2) }

func (w *window) timedOut() { w.shrink(0) }

func (w *window) shrink(size int) {
	w.size = min(max(size, minWindow), w.most)
	w.grown = 0
}

// portion is what a sender waits for when the window was full, and how often it
// asks for an acknowledgement: a quarter of the window, or a whole call if that
// is more, but never more than half. Without it each packet that comes free
// would leave alone, be acknowledged alone, and let out one more.
func (w *window) portion() int { return max(1, min(w.size/2, max(w.size/4, w.step))) }

// open reports whether another packet may leave while some are outstanding.
func (w *window) open(outstanding int) bool {
	if w.closed {
		return w.size-outstanding >= w.portion()
	}
	return outstanding < w.size
}

// sent notes how many are outstanding after a packet was sent.
func (w *window) sent(outstanding int) { w.closed = outstanding >= w.size }
