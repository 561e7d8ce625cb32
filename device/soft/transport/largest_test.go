package transport_test

import (
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/soft/transport"
)

// vastMemory is a range of 2 GiB, all of it one page.
type vastMemory struct {
	fakeMemory
	page [4096]byte
}

func (m *vastMemory) find(address uint64, length uint32) ([]byte, bool) {
	if address > transport.MaxMessage || uint64(length) > transport.MaxMessage-address {
		return nil, false
	}
	return m.page[:min(length, uint32(len(m.page)))], true
}

func (m *vastMemory) Local(_ device.PD, _ ib.LKey, address uint64, length uint32, _ ib.Access) ([]byte, bool) {
	return m.find(address, length)
}

func (m *vastMemory) Remote(_ device.PD, _ ib.RKey, address uint64, length uint32, _ ib.Access) ([]byte, bool) {
	return m.find(address, length)
}

// direct is a wire without a way: what is sent has arrived.
type direct struct {
	to  *transport.QueuePair
	now time.Time
}

func (d direct) Send(p *ib.Packet, _ *device.Datagram) { d.to.Receive(d.now, p, nil) }

// The largest messages, in the smallest packets, are half of all sequence numbers
// each: posted together they go around. With the race detector, which makes this ten
// times slower, packets are large.
func TestTheLargestMessages(t *testing.T) {
	mtu := ib.MTU256
	if raceEnabled {
		mtu = ib.MTU4096
	}
	now := time.Unix(1000, 0)
	var ends [2]*transport.QueuePair
	for i := range ends {
		ends[i] = transport.New(transport.Config{Type: ib.RC, Memory: &vastMemory{}, SendWR: 4, RecvWR: 1, SGE: 1, Window: 512})
		ends[i].Modify(now, device.ToInit{Access: all})
		ends[i].Modify(now, device.ToRTR{Remote: device.Remote{PSN: 100}, PathMTU: mtu, MaxDestRDAtomic: 4, MinRNRTimer: 1})
		ends[i].Modify(now, device.ToRTS{PSN: 100, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxRDAtomic: 4})
	}
	a, b := ends[0], ends[1]
	largest := []device.SGE{{Length: transport.MaxMessage}}
	if err := b.PostRecv(&device.WorkRequest{Opcode: device.WorkRecv, SGL: largest}); err != nil {
		t.Fatal(err)
	}
	for i, op := range []device.WorkOpcode{device.WorkWrite, device.WorkRead, device.WorkSend} {
		if err := a.PostSend(&device.WorkRequest{ID: uint64(i), Opcode: op, SGL: largest, Signaled: true}); err != nil {
			t.Fatal(err)
		}
	}
	var done []device.Completion
	for a.Queued() > 0 {
		now = now.Add(time.Microsecond)
		if d := a.Deadline(); !d.IsZero() && !now.Before(d) {
			t.Fatalf("PSN 0x%06x is not answered", a.Una())
		}
		a.Transmit(now, direct{b, now}, 64)
		b.Transmit(now, direct{a, now}, 64)
		done = a.Completions(done)
	}
	done = b.Completions(done)
	want := []device.Completion{
		{ID: 0, Opcode: ib.WCRDMAWrite}, {ID: 1, Opcode: ib.WCRDMARead, Length: transport.MaxMessage}, {ID: 2, Opcode: ib.WCSend},
		{Opcode: ib.WCRecv, Length: transport.MaxMessage, Receive: true},
	}
	for i := range max(len(done), len(want)) {
		if i >= len(done) || i >= len(want) || done[i] != want[i] {
			t.Fatalf("completions %+v, want %+v", done, want)
		}
	}
	if n := a.TakeCounters().Retransmits; n != 0 {
		t.Errorf("%d packets were sent again", n)
	}
}
