package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const unitsDir = "../../deploy/systemd"

// units reads the unit files, by name.
func units(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	entries, err := os.ReadDir(unitsDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext == ".service" || ext == ".target" {
			b, err := os.ReadFile(filepath.Join(unitsDir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			all[e.Name()] = string(b)
		}
	}
	if len(all) != 3 {
		t.Fatalf("%d units: want the daemon's, the device hosts' and their target", len(all))
	}
	return all
}

var execStart = regexp.MustCompile(`(?m)^ExecStart=(\S+) ?(.*)$`)

// systemd finds nothing to say of the units, if the program is where they say.
func TestUnitsAreGood(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not here: install the package systemd (tools/deps.sh)")
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	verify := func() string {
		args := []string{"verify", "--man=no", "--recursive-errors=no"}
		for _, name := range []string{"accelfabd.service", "accelfab-device@soft.service", "accelfab-devices.target"} {
			args = append(args, filepath.Join(dir, name))
		}
		cmd := exec.Command(analyze, args...)
		cmd.Env = append(os.Environ(), "SYSTEMD_LOG_LEVEL=warning", "SYSTEMD_UNIT_PATH="+dir+":")
		out, err := cmd.CombinedOutput()
		if err != nil && len(out) == 0 {
			return err.Error()
		}
		return string(out)
	}
	write := func(change func(name, text string) string) {
		for name, text := range units(t) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(change(name, text)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	installed := func(_, text string) string { return execStart.ReplaceAllString(text, "ExecStart="+program+" $2") }
	write(installed)
	if out := verify(); out != "" {
		t.Errorf("systemd-analyze verify says:\n%s", out)
	}
	// It does look: each of these is found.
	for name, change := range map[string]func(string) string{
		"a key that is none":          func(s string) string { return strings.Replace(s, "WatchdogSec=", "WatchdogSecs=", 1) },
		"a value that is none":        func(s string) string { return strings.Replace(s, "Type=notify", "Type=notices", 1) },
		"a program that is not there": func(s string) string { return execStart.ReplaceAllString(s, "ExecStart=/nowhere/accelfabd") },
		"a system call that is none":  func(s string) string { return strings.Replace(s, "@system-service", "@system-servant", 1) },
		"a family that is none":       func(s string) string { return strings.Replace(s, "AF_NETLINK", "AF_NETLUNK", 1) },
		"a duration that is none":     func(s string) string { return strings.Replace(s, "TimeoutStopSec=30", "TimeoutStopSec=soon", 1) },
	} {
		write(func(unit, text string) string {
			if text = installed(unit, text); unit == "accelfabd.service" {
				return change(text)
			}
			return text
		})
		if out := verify(); out == "" {
			t.Errorf("%s: systemd-analyze verify says nothing", name)
		}
	}
}

// The command lines of the units are ones that the program takes.
func TestUnitsCallTheProgramRight(t *testing.T) {
	for name, text := range units(t) {
		lines := execStart.FindAllStringSubmatch(text, -1)
		if strings.HasSuffix(name, ".target") != (len(lines) == 0) {
			t.Errorf("%s has %d programs", name, len(lines))
		}
		for _, l := range lines {
			if l[1] != "/usr/bin/accelfabd" {
				t.Errorf("%s runs %s", name, l[1])
			}
			args := strings.Fields(strings.ReplaceAll(l[2], "%i", "soft"))
			cmd, rest, err := command().Find(args)
			if err == nil {
				err = cmd.ParseFlags(rest)
			}
			if err == nil {
				err = cmd.ValidateRequiredFlags()
			}
			if err == nil {
				err = cmd.ValidateArgs(cmd.Flags().Args())
			}
			if err != nil {
				t.Errorf("%s: %q: %v", name, l[2], err)
			}
			if want := strings.Contains(name, "device"); strings.HasPrefix(cmd.Name(), "device-host") != want {
				t.Errorf("%s runs the command %s", name, cmd.Name())
			}
		}
	}
}

// The configuration that goes with the units is good.
func TestConfigurationOfTheUnits(t *testing.T) {
	cmd := command()
	cmd.SetArgs([]string{"check-config", "--config", filepath.Join(unitsDir, "accelfabd.yaml")})
	var out strings.Builder
	cmd.SetOut(&out)
	if err := cmd.Execute(); err != nil || out.String() != "the configuration is good\n" {
		t.Errorf("%v %q", err, out.String())
	}
}

// The daemon gets its time to end, and gives a sign of life twice within the
// time that the unit allows.
func TestUnitsGiveTheDaemonItsTime(t *testing.T) {
	unit := units(t)["accelfabd.service"]
	for _, want := range []string{"Type=notify\n", "NotifyAccess=main\n", "WatchdogSec=30\n", "TimeoutStopSec=30\n", "RestartPreventExitStatus=2\n"} {
		if !strings.Contains(unit, "\n"+want) {
			t.Errorf("without %q", want)
		}
	}
	if stopLimit.Seconds() >= 30 {
		t.Errorf("calls have %v to end, the unit gives the whole daemon 30 s", stopLimit)
	}
	if exitUsage != 2 {
		t.Errorf("a fault of the configuration is status %d", exitUsage)
	}
}
