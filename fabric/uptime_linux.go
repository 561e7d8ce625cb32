package fabric

import (
	"time"

	"golang.org/x/sys/unix"
)

// uptime reads CLOCK_BOOTTIME, which counts while the machine sleeps.
func uptime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// Every Linux since 2.6.39 has this clock (clock_gettime(2)).
		panic("clock_gettime(CLOCK_BOOTTIME): " + err.Error())
	}
	return time.Duration(ts.Nano())
}
