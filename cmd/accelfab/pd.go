package main

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

var pds = resource[*pb.ProtectionDomain]{
	kind: pdKind, command: "pd", plural: "protection domains",
	columns: []column[*pb.ProtectionDomain]{
		{"PD", func(p *pb.ProtectionDomain) any { return short(p.GetName()) }},
		{"STATE", func(p *pb.ProtectionDomain) any { return stateText(enum(p.GetState(), "STATE"), p.GetReason()) }},
		{"SESSION", func(p *pb.ProtectionDomain) any { return short(p.GetSession()) }},
		{"MRS", func(p *pb.ProtectionDomain) any { return p.GetMemoryRegionCount() }},
		{"QPS", func(p *pb.ProtectionDomain) any { return p.GetQueuePairCount() }},
		{"LABELS", func(p *pb.ProtectionDomain) any { return labelsText(p.GetLabels()) }},
	},
	get: func(ctx context.Context, c *client.Client, name string) (*pb.ProtectionDomain, error) {
		return c.Memory.GetProtectionDomain(ctx, &pb.GetProtectionDomainRequest{Name: name})
	},
	list: func(ctx context.Context, c *client.Client, p page) (proto.Message, []*pb.ProtectionDomain, string, error) {
		r, err := c.Memory.ListProtectionDomains(ctx, &pb.ListProtectionDomainsRequest{Parent: p.parent, Filter: p.filter, PageToken: p.token, PageSize: pageSize})
		return r, r.GetProtectionDomains(), r.GetNextPageToken(), err
	},
	remove: func(ctx context.Context, c *client.Client, name string, r removal) error {
		_, err := c.Memory.DeleteProtectionDomain(ctx, &pb.DeleteProtectionDomainRequest{Name: name, Etag: r.etag, ValidateOnly: r.validateOnly})
		return err
	},
}

func newPDCmd(a *app) *cobra.Command {
	var cr creation
	var session string
	create := on(a, devices, &cobra.Command{
		Use:     "create DEVICE",
		Short:   "Make a protection domain",
		Example: "  accelfab pd create soft-0 --id pd1 --session job1",
	}, func(parent string) (call[*pb.ProtectionDomain], error) {
		owner, err := sessionKind.name(session)
		req := &pb.CreateProtectionDomainRequest{
			Parent: parent, ProtectionDomainId: cr.id, RequestId: cr.requestID, ValidateOnly: cr.validateOnly,
			ProtectionDomain: &pb.ProtectionDomain{Session: owner, Labels: cr.labels},
		}
		return func(ctx context.Context, c *client.Client) (*pb.ProtectionDomain, error) {
			return c.Memory.CreateProtectionDomain(ctx, req)
		}, err
	}, pds.print)
	cr.flags(create)
	sessionFlag(a, create, &session)
	cmd := &cobra.Command{Use: "pd", Short: "Protection domains: which queue pairs may touch which memory", Example: "  accelfab pd list"}
	cmd.AddCommand(create, pds.listCmd(a), pds.getCmd(a), pds.deleteCmd(a, "delete", "Destroy protection domains"))
	return cmd
}

func sessionFlag(a *app, cmd *cobra.Command, session *string) {
	cmd.Flags().StringVar(session, "session", "", "session that owns it")
	_ = cmd.MarkFlagRequired("session")
	_ = cmd.RegisterFlagCompletionFunc("session", sessions.complete(a))
}
