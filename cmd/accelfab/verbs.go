package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/accelfab/accelfab/client"
)

// resource is how the verbs that all nouns have are done for one kind.
type resource[M proto.Message] struct {
	kind
	command string // the noun in the command line
	plural  string // for people
	columns []column[M]
	more    func(w io.Writer, m M) error // what get shows below the row; may be nil
	get     func(ctx context.Context, c *client.Client, name string) (M, error)
	// list reads one page: the whole reply and what is in it.
	list   func(ctx context.Context, c *client.Client, p page) (reply proto.Message, items []M, next string, err error)
	remove func(ctx context.Context, c *client.Client, name string, r removal) error
}

type page struct {
	parent, filter, token string
}

type removal struct {
	etag         string
	validateOnly bool
}

// pageSize is how many objects a list asks for at once.
const pageSize = 1000

func (r resource[M]) print(a *app, cmd *cobra.Command, m M) error {
	return print(a, cmd, m, r.columns, m)
}

// printAll is print with what the row has no room for.
func (r resource[M]) printAll(a *app, cmd *cobra.Command, m M) error {
	if err := r.print(a, cmd, m); err != nil || r.more == nil || a.output != "table" {
		return err
	}
	return r.more(cmd.OutOrStdout(), m)
}

// example is a name that the help texts use.
func (r resource[M]) example() string {
	switch {
	case r.kind == portKind:
		return "soft-0/8"
	case r.onDevice:
		return "soft-0/" + r.command + "1"
	case r.kind == deviceKind:
		return "soft-0"
	}
	return "job1"
}

func (r resource[M]) use(verb string) string {
	if r.onDevice {
		return verb + " DEVICE/ID"
	}
	return verb + " ID"
}

// call is one call of the API, with all that it is to ask.
type call[M any] func(context.Context, *client.Client) (M, error)

// named is a kind of resource that a command takes a name of.
type named interface {
	name(arg string) (string, error)
	complete(a *app) cobra.CompletionFunc
}

// on lets cmd take one name of a kind, make the call that prepare gives for it,
// and show the answer.
func on[M any](a *app, of named, cmd *cobra.Command, prepare func(name string) (call[M], error), show func(*app, *cobra.Command, M) error) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	cmd.ValidArgsFunction = first(of.complete(a))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name, err := of.name(args[0])
		if err != nil {
			return err
		}
		do, err := prepare(name)
		if err != nil {
			return err
		}
		return a.call(cmd, func(ctx context.Context, c *client.Client) error {
			m, err := do(ctx, c)
			if err != nil {
				return err
			}
			return show(a, cmd, m)
		})
	}
	return cmd
}

// first completes the first argument; what follows is a file, if anything.
func first(names cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begin string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return names(cmd, args, begin)
	}
}

func (r resource[M]) getCmd(a *app) *cobra.Command {
	return on(a, r, &cobra.Command{
		Use:     r.use("get"),
		Short:   "Show one " + r.noun,
		Example: fmt.Sprintf("  accelfab %s get %s\n  accelfab %s get %s -o json", r.command, r.example(), r.command, r.example()),
	}, func(name string) (call[M], error) {
		return func(ctx context.Context, c *client.Client) (M, error) { return r.get(ctx, c, name) }, nil
	}, r.printAll)
}

func (r resource[M]) listCmd(a *app) *cobra.Command {
	var filter string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List " + r.plural,
		Example: fmt.Sprintf("  accelfab %s list\n  accelfab %s list -o json", r.command, r.command),
		Args:    cobra.NoArgs,
	}
	if r.onDevice {
		cmd.Use, cmd.Args = "list [DEVICE]", cobra.MaximumNArgs(1)
		cmd.Short += ", of one device or of all"
		cmd.Example += fmt.Sprintf("\n  accelfab %s list soft-0", r.command)
		cmd.ValidArgsFunction = first(devices.complete(a))
	}
	filterFlag(cmd, &filter)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		parent := localNode
		if r.onDevice {
			parent = localNode + "/devices/-"
			if len(args) == 1 {
				var err error
				if parent, err = deviceKind.name(args[0]); err != nil {
					return err
				}
			}
		}
		return a.call(cmd, func(ctx context.Context, c *client.Client) error {
			all, items, err := r.all(ctx, c, page{parent: parent, filter: filter})
			if err != nil {
				return err
			}
			return print(a, cmd, all, r.columns, items...)
		})
	}
	return cmd
}

func filterFlag(cmd *cobra.Command, filter *string) {
	cmd.Flags().StringVar(filter, "filter", "", "only those that fit: FIELD = VALUE, joined by AND\n(names are whole: session = nodes/local/sessions/job1)")
}

// all reads all pages.
func (r resource[M]) all(ctx context.Context, c *client.Client, p page) (all proto.Message, items []M, err error) {
	for {
		reply, some, next, err := r.list(ctx, c, p)
		if err != nil {
			return nil, nil, err
		}
		if items = append(items, some...); all == nil {
			all = reply
		} else {
			proto.Merge(all, reply)
		}
		if p.token = next; next == "" {
			token := all.ProtoReflect().Descriptor().Fields().ByName("next_page_token")
			all.ProtoReflect().Clear(token)
			return all, items, nil
		}
	}
}

func (r resource[M]) deleteCmd(a *app, verb, about string) *cobra.Command {
	var how removal
	cmd := &cobra.Command{
		Use:               r.use(verb) + "...",
		Short:             about,
		Example:           fmt.Sprintf("  accelfab %s %s %s", r.command, verb, r.example()),
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: r.complete(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			if how.etag != "" && len(args) > 1 {
				return usage("--etag goes with one name")
			}
			names := make([]string, len(args))
			for i, arg := range args {
				var err error
				if names[i], err = r.name(arg); err != nil {
					return err
				}
			}
			what := verb + "d"
			if how.validateOnly {
				what = "can be " + what
			}
			return a.call(cmd, func(ctx context.Context, c *client.Client) error {
				var failed []error
				var done []string
				for _, name := range names {
					if err := r.remove(ctx, c, name, how); err != nil {
						failed = append(failed, err)
						continue
					}
					done = append(done, fmt.Sprintf("%s %s: %s", r.noun, short(name), what))
				}
				if len(done) > 0 {
					failed = append(failed, a.done(cmd, "%s", strings.Join(done, "\n")))
				}
				return errors.Join(failed...)
			})
		},
	}
	cmd.Flags().StringVar(&how.etag, "etag", "", "refuse if the "+r.noun+" has changed since it had this etag")
	validateOnlyFlag(cmd, &how.validateOnly)
	return cmd
}

// complete offers the names that are there.
func (r resource[M]) complete(a *app) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		parent := localNode
		if r.onDevice {
			parent += "/devices/-"
		}
		a.timeout = completionTimeout
		var names []cobra.Completion
		err := a.call(cmd, func(ctx context.Context, c *client.Client) error {
			_, items, err := r.all(ctx, c, page{parent: parent})
			for _, m := range items {
				f := m.ProtoReflect().Descriptor().Fields().ByName("name")
				names = append(names, short(m.ProtoReflect().Get(f).String()))
			}
			return err
		})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
