package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// The results of a check. What is BAD makes the node not well; a note is worth
// knowing and may be as it was meant.
const (
	resultOK   = "ok"
	resultNote = "note"
	resultBad  = "BAD"
)

// finding is a line of what the doctor says.
type finding struct {
	Check   string   `json:"check"`
	Result  string   `json:"result"`
	Subject []string `json:"subjects,omitempty"` // whole names, all with the same finding
	Count   uint64   `json:"count,omitempty"`    // of the packets that it is about
	Finding string   `json:"finding"`
	ToDo    string   `json:"toDo,omitempty"`
}

// diagnosis is all of it.
type diagnosis struct {
	Well     bool      `json:"well"`
	Findings []finding `json:"findings"`
}

var findingColumns = []column[finding]{
	{"CHECK", func(f finding) any { return f.Check }},
	{"RESULT", func(f finding) any { return f.Result }},
	{"OF", func(f finding) any { return someNames(f.Subject) }},
	{"FINDING", func(f finding) any { return f.Finding }},
	{"WHAT TO DO", func(f finding) any { return f.ToDo }},
}

// someNames lists the first of many names.
func someNames(names []string) string {
	const most = 4
	var out []string
	for i, n := range names {
		if i == most && len(names) > most+1 {
			return fmt.Sprintf("%s and %d more", strings.Join(out, ","), len(names)-most)
		}
		out = append(out, short(n))
	}
	return strings.Join(out, ",")
}

func newDoctorCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Look at a node and say what is not well, and what to do",
		Long: `Look at a node and say what is well and what is not, each with what to do: the daemon
and its version, its health and store, devices, ports, receive buffers, and what ports
dropped since the daemon started.

The exit status is 0 if nothing is BAD. A note is worth knowing and may be as it was
meant, for instance a port that is disabled.`,
		Example: "  accelfab doctor\n  accelfab doctor -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var d diagnosis
			if err := a.call(cmd, func(ctx context.Context, c *client.Client) error {
				d.Findings = examine(ctx, c)
				return nil
			}); err != nil {
				return err
			}
			bad := 0
			for _, f := range d.Findings {
				if f.Result == resultBad {
					bad++
				}
			}
			d.Well = bad == 0
			err := printReport(cmd, d, func(w io.Writer) error { return table(w, findingColumns, d.Findings) })
			if err == nil && bad > 0 {
				err = fmt.Errorf("the node is not well: %d of %d findings are BAD", bad, len(d.Findings))
			}
			return err
		},
	}
}

// examine asks the daemon and judges its answers. What cannot be asked is a
// finding too.
func examine(ctx context.Context, c *client.Client) []finding {
	n, err := c.Nodes.GetNode(ctx, &pb.GetNodeRequest{Name: localNode})
	if err != nil {
		return []finding{{Check: "daemon", Result: resultBad, Finding: client.Explain(err),
			ToDo: "start accelfabd, or name where it listens by --server or ACCELFAB_SERVER"}}
	}
	all := checkNode(n, version())
	_, cards, err := devices.all(ctx, c, page{parent: localNode})
	all = append(all, checkDevices(cards, err)...)
	_, list, err := ports.all(ctx, c, page{parent: localNode + "/devices/-"})
	if err != nil {
		return append(all, finding{Check: "ports", Result: resultBad, Finding: client.Explain(err), ToDo: "see the devices above"})
	}
	return append(all, checkPorts(list)...)
}

// checkNode judges the daemon itself; own is the version of this program.
func checkNode(n *pb.Node, own string) []finding {
	all := []finding{{Check: "daemon", Result: resultOK, Subject: []string{n.GetName()}, Finding: "answers, and is " + enum(n.GetState(), "STATE")}}
	switch n.GetState() {
	case pb.Node_STATE_STARTING, pb.Node_STATE_STOPPING:
		all[0].Result, all[0].ToDo = resultBad, "wait until it has started or ended, and look again"
	}
	if have := n.GetVersion(); have == own {
		all = append(all, finding{Check: "version", Result: resultOK, Finding: have + ", as this program's"})
	} else {
		all = append(all, finding{Check: "version", Result: resultBad, Finding: fmt.Sprintf("the daemon's is %s, this program's %s", have, own),
			ToDo: "install both from one build, and restart the daemon"})
	}
	return append(all, checkHealth(n.GetHealth())...)
}

// checkHealth judges the components of the node itself. Those of devices are
// looked at with the devices.
func checkHealth(h *pb.Health) []finding {
	var all []finding
	for _, c := range h.GetComponents() {
		if strings.HasPrefix(c.GetName(), "devices/") || c.GetStatus() == pb.Health_STATUS_NOT_APPLICABLE {
			continue
		}
		f := finding{Check: c.GetName(), Result: resultOK, Finding: "is OK"}
		switch status := enum(c.GetStatus(), "STATUS"); c.GetStatus() {
		case pb.Health_STATUS_OK:
		case pb.Health_STATUS_UNKNOWN:
			f.Result, f.Finding, f.ToDo = resultNote, fmt.Sprintf("is %s: %s", stateText(status, c.GetReason()), c.GetMessage()), "see what it says"
		default:
			f.Result, f.Finding, f.ToDo = resultBad, fmt.Sprintf("is %s: %s", stateText(status, c.GetReason()), c.GetMessage()),
				"see what it says, the daemon's log, and: accelfab event list"
			if c.GetReason() == strings.TrimPrefix(pb.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE.String(), "ERROR_REASON_") {
				f.ToDo = "see to the disk of the state directory: full, read-only or failing"
			}
		}
		all = append(all, f)
	}
	return all
}

