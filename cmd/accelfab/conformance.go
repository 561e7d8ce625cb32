package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// conformanceLimit bounds the suite as a whole.
const conformanceLimit = 10 * time.Minute

// The outcomes of a check.
const (
	checkOK     = "ok"
	checkFailed = "failed"
	checkNone   = "not applicable"
)

// checkResult is how one check went.
type checkResult struct {
	Check   string  `json:"check"`
	Outcome string  `json:"outcome"`
	Detail  string  `json:"detail,omitempty"`
	Seconds float64 `json:"seconds"`
}

// notApplicable says why a check cannot be made with these devices.
type notApplicable string

func (n notApplicable) Error() string { return string(n) }

func newConformanceCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "conformance",
		Short:   "Hold devices against what is asked of every driver",
		Example: "  accelfab conformance importer",
	}
	cmd.AddCommand(newConformanceImporterCmd(a), newConformanceHolderCmd(a))
	return cmd
}

func newConformanceImporterCmd(a *app) *cobra.Command {
	var exporter, importer string
	var disruptive, list bool
	cmd := &cobra.Command{
		Use:   "importer",
		Short: "Let one device import memory of another, and check all that must hold",
		Long: `Let one device import memory of another, and check all that must hold: registering,
writing and reading through the attachment, windows, letting go in every order, the
importer killed, the exporter gone, revoked, moved and reset in use. It works by the
API alone, in sessions of its own, which it closes; what others have is left alone.

--disruptive adds what takes a whole device from everybody: the reset of the exporter.

Exit status 0: every check that applies is ok. The others say why they do not apply.`,
		Example: `  accelfab conformance importer
  accelfab conformance importer --exporter soft-0 --importer soft-nic --disruptive
  accelfab conformance importer --list`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if list {
				return printReport(cmd, importerChecks, func(w io.Writer) error {
					for _, c := range importerChecks {
						fmt.Fprintf(w, "%s\n", c.Name)
					}
					return nil
				})
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			ctx, cancel := context.WithTimeout(ctx, conformanceLimit)
			defer cancel()
			return a.dial(a.server, func(c *client.Client) error {
				h, err := openConformance(ctx, c, a.server, exporter, importer)
				if err != nil {
					return err
				}
				h.disruptive = disruptive
				results := h.run(ctx)
				err = printReport(cmd, results, func(w io.Writer) error { return h.print(w, results) })
				return errors.Join(err, failures(results))
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&exporter, "exporter", "", "device whose memory is exported (default: the first that exports)")
	f.StringVar(&importer, "importer", "", "device that imports it (default: the first other that can reach it)")
	f.BoolVar(&disruptive, "disruptive", false, "also reset the exporter, which ends all that anybody has on it")
	f.BoolVar(&list, "list", false, "name the checks and make none")
	_ = cmd.RegisterFlagCompletionFunc("exporter", devices.complete(a))
	_ = cmd.RegisterFlagCompletionFunc("importer", devices.complete(a))
	return cmd
}

// run makes all checks, one after the other: one that fails does not end the rest,
// the end of ctx does.
func (h *conformance) run(ctx context.Context) []checkResult {
	results := make([]checkResult, 0, len(importerChecks))
	for _, c := range importerChecks {
		if ctx.Err() != nil {
			results = append(results, checkResult{Check: c.Name, Outcome: checkFailed, Detail: "not made: " + context.Cause(ctx).Error()})
			continue
		}
		began := time.Now()
		err := h.check(ctx, c)
		r := checkResult{Check: c.Name, Outcome: checkOK, Seconds: time.Since(began).Seconds()}
		var none notApplicable
		switch {
		case errors.As(err, &none):
			r.Outcome, r.Detail = checkNone, none.Error()
		case err != nil:
			r.Outcome, r.Detail = checkFailed, client.Explain(err)
		}
		results = append(results, r)
	}
	return results
}

func failures(results []checkResult) error {
	var names []string
	for _, r := range results {
		if r.Outcome == checkFailed {
			names = append(names, r.Check)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d checks failed: %s", len(names), len(results), strings.Join(names, "; "))
}

func (h *conformance) print(w io.Writer, results []checkResult) error {
	fmt.Fprintf(w, "exporter %s, importer %s\n", short(h.exporter), short(h.importer))
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "CHECK\tOUTCOME\tTOOK\tDETAIL")
	for _, r := range results {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", r.Check, r.Outcome, rounded(time.Duration(r.Seconds*float64(time.Second))), r.Detail)
	}
	return tw.Flush()
}

// conformanceCheck is one thing that must hold.
type conformanceCheck struct {
	Name string `json:"check"`
	run  func(*trial, context.Context) error
}

// importerChecks are made in this order, each in sessions of its own.
var importerChecks = []conformanceCheck{
	{"the importer says that it reaches the exporter", (*trial).peerAccess},
	{"an export is of whole pages inside a buffer", (*trial).badExports},
	{"a descriptor can be passed on, and nothing else", (*trial).descriptorOnly},
	{"registered, and in the registry", (*trial).registered},
	{"a window is inside the export", (*trial).badWindows},
	{"an upload is good once, and only an export's", (*trial).badUploads},
	{"written and read through the attachment", (*trial).through},
	{"two windows of one descriptor are two regions", (*trial).windows},
	{"let go in every order", (*trial).everyOrder},
	{"the importer is killed", (*trial).importerKilled},
	{"the exporter's session ends in use", (*trial).exporterGone},
	{"revoked in use", (*trial).revokedInUse},
	{"moved in use", (*trial).movedInUse},
	{"the exporter is reset in use", (*trial).resetInUse},
	{"one that cannot reach it is refused", (*trial).unreachable},
}

// wantReason checks that a call was refused for one of some reasons.
func wantReason(what string, err error, want ...pb.ErrorReason) error {
	if err == nil {
		return fmt.Errorf("%s: it was not refused, want %v", what, want)
	}
	got := client.Reason(err)
	for _, w := range want {
		if got == w {
			return nil
		}
	}
	return fmt.Errorf("%s: refused with %v, want %v: %w", what, got, want, err)
}
