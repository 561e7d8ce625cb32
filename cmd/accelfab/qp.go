package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

var qps = resource[*pb.QueuePair]{
	kind: qpKind, command: "qp", plural: "queue pairs",
	columns: []column[*pb.QueuePair]{
		{"QP", func(q *pb.QueuePair) any { return short(q.GetName()) }},
		{"STATE", func(q *pb.QueuePair) any { return stateText(enum(q.GetState(), "STATE"), q.GetReason()) }},
		{"TYPE", func(q *pb.QueuePair) any { return enum(q.GetType(), "TYPE") }},
		{"PORT", func(q *pb.QueuePair) any { return short(q.GetPort()) }},
		{"PD", func(q *pb.QueuePair) any { return short(q.GetProtectionDomain()) }},
		{"LOCAL", func(q *pb.QueuePair) any { return endpointText(q.GetLocalEndpoint()) }},
		{"REMOTE", func(q *pb.QueuePair) any { return endpointText(q.GetRemoteEndpoint()) }},
		{"MTU", func(q *pb.QueuePair) any { return orNone(q.GetAttributes().GetPathMtuBytes()) }},
		{"ERROR", func(q *pb.QueuePair) any { return q.GetError().GetMessage() }},
	},
	more: qpDetails,
	get: func(ctx context.Context, c *client.Client, name string) (*pb.QueuePair, error) {
		return c.QueuePairs.GetQueuePair(ctx, &pb.GetQueuePairRequest{Name: name})
	},
	list: func(ctx context.Context, c *client.Client, p page) (proto.Message, []*pb.QueuePair, string, error) {
		r, err := c.QueuePairs.ListQueuePairs(ctx, &pb.ListQueuePairsRequest{Parent: p.parent, Filter: p.filter, PageToken: p.token, PageSize: pageSize})
		return r, r.GetQueuePairs(), r.GetNextPageToken(), err
	},
	remove: func(ctx context.Context, c *client.Client, name string, r removal) error {
		_, err := c.QueuePairs.DeleteQueuePair(ctx, &pb.DeleteQueuePairRequest{Name: name, Etag: r.etag, ValidateOnly: r.validateOnly})
		return err
	},
}

// orNone is nothing for a number that is not there.
func orNone(n uint32) any {
	if n == 0 {
		return ""
	}
	return n
}

func endpointText(e *pb.QueuePair_Endpoint) string {
	if e.GetQpn() == 0 {
		return ""
	}
	return fmt.Sprintf("%s %#x", e.GetGid(), e.GetQpn())
}

func newQPCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "qp", Short: "Queue pairs, and work on them", Example: "  accelfab qp list"}
	cmd.AddCommand(newQPCreateCmd(a), qps.listCmd(a), qps.getCmd(a), newQPConnectCmd(a), newQPModifyCmd(a),
		qps.deleteCmd(a, "delete", "Destroy queue pairs"), newQPPostCmd(a), newQPPollCmd(a))
	return cmd
}

func newQPCreateCmd(a *app) *cobra.Command {
	var cr creation
	var pd, port, kindText string
	var count int
	var attributes attributeFlags
	capacities := &pb.QueuePair_Capacities{}
	cmd := &cobra.Command{
		Use:   "create DEVICE",
		Short: "Make queue pairs: RC and UC in state INIT, UD in RTS",
		Example: `  accelfab qp create soft-0 --id q1 --pd soft-0/pd1 --port soft-0/8
  accelfab qp create soft-0 --id u1 --pd soft-0/pd1 --port soft-0/8 --type ud --qkey 0x11111111
  accelfab qp create soft-0 --pd soft-0/pd1 --port soft-0/8 --count 1000`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: first(devices.complete(a)),
		RunE: func(cmd *cobra.Command, args []string) error {
			parent, err := deviceKind.name(args[0])
			if err != nil {
				return err
			}
			q := &pb.QueuePair{Labels: cr.labels, Capacities: capacities}
			if q.Attributes, err = attributes.message(); err != nil {
				return err
			}
			if q.ProtectionDomain, err = pdKind.name(pd); err != nil {
				return err
			}
			if q.Port, err = portKind.name(port); err != nil {
				return err
			}
			if q.Type, err = parseEnum[pb.QueuePair_Type]("--type", kindText, "TYPE"); err != nil {
				return err
			}
			if count != 1 {
				if cr.id != "" {
					return usage("--id goes with --count 1")
				}
				return a.createMany(cmd, parent, q, cr, count)
			}
			return a.call(cmd, func(ctx context.Context, c *client.Client) error {
				q, err := c.QueuePairs.CreateQueuePair(ctx, &pb.CreateQueuePairRequest{
					Parent: parent, QueuePairId: cr.id, RequestId: cr.requestID, ValidateOnly: cr.validateOnly, QueuePair: q,
				})
				if err != nil {
					return err
				}
				return qps.print(a, cmd, q)
			})
		},
	}
	cr.flags(cmd)
	attributes.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&pd, "pd", "", "protection domain")
	f.StringVar(&port, "port", "", "port, as DEVICE/PORT")
	f.StringVar(&kindText, "type", "rc", "rc, uc or ud")
	f.IntVar(&count, "count", 1, "how many, 1 to 1000, all or none")
	f.Uint32Var(&capacities.SendWr, "send-wr", 0, "work requests on the send queue (0: the daemon's default)")
	f.Uint32Var(&capacities.RecvWr, "recv-wr", 0, "work requests on the receive queue (0: the daemon's default)")
	f.Uint32Var(&capacities.Sge, "sge", 0, "scatter/gather entries of a work request (0: the daemon's default)")
	_ = cmd.MarkFlagRequired("pd")
	_ = cmd.MarkFlagRequired("port")
	_ = cmd.RegisterFlagCompletionFunc("pd", pds.complete(a))
	_ = cmd.RegisterFlagCompletionFunc("port", ports.complete(a))
	return cmd
}

