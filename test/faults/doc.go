// Package faults holds tests that do to a real daemon what nobody should, and look at
// what is left: it is killed at random moments under load; its disk fails, is slow, or
// loses in a power cut what was not synced (a file system of FUSE); its system calls, and
// those of its device host, fail or hang (strace).
package faults
