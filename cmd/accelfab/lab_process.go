package main

import "time"

// killLimit bounds how long a process may take to go after SIGKILL.
const killLimit = 10 * time.Second

// process names one process for good. A pid alone does not: it is used again.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start_ticks"` // clock ticks from boot to its start
	Boot  string `json:"boot_id"`
}

// running tells whether this very process is there and has not ended.
func (p process) running() bool {
	now, err := identify(p.PID)
	return err == nil && now == p
}
