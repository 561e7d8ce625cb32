package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// labHome gives the test a base of its own for labs, whose paths are short
// enough for sockets, and a daemon that is this test binary.
func labHome(t *testing.T, manner string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "aft")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_RUNTIME_DIR", dir)
	t.Setenv(standIn, manner)
	t.Cleanup(func() {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left behind in the runtime directory: %v %v", left, err)
		}
		os.RemoveAll(dir)
	})
}

// labCommand runs a lab command as a user would and gives what it printed.
func labCommand(t *testing.T, ctx context.Context, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := &cobra.Command{Use: "accelfab", SilenceUsage: true, SilenceErrors: true}
	root.PersistentFlags().StringP("output", "o", "table", "")
	root.AddCommand(newLabCmd())
	root.SetArgs(args)
	root.SetIn(strings.NewReader(""))
	root.SetOut(&out)
	root.SetErr(&out)
	err := root.ExecuteContext(ctx)
	return out.String(), err
}

func mustLab(t *testing.T, args ...string) string {
	t.Helper()
	out, err := labCommand(t, t.Context(), args...)
	if err != nil {
		t.Fatalf("accelfab %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func listLabs(t *testing.T) []labStatus {
	t.Helper()
	var rows []labStatus
	if err := json.Unmarshal([]byte(mustLab(t, "lab", "list", "-o", "json")), &rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

// gone checks that the processes of a lab have ended.
func gone(t *testing.T, rows []labStatus) {
	t.Helper()
	for _, r := range rows {
		if _, err := identify(r.PID); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("%s: process %d is still there", r.Node, r.PID)
		}
	}
}

func TestLabUpListDown(t *testing.T) {
	labHome(t, "serve")
	out := mustLab(t, "lab", "up", "--nodes", "3", "--accelfabd", os.Args[0])
	rows := listLabs(t)
	if len(rows) != 3 {
		t.Fatalf("listed %d nodes, want 3: %+v", len(rows), rows)
	}
	for _, r := range rows {
		if r.State != "RUNNING" || r.HTTP != "127.0.0.1:2" || !strings.Contains(out, r.Server) {
			t.Errorf("%+v; up printed:\n%s", r, out)
		}
		if fi, err := os.Stat(strings.TrimPrefix(r.Server, "unix://")); err != nil || fi.Mode()&fs.ModeSocket == 0 {
			t.Errorf("socket of %s: %v %v", r.Node, fi, err)
		}
	}
	if _, err := labCommand(t, t.Context(), "lab", "up", "--accelfabd", os.Args[0]); err == nil || !strings.Contains(err.Error(), "a lab runs in") {
		t.Errorf("a second lab in the same directory: %v", err)
	}
	mustLab(t, "lab", "down")
	gone(t, rows)
	if out := mustLab(t, "lab", "down"); !strings.HasPrefix(out, "no lab in ") {
		t.Errorf("down again: %s", out)
	}
}

func TestLabInADirectoryOfTheUser(t *testing.T) {
	labHome(t, "serve")
	dir, err := os.MkdirTemp("", "aft")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	notes := filepath.Join(dir, "notes")
	if err := os.WriteFile(notes, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mustLab(t, "lab", "up", "--nodes", "1", "--dir", dir, "--accelfabd", os.Args[0])
	mustLab(t, "lab", "down", "--dir", dir)
	if left, _ := os.ReadDir(dir); len(left) != 1 || left[0].Name() != "notes" {
		t.Errorf("down left %v, want what the user had there and no more", left)
	}

	if err := os.Mkdir(filepath.Join(dir, "node-0"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := labCommand(t, t.Context(), "lab", "up", "--dir", dir, "--accelfabd", os.Args[0]); err == nil || !strings.Contains(err.Error(), "is no lab's") {
		t.Errorf("up over somebody's directory: %v", err)
	}
	mustLab(t, "lab", "down", "--dir", dir)
	if _, err := os.Stat(filepath.Join(dir, "node-0")); err != nil {
		t.Errorf("down removed what no lab made: %v", err)
	}
}

func TestLabDownEndsAStubbornDaemon(t *testing.T) {
	labHome(t, "stubborn")
	mustLab(t, "lab", "up", "--nodes", "1", "--accelfabd", os.Args[0])
	rows := listLabs(t)
	l, err := readLab(rows[0].Dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Nodes[0].Process.end(time.Millisecond); err != nil {
		t.Fatal(err)
	}
	gone(t, rows)
	if rows := listLabs(t); rows[0].State != "ENDED" {
		t.Errorf("listed as %s", rows[0].State)
	}
	// A lab whose daemons have all ended makes room for the next one.
	t.Setenv(standIn, "serve")
	mustLab(t, "lab", "up", "--nodes", "1", "--accelfabd", os.Args[0])
	mustLab(t, "lab", "down")
}

func TestLabLeavesAnotherProcessWithThePIDAlone(t *testing.T) {
	labHome(t, "serve")
	mustLab(t, "lab", "up", "--nodes", "1", "--accelfabd", os.Args[0])
	rows := listLabs(t)
	l, err := readLab(rows[0].Dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, other := range map[string]process{
		"started at another time": {PID: rows[0].PID, Start: l.Nodes[0].Process.Start + 1, Boot: l.Nodes[0].Process.Boot},
		"before a reboot":         {PID: rows[0].PID, Start: l.Nodes[0].Process.Start, Boot: "another"},
	} {
		if err := other.end(0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !l.Nodes[0].Process.running() {
			t.Fatalf("%s: the process was ended", name)
		}
	}
	mustLab(t, "lab", "down")
	gone(t, rows)
}

func TestLabSaysWhyADaemonEnded(t *testing.T) {
	labHome(t, "refuse")
	out, err := labCommand(t, t.Context(), "lab", "up", "--accelfabd", os.Args[0])
	if err == nil {
		t.Fatal("no error")
	}
	rows := listLabs(t)
	for _, want := range []string{"daemon of node-1", "ended before it served", rows[1].Log, "lab down --dir " + rows[0].Dir} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	if want := "soft: no free network"; !strings.Contains(out, want) {
		t.Errorf("the output lacks the log's line %q:\n%s", want, out)
	}
	gone(t, rows[:1])
	mustLab(t, "lab", "down")
}

func TestLabStartGivesUp(t *testing.T) {
	labHome(t, "mute")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dir, err := labDir("")
	if err != nil {
		t.Fatal(err)
	}
	l, lock, err := newLab(dir, labConfig{nodes: 2, devices: []string{"soft"}, accelfabd: os.Args[0], stderr: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := labCommand(t, t.Context(), "lab", "down"); err == nil || !strings.Contains(err.Error(), "works on the lab") {
		t.Errorf("down of a lab that is being started: %v", err)
	}
	for _, n := range l.Nodes {
		if err := l.spawn(n); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := l.waitReady(ctx, l.Nodes[0]); !errors.Is(err, context.Canceled) {
		t.Errorf("waitReady: %v", err)
	}
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	mustLab(t, "lab", "down")
}

func TestLabRun(t *testing.T) {
	labHome(t, "serve")
	out := mustLab(t, "lab", "run", "--accelfabd", os.Args[0], "--", "sh", "-c", "echo $ACCELFAB_SERVER; echo $ACCELFAB_LAB_0; echo $ACCELFAB_LAB_1")
	lines := strings.Fields(out)
	if len(lines) != 3 || lines[0] != lines[1] || !strings.HasSuffix(lines[2], "/node-1/run/accelfabd.sock") {
		t.Errorf("the command saw %q", lines)
	}
	for command, want := range map[string]exitStatus{"exit 3": 3, "kill -9 $$": 137} {
		_, err := labCommand(t, t.Context(), "lab", "run", "--nodes", "1", "--accelfabd", os.Args[0], "--", "sh", "-c", command)
		var status exitStatus
		if !errors.As(err, &status) || status != want {
			t.Errorf("%s: %v, want status %d", command, err, want)
		}
	}
	if _, err := labCommand(t, t.Context(), "lab", "run", "--accelfabd", os.Args[0], "--", "no-such-command"); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("a command that is not there: %v", err)
	}
}

func TestLabRefuses(t *testing.T) {
	labHome(t, "serve")
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	for name, c := range map[string]struct {
		args  []string
		want  string
		usage bool
	}{
		"no nodes":          {[]string{"up", "--nodes", "0"}, "--nodes 0: want 1 to 64", true},
		"too many nodes":    {[]string{"up", "--nodes", "65"}, "want 1 to 64", true},
		"no daemon":         {[]string{"up", "--accelfabd", "/no/such"}, "--accelfabd", true},
		"a long path":       {[]string{"up", "--dir", long}, "choose a shorter --dir", true},
		"no daemon for run": {[]string{"run", "--accelfabd", "/no/such", "--", "true"}, "--accelfabd", true},
		"list of nothing":   {[]string{"list", "--dir", "/no/such"}, "no lab in /no/such", false},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"lab"}, c.args...)
			if c.args[0] == "up" && !strings.Contains(strings.Join(args, " "), "--accelfabd") {
				args = append(args, "--accelfabd", os.Args[0])
			}
			if out, err := labCommand(t, t.Context(), args...); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v\n%s, want %q", err, out, c.want)
			} else if errors.As(err, new(usageError)) != c.usage {
				t.Errorf("%v: a fault of usage: %v, want %v", err, !c.usage, c.usage)
			}
		})
	}
}

func TestReportForms(t *testing.T) {
	v := []map[string]any{{"number": "0123", "count": 2, "flag": "true", "list": []string{"a b"}}}
	for form, want := range map[string]string{
		"table": "as a table\n",
		"json":  "[\n  {\n    \"count\": 2,\n    \"flag\": \"true\",\n    \"list\": [\n      \"a b\"\n    ],\n    \"number\": \"0123\"\n  }\n]\n",
		"yaml":  "- count: 2\n  flag: \"true\"\n  list:\n    - a b\n  number: \"0123\"\n",
	} {
		var out bytes.Buffer
		cmd := &cobra.Command{RunE: func(cmd *cobra.Command, _ []string) error {
			return printReport(cmd, v, func(w io.Writer) error { _, err := io.WriteString(w, "as a table\n"); return err })
		}}
		cmd.Flags().StringP("output", "o", "table", "")
		cmd.SetArgs([]string{"-o", form})
		cmd.SetOut(&out)
		if err := cmd.Execute(); err != nil || out.String() != want {
			t.Errorf("%s: %v\n%s, want\n%s", form, err, &out, want)
		}
	}
}
