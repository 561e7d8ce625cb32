// Package devicetest says what a device.Device must do, as tests, and lends a
// device that fails on demand to the tests of others.
//
// Run is the suite that every backend passes. It asks for a Pair, two devices
// with a port each that reach one another, and holds them against the rules of
// the interface: creates that carry a UID can be repeated, what fails leaves
// nothing behind, memory is zero when it changes hands, keys end when they are
// taken away, queue pairs follow the table of states, and SEND, WRITE and READ
// move the bytes or say why not. What a driver has no capability for is not
// asked of it.
//
// RunExports does the same with Peers: an exporter, an importer and a device
// elsewhere. It holds them to what becomes of memory that others reach: register,
// read and write through the attachment, detach and close in every order, revoke,
// move, reset and close while it is in use.
//
// Failing stands before any device and strikes at the nth call, so that a test
// can walk through every point at which its subject or its device may fail:
//
//	for n := 1; ; n++ {
//		d := devicetest.NewFailing(card, "CreateQueuePairs", n, devicetest.CrashAfter)
//		run(d)
//		if !d.Struck() {
//			break // the whole run has fewer than n such calls
//		}
//		compare(card)
//	}
package devicetest
