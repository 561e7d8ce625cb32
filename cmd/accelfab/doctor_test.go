package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// patient is a node of one card with a few ports, which change makes ill.
func patient(t *testing.T, change func(n *pb.Node, d *pb.Device, ports []*pb.Port)) *recorder {
	t.Helper()
	n := &pb.Node{Name: "nodes/n1", State: pb.Node_STATE_READY, Version: version(), Health: &pb.Health{Status: pb.Health_STATUS_OK, Components: []*pb.Health_Component{
		{Name: "clock", Status: pb.Health_STATUS_OK}, {Name: "cluster", Status: pb.Health_STATUS_NOT_APPLICABLE},
		{Name: "devices/soft-0", Status: pb.Health_STATUS_FAILED}, {Name: "store", Status: pb.Health_STATUS_OK}}}}
	d := &pb.Device{Name: "nodes/n1/devices/soft-0", State: pb.Device_STATE_READY}
	var list []*pb.Port
	for i := range 8 {
		list = append(list, &pb.Port{Name: fmt.Sprintf("%s/ports/%d", d.Name, i), Class: pb.Port_CLASS_SCALE_OUT, AdminState: pb.Port_ADMIN_STATE_ENABLED, State: pb.Port_STATE_ACTIVE,
			Gids: []*pb.Port_Gid{{Gid: "fe80::1"}}, ReceiveBufferBytes: 4 << 20, ReceiveBufferAskedBytes: 4 << 20, Counters: &pb.Port_Counters{}})
	}
	list[7].Class, list[7].State = pb.Port_CLASS_NOT_CONNECTED, pb.Port_STATE_DOWN // of no interest
	if change != nil {
		change(n, d, list)
	}
	return newRecorder(t, func(method string, _ proto.Message) (proto.Message, error) {
		switch method {
		case "GetNode":
			return n, nil
		case "ListDevices":
			return &pb.ListDevicesResponse{Devices: []*pb.Device{d}}, nil
		case "ListPorts":
			return &pb.ListPortsResponse{Ports: list}, nil
		}
		return nil, nil
	})
}

func TestDoctorFindsNothing(t *testing.T) {
	got := patient(t, nil).run(t, "doctor")
	want := []string{"CHECK RESULT OF FINDING WHAT TO DO", "daemon ok nodes/n1 answers, and is READY -", "version ok - " + version() + ", as this program's -",
		"clock ok - is OK -", "store ok - is OK -", "devices ok - 1 of 1 usable -", "ports ok - 7 of 7 with a cable are active -"}
	var lines []string
	for line := range strings.Lines(got.stdout) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	if got.status != 0 || got.stderr != "" || !slices.Equal(lines, want) {
		t.Errorf("status %d, %s%s\nwant\n%s", got.status, got.stdout, got.stderr, strings.Join(want, "\n"))
	}
}

