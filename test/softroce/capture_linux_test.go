package softroce

import (
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/accelfab/accelfab/device/ib"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
	"github.com/accelfab/accelfab/test/capture"
)

// TestWireshark looks at what the two ends say to each other.
func TestWireshark(t *testing.T) {
	p := thePeer(t, largeMTU)
	defer record(t, row{"tshark", "peer", "4096", "", "IPv4 and IPv6", "ok, ICRC of both ends right, nothing malformed"})
	d := startDaemon(t, p)
	file := filepath.Join(t.TempDir(), "wire.pcap")
	stop := capture.Start(t, p.netns, "br0", file)
	linuxAsks(newPair(t, p, d, pb.QueuePair_TYPE_RC, gidIPv4))
	weAsk(newPair(t, p, d, pb.QueuePair_TYPE_RC, gidIPv6))
	for _, kind := range []string{"rc", "uc", "ud"} {
		for _, linuxServes := range []bool{true, false} {
			e := exchange{kind: kind, linuxServes: linuxServes, size: 4096, gid: gidIPv4}
			if _, err := e.tries(t, p, d, 4096); err != nil {
				t.Error(err)
			}
		}
	}
	stop()

	seen := capture.CheckICRC(t, file)
	capture.CheckTshark(t, file)
	we, linux := netip.MustParseAddr(ourAddress), netip.MustParseAddr(peerAddress)
	we6, linux6 := netip.MustParseAddr(ourAddress6), netip.MustParseAddr(peerAddress6)
	for _, want := range []struct {
		asks, answers netip.Addr
		requests      []ib.Opcode
		answer        ib.Opcode
	}{
		{linux, we, []ib.Opcode{ib.RCSendFirst, ib.RCRDMAWriteFirst, ib.RCRDMAWriteMiddle, ib.RCRDMAWriteLast, ib.RCRDMAReadRequest, ib.RCFetchAdd}, ib.RCAtomicAcknowledge},
		{we6, linux6, []ib.Opcode{ib.RCSendFirst, ib.RCRDMAWriteFirst, ib.RCRDMAWriteMiddle, ib.RCRDMAWriteLast, ib.RCRDMAReadRequest, ib.RCFetchAdd}, ib.RCAtomicAcknowledge},
		{linux, we, []ib.Opcode{ib.RCSendOnly, ib.UCSendOnly, ib.UDSendOnly}, ib.RCAcknowledge},
		{we, linux, []ib.Opcode{ib.RCSendOnly, ib.UCSendOnly, ib.UDSendOnly}, ib.RCAcknowledge},
	} {
		for _, op := range want.requests {
			if seen[capture.Kind{From: want.asks, Opcode: op}] == 0 {
				t.Errorf("no %v of %v in the capture", op, want.asks)
			}
		}
		if seen[capture.Kind{From: want.answers, Opcode: want.answer}] == 0 {
			t.Errorf("no %v of %v in the capture", want.answer, want.answers)
		}
	}
	t.Logf("packets by sender and opcode: %v", seen)
}
