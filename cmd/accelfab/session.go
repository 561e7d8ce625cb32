package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

var sessions = resource[*pb.Session]{
	kind: sessionKind, command: "session", plural: "sessions",
	columns: []column[*pb.Session]{
		{"SESSION", func(s *pb.Session) any { return short(s.GetName()) }},
		{"STATE", func(s *pb.Session) any { return stateText(enum(s.GetState(), "STATE"), s.GetReason()) }},
		{"OWNER", func(s *pb.Session) any { return s.GetOwner().GetIdentity() }},
		{"MODE", func(s *pb.Session) any { return enum(s.GetMode(), "MODE") }},
		{"DEVICES", func(s *pb.Session) any { return shortList(s.GetDevices()) }},
		{"TTL", func(s *pb.Session) any { return s.GetTtl().AsDuration() }},
		{"PDS", func(s *pb.Session) any { return s.GetUsage().GetProtectionDomains() }},
		{"BUFFERS", func(s *pb.Session) any { return s.GetUsage().GetBuffers() }},
		{"MRS", func(s *pb.Session) any { return s.GetUsage().GetMemoryRegions() }},
		{"QPS", func(s *pb.Session) any { return s.GetUsage().GetQueuePairs() }},
	},
	get: func(ctx context.Context, c *client.Client, name string) (*pb.Session, error) {
		return c.Sessions.GetSession(ctx, &pb.GetSessionRequest{Name: name})
	},
	list: func(ctx context.Context, c *client.Client, p page) (proto.Message, []*pb.Session, string, error) {
		r, err := c.Sessions.ListSessions(ctx, &pb.ListSessionsRequest{Parent: p.parent, Filter: p.filter, PageToken: p.token, PageSize: pageSize})
		return r, r.GetSessions(), r.GetNextPageToken(), err
	},
	remove: func(ctx context.Context, c *client.Client, name string, r removal) error {
		_, err := c.Sessions.DeleteSession(ctx, &pb.DeleteSessionRequest{Name: name, Etag: r.etag, ValidateOnly: r.validateOnly})
		return err
	},
}

func shortList(names []string) string {
	s := make([]string, len(names))
	for i, n := range names {
		s[i] = short(n)
	}
	return strings.Join(s, ",")
}

func newSessionCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "session", Short: "Leases that own all that a job makes", Example: "  accelfab session create --id job1 --device soft-0"}
	cmd.AddCommand(newSessionCreateCmd(a), sessions.listCmd(a), sessions.getCmd(a), newKeepAliveCmd(a), newSessionResumeCmd(a),
		sessions.deleteCmd(a, "close", "Close a session and destroy everything that it owns"), newSessionReleaseCmd(a))
	return cmd
}

func newSessionCreateCmd(a *app) *cobra.Command {
	var cr creation
	var claimed []string
	var exclusive bool
	var ttl, drain time.Duration
	var process processFlag
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Begin a session, with a claim on devices",
		Long: `Begin a session, with a claim on devices. It ends when it is closed, when nobody keeps
it alive for its ttl, or with a process if one is named; then all that it owns is
destroyed.`,
		Example: `  accelfab session create --id job1 --device soft-0 --device soft-1 --ttl 1h
  accelfab session create --id job3 --device soft-3 --ttl 24h --with-process 4711
  accelfab session create --id job2 --device soft-2 --exclusive --label job=4711`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := &pb.Session{Labels: cr.labels, Mode: pb.Session_MODE_SHARED}
			if exclusive {
				s.Mode = pb.Session_MODE_EXCLUSIVE
			}
			if cmd.Flags().Changed("ttl") {
				s.Ttl = durationpb.New(ttl)
			}
			if cmd.Flags().Changed("drain") {
				s.DrainTimeout = durationpb.New(drain)
			}
			var err error
			if s.Process, err = process.process(); err != nil {
				return err
			}
			for _, d := range claimed {
				name, err := deviceKind.name(d)
				if err != nil {
					return err
				}
				s.Devices = append(s.Devices, name)
			}
			return a.call(cmd, func(ctx context.Context, c *client.Client) error {
				s, err := c.Sessions.CreateSession(ctx, &pb.CreateSessionRequest{
					Parent: localNode, SessionId: cr.id, Session: s, RequestId: cr.requestID, ValidateOnly: cr.validateOnly,
				})
				if err != nil {
					return err
				}
				return sessions.print(a, cmd, s)
			})
		},
	}
	cr.flags(cmd)
	f := cmd.Flags()
	f.StringArrayVar(&claimed, "device", nil, "device to claim (repeatable)")
	f.BoolVar(&exclusive, "exclusive", false, "let no other session claim these devices")
	f.DurationVar(&drain, "drain", 0, "how long sends that are under way may go on when the session ends, up to 1m (default: the daemon's, 500ms)")
	f.DurationVar(&ttl, "ttl", 0, "how long the session lives after it was last kept alive (default: the daemon's)")
	process.flag(cmd)
	_ = cmd.RegisterFlagCompletionFunc("device", devices.complete(a))
	return cmd
}

