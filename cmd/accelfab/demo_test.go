package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// programs builds accelfab and accelfabd into one directory, as they are
// installed, and gives the path of accelfab.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", dir+"/", ".", "../accelfabd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return filepath.Join(dir, "accelfab")
}

// noneOf checks that no process is left that was told of the directory.
func noneOf(t *testing.T, dir string) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		if line, _ := os.ReadFile(path); bytes.Contains(line, []byte(dir)) {
			t.Errorf("%s is left: %s", path, bytes.ReplaceAll(line, []byte{0}, []byte(" ")))
		}
	}
}

// The demo is the main job from door to wire, so its test is the test of it.
func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("runs two daemons and moves hundreds of MiB")
	}
	accelfab := programs(t)
	labHome(t, "")
	home := os.Getenv("XDG_RUNTIME_DIR")

	t.Run("passes", func(t *testing.T) {
		defer noneOf(t, home)
		ctx, cancel := context.WithTimeout(t.Context(), demoLimit)
		defer cancel()
		var out, steps bytes.Buffer
		cmd := exec.CommandContext(ctx, accelfab, "demo", "-o", "json")
		cmd.Stdout, cmd.Stderr = &out, &steps
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s%s", err, &steps, &out)
		}
		t.Logf("\n%s", &steps)
		var report demoReport
		if err := json.Unmarshal(out.Bytes(), &report); err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
		moved := 0
		for _, m := range report.Measured {
			if strings.HasPrefix(m.What, "RDMA") {
				moved++
				if m.Bytes != demoBytes || m.Seconds <= 0 || m.GbitPerSecond <= 0 {
					t.Errorf("measured %+v", m)
				}
			}
		}
		if moved != 10 {
			t.Errorf("%d transfers were measured, want 10: %+v", moved, report.Measured)
		}
	})

	t.Run("is interrupted", func(t *testing.T) {
		defer noneOf(t, home)
		ctx, cancel := context.WithTimeout(t.Context(), demoLimit)
		defer cancel()
		var out, errs bytes.Buffer
		cmd := exec.CommandContext(ctx, accelfab, "demo")
		cmd.Stderr = &errs
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			out.WriteString(lines.Text() + "\n")
			if strings.HasPrefix(lines.Text(), "5. ") {
				if err := cmd.Process.Signal(os.Interrupt); err != nil {
					t.Fatal(err)
				}
			}
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(errs.String(), "interrupted, and cleaned up") {
			t.Errorf("%v\n%s%s", err, &errs, &out)
		}
	})
}

// A demo that fails says in which step, where the logs are, and leaves them.
func TestDemoFails(t *testing.T) {
	labHome(t, "refuse")
	out, err := runDemo(t, os.Args[0])
	if err == nil || !strings.Contains(out, "no free network") {
		t.Fatalf("%v, and the daemon's log is not shown:\n%s", err, out)
	}
	for _, want := range []string{"daemon of node-1", "accelfabd.log", "lab down --dir"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	down1(t)

	// This daemon starts and has no API.
	t.Setenv(standIn, "serve")
	out, err = runDemo(t, os.Args[0])
	if err == nil || !strings.Contains(err.Error(), "step 1 (two nodes)") {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, r := range listLabs(t) {
		if !strings.Contains(err.Error(), r.Log) {
			t.Errorf("the error does not name %s: %v", r.Log, err)
		}
		if log, err := os.ReadFile(r.Log); err != nil || !strings.Contains(string(log), "stand-in of "+r.Node) {
			t.Errorf("log of %s: %q %v", r.Node, log, err)
		}
	}
	down1(t)
}

// down1 takes down the one lab that a failed demo has left.
func down1(t *testing.T) {
	t.Helper()
	rows := listLabs(t)
	if len(rows) != 2 || rows[0].State != "ENDED" || rows[1].State != "ENDED" {
		t.Fatalf("a failed demo left %+v, want the two nodes of one lab, ended", rows)
	}
	gone(t, rows)
	mustLab(t, "lab", "down", "--dir", rows[0].Dir)
}

func runDemo(t *testing.T, accelfabd string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newDemoCmd()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs([]string{"--accelfabd", accelfabd})
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestDemoReport(t *testing.T) {
	var d demo
	d.took("2 daemons started", 1234567*time.Microsecond)
	if got, want := d.moved("RDMA WRITE", demoBytes, 500*time.Millisecond), "64 MiB in 500ms, 1.07 Gbit/s"; got != want {
		t.Errorf("moved: %q, want %q", got, want)
	}
	var out bytes.Buffer
	if err := d.report.print(&out); err != nil {
		t.Fatal(err)
	}
	want := `12. summary
   2 daemons started  1.23s
   RDMA WRITE         500ms  64 MiB  1.07 Gbit/s
   every check passed; processes and files are gone
`
	if out.String() != want {
		t.Errorf("report:\n%s\nwant:\n%s", &out, want)
	}
}
