package soft

import (
	"net"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
)

// BenchmarkWrite64MiB writes 64 MiB in packets of 4,096 bytes from one chassis
// to another, and in turns sends as many plain UDP datagrams of the same size,
// one a call. It reports both and their ratio.
func BenchmarkWrite64MiB(b *testing.B) { benchmarkTransfer(b, device.WorkWrite) }

// BenchmarkRead64MiB does the same with READ.
func BenchmarkRead64MiB(b *testing.B) { benchmarkTransfer(b, device.WorkRead) }

func benchmarkTransfer(b *testing.B, op device.WorkOpcode) {
	const size = 64 << 20
	dir := b.TempDir()
	ca := openChassis(b, dir, "soft:hls-2,cards=1,memory=128MiB").cards[0]
	cb := openChassis(b, dir, "soft:hls-2,cards=1,memory=128MiB").cards[0]
	from, to := newEnd(b, ca, scaleOut(b, ca), size), newEnd(b, cb, scaleOut(b, cb), size)
	connect(b, from, to, ib.MTU4096)
	from.fill(1)
	to.fill(2)
	b.SetBytes(size)
	var device64, plain time.Duration
	for b.Loop() {
		start := time.Now()
		from.post(device.WorkRequest{Opcode: op, SGL: from.sge(0, size), RemoteAddr: to.region.Address, RKey: to.region.RKey, Signaled: true})
		from.succeed(1)
		device64 += time.Since(start)
		b.StopTimer()
		plain += plainUDP(b, size, 4096+ib.BTHLen+ib.ICRCLen)
		b.StartTimer()
	}
	gbits := func(d time.Duration) float64 { return size * 8 * float64(b.N) / d.Seconds() / 1e9 }
	b.ReportMetric(gbits(device64), "Gbit/s")
	b.ReportMetric(gbits(plain), "plain-Gbit/s")
	b.ReportMetric(plain.Seconds()/device64.Seconds(), "ratio")
	p, _ := from.port(from.qp.Port)
	b.ReportMetric(float64(p.retransmits.Load())/float64(b.N), "retransmits/op")
}

// plainUDP sends size bytes of payload in datagrams, one a call, and gives the
// time that the receiver took for those that arrived, scaled to all.
func plainUDP(b *testing.B, size, datagram int) time.Duration {
	b.Helper()
	receiver, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		b.Fatal(err)
	}
	defer receiver.Close()
	receiver.SetReadBuffer(socketBuffer)
	sender, err := net.DialUDP("udp4", nil, receiver.LocalAddr().(*net.UDPAddr))
	if err != nil {
		b.Fatal(err)
	}
	defer sender.Close()
	n := size / 4096
	go func() {
		p := make([]byte, datagram)
		for range n {
			sender.Write(p)
		}
		for range 100 { // the end, also if some are lost
			sender.Write(p[:1])
		}
	}()
	p := make([]byte, datagram)
	arrived := 0
	start := time.Now()
	for {
		got, err := receiver.Read(p)
		if err != nil {
			b.Fatal(err)
		}
		if got == 1 {
			break
		}
		arrived++
	}
	if arrived == 0 {
		b.Fatal("no datagram arrived")
	}
	return time.Duration(float64(time.Since(start)) * float64(n) / float64(arrived))
}

// BenchmarkCreateQueuePairs makes queue pairs in INIT, 1,000 a batch.
func BenchmarkCreateQueuePairs(b *testing.B) {
	c := openChassis(b, b.TempDir(), "soft:hls-2,cards=1,memory=1MiB").cards[0]
	ctx := b.Context()
	pd := c.CreateProtectionDomains(ctx, []device.UID{newUID()})[0]
	port := scaleOut(b, c)
	specs := make([]device.QueuePairSpec, 1000)
	uids := make([]device.UID, len(specs))
	for b.Loop() {
		for i := range specs {
			uids[i] = newUID()
			specs[i] = device.QueuePairSpec{UID: uids[i], PD: pd.PD, Port: port, Type: ib.RC,
				Steps: []device.Transition{device.ToInit{PKey: ib.DefaultPKey}}}
		}
		for _, r := range c.CreateQueuePairs(ctx, specs) {
			if r.Err != nil {
				b.Fatal(r.Err)
			}
		}
		b.StopTimer()
		c.DestroyQueuePairs(ctx, uids)
		b.StartTimer()
	}
	b.ReportMetric(1000*float64(b.N)/b.Elapsed().Seconds(), "queue-pairs/s")
}
