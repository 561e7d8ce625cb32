package transport

// window bounds the packets that are outstanding. Going back wastes what was
// sent after the lost packet, so a wire that loses wants a small window and one
// that does not a large one: it is halved by a loss and grows by one packet
// when a whole window was acknowledged.
type window struct {
	size, most int
	acked      int // since it last grew
}

// minWindow keeps an acknowledgement on its way while data flows.
const minWindow = 4

func (w *window) start(most int) { *w = window{size: most, most: most} }

func (w *window) acknowledged(n int) {
	if w.acked += n; w.acked >= w.size {
		w.acked = 0
		w.size = min(w.size+1, w.most)
	}
}

func (w *window) lost() {
	w.size = min(max(w.size/2, minWindow), w.most)
	w.acked = 0
}
