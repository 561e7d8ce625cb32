package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

const (
	device0 = "nodes/local/devices/soft-0"
	job1    = "nodes/local/sessions/job1"
)

// creates are the flags that all creates have, with an id and a label.
const creates = " --id x1 --label job=4711 --request-id r1 --validate-only"

var labels = map[string]string{"job": "4711"}

// commandTests has a row or more for every command: the line, the requests that
// it makes, and what it prints.
var commandTests = []struct {
	line   string
	asks   []proto.Message
	prints string
	status int
}{
	{line: "node get", asks: []proto.Message{&pb.GetNodeRequest{Name: "nodes/local"}}, prints: `
NODE  STATE                          DEVICES  VERSION  INSTANCE  STARTED
n1    DEGRADED (DEVICE_UNAVAILABLE)  8        v1.4.0   i-1       2026-12-01 09:30:15
`},
	{line: "node health", asks: []proto.Message{&pb.GetNodeRequest{Name: "nodes/local"}}, status: 1, prints: `
COMPONENT       STATUS  REASON              SINCE                MESSAGE
devices/soft-1  FAILED  DEVICE_UNAVAILABLE  2026-12-01 09:30:15  it does not answer
store           OK      -                   2026-12-01 09:30:15  -
`},
	{line: "doctor -o yaml", asks: []proto.Message{&pb.GetNodeRequest{Name: "nodes/local"}, &pb.ListDevicesRequest{Parent: "nodes/local", PageSize: 1000},
		&pb.ListPortsRequest{Parent: "nodes/local/devices/-", PageSize: 1000}}, status: 1, prints: doctorYAML},
	{line: "topo", asks: []proto.Message{&pb.GetTopologyRequest{Name: "nodes/local/topology"}}, prints: `
LANES   soft-0  soft-1  soft-2  SCALE-OUT PORTS
soft-0  .       3       -       8,22
soft-1  3       .       2/3     8
soft-2  -       2/3     .       
`},
	{line: "topo pick 2 --allow-degraded", asks: []proto.Message{&pb.PickDevicesRequest{Name: "nodes/local", Count: 2, AllowDegraded: true}}, prints: pickTable},
	{line: "topo graph --format dot", asks: []proto.Message{&pb.GetTopologyRequest{Name: "nodes/local/topology"}}, prints: topologyDOT},
	{line: "device list --filter state=READY", asks: []proto.Message{&pb.ListDevicesRequest{Parent: "nodes/local", PageSize: 1000, Filter: "state=READY"}}, prints: deviceTable},
	{line: "device get soft-0", asks: []proto.Message{&pb.GetDeviceRequest{Name: device0}}, prints: deviceTable},
	{line: "device get nodes/n1/devices/soft-0", asks: []proto.Message{&pb.GetDeviceRequest{Name: "nodes/n1/devices/soft-0"}}, prints: deviceTable},

	{line: "port list", asks: []proto.Message{&pb.ListPortsRequest{Parent: "nodes/local/devices/-", PageSize: 1000}}, prints: portTable},
	{line: "port list soft-0", asks: []proto.Message{&pb.ListPortsRequest{Parent: device0, PageSize: 1000}}, prints: portTable},
	{line: "port get soft-0/8", asks: []proto.Message{&pb.GetPortRequest{Name: device0 + "/ports/8"}}, prints: portTable + portMore},
	{line: "port enable soft-0/8", asks: []proto.Message{setPort(pb.Port_ADMIN_STATE_ENABLED, false)}, prints: portTable},
	{line: "port disable soft-0/8 --validate-only", asks: []proto.Message{setPort(pb.Port_ADMIN_STATE_DISABLED, true)}, prints: portTable},

	{line: "session create --device soft-0 --device nodes/n1/devices/soft-3 --exclusive --ttl 1h --drain 2s" + creates, asks: []proto.Message{&pb.CreateSessionRequest{
		Parent: "nodes/local", SessionId: "x1", RequestId: "r1", ValidateOnly: true, Session: &pb.Session{
			Labels: labels, Devices: []string{device0, "nodes/n1/devices/soft-3"}, Mode: pb.Session_MODE_EXCLUSIVE, Ttl: durationpb.New(time.Hour), DrainTimeout: durationpb.New(2 * time.Second)},
	}}, prints: sessionTable},
	{line: "session create --request-id r1", asks: []proto.Message{&pb.CreateSessionRequest{
		Parent: "nodes/local", RequestId: "r1", Session: &pb.Session{Mode: pb.Session_MODE_SHARED}}}, prints: sessionTable},
	{line: "session list", asks: []proto.Message{&pb.ListSessionsRequest{Parent: "nodes/local", PageSize: 1000}}, prints: sessionTable},
	{line: "session get job1", asks: []proto.Message{&pb.GetSessionRequest{Name: job1}}, prints: sessionTable},
	{line: "session keep-alive job1 --generation 3", asks: []proto.Message{&pb.KeepAliveSessionRequest{Name: job1, Generation: 3}}, prints: sessionTable},
	{line: "session create --request-id r1 --with-process 4711", asks: []proto.Message{&pb.CreateSessionRequest{
		Parent: "nodes/local", RequestId: "r1", Session: &pb.Session{Mode: pb.Session_MODE_SHARED, Process: &pb.Session_Process{Pid: 4711}}}}, prints: sessionTable},
	{line: "session resume job1 --generation 3 --with-process 4711 --validate-only", asks: []proto.Message{&pb.ResumeSessionRequest{
		Name: job1, Generation: 3, Process: &pb.Session_Process{Pid: 4711}, ValidateOnly: true}}, prints: sessionTable},
	{line: "session release job1 --reason drained --etag e1", asks: []proto.Message{&pb.ReleaseSessionRequest{Name: job1, Reason: "drained", Etag: "e1"}},
		prints: "\nsession job1: released\n"},
	{line: "session close job1 nodes/n1/sessions/job2", asks: []proto.Message{&pb.DeleteSessionRequest{Name: job1}, &pb.DeleteSessionRequest{Name: "nodes/n1/sessions/job2"}},
		prints: "\nsession job1: closed\nsession job2: closed\n"},

	{line: "pd create soft-0 --session job1" + creates, asks: []proto.Message{&pb.CreateProtectionDomainRequest{
		Parent: device0, ProtectionDomainId: "x1", RequestId: "r1", ValidateOnly: true, ProtectionDomain: &pb.ProtectionDomain{Session: job1, Labels: labels}}}, prints: pdTable},
	{line: "pd list soft-0 --filter a=b", asks: []proto.Message{&pb.ListProtectionDomainsRequest{Parent: device0, PageSize: 1000, Filter: "a=b"}}, prints: pdTable},
	{line: "pd get soft-0/pd1", asks: []proto.Message{&pb.GetProtectionDomainRequest{Name: device0 + "/protectionDomains/pd1"}}, prints: pdTable},
	{line: "pd delete soft-0/pd1 --etag e1 --validate-only", asks: []proto.Message{&pb.DeleteProtectionDomainRequest{
		Name: device0 + "/protectionDomains/pd1", Etag: "e1", ValidateOnly: true}}, prints: "\nprotection domain soft-0/pd1: can be deleted\n"},

	{line: "buffer create soft-0 --session job1 --size 64MiB --alignment 0x1000" + creates, asks: []proto.Message{&pb.CreateBufferRequest{
		Parent: device0, BufferId: "x1", RequestId: "r1", ValidateOnly: true,
		Buffer: &pb.Buffer{Session: job1, Labels: labels, SizeBytes: 64 << 20, AlignmentBytes: 4096}}}, prints: bufferTable},
	{line: "buffer list", asks: []proto.Message{&pb.ListBuffersRequest{Parent: "nodes/local/devices/-", PageSize: 1000}}, prints: bufferTable},
	{line: "buffer get soft-0/b1", asks: []proto.Message{&pb.GetBufferRequest{Name: device0 + "/buffers/b1"}}, prints: bufferTable},
	{line: "buffer delete soft-0/b1", asks: []proto.Message{&pb.DeleteBufferRequest{Name: device0 + "/buffers/b1"}}, prints: "\nbuffer soft-0/b1: deleted\n"},
	{line: "buffer write soft-0/b1 --offset 4KiB", asks: []proto.Message{&pb.WriteBufferRequest{
		Name: device0 + "/buffers/b1", OffsetBytes: 4096, Data: []byte("from the standard input")}}, prints: "\n23 bytes written to soft-0/b1\n"},
	{line: "buffer read soft-0/b1 --offset 1MiB --length 5", asks: []proto.Message{&pb.GetBufferRequest{Name: device0 + "/buffers/b1"},
		&pb.ReadBufferRequest{Name: device0 + "/buffers/b1", OffsetBytes: 1 << 20, LengthBytes: 5}}, prints: "\nxxxxx"},

	{line: "mr create soft-0 --pd soft-0/pd1 --buffer soft-0/b1 --offset 4KiB --length 64KiB --access local-write,REMOTE_READ" + creates, asks: []proto.Message{&pb.CreateMemoryRegionRequest{
		Parent: device0, MemoryRegionId: "x1", RequestId: "r1", ValidateOnly: true, MemoryRegion: &pb.MemoryRegion{
			ProtectionDomain: device0 + "/protectionDomains/pd1", Buffer: device0 + "/buffers/b1", Labels: labels, OffsetBytes: 4096, LengthBytes: 65536,
			Access: []pb.MemoryRegion_Access{pb.MemoryRegion_ACCESS_LOCAL_WRITE, pb.MemoryRegion_ACCESS_REMOTE_READ}}}}, prints: mrTable},
	{line: "mr list soft-0", asks: []proto.Message{&pb.ListMemoryRegionsRequest{Parent: device0, PageSize: 1000}}, prints: mrTable},
	{line: "mr get soft-0/mr1", asks: []proto.Message{&pb.GetMemoryRegionRequest{Name: device0 + "/memoryRegions/mr1"}}, prints: mrTable},
	{line: "mr delete soft-0/mr1", asks: []proto.Message{&pb.DeleteMemoryRegionRequest{Name: device0 + "/memoryRegions/mr1"}}, prints: "\nmemory region soft-0/mr1: deleted\n"},

	{line: "qp create soft-0 --pd soft-0/pd1 --port soft-0/8 --type ud --send-wr 64 --recv-wr 32 --sge 2" + creates, asks: []proto.Message{&pb.CreateQueuePairRequest{
		Parent: device0, QueuePairId: "x1", RequestId: "r1", ValidateOnly: true, QueuePair: &pb.QueuePair{
			ProtectionDomain: device0 + "/protectionDomains/pd1", Port: device0 + "/ports/8", Labels: labels, Type: pb.QueuePair_TYPE_UD,
			Capacities: &pb.QueuePair_Capacities{SendWr: 64, RecvWr: 32, Sge: 2}}}}, prints: qpTable},
	{line: "qp create soft-0 --pd soft-0/pd1 --port soft-0/8 --count 2 --request-id r1", asks: []proto.Message{&pb.BatchCreateQueuePairsRequest{
		Parent: device0, RequestId: "r1", Requests: []*pb.CreateQueuePairRequest{{QueuePair: plainQP}, {QueuePair: plainQP}}}}, prints: qpTable + strings.SplitAfter(qpTable, "\n")[2]},
	{line: "qp create soft-0 --pd soft-0/pd1 --port soft-0/8 --request-id r1 --path-mtu 1024 --gid-index 0 --ack-timeout 12 --retry-count 0 --rnr-retry 0x6 --access remote-write,remote-atomic", asks: []proto.Message{&pb.CreateQueuePairRequest{
		Parent: device0, RequestId: "r1", QueuePair: &pb.QueuePair{
			ProtectionDomain: device0 + "/protectionDomains/pd1", Port: device0 + "/ports/8", Type: pb.QueuePair_TYPE_RC, Capacities: &pb.QueuePair_Capacities{},
			Attributes: &pb.QueuePair_Attributes{PathMtuBytes: proto.Uint32(1024), GidIndex: proto.Uint32(0), Timeout: proto.Uint32(12),
				RetryCount: proto.Uint32(0), RnrRetry: proto.Uint32(6),
				Access: []pb.MemoryRegion_Access{pb.MemoryRegion_ACCESS_REMOTE_WRITE, pb.MemoryRegion_ACCESS_REMOTE_ATOMIC}}}}}, prints: qpTable},
	{line: "qp create soft-0 --pd soft-0/pd1 --port soft-0/8 --type ud --request-id r1 --qkey 0x11111111 --traffic-class 32 --hop-limit 0xff", asks: []proto.Message{&pb.CreateQueuePairRequest{
		Parent: device0, RequestId: "r1", QueuePair: &pb.QueuePair{
			ProtectionDomain: device0 + "/protectionDomains/pd1", Port: device0 + "/ports/8", Type: pb.QueuePair_TYPE_UD, Capacities: &pb.QueuePair_Capacities{},
			Attributes: &pb.QueuePair_Attributes{Qkey: proto.Uint32(0x11111111), TrafficClass: proto.Uint32(32), HopLimit: proto.Uint32(255)}}}}, prints: qpTable},
	{line: "qp list", asks: []proto.Message{&pb.ListQueuePairsRequest{Parent: "nodes/local/devices/-", PageSize: 1000}}, prints: qpTable},
	{line: "qp get soft-0/q1", asks: []proto.Message{&pb.GetQueuePairRequest{Name: device0 + "/queuePairs/q1"}}, prints: qpTable + qpMore},
	{line: "qp modify soft-0/q1 --state init --etag e1", asks: []proto.Message{&pb.ModifyQueuePairRequest{
		Name: device0 + "/queuePairs/q1", TargetState: pb.QueuePair_STATE_INIT, Etag: "e1"}}, prints: qpTable},
	{line: "qp connect soft-0/q1 soft-0/q2", asks: []proto.Message{
		&pb.GetQueuePairRequest{Name: device0 + "/queuePairs/q1"}, &pb.GetQueuePairRequest{Name: device0 + "/queuePairs/q2"},
		&pb.ConnectQueuePairRequest{Name: device0 + "/queuePairs/q1", RemoteEndpoint: aQueuePair.GetLocalEndpoint()},
		&pb.ConnectQueuePairRequest{Name: device0 + "/queuePairs/q2", RemoteEndpoint: aQueuePair.GetLocalEndpoint()}}, prints: qpTable + strings.SplitAfter(qpTable, "\n")[2]},
	{line: "qp delete soft-0/q1", asks: []proto.Message{&pb.DeleteQueuePairRequest{Name: device0 + "/queuePairs/q1"}}, prints: "\nqueue pair soft-0/q1: deleted\n"},
	{line: "qp post soft-0/q1 --opcode recv --mr soft-0/mr1 --wait 0", asks: []proto.Message{
		getMR("soft-0/memoryRegions/mr1"), postOf(&pb.WorkRequest{Opcode: pb.WorkRequest_OPCODE_RECV, Sges: sge(0, 1<<16)})}, prints: "\nposted\n"},
	{line: "qp poll soft-0/q1 --after 6 --wait 5s", asks: []proto.Message{&pb.PollCompletionsRequest{
		Name: device0 + "/queuePairs/q1", After: 6, MaxCompletions: 1024, Wait: durationpb.New(5 * time.Second)}}, prints: completionTable},
	{line: "qp poll soft-0/q1 --solicited-only", asks: []proto.Message{&pb.PollCompletionsRequest{
		Name: device0 + "/queuePairs/q1", MaxCompletions: 1024, Wait: durationpb.New(0), SolicitedOnly: true}}, prints: completionTable},

	{line: "event list --after 40 --limit 1 --filter a=b", asks: []proto.Message{&pb.ListEventsRequest{Parent: "nodes/local", After: 40, PageSize: 1, Filter: "a=b"}}, prints: `
CURSOR  TIME          TYPE     RESOURCE              WHO       BEFORE  AFTER  REASON  MESSAGE
41      09:30:15.250  CHANGED  queuePairs/soft-0/q1  uid:1000  RTS     ERR    DEVICE  retries exhausted
`},
	{line: "event watch --since 4 --filter a=b", status: 1, prints: `
GAP: events after 4 and before 40 are not kept any more
41 2026-12-01T09:30:15Z CHANGED queuePairs/soft-0/q1 uid:1000: "RTS" -> "ERR" DEVICE retries exhausted
`},
	{line: "version", prints: "\n" + version() + "\n"},
}

