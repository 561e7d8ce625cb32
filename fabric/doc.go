// Package fabric is the domain: who holds which accelerator, what was asked
// of it, and the work of making it so.
//
// The store holds what was asked, the devices hold what is, and this package
// compares. There is one way for anything to come to exist: a create is
// validated, its intent becomes durable in one commit, the worker of the
// device makes it so, and the caller gets the answer. A restart loads the
// intents, lists the devices and runs the same worker over all records, so
// recovery is the code that every create exercises.
//
// # What it promises
//
//   - An acknowledged change survives kill -9 and power loss (the store's
//     promise). A request that was not acknowledged is there entirely or not
//     at all once its request id is tried again.
//   - Every object belongs to a session. When the session is closed or its
//     lease ends, its sends that are under way get a bounded time, then all of it is destroyed in dependency order: queue pairs,
//     memory regions, exports, buffers, protection domains. A step that fails does not
//     stop the others and is tried again, with back-off, until it is done.
//   - What a device lost and cannot give back is LOST, and is never made again
//     empty: a buffer's contents, the regions and exports on it, and regions
//     made of an export, whose descriptor is gone. A queue pair that a
//     device lost is made again in INIT, without its remote endpoint, because
//     its QPN is new.
//   - When a revocation is acknowledged nothing reaches the memory by that
//     export any more. One that was recorded is done in the end, whoever waits.
//   - Descriptors that are handed in are closed on every way: when the region is
//     made, when the upload ends, when it is refused, and by Close.
//
// # Limits
//
// Uploaded descriptors are in memory only. Of refusals of descriptors the journal
// tells one a second for each identity and kind, with the count of the others.
//
// Tombstones of deleted objects, which let a late retry of a create see that
// its object is gone, are kept for an hour and at most 65,536 of them.
// A watcher holds one page of the journal, however slow it is.
//
// # Inside
//
// A request claims its records with a change, records what it asks (the devices
// leave claimed records alone until that is durable), pushes them to the workers
// of their cards and waits. The worker of a card is the only one that makes,
// moves and destroys objects on it; it drains its dirty set in batches, compares
// the whole card when a hint or a failure asks for it, and tries again with
// back-off. How a record's part ended settles the change, once. Outcomes that no
// request waits to record (a device's own doing, a forgotten object) go to the
// keeper, one goroutine that puts all that wait into one commit. One more ends
// leases, and one more sweeps exports. A restart knows none of this: it has
// records and devices only.
//
// Locks: Fabric.mu guards the index and every record in memory. It is never
// held over a commit or a call to a device.
package fabric
