package fabric

import (
	"fmt"
	"strings"
)

// losses are records whose objects a device has lost, as a comparison finds them:
// its host died, it was reset, or it ended with the daemon before this one.
type losses []*record

// note takes in a record that was made and is not on the device. Fabric.mu is
// held.
func (l *losses) note(r *record) {
	if !r.gone() && !r.lost && !(r.Kind == kindExport && r.ExportAsk.Revoked) {
		*l = append(*l, r)
	}
}

// event tells of all of them at once, by kind, beside what is told of each;
// nil if nothing was lost. Fabric.mu is held.
func (l losses) event(c *card) []Event {
	if len(l) == 0 {
		return nil
	}
	var lost, again [len(collections)]int
	for _, r := range l {
		if r.sess.life.lost || r.Kind == kindBuffer || r.Kind == kindExport || r.ImportAsk != nil || r.buf != nil && !r.buf.there {
			lost[r.Kind]++
		} else {
			again[r.Kind]++
		}
	}
	var parts []string
	if s := counted(&lost); s != "" {
		parts = append(parts, s+": LOST with their contents, to be deleted")
	}
	if s := counted(&again); s != "" {
		parts = append(parts, s+": made again, queue pairs that were connected in INIT with new QPNs")
	}
	return []Event{{Type: EventChanged, Resource: c.name, Actor: system, Reason: Lost, Message: "the device does not have any more what was on it: " + strings.Join(parts, "; ")}}
}

// counted says how many there are of each kind.
func counted(n *[len(collections)]int) string {
	var parts []string
	for _, k := range objectKinds {
		switch n[k] {
		case 0:
		case 1:
			parts = append(parts, "1 "+k.String())
		default:
			parts = append(parts, fmt.Sprintf("%d %ss", n[k], k))
		}
	}
	return strings.Join(parts, ", ")
}
