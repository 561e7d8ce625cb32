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