// Each fault is a line with what to do, and makes the status 1; a note does not.
func TestDoctorFinds(t *testing.T) {
	problem := func(component, reason, message string) *pb.Health {
		return &pb.Health{Status: pb.Health_STATUS_DEGRADED, Problems: []*pb.Health_Problem{{Resource: "nodes/n1/devices/soft-0", Component: component, Reason: reason, Message: message}}}
	}
	unwell := func(n *pb.Node, name string, status pb.Health_Status, reason, message string) {
		c := n.Health.Components
		i := slices.IndexFunc(c, func(c *pb.Health_Component) bool { return c.Name == name })
		c[i] = &pb.Health_Component{Name: name, Status: status, Reason: reason, Message: message}
	}
	for _, tc := range []struct {
		name   string
		change func(n *pb.Node, d *pb.Device, p []*pb.Port)
		want   finding // ToDo: a part of it
	}{
		{"another version", func(n *pb.Node, _ *pb.Device, _ []*pb.Port) { n.Version = "v0.9.0" },
			finding{"version", "BAD", nil, 0, "the daemon's is v0.9.0, this program's " + version(), "restart"}},
		{"it ends", func(n *pb.Node, _ *pb.Device, _ []*pb.Port) { n.State = pb.Node_STATE_STOPPING },
			finding{"daemon", "BAD", []string{"nodes/n1"}, 0, "answers, and is STOPPING", "look again"}},
		{"a record", func(n *pb.Node, _ *pb.Device, _ []*pb.Port) {
			unwell(n, "store", pb.Health_STATUS_DEGRADED, "RECORD_SET_ASIDE", "a record was set aside")
		}, finding{"store", "BAD", nil, 0, "is DEGRADED (RECORD_SET_ASIDE): a record was set aside", "event list"}},
		{"the store", func(n *pb.Node, _ *pb.Device, _ []*pb.Port) {
			unwell(n, "store", pb.Health_STATUS_DEGRADED, "STORE_UNAVAILABLE", "no space left")
		}, finding{"store", "BAD", nil, 0, "is DEGRADED (STORE_UNAVAILABLE): no space left", "disk"}},
		{"the clock", func(n *pb.Node, _ *pb.Device, _ []*pb.Port) {
			unwell(n, "clock", pb.Health_STATUS_UNKNOWN, "CLOCK_UNSYNCHRONIZED", "run chrony")
		}, finding{"clock", "note", nil, 0, "is UNKNOWN (CLOCK_UNSYNCHRONIZED): run chrony", "what it says"}},
		{"a device that serves", func(_ *pb.Node, d *pb.Device, _ []*pb.Port) {
			d.Health = problem("devices/soft-0", "TIMEOUT", "it is slow")
		},
			finding{"devices", "BAD", []string{"nodes/n1/devices/soft-0"}, 0, "READY: it is slow", "log"}},
		{"a device", func(_ *pb.Node, d *pb.Device, _ []*pb.Port) {
			d.State, d.Reason, d.Health = pb.Device_STATE_UNAVAILABLE, "DEVICE_UNAVAILABLE", problem("devices/soft-0", "DEVICE_UNAVAILABLE", "it does not answer")
		}, finding{"devices", "BAD", []string{"nodes/n1/devices/soft-0"}, 0, "UNAVAILABLE (DEVICE_UNAVAILABLE): it does not answer", "log"}},
		{"a port", func(_ *pb.Node, d *pb.Device, p []*pb.Port) {
			p[2].State, p[2].Message = pb.Port_STATE_DOWN, "no carrier"
			d.Health = problem("devices/soft-0/ports", "PORT_DOWN", "the port is down") // is told once
		}, finding{"ports", "BAD", []string{"nodes/n1/devices/soft-0/ports/2"}, 0, "is DOWN: no carrier", "cable"}},
		{"a port without an address", func(_ *pb.Node, _ *pb.Device, p []*pb.Port) {
			for _, p := range p[1:3] {
				p.State, p.Gids, p.Message, p.ReceiveBufferBytes, p.ReceiveBufferAskedBytes = pb.Port_STATE_DOWN, nil, "without an address", 0, 0
			}
		}, finding{"ports", "note", []string{"nodes/n1/devices/soft-0/ports/1", "nodes/n1/devices/soft-0/ports/2"}, 0, "is DOWN: without an address", "--soft-network"}},
		{"a disabled port", func(_ *pb.Node, _ *pb.Device, p []*pb.Port) {
			p[0].State, p[0].AdminState = pb.Port_STATE_DOWN, pb.Port_ADMIN_STATE_DISABLED
		}, finding{"ports", "note", []string{"nodes/n1/devices/soft-0/ports/0"}, 0, "is DOWN", "port enable"}},
		{"a small buffer", func(_ *pb.Node, _ *pb.Device, p []*pb.Port) { p[3].ReceiveBufferBytes = 212992 },
			finding{"receive buffer", "BAD", []string{"nodes/n1/devices/soft-0/ports/3"}, 0, "212992 bytes of the 4194304 asked for: packets are lost under load", "sysctl -w net.core.rmem_max=4194304"}},
		{"ICRC", func(_ *pb.Node, _ *pb.Device, p []*pb.Port) {
			p[1].Counters.IcrcErrors, p[2].Counters.IcrcErrors = 3, 4
		},
			finding{"ICRC", "BAD", []string{"nodes/n1/devices/soft-0/ports/1", "nodes/n1/devices/soft-0/ports/2"}, 7, "7 packets with a wrong ICRC (icrc_errors)", "capture"}},
		{"solved", func(_ *pb.Node, _ *pb.Device, p []*pb.Port) { p[1].Counters.IpIdsSolved = 9 },
			finding{"IP identification", "note", []string{"nodes/n1/devices/soft-0/ports/1"}, 9, "9 were solved from the ICRC (ip_ids_solved)", "nothing"}},
		{"drops", func(_ *pb.Node, _ *pb.Device, p []*pb.Port) { p[1].Counters.ReceiverDrops = 2 },
			finding{"receiver", "BAD", []string{"nodes/n1/devices/soft-0/ports/1"}, 2, "2 packets dropped by the host for want of buffer (receiver_drops)", "receive buffer"}},
		{"wiring", func(_ *pb.Node, _ *pb.Device, p []*pb.Port) { p[1].Counters.WiringViolations = 1 },
			finding{"wiring", "BAD", []string{"nodes/n1/devices/soft-0/ports/1"}, 1, "1 packets from ports that are not cabled to it (wiring_violations)", "accelfab topo"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := patient(t, tc.change).run(t, "doctor", "-o", "json")
			var d diagnosis
			if err := json.Unmarshal([]byte(got.stdout), &d); err != nil {
				t.Fatalf("%v: %+v", err, got)
			}
			var not []finding
			for _, f := range d.Findings {
				if f.Result != resultOK {
					not = append(not, f)
				}
			}
			if len(not) != 1 || !strings.Contains(not[0].ToDo, tc.want.ToDo) {
				t.Fatalf("finds %+v, want one to do %q", not, tc.want.ToDo)
			}
			f := not[0]
			f.ToDo = tc.want.ToDo
			if fmt.Sprint(f) != fmt.Sprint(tc.want) {
				t.Errorf("finds\n%+v, want\n%+v", f, tc.want)
			}
			if bad := f.Result == resultBad; d.Well == bad || (got.status == exitFailed) != bad || bad != strings.HasPrefix(got.stderr, "accelfab: the node is not well: 1 of ") {
				t.Errorf("well %v, status %d, %q", d.Well, got.status, got.stderr)
			}
		})
	}
}

// Nobody answers: that is the finding.
func TestDoctorWithoutADaemon(t *testing.T) {
	r := newRecorder(t, func(string, proto.Message) (proto.Message, error) {
		return nil, status.Error(codes.Unavailable, "connection refused")
	})
	got := r.run(t, "doctor")
	if got.status != exitFailed || !strings.Contains(got.stdout, "no daemon answers: connection refused") || !strings.Contains(got.stdout, "start accelfabd") ||
		got.stderr != "accelfab: the node is not well: 1 of 1 findings are BAD\n" {
		t.Errorf("%+v", got)
	}
}

// What is the same of many ports is one line, with the first of them.
func TestDoctorNamesAFew(t *testing.T) {
	got := patient(t, func(_ *pb.Node, _ *pb.Device, p []*pb.Port) {
		for _, p := range p[:7] {
			p.Counters.WiringViolations = 2
		}
	}).run(t, "doctor")
	if !strings.Contains(got.stdout, "soft-0/0,soft-0/1,soft-0/2,soft-0/3 and 3 more  14 packets from ports") {
		t.Errorf("%s", got.stdout)
	}
}
