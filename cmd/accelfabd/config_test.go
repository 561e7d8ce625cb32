package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func env(m map[string]string) func(string) string {
	return func(k string) string { return m[k] }
}

func TestDefaultsFollowTheUser(t *testing.T) {
	root := defaultConfig(0, env(nil), "gpu-7.example.com")
	root.complete()
	if root.NodeID != "gpu-7" || root.StateDir != "/var/lib/accelfab" || root.RunDir != "/run/accelfab" {
		t.Errorf("root: %+v", root)
	}
	if want := "unix:///run/accelfab/accelfabd.sock"; root.Listen[0] != want {
		t.Errorf("listen[0] = %q, want %q", root.Listen[0], want)
	}
	user := defaultConfig(1000, env(map[string]string{"HOME": "/home/u", "XDG_RUNTIME_DIR": "/run/user/1000"}), "box")
	if user.StateDir != "/home/u/.local/state/accelfab" || user.RunDir != "/run/user/1000/accelfab" {
		t.Errorf("user: %+v", user)
	}
	for _, c := range []Config{root, user} {
		c.complete()
		if err := c.Validate(); err != nil {
			t.Errorf("defaults do not validate: %v", err)
		}
	}
}

func TestNodeIDFromHostName(t *testing.T) {
	for host, want := range map[string]string{
		"":                       "node",
		"localhost":              "node",
		"GPU_3.rack":             "gpu-3",
		"7seas":                  "n7seas",
		strings.Repeat("a", 100): strings.Repeat("a", 63),
	} {
		got := nodeIDFrom(host)
		if got != want || !nodeIDRule.MatchString(got) {
			t.Errorf("nodeIDFrom(%q) = %q, want %q", host, got, want)
		}
	}
}

func TestFlagWinsOverFileWinsOverDefault(t *testing.T) {
	c := defaultConfig(0, env(nil), "host")
	fs := pflag.NewFlagSet("accelfabd", pflag.ContinueOnError)
	c.flags(fs)
	if err := fs.Parse([]string{"--node-id", "by-flag", "--device", "soft:hls-3"}); err != nil {
		t.Fatal(err)
	}
	file := "node-id: by-file\nlog-level: debug\ndevice: [\"soft:hls-2\"]\n"
	if err := c.merge(strings.NewReader(file), fs.Changed); err != nil {
		t.Fatal(err)
	}
	if c.NodeID != "by-flag" || c.LogLevel != "debug" || c.LogFormat != "text" {
		t.Errorf("got %+v", c)
	}
	if len(c.Devices) != 1 || c.Devices[0] != "soft:hls-3" {
		t.Errorf("devices = %q, want the flag's", c.Devices)
	}
}

func TestEveryFlagIsAKeyAndYieldsToNone(t *testing.T) {
	// Each flag, given on the command line, must survive a file that sets the
	// same key: a field forgotten in merge fails here.
	values := map[string]string{
		"node-id": "a", "state-dir": "/a", "run-dir": "/a", "listen": "tcp://127.0.0.1:0", "http": "off",
		"device": "soft:hls-2", "soft-network": "127.70.0.0/24", "topology": "/a", "log-level": "warn", "log-format": "json",
		"device-hosts": "separate", "host-linger": "7s", "await-devices": "true",
	}
	probe := Config{}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	probe.flags(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		v, ok := values[f.Name]
		if !ok {
			t.Errorf("flag --%s has no value in this test", f.Name)
			return
		}
		c := Config{}
		one := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.flags(one)
		if err := one.Parse([]string{"--" + f.Name, v}); err != nil {
			t.Fatal(err)
		}
		before := one.Lookup(f.Name).Value.String()
		other := "from-file"
		if f.Value.Type() == "stringArray" {
			other = "[from-file]"
		}
		switch f.Value.Type() {
		case "duration":
			other = "9s"
		case "bool":
			other = "false"
		}
		if err := c.merge(strings.NewReader(f.Name+": "+other+"\n"), one.Changed); err != nil {
			t.Errorf("key %s: %v", f.Name, err)
		}
		if after := one.Lookup(f.Name).Value.String(); after != before {
			t.Errorf("--%s: the file won: %s, want %s", f.Name, after, before)
		}
	})
}

func TestUnknownKeyIsNamed(t *testing.T) {
	c := Config{}
	err := c.merge(strings.NewReader("nodeid: x\n"), func(string) bool { return false })
	if err == nil || !strings.Contains(err.Error(), "nodeid is no key") {
		t.Errorf("got %v, want an error that names nodeid", err)
	}
}