// doctorYAML is of the node of these tests, which is not well.
var doctorYAML = `
well: false
findings:
  - check: daemon
    result: ok
    subjects:
      - nodes/n1
    finding: answers, and is DEGRADED
  - check: version
    result: BAD
    finding: the daemon's is v1.4.0, this program's ` + version() + `
    toDo: install both from one build, and restart the daemon
  - check: store
    result: ok
    finding: is OK
  - check: devices
    result: ok
    finding: 1 of 1 usable
  - check: ports
    result: ok
    finding: 1 of 1 with a cable are active
  - check: receive buffer
    result: BAD
    subjects:
      - nodes/n1/devices/soft-0/ports/8
    finding: '212992 bytes of the 4194304 asked for: packets are lost under load'
    toDo: sysctl -w net.core.rmem_max=4194304, and restart the daemon; or run it as root
`

const (
	deviceTable = `
DEVICE  STATE  DRIVER  MODEL   MODULE  PCI  MEMORY  FREE        PORTS  HELD BY
soft-0  READY  soft    HL-225  3       -    1GiB    1048572KiB  24     job1,job2
`
	portTable = `
PORT      CLASS      ADMIN    STATE   GBIT/S  MTU   PEER      GID
soft-0/8  SCALE_OUT  ENABLED  ACTIVE  100     4096  soft-3/2  ::ffff:127.64.0.9 [1]
`
	portMore = `
receive buffer: 212992 of 4194304 bytes

GID INDEX  TYPE     FAMILY           GID
0          ROCE_V2  IPv6 link-local  fe80::1
1          ROCE_V2  IPv4             ::ffff:127.64.0.9
3          ROCE_V2  IPv6             2001:db8::9

COUNTER       COUNT
xmit_packets  12
truncated     1152921504606846976
`
	sessionTable = `
SESSION  STATE   OWNER     MODE       DEVICES        TTL     PDS  BUFFERS  MRS  QPS
job1     ACTIVE  uid:1000  EXCLUSIVE  soft-0,soft-3  1h0m0s  1    2        3    4
`
	pdTable = `
PD          STATE  SESSION  MRS  QPS  LABELS
soft-0/pd1  READY  job1     2    3    {"job":"4711"}
`
	bufferTable = `
BUFFER     STATE        SESSION  SIZE   ADDRESS  MRS
soft-0/b1  LOST (LOST)  job1     64MiB  0x2000   1
`
	mrTable = `
MR          STATE  PD          OF         OFFSET  LENGTH  IOVA    LKEY    RKEY    ACCESS
soft-0/mr1  READY  soft-0/pd1  soft-0/b1  4KiB    64KiB   0x1000  0xabcd  0xdcba  local-write,remote-read
`
	qpTable = `
QP         STATE  TYPE  PORT      PD          LOCAL                   REMOTE  MTU   ERROR
soft-0/q1  ERR    RC    soft-0/8  soft-0/pd1  ::ffff:127.64.0.9 0x11  -       4096  the peer is gone
`
	qpMore = `
ATTRIBUTE       VALUE
session         job1
capacities      send_wr 128, recv_wr 64, sge 1
local gid       ::ffff:127.64.0.9 [1]
path_mtu_bytes  4096
hop_limit       64
qkey            0x11111111
access          remote-write
`
	completionTable = `
SEQUENCE  WR ID  OPCODE      STATUS   BYTES  IMM  FROM  FLAGS  MESSAGE
7         1      RDMA_WRITE  SUCCESS  -      -    -     -      -
`
)

