package server

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/fabric"
)

// nodeMetrics is a reading of the node, to be told in one scrape.
type nodeMetrics struct {
	version string
	health  fabric.Health
	stats   fabric.Stats
	ports   map[string]portReading // by device
	now     time.Time
}

// readNode reads what is told of the node. Of a device that does not answer in time
// it tells what that said last, and how old it is.
func (s *Server) readNode(ctx context.Context) *nodeMetrics {
	n := &nodeMetrics{version: s.header.Get(headerVersion)[0], stats: s.fabric.Stats()}
	n.ports = s.readPorts(ctx, n.stats.Devices)
	n.now = time.Now()
	n.health = s.fabric.NodeHealth() // last: it tells of what was just read
	return n
}

var (
	buildInfo  = desc("accelfab_build_info", "The version of the daemon; 1.", "version")
	nodeHealth = desc("accelfab_node_status", "1 for the status of the node, 0 for the others.", "status")
	partHealth = desc("accelfab_component_status", "1 for the status of a component, 0 for the others.", "component", "status")
	partSince  = desc("accelfab_component_since_timestamp_seconds", "Since when the status of a component is what it is.", "component")
	sessions   = desc("accelfab_sessions", "Sessions by state.", "state")
	objects    = desc("accelfab_objects", "Objects of sessions, by kind and state; of queue pairs on a device, their own state.", "kind", "state")
	memory     = desc("accelfab_device_memory_bytes", "Memory of a device that buffers come from.", "device")
	memoryUsed = desc("accelfab_device_memory_used_bytes", "Of it, what buffers have.", "device")
	deviceHas  = desc("accelfab_device_objects", "Objects that are recorded on a device.", "device", "kind")
	commitTime = desc("accelfab_store_commit_duration_seconds", "How long commits of the store took until they were durable.")
	commitFail = desc("accelfab_store_commit_failures_total", "Commits that the store refused.")
	revision   = desc("accelfab_journal_revision", "Of the newest event of the journal.")
	pending    = desc("accelfab_outcomes_pending", "Outcomes on devices that wait to be recorded.")
	portActive = desc("accelfab_port_active", "1 if the port is ACTIVE. Ports without a cable are left out.", "device", "port")
	portSpeed  = desc("accelfab_port_speed_bytes_per_second", "Present speed of one direction.", "device", "port")
	portFlaps  = desc("accelfab_port_flaps_total", "How often the port left ACTIVE since the daemon began.", "device", "port")
	portSince  = desc("accelfab_port_state_change_timestamp_seconds", "When the port's state last changed, seconds of the epoch. Ports that never did are left out.", "device", "port")
	portsAge   = desc("accelfab_device_ports_age_seconds", "How long ago the device said what is told of its ports: a scrape does not wait for a slow one.", "device")
	portEvents = desc("accelfab_port_events_total", "What happened on a port, by the name of the counter in the API.", "device", "port", "event")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// portTraffic are the counters of a port that have a metric of their own.
var portTraffic = []struct {
	desc  *prometheus.Desc
	count func(*device.PortCounters) uint64
}{
	{desc("accelfab_port_transmitted_packets_total", "Packets sent.", "device", "port"), func(c *device.PortCounters) uint64 { return c.XmitPackets }},
	{desc("accelfab_port_transmitted_bytes_total", "Bytes sent, from the BTH to the ICRC.", "device", "port"), func(c *device.PortCounters) uint64 { return c.XmitBytes }},
	{desc("accelfab_port_received_packets_total", "Packets received and accepted.", "device", "port"), func(c *device.PortCounters) uint64 { return c.RcvPackets }},
	{desc("accelfab_port_received_bytes_total", "Bytes received, from the BTH to the ICRC.", "device", "port"), func(c *device.PortCounters) uint64 { return c.RcvBytes }},
}

// portEventNames are the others, by their names in the API.
var portEventNames = []struct {
	name  string
	count func(*device.PortCounters) uint64
}{
	{"acks_sent", func(c *device.PortCounters) uint64 { return c.AcksSent }},
	{"naks_sent", func(c *device.PortCounters) uint64 { return c.NAKsSent }},
	{"rnr_nak_sent", func(c *device.PortCounters) uint64 { return c.RNRNAKsSent }},
	{"rnr_nak_received", func(c *device.PortCounters) uint64 { return c.RNRNAKsReceived }},
	{"retransmits", func(c *device.PortCounters) uint64 { return c.Retransmits }},
	{"local_ack_timeout_err", func(c *device.PortCounters) uint64 { return c.AckTimeouts }},
	{"packet_seq_err", func(c *device.PortCounters) uint64 { return c.SequenceErrors }},
	{"out_of_sequence", func(c *device.PortCounters) uint64 { return c.OutOfSequence }},
	{"duplicate_request", func(c *device.PortCounters) uint64 { return c.DuplicateRequests }},
	{"icrc_errors", func(c *device.PortCounters) uint64 { return c.ICRCErrors }},
	{"pkey_violations", func(c *device.PortCounters) uint64 { return c.PKeyViolations }},
	{"qkey_violations", func(c *device.PortCounters) uint64 { return c.QKeyViolations }},
	{"wiring_violations", func(c *device.PortCounters) uint64 { return c.WiringViolations }},
	{"unknown_qps", func(c *device.PortCounters) uint64 { return c.UnknownQPs }},
	{"malformed", func(c *device.PortCounters) uint64 { return c.Malformed }},
	{"ip_ids_predicted", func(c *device.PortCounters) uint64 { return c.IDsPredicted }},
	{"ip_ids_solved", func(c *device.PortCounters) uint64 { return c.IDsSolved }},
	{"receiver_drops", func(c *device.PortCounters) uint64 { return c.ReceiverDrops }},
	{"congestion_marks", func(c *device.PortCounters) uint64 { return c.CongestionMarks }},
	{"cnps_received", func(c *device.PortCounters) uint64 { return c.CNPsReceived }},
	{"truncated", func(c *device.PortCounters) uint64 { return c.Truncated }},
	{"unsupported_versions", func(c *device.PortCounters) uint64 { return c.UnsupportedVersions }},
	{"unknown_opcodes", func(c *device.PortCounters) uint64 { return c.UnknownOpcodes }},
	{"remote_access_errors", func(c *device.PortCounters) uint64 { return c.RemoteAccessErrors }},
	{"invalid_requests", func(c *device.PortCounters) uint64 { return c.InvalidRequests }},
	{"unexpected_packets", func(c *device.PortCounters) uint64 { return c.UnexpectedPackets }},
}

// Describe implements prometheus.Collector.
func (n *nodeMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{buildInfo, nodeHealth, partHealth, partSince, sessions, objects, memory, memoryUsed, deviceHas,
		commitTime, commitFail, revision, pending, portActive, portSpeed, portFlaps, portSince, portsAge, portEvents} {
		ch <- d
	}
	for _, t := range portTraffic {
		ch <- t.desc
	}
}

// Collect implements prometheus.Collector.
func (n *nodeMetrics) Collect(ch chan<- prometheus.Metric) {
	tell := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) { tell(d, prometheus.GaugeValue, v, labels...) }
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		tell(d, prometheus.CounterValue, float64(v), labels...)
	}

	gauge(buildInfo, 1, n.version)
	for status := range healthStatuses.to {
		gauge(nodeHealth, truth(n.health.Status == status), string(status))
		for _, c := range n.health.Components[:min(len(n.health.Components), maxComponents)] {
			gauge(partHealth, truth(c.Status == status), c.Name, string(status))
		}
	}
	for _, c := range n.health.Components[:min(len(n.health.Components), maxComponents)] {
		gauge(partSince, float64(c.Since.UnixMilli())/1000, c.Name)
	}
	for _, o := range n.stats.Objects {
		if o.Kind == "sessions" {
			gauge(sessions, float64(o.Count), o.State)
		} else {
			gauge(objects, float64(o.Count), o.Kind, o.State)
		}
	}
	for _, d := range n.stats.Devices {
		gauge(memory, float64(d.MemoryBytes), d.ID)
		gauge(memoryUsed, float64(d.Usage.BufferBytes), d.ID)
		for kind, count := range map[string]int{"protectionDomains": d.Usage.ProtectionDomains, "buffers": d.Usage.Buffers, "memoryRegions": d.Usage.MemoryRegions,
			"memoryExports": d.Usage.MemoryExports, "queuePairs": d.Usage.QueuePairs} {
			gauge(deviceHas, float64(count), d.ID, kind)
		}
	}

	buckets, sum := map[float64]uint64{}, uint64(0)
	for i, b := range n.stats.Commits.Bounds {
		sum += n.stats.Commits.Buckets[i]
		buckets[b.Seconds()] = sum
	}
	ch <- prometheus.MustNewConstHistogram(commitTime, n.stats.Commits.Count, n.stats.Commits.Sum.Seconds(), buckets)
	counter(commitFail, n.stats.Refused)
	gauge(revision, float64(n.stats.Revision))
	gauge(pending, float64(n.stats.Pending))

	for id, reading := range n.ports {
		list := reading.ports
		gauge(portsAge, max(n.now.Sub(reading.at), 0).Seconds(), id)
		for i := range list {
			p, number := &list[i], utoa(uint64(list[i].Number))
			gauge(portActive, truth(p.State == device.PortActive), id, number)
			counter(portFlaps, p.Flaps, id, number)
			if !p.ChangedAt.IsZero() {
				gauge(portSince, float64(p.ChangedAt.UnixMilli())/1e3, id, number)
			}
			gauge(portSpeed, float64(p.SpeedMbps)*1e6/8, id, number)
			for _, t := range portTraffic {
				counter(t.desc, t.count(&p.Counters), id, number)
			}
			for _, e := range portEventNames {
				counter(portEvents, e.count(&p.Counters), id, number, e.name)
			}
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
