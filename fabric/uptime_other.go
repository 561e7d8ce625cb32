//go:build !linux

package fabric

import "time"

var processStart = time.Now()

// uptime counts from the start of the process, and on some systems not while
// the machine sleeps.
func uptime() time.Duration { return time.Since(processStart) }
