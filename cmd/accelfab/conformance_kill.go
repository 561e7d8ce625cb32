package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// holderTTL is the ttl of a session whose owner is going to be killed.
const holderTTL = 2 * time.Second

// importerKilled lets a process of its own import, and kills it: its descriptors are
// closed by the kernel, its session ends with its ttl, and the export is as before.
func (t *trial) importerKilled(ctx context.Context) error {
	if err := t.exports(ctx); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"conformance", "holder", t.export.GetName(), t.importer}
	if t.server != "" {
		args = append(args, "--server", t.server)
	}
	child := exec.CommandContext(ctx, program, args...)
	var stderr strings.Builder
	child.Stderr = &stderr
	stdout, err := child.StdoutPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	child.Process.Kill()
	child.Wait()
	session := strings.TrimSpace(line)
	if err != nil {
		return fmt.Errorf("a process that imports: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	if err := until(ctx, func(ctx context.Context) (bool, error) {
		_, err := t.client.Sessions.GetSession(ctx, &pb.GetSessionRequest{Name: session})
		if client.Reason(err) == pb.ErrorReason_ERROR_REASON_NOT_FOUND {
			return true, nil
		}
		return false, err
	}); err != nil {
		return fmt.Errorf("the session of the killed importer, %s: %w", session, err)
	}
	if err := until(ctx, func(ctx context.Context) (bool, error) {
		e, err := t.client.Memory.GetMemoryExport(ctx, &pb.GetMemoryExportRequest{Name: t.export.GetName()})
		return e.GetOpenDescriptorCount() == 0, err
	}); err != nil {
		return fmt.Errorf("descriptors of the killed importer: %w", err)
	}
	e, err := t.registry(ctx, pb.MemoryExport_STATE_ACTIVE, 0)
	if err == nil && e.GetFetchCount() == 0 {
		err = fmt.Errorf("the registry does not know that it was fetched")
	}
	if err != nil {
		return err
	}
	// The exporter is alive, and so is the export.
	t.pd, err = t.to.createDomain(ctx, t.importer)
	if err == nil {
		_, err = t.window(ctx, 0, 0)
	}
	return err
}

// newConformanceHolderCmd is the process that is killed.
func newConformanceHolderCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "holder EXPORT IMPORTER",
		Short:   "Import an export and hold it until killed",
		Example: "  accelfab conformance holder soft-0/export1 soft-1",
		Hidden:  true,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.dial(a.server, func(c *client.Client) error {
				return hold(cmd.Context(), c, args[0], args[1], cmd.OutOrStdout())
			})
		},
	}
}

// hold imports in a session that nobody keeps alive, says its name and waits.
func hold(ctx context.Context, c *client.Client, export, importer string, out io.Writer) error {
	n := rdmaNode{client: c}
	var err error
	if n.session, err = c.Sessions.CreateSession(ctx, &pb.CreateSessionRequest{Parent: localNode, Session: &pb.Session{
		Devices: []string{importer}, Ttl: durationpb.New(holderTTL), Labels: map[string]string{"conformance": "holder"},
	}}); err != nil {
		return err
	}
	pd, err := n.createDomain(ctx, importer)
	if err != nil {
		return err
	}
	f, err := c.FetchDescriptor(ctx, export)
	if err != nil {
		return err
	}
	defer f.Close()
	u, err := c.UploadDescriptor(ctx, f)
	if err != nil {
		return err
	}
	if _, err := c.Memory.CreateMemoryRegion(ctx, &pb.CreateMemoryRegionRequest{Parent: importer, MemoryRegion: &pb.MemoryRegion{
		ProtectionDomain: pd, ImportSource: &pb.MemoryRegion_ImportSource{UploadId: u.GetUploadId()},
	}}); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, n.session.GetName()); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}
