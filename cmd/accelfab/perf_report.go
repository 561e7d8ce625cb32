package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// perfRow is what was measured at one size.
type perfRow struct {
	Bytes      uint64         `json:"bytes"`
	Iterations int            `json:"iterations"` // messages of all queue pairs
	Bandwidth  *perfBandwidth `json:"bandwidth,omitempty"`
	Latency    *perfLatency   `json:"latency,omitempty"`
}

// perfBandwidth is in perftest's units: its MB are of 2^20 bytes.
type perfBandwidth struct {
	Peak    float64 `json:"peak_mib_per_second,omitempty"` // 0: not measured
	Average float64 `json:"average_mib_per_second"`
	Rate    float64 `json:"message_rate_mpps"`
}

// perfLatency is in microseconds.
type perfLatency struct {
	Min     float64 `json:"min_usec"`
	Max     float64 `json:"max_usec"`
	Typical float64 `json:"typical_usec"` // the median
	Avg     float64 `json:"avg_usec"`
	Stdev   float64 `json:"stdev_usec"`
	P99     float64 `json:"p99_usec"`
	P999    float64 `json:"p99_9_usec"`
}

// perfReport is what -o json and -o yaml give.
type perfReport struct {
	Plan *perfPlan `json:"plan"`
	Rows []perfRow `json:"rows"`
	Note string    `json:"note"`
}

const (
	perfBandwidthTitles = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
	perfLatencyTitles   = " #bytes     #iterations    t_min[usec]    t_max[usec]    t_typical[usec]    t_avg[usec]    t_stdev[usec]    99% percentile[usec]    99.9% percentile[usec]"
)

// head prints the titles.
func (p *perfPlan) head(w io.Writer) {
	titles := perfBandwidthTitles
	if p.Mode == "lat" {
		titles = perfLatencyTitles
	}
	fmt.Fprintln(w, titles)
}

// print prints the row under the titles.
func (r *perfRow) print(w io.Writer) {
	if b := r.Bandwidth; b != nil {
		peak := "-"
		if b.Peak > 0 {
			peak = fmt.Sprintf("%.2f", b.Peak)
		}
		fmt.Fprintf(w, " %-10d %-14d %-18s %-20.2f %.6f\n", r.Bytes, r.Iterations, peak, b.Average, b.Rate)
	}
	if l := r.Latency; l != nil {
		fmt.Fprintf(w, " %-10d %-14d %-14.2f %-14.2f %-18.2f %-14.2f %-16.2f %-23.2f %.2f\n",
			r.Bytes, r.Iterations, l.Min, l.Max, l.Typical, l.Avg, l.Stdev, l.P99, l.P999)
	}
}

// note says what the figures hold beside the wire.
func (p *perfPlan) note() string {
	if p.Mode == "lat" {
		return "The latency holds the daemons' doors: each message is posted, and its completion read, by calls of their API."
	}
	return fmt.Sprintf("Work is posted by calls of the daemon's API, up to %d messages a call.", min(maxPost, p.TxDepth))
}

// perfBatch is messages that were posted in one call and have one completion.
type perfBatch struct {
	messages          int
	posted, completed time.Duration // since the begin of the measurement
}

// maxPeakBatches bounds what the peak, which looks at all pairs, is found of.
const maxPeakBatches = 10000

// bandwidthOf makes a row of the batches of all queue pairs.
func bandwidthOf(size uint64, batches []perfBatch) perfRow {
	const mib = 1 << 20
	r := perfRow{Bytes: size}
	var end time.Duration
	for _, b := range batches {
		r.Iterations += b.messages
		end = max(end, b.completed)
	}
	r.Bandwidth = &perfBandwidth{
		Average: float64(r.Iterations) * float64(size) / mib / end.Seconds(),
		Rate:    float64(r.Iterations) / 1e6 / end.Seconds(),
	}
	if len(batches) > maxPeakBatches {
		return r
	}
	// The peak is the best rate from the post of any batch to the completion of any.
	byCompletion := slices.SortedFunc(slices.Values(batches), func(a, b perfBatch) int { return int(a.completed - b.completed) })
	for _, first := range batches {
		messages := 0
		for _, b := range byCompletion {
			if b.posted < first.posted {
				continue
			}
			messages += b.messages
			rate := float64(messages) * float64(size) / mib / (b.completed - first.posted).Seconds()
			r.Bandwidth.Peak = max(r.Bandwidth.Peak, rate)
		}
	}
	return r
}

// latencyOf makes a row of the times of single messages, which it sorts.
func latencyOf(size uint64, times []time.Duration) perfRow {
	slices.Sort(times)
	usec := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	// The smallest time that so many of a thousand do not exceed.
	within := func(perMille int) float64 { return usec(times[max((len(times)*perMille+999)/1000, 1)-1]) }
	l := &perfLatency{
		Min: usec(times[0]), Max: usec(times[len(times)-1]), Typical: within(500), P99: within(990), P999: within(999),
	}
	for _, t := range times {
		l.Avg += usec(t) / float64(len(times))
	}
	for _, t := range times {
		l.Stdev += (usec(t) - l.Avg) * (usec(t) - l.Avg) / float64(len(times))
	}
	l.Stdev = math.Sqrt(l.Stdev)
	return perfRow{Bytes: size, Iterations: len(times), Latency: l}
}