var plainQP = &pb.QueuePair{ProtectionDomain: device0 + "/protectionDomains/pd1", Port: device0 + "/ports/8", Type: pb.QueuePair_TYPE_RC, Capacities: &pb.QueuePair_Capacities{}}

func setPort(state pb.Port_AdminState, validateOnly bool) proto.Message {
	return &pb.UpdatePortRequest{Port: &pb.Port{Name: device0 + "/ports/8", AdminState: state},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"admin_state"}}, ValidateOnly: validateOnly}
}

func getMR(name string) proto.Message {
	return &pb.GetMemoryRegionRequest{Name: "nodes/local/devices/" + name}
}

// postOf is the posting of a work request to soft-0/q1, as the command line
// completes it.
func postOf(wr *pb.WorkRequest) proto.Message {
	wr.Signaled = true
	if wr.WrId == 0 {
		wr.WrId = 1
	}
	return &pb.PostWorkRequest{Name: device0 + "/queuePairs/q1", Requests: []*pb.WorkRequest{wr}}
}

// sge is a range of the memory region of these tests.
func sge(offset uint64, length uint32) []*pb.WorkRequest_Sge {
	return []*pb.WorkRequest_Sge{{Lkey: aRegion.GetLkey(), Address: aRegion.GetIova() + offset, LengthBytes: length}}
}

