package main

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func near(got, want float64) bool { return math.Abs(got-want) <= 1e-9*math.Abs(want) }

func TestPerfBandwidthRow(t *testing.T) {
	const ms = time.Millisecond
	for name, test := range map[string]struct {
		batches               []perfBatch
		messages              int
		peak, average, rateMs float64 // in messages of 1 MiB: a second, and a millisecond
	}{
		"one batch": {[]perfBatch{{4, 0, 2 * ms}}, 4, 2000, 2000, 2},
		// The second overlaps the first, and the third is after a pause.
		"a pause": {[]perfBatch{{10, 0, 10 * ms}, {10, 5 * ms, 15 * ms}, {10, 90 * ms, 100 * ms}}, 30, 20.0 / 15 * 1000, 300, 0.3},
		// Two completions that were seen at once are no infinite rate.
		"seen at once": {[]perfBatch{{1, 0, 4 * ms}, {1, 1 * ms, 4 * ms}}, 2, 500, 500, 0.5},
		"a fast one":   {[]perfBatch{{1, 0, 10 * ms}, {8, 8 * ms, 10 * ms}}, 9, 4000, 900, 0.9},
	} {
		for range 2 { // in any order
			r := bandwidthOf(1<<20, test.batches)
			if b := r.Bandwidth; r.Latency != nil || r.Bytes != 1<<20 || r.Iterations != test.messages || !near(b.Peak, test.peak) || !near(b.Average, test.average) || !near(b.Rate, test.rateMs/1000) {
				t.Errorf("%s: %+v %+v, want %+v", name, r, r.Bandwidth, test)
			}
			slices.Reverse(test.batches)
		}
	}
	many := slices.Repeat([]perfBatch{{1, 0, time.Second}}, maxPeakBatches+1)
	if r := bandwidthOf(1, many); r.Bandwidth.Peak != 0 || r.Iterations != len(many) {
		t.Errorf("of many batches %+v", r.Bandwidth)
	}
}

func TestPerfLatencyRow(t *testing.T) {
	var times []time.Duration
	for i := range 1000 {
		times = append(times, time.Duration(1000-i)*time.Microsecond)
	}
	r := latencyOf(8, times)
	want := perfLatency{Min: 1, Max: 1000, Typical: 500, Avg: 500.5, Stdev: math.Sqrt((1000*1000 - 1) / 12.0), P99: 990, P999: 999}
	if l := r.Latency; r.Iterations != 1000 || l.Min != want.Min || l.Max != want.Max || l.Typical != want.Typical || !near(l.Avg, want.Avg) || !near(l.Stdev, want.Stdev) || l.P99 != want.P99 || l.P999 != want.P999 {
		t.Errorf("%+v, want %+v", *r.Latency, want)
	}
	if l := *latencyOf(8, []time.Duration{3 * time.Microsecond}).Latency; l != (perfLatency{3, 3, 3, 3, 0, 3, 3}) {
		t.Errorf("of one: %+v", l)
	}
}

func TestPerfTables(t *testing.T) {
	for _, test := range []struct {
		plan perfPlan
		row  perfRow
		want string
	}{
		{perfPlan{Mode: "bw", TxDepth: 128}, perfRow{65536, 5000, &perfBandwidth{340.394, 130.966, 0.0020961}, nil}, `
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      5000           340.39             130.97               0.002096
Work is posted by calls of the daemon's API, up to 128 messages a call.
`},
		{perfPlan{Mode: "bw", TxDepth: 8192}, perfRow{8388608, 1, &perfBandwidth{0, 12345.6, 0.0000015}, nil}, `
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 8388608    1              -                  12345.60             0.000002
Work is posted by calls of the daemon's API, up to 1024 messages a call.
`},
		{perfPlan{Mode: "lat"}, perfRow{2, 1000, nil, &perfLatency{1.5, 12345.678, 2.25, 3, 0.125, 9.999, 100}}, `
 #bytes     #iterations    t_min[usec]    t_max[usec]    t_typical[usec]    t_avg[usec]    t_stdev[usec]    99% percentile[usec]    99.9% percentile[usec]
 2          1000           1.50           12345.68       2.25               3.00           0.12             10.00                   100.00
The latency holds the daemons' doors: each message is posted, and its completion read, by calls of their API.
`},
	} {
		var b strings.Builder
		test.plan.head(&b)
		test.row.print(&b)
		b.WriteString(test.plan.note() + "\n")
		if got, want := b.String(), test.want[1:]; got != want {
			t.Errorf("\n%s\nwant\n%s", got, want)
		}
	}
}

// What one call posts leaves room for a second in the queue, and is bounded.
func TestPerfBatch(t *testing.T) {
	for _, test := range []struct {
		depth int
		size  uint64
		want  int
	}{
		{128, 2, 64}, {128, 65536, 64}, {128, 1 << 20, 8}, {128, 8 << 20, 1}, {128, 1 << 30, 1}, {1, 2, 1}, {2, 2, 1}, {3, 2, 1}, {perfMaxDepth, 2, maxPost},
	} {
		p := perfPlan{TxDepth: test.depth}
		if got := p.batch(test.size); got != test.want {
			t.Errorf("depth %d, %d bytes: %d, want %d", test.depth, test.size, got, test.want)
		}
	}
}

func TestPerfGoal(t *testing.T) {
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	for _, c := range []struct {
		plan       perfPlan
		done, most int
		began      time.Time
		want       int
	}{
		{perfPlan{Iters: 10}, 0, 4, ago(time.Hour), 4},
		{perfPlan{Iters: 10}, 8, 4, ago(0), 2},
		{perfPlan{Iters: 10}, 10, 4, ago(0), 0},
		{perfPlan{Seconds: 60}, 1000, 4, ago(0), 4},
		{perfPlan{Seconds: 60}, 1000, 4, ago(time.Hour), 0},
		{perfPlan{Seconds: 1e-9}, 0, 4, ago(time.Second), 4}, // a row needs a message
	} {
		if got := c.plan.goal(c.done, c.most, c.began); got != c.want {
			t.Errorf("%+v after %d messages in %v: %d more, want %d", c.plan, c.done, time.Since(c.began).Round(time.Second), got, c.want)
		}
	}
}
