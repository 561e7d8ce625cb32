package exports

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/accelfab/accelfab/test/daemon"
)

// The outcomes of a check.
const (
	checkOK     = "ok"
	checkFailed = "failed"
	checkNone   = "not applicable"
)

// checkResult is what the suite says of one check.
type checkResult struct {
	Check, Outcome, Detail string
}

// conformanceOf runs the suite as a user does, and gives its results by check.
func conformanceOf(t *testing.T, d *daemon.Daemon, args ...string) map[string]checkResult {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), daemon.Binary(t, "accelfab"), append([]string{"--server", d.Target, "-o", "json", "conformance", "importer"}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var list []checkResult
	if jsonErr := json.Unmarshal(out, &list); jsonErr != nil {
		t.Fatalf("%v, %v\n%s%s", err, jsonErr, out, &stderr)
	}
	names, err2 := exec.CommandContext(t.Context(), daemon.Binary(t, "accelfab"), "conformance", "importer", "--list").Output()
	if err2 != nil || strings.Count(string(names), "\n") != len(list) {
		t.Errorf("%d results of these checks (%v):\n%s", len(list), err2, names)
	}
	results, failed := map[string]checkResult{}, false
	for _, r := range list {
		results[r.Check] = r
		failed = failed || r.Outcome == checkFailed
		t.Logf("%-48s %-14s %s", r.Check, r.Outcome, r.Detail)
	}
	if failed != (err != nil) {
		t.Errorf("exit status and results differ: %v\n%s", err, &stderr)
	}
	return results
}

// The suite holds the software device against itself: a card by its neighbour, by
// a NIC that follows memory and by one that pins it. What does not apply is said.
func TestConformanceOfTheSoftwareDevice(t *testing.T) {
	d := daemon.Start(t, daemon.Config{Node: "n1", Args: []string{"--device", "soft:hls-2,cards=2,memory=64MiB", "--device", "soft-nic",
		"--device", "soft-nic:pin-nic,import=pinned", "--device", "soft-nic:host-nic,p2p=off"}})
	for _, row := range []struct {
		importer string
		args     []string
		none     []string // checks that do not apply
	}{
		{"soft-1", nil, []string{"the exporter is reset in use"}},
		{"soft-nic", []string{"--disruptive"}, nil},
		{"pin-nic", nil, []string{"the exporter is reset in use"}},
	} {
		t.Run(row.importer, func(t *testing.T) {
			for _, r := range conformanceOf(t, d, append(row.args, "--importer", row.importer)...) {
				if want := slices.Contains(row.none, r.Check); r.Outcome == checkFailed || (r.Outcome == checkNone) != want {
					t.Errorf("%s: %s %s", r.Check, r.Outcome, r.Detail)
				}
			}
		})
	}
	// It leaves nothing.
	for _, list := range [][]string{{"session", "list"}, {"export", "list"}, {"buffer", "list"}, {"mr", "list"}, {"qp", "list"}, {"pd", "list"}} {
		out, err := exec.CommandContext(t.Context(), daemon.Binary(t, "accelfab"), append(list, "--server", d.Target)...).CombinedOutput()
		if err != nil || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%v: %v\n%s", list, err, out)
		}
	}
}

// An importer that cannot reach the memory fails the suite, in words.
func TestConformanceCanFail(t *testing.T) {
	d := daemon.Start(t, daemon.Config{Node: "n1", Args: []string{"--device", "soft:hls-2,cards=1,memory=16MiB", "--device", "soft-nic:host-nic,p2p=off"}})
	results := conformanceOf(t, d, "--importer", "host-nic")
	for _, check := range []string{"the importer says that it reaches the exporter", "registered, and in the registry", "revoked in use", "let go in every order"} {
		if r := results[check]; r.Outcome != checkFailed || !strings.Contains(r.Detail, "host memory alone") {
			t.Errorf("%s: %s %q", check, r.Outcome, r.Detail)
		}
	}
	for _, check := range []string{"an export is of whole pages inside a buffer", "one that cannot reach it is refused"} {
		if r := results[check]; r.Outcome != checkOK {
			t.Errorf("%s: %s %q", check, r.Outcome, r.Detail)
		}
	}
}