// asked checks the requests that a daemon was given.
func (r *recorder) asked(t *testing.T, want ...proto.Message) {
	t.Helper()
	got := r.Calls()
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(want):
			t.Errorf("asks %s %v, and should not", got[i].Method, got[i].Request)
		case i >= len(got):
			t.Errorf("does not ask %T %v", want[i], want[i])
		case !proto.Equal(got[i].Request, want[i]):
			t.Errorf("asks\n%T %v, want\n%T %v", got[i].Request, got[i].Request, want[i], want[i])
		}
	}
}

func TestCommands(t *testing.T) {
	r := newRecorder(t, nil)
	for _, test := range commandTests {
		t.Run(test.line, func(t *testing.T) {
			got := r.run(t, strings.Fields(test.line)...)
			if got.status != test.status || (got.status == 0) != (got.stderr == "") {
				t.Errorf("status %d, want %d; %s", got.status, test.status, got.stderr)
			}
			if want := strings.TrimPrefix(test.prints, "\n"); got.stdout != want {
				t.Errorf("prints\n%s\nwant\n%s", got.stdout, want)
			}
			r.asked(t, test.asks...)
		})
	}
	if len(r.watches) != 1 || r.watches[0].GetAfter() != 4 || r.watches[0].GetFilter() != "a=b" || r.watches[0].GetParent() != "nodes/local" {
		t.Errorf("watches %v", r.watches)
	}
}

