// Package host runs devices in a process of their own, so that they outlive the
// daemon: a device host.
//
// In the host process, Serve offers devices on the sockets that Listen made, by
// the contract proto/accelfab/device/v1. In the daemon, Dial gives a device.Device
// for each, and keeps the connection: when the host dies, or stops to answer, its
// devices answer device.ErrUnavailable within bounded time; when there is a host
// again they are back by themselves. Each change tells with a DeviceChanged event,
// upon which the fabric compares as it does after a restart.
//
// What a host keeps in the file system is named by its socket, DIR/NAME.sock:
//
//	NAME.sock  calls (gRPC), mode 0600
//	NAME.fds   descriptors (SOCK_SEQPACKET), mode 0600
//	NAME.lock  locked by the host while it lives
//	NAME.json  who it is (Runtime), for those who look for it or end it
//	NAME.log   what it has to say, bounded
//
// Both sides of a connection are of the same user, or root; the kernel says so.
package host
