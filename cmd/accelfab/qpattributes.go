package main

import (
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
		{"path-mtu", &x.given.PathMtuBytes, "256, 512, 1024, 2048 or 4096 bytes (default: the largest that both ends carry)"},
		{"gid-index", &x.given.GidIndex, "entry of the port's GID table (default: the first RoCE v2 one that fits the peer)"},
		{"ack-timeout", &x.given.Timeout, "code of the ACK timer: 4.096 us times 2 to the power of it (default 14)"},
		{"retry-count", &x.given.RetryCount, "how often to send again before giving up, 0 to 7 (default 7)"},
		{"rnr-retry", &x.given.RnrRetry, "the same when the peer has no receive, 7 without end (default 7)"},
	} {
		cmd.Flags().Var(optionalFlag{flag.field}, flag.name, flag.usage)
	}
	cmd.Flags().StringSliceVar(&x.access, "access", nil, "what the peer may do: remote-write, remote-read, remote-atomic\n(default: what the type can, without remote-atomic)")
}

// message is nil if no attribute was given.
func (x *attributeFlags) message() (*pb.QueuePair_Attributes, error) {
	var err error
	if x.given.Access, err = parseAccess(x.access); err != nil || proto.Size(&x.given) == 0 {
		return nil, err
	}
	return &x.given, nil
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
