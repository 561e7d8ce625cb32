// Package exports holds tests of exported memory between processes and users:
// descriptors that pass through other processes, callers of another uid, a
// daemon that is killed while it holds them.
package exports