func TestValidateListsEveryFault(t *testing.T) {
	c := Config{
		NodeID:      "Bad_Name",
		StateDir:    "relative",
		RunDir:      "also/relative",
		Listen:      []string{"tcp://0.0.0.0:7470", "http://x", "unix://rel", "tcp://127.0.0.1:99999"},
		HTTP:        "192.0.2.1:80",
		Devices:     []string{"gpu:x", "soft:hls-9", "soft:hls-2,memory=lots"},
		SoftNetwork: "127.77.1.3/24",
		Topology:    "/does/not/exist",
		LogLevel:    "loud",
		LogFormat:   "xml",
	}
	err := c.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"node-id:", "state-dir:", "run-dir:", "0.0.0.0", "http://x", "unix://rel", "99999", "http: \"192.0.2.1:80\"",
		"gpu:x", "hls-9", "memory", "soft-network: network 127.77.1.3/24: has bits beyond its length: write 127.77.1.0/24", "topology:", "log-level:", "log-format:",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("fault %q is missing from:\n%v", want, err)
		}
	}
}

// What stands in the way of a directory is told by the key that asks for it.
func TestDirectoriesThatCannotBeMadeAreNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for key, c := range map[string]Config{
		"state-dir": {StateDir: filepath.Join(file, "state"), RunDir: t.TempDir()},
		"run-dir":   {StateDir: t.TempDir(), RunDir: file},
	} {
		if err := makeDirs(&c); err == nil || !strings.HasPrefix(err.Error(), key+": ") || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v: want it named, and the path", key, err)
		}
	}
}

func TestSoftNetwork(t *testing.T) {
	good := Config{NodeID: "n", StateDir: "/s", RunDir: "/r", HTTP: "off", LogLevel: "info", LogFormat: "text", DeviceHosts: hostsInside}
	for _, c := range []struct {
		network string
		devices []string
		want    string // "" for none
	}{
		{"127.70.0.0/24", []string{"soft:hls-2"}, ""},
		{"10.77.0.1,fd00:77::/64", []string{"soft:hls-2"}, ""},
		{"10.77.0.1", []string{"soft:hls-2", "soft:hls-2,name=b,network=10.77.0.2+fd00:77::2"}, ""},
		{"10.77.0.1", []string{"soft:hls-2", "soft:hls-2,name=b"}, "soft-network: \"10.77.0.1\": 2 devices would have the same addresses"},
		{"eth0", []string{"soft:hls-2"}, "soft-network: network \"eth0\": is neither"},
		{"", []string{"soft:hls-2,network=10.77.0.1/24"}, "has bits beyond its length"},
	} {
		cfg := good
		cfg.SoftNetwork, cfg.Devices = c.network, c.devices
		err := cfg.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s, %q: error %v, want %q", c.network, c.devices, err, c.want)
		}
	}
}

func TestHostsOfDevices(t *testing.T) {
	c := Config{NodeID: "n", StateDir: "/s", RunDir: "/r", HTTP: "off", LogLevel: "info", LogFormat: "text", DeviceHosts: hostsSeparate,
		Devices: []string{"soft:hls-2,cards=1", "soft:hls-2,name=b,host=second,cards=2", "soft-nic", "soft-nic:other,host=second"}}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	plans := c.plans()
	if len(plans) != 2 || plans[0].name != "soft" || plans[1].name != "second" ||
		!slices.Equal(plans[0].specs, []string{"soft:hls-2,cards=1", "soft-nic"}) || !slices.Equal(plans[1].specs, []string{"soft:hls-2,name=b,cards=2", "soft-nic:other"}) {
		t.Errorf("%+v, %+v: want soft and second with two devices each", plans[0], plans[1])
	}
	one, err := hostSpec(&c, plans[0].specs)
	if err != nil {
		t.Fatal(err)
	}
	c.NodeID = "m"
	if other, _ := hostSpec(&c, plans[0].specs); other == one {
		t.Errorf("hosts of two nodes have the same spec %s", one)
	}
	for spec, want := range map[string]string{
		"soft:hls-2,host=": "host=", "soft:hls-2,host=../x": "host=../x", "soft:hls-2,host=a,host=b": "host is given twice",
	} {
		c.Devices = []string{spec}
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", spec, err, want)
		}
	}
	c.Devices, c.RunDir = []string{"soft:hls-2"}, "/"+strings.Repeat("r", 100)
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "choose a shorter run directory") {
		t.Errorf("error %v, want one about the length of the socket's path", err)
	}
}
