package soft

import (
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// A packet costs no allocation, whichever way it goes: what work allocates does
// not depend on how many packets it has.
func TestNoAllocationAPacket(t *testing.T) {
	const size = 1 << 20
	const packets = size / 256
	dir := t.TempDir()
	ca := openChassis(t, dir, "soft:hls-2,cards=1,memory=2MiB").cards[0]
	cb := openChassis(t, dir, "soft:hls-2,cards=1,memory=2MiB").cards[0]
	from, to := newEnd(t, ca, scaleOut(t, ca), size), newEnd(t, cb, scaleOut(t, cb), size)
	connect(t, from, to, ib.MTU256)
	for _, op := range []device.WorkOpcode{device.WorkWrite, device.WorkRead} {
		move := func() {
			from.post(device.WorkRequest{Opcode: op, SGL: from.sge(0, size), RemoteAddr: to.region.Address, RKey: to.region.RKey, Signaled: true})
			from.succeed(1)
		}
		move() // queues and buffers grow
		if n := testing.AllocsPerRun(3, move); n > packets/10 {
			t.Errorf("opcode %d: %.0f allocations for %d packets", op, n, packets)
		} else {
			t.Logf("opcode %d: %.0f allocations for %d packets", op, n, packets)
		}
	}
}

// Nor does a datagram, also where two destinations take turns.
func TestNoAllocationADatagram(t *testing.T) {
	const datagrams, room = 100, 256
	dir := t.TempDir()
	ca := openChassis(t, dir, "soft:hls-2,cards=1,memory=2MiB").cards[0]
	cb := openChassis(t, dir, "soft:hls-2,cards=1,memory=2MiB").cards[0]
	from := newEnd(t, ca, scaleOut(t, ca), room)
	from.qp = from.datagrams(device.ToRTR{GIDIndex: -1})
	var to [2]*end
	var dest [2]device.Datagram
	for i, port := range []int{8, 22} { // scale-out ports of hls-2
		to[i] = newEnd(t, cb, port, room)
		to[i].qp = to[i].datagrams(device.ToRTR{GIDIndex: -1})
		dest[i] = device.Datagram{GID: cb.ports[port].preferred().GID, QPN: to[i].qp.QPN, QKey: 5}
	}
	var sends, receives []device.WorkRequest
	for i := range datagrams {
		sends = append(sends, device.WorkRequest{Opcode: device.WorkSend, SGL: from.sge(0, 64), Dest: &dest[i%2], Signaled: true})
		if i%2 == 0 {
			receives = append(receives, device.WorkRequest{Opcode: device.WorkRecv, SGL: to[0].sge(0, room)})
		}
	}
	other := append([]device.WorkRequest(nil), receives...)
	for i := range other {
		other[i].SGL = to[1].sge(0, room)
	}
	move := func() {
		to[0].post(receives...)
		to[1].post(other...)
		from.post(sends...)
		from.succeed(datagrams)
		to[0].succeed(datagrams / 2)
		to[1].succeed(datagrams / 2)
	}
	move() // queues and buffers grow
	if n := testing.AllocsPerRun(50, move); n >= datagrams {
		t.Errorf("%.0f allocations for %d datagrams", n, datagrams)
	} else {
		t.Logf("%.0f allocations for %d datagrams", n, datagrams)
	}
}
