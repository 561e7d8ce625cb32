// Package boltstore keeps the records and the journal of a fabric in one bbolt
// file.
//
// # The file
//
// Format 1. All integers in keys are 8 bytes, big-endian, so that the order of
// bytes is the order of numbers and new keys go to the end of the tree.
//
//	meta        "format" -> 4 bytes, big-endian: the format version
//	records     id -> frame of (name, value)      sequence: highest id ever stored
//	journal     revision -> frame of ("", time and event)   sequence: newest revision
//	quarantine  id -> reason and the bytes that stood in records
//
// The time of an event is its commit's, in nanoseconds since 1970, 8 bytes
// before the event. A frame (frame.go) carries a version and a CRC-32C over its
// bytes and its key. The sequences are bbolt's own per-bucket counters; they
// outlive the deletion of every key, so ids and revisions never go backwards.
//
// Beside the file stand "<file>.lock", locked and naming its holder while a
// process has the store open, and for moments "<file>.new", a file being made.
// A file that had to be repaired is kept as "<file>.damaged-<time>".
//
// # Commits
//
// One goroutine commits. It takes every change that is waiting when it begins
// (at most about 8 MiB) into one bbolt transaction and answers all of them when
// that is on the disk. Nobody waits for company and there is no timer: a lone
// caller gets a transaction of its own at once, a thousand callers share one.
//
// A transaction is written by two fdatasync, bbolt's default, and nothing here
// turns them off for the live file. kill -9 cannot lose an acknowledged change
// because it is with the kernel; a power loss cannot because it is with the
// disk, as far as the disk tells the truth.
//
// # Failure
//
// A commit that the disk refuses is answered with fabric.ErrStoreFailed to all
// who shared it and is undone before the next is tried (undo.go); the next may
// succeed, so a disk that has room again needs no restart. Only where the
// process dies between the refusal and the undoing, the change is either whole
// or absent, not known which.
//
// Open reads every page that can be reached before bbolt maps the file
// (pages.go), because bbolt panics on a damaged page. Damage does not stop the
// daemon: what can be read goes into a new file, the damaged one is kept aside,
// and LoadResult.Damage tells (repair.go). Only a file without any readable
// meta page is refused.
//
// # Limits
//
// A name has at most 65,535 bytes, a value at most 16 MiB. The store is for one
// process on a local file system; network and cluster file systems are refused.
package boltstore
