package fabric

import (
	"golang.org/x/sys/unix"
)

// clockSynchronized asks the kernel whether a time service keeps the wall clock
// right (adjtimex(2)).
func clockSynchronized() (bool, error) {
	var t unix.Timex // no modes: it only reads, which takes no right
	if _, err := unix.Adjtimex(&t); err != nil {
		return false, err
	}
	return t.Status&unix.STA_UNSYNC == 0, nil
}
