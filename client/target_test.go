package client

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestTargets(t *testing.T) {
	for target, want := range map[string]string{
		"unix:///run/accelfab/accelfabd.sock": "unix:///run/accelfab/accelfabd.sock",
		"127.0.0.1:7470":                      "passthrough:///127.0.0.1:7470",
		"tcp://127.0.0.1:7470":                "passthrough:///127.0.0.1:7470",
		"tcp://[::1]:7470":                    "passthrough:///[::1]:7470",
		"node-7:7470":                         "passthrough:///node-7:7470",
	} {
		if got, err := address(target); err != nil || got != want {
			t.Errorf("%s: %q %v, want %q", target, got, err, want)
		}
		c, err := Dial(target)
		if err != nil {
			t.Errorf("%s: %v", target, err)
			continue
		}
		if err := c.Close(); err != nil {
			t.Errorf("%s: %v", target, err)
		}
	}
	for _, target := range []string{"unix://run/x.sock", "unix://", "unix:/run/x.sock", "127.0.0.1", ":7470", "node-7:", "http://127.0.0.1:7470", "tcp://", "::1:7470"} {
		c, err := Dial(target)
		if err == nil {
			c.Close()
			t.Errorf("%s: dialled", target)
			continue
		}
		if !strings.Contains(err.Error(), strconv.Quote(target)) || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%s: the error does not say what is wrong: %v", target, err)
		}
	}
}

func TestDefaultTarget(t *testing.T) {
	t.Setenv("ACCELFAB_SERVER", "node-7:7470")
	if got := DefaultTarget(); got != "node-7:7470" {
		t.Errorf("with ACCELFAB_SERVER: %s", got)
	}
	t.Setenv("ACCELFAB_SERVER", "nonsense")
	if _, err := Dial(""); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("Dial does not take the variable: %v", err)
	}
	t.Setenv("ACCELFAB_SERVER", "")
	if got := DefaultTarget(); !strings.HasPrefix(got, "unix:///") || filepath.Base(got) != "accelfabd.sock" {
		t.Errorf("without: %s", got)
	}
	for _, test := range []struct {
		uid        int
		runtimeDir string
		want       string
	}{
		{0, "/run/user/0", "/run/accelfab"},
		{1000, "/run/user/1000", "/run/user/1000/accelfab"},
		{1000, "", filepath.Join(os.TempDir(), "accelfab-1000")},
	} {
		if got := runDir(test.uid, test.runtimeDir); got != test.want {
			t.Errorf("run directory of %d with %q: %s, want %s", test.uid, test.runtimeDir, got, test.want)
		}
	}
}
