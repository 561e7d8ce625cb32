// Package storetest says what a fabric.Store must do, as tests, and lends two
// stores to the tests of others.
//
// Run is the suite that every store passes: changes are whole or absent, ids
// order records, revisions ascend by one, the journal pages and trims, and
// what was acknowledged is there after a reopen.
//
// Memory is a store without a disk. A test crashes it by Reopen: what was
// acknowledged stays, the old handle is dead, as if its process had died.
// Failing stands before any store and refuses or crashes at the nth call, so
// that a test can walk through every point at which its subject may die:
//
//	disk := storetest.NewMemory(storetest.Limits{})
//	for n := 1; ; n++ {
//		store := storetest.NewFailing(disk.Reopen(), n, storetest.CrashAfter)
//		run(store)
//		if !store.Struck() {
//			break // the whole run has fewer than n calls
//		}
//		compare(disk.Reopen())
//	}
package storetest
