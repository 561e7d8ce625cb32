package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// attributeFlags are the attributes of a connection that people choose. Those
// that are not given are the daemon's defaults.
type attributeFlags struct {
	given  pb.QueuePair_Attributes
	access []string
}

func (x *attributeFlags) flags(cmd *cobra.Command) {
	for _, flag := range []struct {
		name  string
		field **uint32
		usage string
	}{
		{"path-mtu", &x.given.PathMtuBytes, "RC, UC: 256, 512, 1024, 2048 or 4096 bytes (default: the largest that both ends carry)"},
		{"gid-index", &x.given.GidIndex, "entry of the port's GID table (default: the first RoCE v2 one that fits the peer)"},
		{"traffic-class", &x.given.TrafficClass, "DSCP and ECN bits of the IP header, 0 to 255 (default 0)"},
		{"hop-limit", &x.given.HopLimit, "time to live, 1 to 255 (default 64)"},
		{"qkey", &x.given.Qkey, "UD: the Q_Key that senders must know (default: random, below 0x80000000)"},
		{"ack-timeout", &x.given.Timeout, "RC: code of the ACK timer: 4.096 us times 2 to the power of it (default 14)"},
		{"retry-count", &x.given.RetryCount, "RC: how often to send again before giving up, 0 to 7 (default 7)"},
		{"rnr-retry", &x.given.RnrRetry, "RC: the same when the peer has no receive, 7 without end (default 7)"},
	} {
		cmd.Flags().Var(optionalFlag{flag.field}, flag.name, flag.usage)
	}
	cmd.Flags().StringSliceVar(&x.access, "access", nil, "RC, UC: what the peer may do: remote-write, remote-read, remote-atomic\n(default: what the type can, without remote-atomic)")
}

// message is nil if no attribute was given.
func (x *attributeFlags) message() (*pb.QueuePair_Attributes, error) {
	var err error
	if x.given.Access, err = parseAccess(x.access); err != nil || proto.Size(&x.given) == 0 {
		return nil, err
	}
	return &x.given, nil
}

// fact is one that a row has no room for.
type fact struct {
	name  string
	value any
}

var factColumns = []column[fact]{
	{"ATTRIBUTE", func(f fact) any { return f.name }},
	{"VALUE", func(f fact) any { return f.value }},
}

// qpDetails shows the attributes of a queue pair, which are those of its type,
// and how it stands.
func qpDetails(w io.Writer, q *pb.QueuePair) error {
	c, local := q.GetCapacities(), q.GetLocalEndpoint()
	facts := []fact{{"session", short(q.GetSession())},
		{"capacities", fmt.Sprintf("send_wr %d, recv_wr %d, sge %d", c.GetSendWr(), c.GetRecvWr(), c.GetSge())}}
	if local.GetGid() != "" {
		facts = append(facts, fact{"local gid", gidText(&pb.Port_Gid{Gid: local.GetGid(), Index: local.GetGidIndex()})})
	}
	m := q.GetAttributes().ProtoReflect()
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		switch name := string(f.Name()); {
		case !m.Has(f):
		case name == "access":
			facts = append(facts, fact{name, accessText(q.GetAttributes().GetAccess())})
		case name == "qkey":
			facts = append(facts, fact{name, fmt.Sprintf("%#x", q.GetAttributes().GetQkey())})
		default:
			facts = append(facts, fact{name, m.Get(f).Uint()})
		}
	}
	fmt.Fprintln(w)
	if err := table(w, factColumns, facts); err != nil || q.GetMessage() == "" {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", q.GetMessage())
	return err
}

// optionalFlag is a numberFlag that tells 0 from not given.
type optionalFlag struct{ field **uint32 }

func (o optionalFlag) String() string { return "" }
func (o optionalFlag) Type() string   { return "number" }

func (o optionalFlag) Set(text string) error {
	var n numberFlag
	if err := n.Set(text); err != nil {
		return err
	}
	*o.field = proto.Uint32(uint32(n))
	return nil
}