func checkDevices(list []*pb.Device, err error) []finding {
	if err != nil {
		return []finding{{Check: "devices", Result: resultBad, Finding: client.Explain(err), ToDo: "look at the daemon's log"}}
	}
	var bad findings
	usable := 0
	for _, d := range list {
		own := problemsOf(d)
		if d.GetState() == pb.Device_STATE_READY {
			usable++
			if len(own) == 0 {
				continue
			}
		}
		what := append([]string{stateText(enum(d.GetState(), "STATE"), d.GetReason())}, own...)
		bad.add("devices", resultBad, d.GetName(), strings.Join(what, ": "), "look at the device and at the daemon's log; it is tried again by itself")
	}
	result := finding{Check: "devices", Result: resultOK, Finding: fmt.Sprintf("%d of %d usable", usable, len(list))}
	if len(list) == 0 {
		result.Result, result.Finding, result.ToDo = resultNote, "there is none", "give accelfabd a --device"
	}
	return append([]finding{result}, bad...)
}

// problemsOf tells what is wrong with a device besides its ports, at which
// checkPorts looks.
func problemsOf(d *pb.Device) (messages []string) {
	for _, p := range d.GetHealth().GetProblems() {
		if !strings.HasSuffix(p.GetComponent(), "/ports") {
			messages = append(messages, p.GetMessage())
		}
	}
	return messages
}

// checkPorts judges the ports that have a cable.
func checkPorts(list []*pb.Port) []finding {
	var found findings
	active, cabled := 0, 0
	for _, p := range list {
		if p.GetClass() == pb.Port_CLASS_NOT_CONNECTED {
			continue
		}
		cabled++
		switch what := whyDown(p); {
		case p.GetState() == pb.Port_STATE_ACTIVE:
			active++
		case len(p.GetGids()) == 0: // a network that is smaller than the chassis may be meant
			found.add("ports", resultNote, p.GetName(), what, "give it an address (accelfabd --soft-network) if it is to carry data")
		case p.GetAdminState() == pb.Port_ADMIN_STATE_DISABLED:
			found.add("ports", resultNote, p.GetName(), what, "accelfab port enable, if it is to carry data")
		default:
			found.add("ports", resultBad, p.GetName(), what, "look at the cable, and at the port at its other end")
		}
		if have, want := p.GetReceiveBufferBytes(), p.GetReceiveBufferAskedBytes(); have < want {
			found.add("receive buffer", resultBad, p.GetName(), fmt.Sprintf("%d bytes of the %d asked for: packets are lost under load", have, want),
				fmt.Sprintf("sysctl -w net.core.rmem_max=%d, and restart the daemon; or run it as root", want))
		}
		for _, c := range suspicious {
			if n := c.count(p.GetCounters()); n > 0 {
				found.add(c.check, c.result, p.GetName(), c.finding, c.toDo).Count += n
			}
		}
	}
	for i := range found {
		if n := found[i].Count; n > 0 {
			found[i].Finding = fmt.Sprintf("%d %s", n, found[i].Finding)
		}
	}
	result := finding{Check: "ports", Result: resultOK, Finding: fmt.Sprintf("%d of %d with a cable are active", active, cabled)}
	return append([]finding{result}, found...)
}

func whyDown(p *pb.Port) string {
	what := "is " + stateText(enum(p.GetState(), "STATE"), p.GetReason())
	if p.GetMessage() != "" {
		what += ": " + p.GetMessage()
	}
	return what
}

// suspicious are the counters of a port that should stay 0, and one that tells
// how well packets are checked.
var suspicious = []struct {
	check, result string
	count         func(*pb.Port_Counters) uint64
	finding, toDo string
}{
	{"ICRC", resultBad, (*pb.Port_Counters).GetIcrcErrors, "packets with a wrong ICRC (icrc_errors)",
		"something on the way changes packets, or a peer computes the ICRC otherwise: capture at both ends (udp port 4791)"},
	{"IP identification", resultNote, (*pb.Port_Counters).GetIpIdsSolved, "were solved from the ICRC (ip_ids_solved)",
		"nothing: a socket does not show them, and a peer may count as it likes; such packets are guarded by 16 of the 32 bits"},
	{"receiver", resultBad, (*pb.Port_Counters).GetReceiverDrops, "packets dropped by the host for want of buffer (receiver_drops)",
		"raise the receive buffer, give the daemon more processor time, or let peers use fewer queue pairs at a time"},
	{"wiring", resultBad, (*pb.Port_Counters).GetWiringViolations, "packets from ports that are not cabled to it (wiring_violations)",
		"compare both ends' port maps with the cables: accelfab topo"},
}

// findings gathers what is the same of many subjects.
type findings []finding

func (f *findings) add(check, result, subject, text, toDo string) *finding {
	i := slices.IndexFunc(*f, func(x finding) bool {
		return x.Check == check && x.Result == result && x.Finding == text && x.ToDo == toDo
	})
	if i < 0 {
		*f = append(*f, finding{Check: check, Result: result, Finding: text, ToDo: toDo})
		i = len(*f) - 1
	}
	x := &(*f)[i]
	x.Subject = append(x.Subject, subject)
	return x
}
