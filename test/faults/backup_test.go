package faults

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/accelfab/accelfab/client"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
	"github.com/accelfab/accelfab/test/daemon"
)

// TestABackupBringsBackWhatWasThere takes a backup of a daemon that serves, changes
// and loses things, and goes back to the backup: an operator's day, by the
// programs alone.
func TestABackupBringsBackWhatWasThere(t *testing.T) {
	d := daemon.Start(t, daemon.Config{Node: "n1", Args: []string{"--device", "soft:hls-2,cards=1,memory=4MiB"}})
	run := func(name string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), daemon.Binary(t, name), args...)
		cmd.Env = append(os.Environ(), "ACCELFAB_SERVER="+d.Target)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	want := func(text, name string, args ...string) {
		t.Helper()
		if out, err := run(name, args...); err != nil || !strings.Contains(out, text) {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
	}
	refused := func(text, name string, args ...string) {
		t.Helper()
		if out, err := run(name, args...); err == nil || !strings.Contains(out, text) {
			t.Errorf("%s %v: %v, want a refusal with %q\n%s", name, args, err, text, out)
		}
	}
	state := filepath.Join(d.Dir, "state")
	file := filepath.Join(d.Dir, "backup")
	want("before", "accelfab", "session", "create", "--id", "before", "--ttl", "1h")
	want("backup of", "accelfab", "node", "backup", file)
	refused("--force", "accelfab", "node", "backup", file)
	want("backup of", "accelfab", "node", "backup", file, "--force")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	want("after", "accelfab", "session", "create", "--id", "after", "--ttl", "1h")
	for _, verb := range []string{"check", "compact", "dump"} {
		refused("pid ", "accelfabd", "store", verb, "--state-dir", state)
	}
	refused("pid ", "accelfabd", "store", "restore", file, "--force", "--state-dir", state)
	if err := d.Stop(); err != nil {
		t.Fatal(err)
	}
	want("0 in quarantine", "accelfabd", "store", "check", "--state-dir", state)
	want("bytes before", "accelfabd", "store", "compact", "--state-dir", state)
	want(`"name":"nodes/n1/sessions/after"`, "accelfabd", "store", "dump", "--state-dir", state)
	refused("--force", "accelfabd", "store", "restore", file, "--state-dir", state)
	want("is kept as", "accelfabd", "store", "restore", file, "--force", "--state-dir", state)
	d.Start()
	c, err := client.Dial(d.Target)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	list, err := c.Sessions.ListSessions(t.Context(), &pb.ListSessionsRequest{Parent: "nodes/local"})
	if err != nil || len(list.GetSessions()) != 1 || list.GetSessions()[0].GetName() != "nodes/n1/sessions/before" {
		t.Errorf("%v, %v", list, err)
	}
	if left, err := filepath.Glob(filepath.Join(d.Dir, ".backup-*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