func newKeepAliveCmd(a *app) *cobra.Command {
	var generation uint64
	var forever bool
	cmd := &cobra.Command{
		Use:               "keep-alive ID",
		Short:             "Give a session's lease its full ttl again",
		Example:           "  accelfab session keep-alive job1\n  accelfab session keep-alive job1 --forever",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: first(sessions.complete(a)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := sessionKind.name(args[0])
			if err != nil {
				return err
			}
			return a.dial(a.server, func(c *client.Client) error {
				ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
				defer cancel()
				s, err := c.Sessions.KeepAliveSession(ctx, &pb.KeepAliveSessionRequest{Name: name, Generation: generation})
				if err != nil {
					return err
				}
				if err := sessions.print(a, cmd, s); err != nil || !forever {
					return err
				}
				return c.KeepAlive(cmd.Context(), s)
			})
		},
	}
	cmd.Flags().Uint64Var(&generation, "generation", 0, "refuse if the session has another generation")
	cmd.Flags().BoolVar(&forever, "forever", false, "go on until interrupted, or until the session is gone")
	return cmd
}

// processFlag names the process that a session dies with.
type processFlag int32

func (p *processFlag) flag(cmd *cobra.Command) {
	cmd.Flags().Int32Var((*int32)(p), "with-process", 0, "end the session with the process that has this id")
}

func (p *processFlag) process() (*pb.Session_Process, error) {
	switch {
	case *p < 0:
		return nil, usage("--with-process %d: want a process id", *p)
	case *p == 0: // this program ends at once
		return nil, nil
	}
	return &pb.Session_Process{Pid: int32(*p)}, nil
}

func newSessionResumeCmd(a *app) *cobra.Command {
	var generation uint64
	var process processFlag
	var how removal
	cmd := on(a, sessions, &cobra.Command{
		Use:   sessions.use("resume"),
		Short: "Take a session over, so that its old holder can do nothing any more",
		Long: `Take a session over, so that its old holder can do nothing any more: the generation
grows, and calls that name the old one are refused.`,
		Example: "  accelfab session resume job1\n  accelfab session resume job1 --generation 1 --with-process 4711",
	}, func(name string) (call[*pb.Session], error) {
		p, err := process.process()
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, c *client.Client) (*pb.Session, error) {
			return c.Sessions.ResumeSession(ctx, &pb.ResumeSessionRequest{Name: name, Generation: generation, Process: p, Etag: how.etag, ValidateOnly: how.validateOnly})
		}, nil
	}, sessions.print)
	cmd.Flags().Uint64Var(&generation, "generation", 0, "refuse if the session has another generation")
	process.flag(cmd)
	cmd.Flags().StringVar(&how.etag, "etag", "", "refuse if the session has changed since it had this etag")
	validateOnlyFlag(cmd, &how.validateOnly)
	return cmd
}

func newSessionReleaseCmd(a *app) *cobra.Command {
	var how removal
	var reason string
	cmd := &cobra.Command{
		Use:   sessions.use("release"),
		Short: "End anybody's session and destroy everything that it owns (operators)",
		Long: `End anybody's session and destroy everything that it owns. The reason goes into the
journal, and to the owner who goes on using the session.`,
		Example:           `  accelfab session release job1 --reason drained`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: first(sessions.complete(a)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := sessionKind.name(args[0])
			if err != nil {
				return err
			}
			return a.call(cmd, func(ctx context.Context, c *client.Client) error {
				if _, err := c.Sessions.ReleaseSession(ctx, &pb.ReleaseSessionRequest{Name: name, Reason: reason, Etag: how.etag, ValidateOnly: how.validateOnly}); err != nil {
					return err
				}
				if how.validateOnly {
					return a.done(cmd, "session %s: can be released", short(name))
				}
				return a.done(cmd, "session %s: released", short(name))
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the journal and for the owner")
	_ = cmd.MarkFlagRequired("reason")
	cmd.Flags().StringVar(&how.etag, "etag", "", "refuse if the session has changed since it had this etag")
	validateOnlyFlag(cmd, &how.validateOnly)
	return cmd
}