// leaves gives the commands that do something.
func leaves(cmd *cobra.Command) []*cobra.Command {
	if !cmd.HasSubCommands() {
		return []*cobra.Command{cmd}
	}
	var list []*cobra.Command
	for _, sub := range cmd.Commands() {
		list = append(list, leaves(sub)...)
	}
	return list
}

// Lab, demo, backup and what talks to another end have tests of their own.
func TestEveryCommandIsTested(t *testing.T) {
	seen := 0
	for _, cmd := range leaves(newRootCmd()) {
		path := strings.TrimPrefix(cmd.CommandPath(), "accelfab ")
		if noun, _, _ := strings.Cut(path, " "); noun == "demo" || noun == "lab" || noun == "pingpong" || noun == "perf" || noun == "conformance" || path == "node backup" {
			continue
		}
		seen++
		rows := 0
		for _, test := range commandTests {
			if test.line == path || strings.HasPrefix(test.line, path+" ") {
				rows++
			}
		}
		if rows == 0 {
			t.Errorf("%q has no row in commandTests", path)
		}
	}
	if seen < 30 {
		t.Errorf("%d commands found: the walk is broken", seen)
	}
}

func TestBufferFiles(t *testing.T) {
	r := newRecorder(t, nil)
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	contents := strings.Repeat("0123456789", 1<<17) + "end" // more than one chunk
	if err := os.WriteFile(from, []byte(contents), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := r.run(t, "buffer", "write", "soft-0/b1", from, "-o", "json"); got.status != 0 || got.stdout != "{}\n" {
		t.Errorf("write: %+v", got)
	}
	b1 := device0 + "/buffers/b1"
	r.asked(t, &pb.WriteBufferRequest{Name: b1, Data: []byte(contents[:1<<20])},
		&pb.WriteBufferRequest{Name: b1, OffsetBytes: 1 << 20, Data: []byte(contents[1<<20:])})

	// To the end: 64 MiB less the offset.
	if got := r.run(t, "buffer", "read", "soft-0/b1", to, "--offset", fmt.Sprint(64<<20-1<<20-5)); got != (result{}) {
		t.Errorf("read: %+v", got)
	}
	r.asked(t, &pb.GetBufferRequest{Name: b1}, &pb.ReadBufferRequest{Name: b1, OffsetBytes: 64<<20 - 1<<20 - 5, LengthBytes: 1 << 20},
		&pb.ReadBufferRequest{Name: b1, OffsetBytes: 64<<20 - 5, LengthBytes: 5})
	if data, err := os.ReadFile(to); err != nil || string(data) != strings.Repeat("x", 1<<20+5) {
		t.Errorf("%d bytes in the file, %v", len(data), err)
	}
}

// A session whose daemon gives it up ends the command.
func TestKeepAliveForever(t *testing.T) {
	calls := 0
	r := newRecorder(t, func(method string, _ proto.Message) (proto.Message, error) {
		if calls++; calls > 2 {
			return nil, errEnough
		}
		s := proto.Clone(aSession).(*pb.Session)
		s.Ttl = durationpb.New(3 * time.Second) // a call has a part of it: time for a busy machine
		return s, nil
	})
	got := r.run(t, "session", "keep-alive", "job1", "--forever")
	if got.status != 1 || got.stderr != "accelfab: that is all\n" {
		t.Errorf("%+v", got)
	}
	r.asked(t, &pb.KeepAliveSessionRequest{Name: job1}, &pb.KeepAliveSessionRequest{Name: aSession.Name, Generation: 1 << 60}, &pb.KeepAliveSessionRequest{Name: aSession.Name, Generation: 1 << 60})
}
