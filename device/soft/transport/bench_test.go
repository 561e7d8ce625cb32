package transport_test

import (
	"fmt"
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// What the machines themselves cost: 1 MiB messages between two queue pairs without
// a network, one copy from memory to memory for each packet.
func BenchmarkStream(b *testing.B) {
	for _, op := range []struct {
		name string
		code device.WorkOpcode
	}{{"Write", device.WorkWrite}, {"Read", device.WorkRead}} {
		for _, mtu := range []ib.MTU{ib.MTU256, ib.MTU1024, ib.MTU4096} {
			b.Run(fmt.Sprintf("%s/mtu=%v", op.name, mtu), func(b *testing.B) {
				const size = 1 << 20
				w := newWire(nil, options{mtu: mtu, window: 64})
				local, target := w.ends[0].memory.add(size, all), w.ends[1].memory.add(size, all)
				wr := device.WorkRequest{Opcode: op.code, SGL: local.sge(0, size), RemoteAddr: target.base, RKey: target.rkey, Signaled: true}
				forth, back := &counting{to: w.ends[1].QueuePair, w: w}, &counting{to: w.ends[0].QueuePair, w: w}
				done := make([]device.Completion, 0, 4)
				b.SetBytes(size)
				b.ReportAllocs()
				for b.Loop() {
					if !stream(w, &wr, forth, back, done) {
						b.Fatal("no completion")
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(size/mtu.Bytes()), "ns/packet")
			})
		}
	}
}