// createMany makes queue pairs that are alike, as one change.
func (a *app) createMany(cmd *cobra.Command, parent string, q *pb.QueuePair, cr creation, count int) error {
	if count < 1 || count > 1000 {
		return usage("--count %d: want 1 to 1000", count)
	}
	batch := &pb.BatchCreateQueuePairsRequest{Parent: parent, RequestId: cr.requestID, ValidateOnly: cr.validateOnly}
	for range count {
		batch.Requests = append(batch.Requests, &pb.CreateQueuePairRequest{QueuePair: q})
	}
	return a.call(cmd, func(ctx context.Context, c *client.Client) error {
		r, err := c.QueuePairs.BatchCreateQueuePairs(ctx, batch)
		if err != nil {
			return err
		}
		return print(a, cmd, r, qps.columns, r.GetQueuePairs()...)
	})
}

func newQPConnectCmd(a *app) *cobra.Command {
	var peer string
	cmd := &cobra.Command{
		Use:   "connect A B",
		Short: "Connect two queue pairs with each other, on one node or on two",
		Long: `Connect two queue pairs with each other: each learns the other's endpoint and goes to
RTS. If one cannot, the other is taken back. A is on the server that is asked; B is
there too, or on --peer-server. Both are RC or both UC: a UD queue pair has no peer.`,
		Example: `  accelfab qp connect soft-0/q1 soft-3/q2
  accelfab qp connect soft-0/q1 soft-0/q1 --peer-server unix:///run/n2/accelfabd.sock`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: qps.complete(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			var ends [2]client.End
			for i := range ends {
				var err error
				if ends[i].Name, err = qpKind.name(args[i]); err != nil {
					return err
				}
			}
			if peer == "" {
				peer = a.server
				if ends[0].Name == ends[1].Name {
					return usage("%s with itself: give two queue pairs, or --peer-server", args[0])
				}
			}
			return a.call(cmd, func(ctx context.Context, c *client.Client) error {
				return a.dial(peer, func(p *client.Client) error {
					ends[0].Client, ends[1].Client = c, p
					qa, qb, err := client.ConnectPair(ctx, ends[0], ends[1])
					if err != nil {
						return err
					}
					both := &pb.BatchConnectQueuePairsResponse{QueuePairs: []*pb.QueuePair{qa, qb}}
					return print(a, cmd, both, qps.columns, qa, qb)
				})
			})
		},
	}
	cmd.Flags().StringVar(&peer, "peer-server", "", "daemon that B is on (default: the same)")
	return cmd
}

func newQPModifyCmd(a *app) *cobra.Command {
	var state, etag string
	var validateOnly bool
	cmd := on(a, qps, &cobra.Command{
		Use:     "modify DEVICE/ID",
		Short:   "Take a queue pair to another state",
		Example: "  accelfab qp modify soft-0/q1 --state init",
	}, func(name string) (call[*pb.QueuePair], error) {
		target, err := parseEnum[pb.QueuePair_State]("--state", state, "STATE")
		req := &pb.ModifyQueuePairRequest{Name: name, TargetState: target, Etag: etag, ValidateOnly: validateOnly}
		return func(ctx context.Context, c *client.Client) (*pb.QueuePair, error) {
			return c.QueuePairs.ModifyQueuePair(ctx, req)
		}, err
	}, qps.print)
	cmd.Flags().StringVar(&state, "state", "", "reset, init, rtr, rts, sqd or err")
	cmd.Flags().StringVar(&etag, "etag", "", "refuse if the queue pair has changed since it had this etag")
	validateOnlyFlag(cmd, &validateOnly)
	_ = cmd.MarkFlagRequired("state")
	return cmd
}
