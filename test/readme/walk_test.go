package readme

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// walkBlocks gives the shell blocks of the walk, in order.
func walkBlocks(t *testing.T, page string) []string {
	t.Helper()
	_, walk, ok := strings.Cut(page, "\n## Five minutes by hand\n")
	if !ok {
		t.Fatal("the README has no walk by hand")
	}
	walk, _, _ = strings.Cut(walk, "\n## ")
	parts := strings.Split(walk, "```")
	var blocks []string
	for i := 1; i < len(parts); i += 2 {
		if code, ok := strings.CutPrefix(parts[i], "sh\n"); ok {
			blocks = append(blocks, code)
		}
	}
	return blocks
}

// TestReadmeWalk runs every block of the walk in one shell, which stops at the
// first command that fails. O04: a new user's first run works. O02: what the
// page shows is what happens.
func TestReadmeWalk(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := walkBlocks(t, string(page))
	if len(blocks) < 5 {
		t.Fatalf("the walk has %d blocks: it is not what this test was written for", len(blocks))
	}
	// The daemon is the shell's child: it goes when the shell is ended, and then
	// what outlives it.
	script := "set -euo pipefail\ntrap 'kill -9 $(jobs -p) 2>/dev/null || true; wait; [ ! -d \"${RUN:-}\" ] || accelfabd stop-hosts --run-dir $RUN' EXIT\n"
	for _, b := range blocks {
		script += b + "\n"
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "TMPDIR=/tmp")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("the walk failed: %v\n%s", err, out.String())
	}
	t.Logf("%s", out.String())
	for _, want := range []string{
		"hello over RoCE",              // what RDMA carried
		"accelfab.v1.QueuePairService", // reflection
		`"memoryBytes":"67108864"`,     // R01: 64-bit numbers are strings
		"devcies",                      // a misspelt field is named
		"\n400\n",                      // with this status
		"session job1: closed",         //
		"job2     ACTIVE",              // a session outlives its daemon
		"device host of process ",      // so do the devices, and this ends them
	} {
		if !strings.Contains(strings.ReplaceAll(out.String(), `": "`, `":"`), want) {
			t.Errorf("the walk did not show %q", want)
		}
	}
}
