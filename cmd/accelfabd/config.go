package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/accelfab/accelfab/device/host"
	"github.com/accelfab/accelfab/device/topology"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// Config is everything that accelfabd can be told. Each field is a flag and a
// key of the YAML file, by the same name; a flag wins over the file.
type Config struct {
	// NodeID names the node in every resource name: a lower-case letter, then
	// letters, digits and hyphens, at most 63. Default: the host's name, made
	// to fit.
	NodeID string `yaml:"node-id"`
	// StateDir holds the store. Default: /var/lib/accelfab for root, else
	// accelfab in $XDG_STATE_HOME (~/.local/state).
	StateDir string `yaml:"state-dir"`
	// RunDir holds sockets and accelfabd.json. Default: /run/accelfab for
	// root, else accelfab in $XDG_RUNTIME_DIR (else below the temporary
	// directory, by uid).
	RunDir string `yaml:"run-dir"`
	// Listen are the doors of the gRPC API: unix:///path or tcp://host:port on
	// a loopback address; port 0 takes a free one. Default:
	// unix://RUN-DIR/accelfabd.sock and tcp://127.0.0.1:7470.
	Listen []string `yaml:"listen"`
	// HTTP is the door of the REST API: host:port on a loopback address or
	// unix:///path; "off" for none. Default: 127.0.0.1:7471.
	HTTP string `yaml:"http"`
	// Devices are drivers with their settings: soft:hls-2,cards=8,memory=64MiB
	// is a chassis of software cards, soft-nic:NAME,ports=2 a host NIC. Default:
	// soft:hls-2.
	Devices []string `yaml:"device"`
	// SoftNetwork lists networks and addresses of the software ports, with
	// commas between them. A network inside 127.0.0.0/8 is for all ports that get
	// no other address. All else stands for addresses of this machine's
	// interfaces, which are dealt out to the scale-out ports, for RDMA with other
	// machines. Default: the lowest free /24 of 127.64.0.0/10.
	SoftNetwork string `yaml:"soft-network"`
	// Topology is a file with a port map that replaces the built-in one of the
	// same device. Default: none.
	Topology string `yaml:"topology"`
	// DeviceHosts says where devices are: separate, in processes of their own,
	// device hosts, that outlive the daemon; or inside the daemon, and gone with
	// it. Default: separate.
	DeviceHosts string `yaml:"device-hosts"`
	// HostLinger is how long a device host stays without a daemon, 0 for ever.
	// Default: 1h.
	HostLinger time.Duration `yaml:"host-linger"`
	// AwaitDevices lets the daemon serve although a device host cannot be reached
	// or started yet: it is tried again, and its devices come when it is there.
	AwaitDevices bool `yaml:"await-devices"`
	// LogLevel is debug, info, warn or error. Default: info.
	LogLevel string `yaml:"log-level"`
	// LogFormat is text or json. Default: text.
	LogFormat string `yaml:"log-format"`
}

// Where devices are.
const (
	hostsSeparate = "separate"
	hostsInside   = "inside"
)

// defaultConfig gives the defaults that depend on who runs the daemon; those
// that depend on other fields are filled by complete.
func defaultConfig(uid int, getenv func(string) string, hostname string) Config {
	c := Config{
		NodeID:      nodeIDFrom(hostname),
		HTTP:        "127.0.0.1:7471",
		DeviceHosts: hostsSeparate,
		HostLinger:  time.Hour,
		LogLevel:    "info",
		LogFormat:   "text",
	}
	if uid == 0 {
		c.StateDir, c.RunDir = "/var/lib/accelfab", "/run/accelfab"
		return c
	}
	state := getenv("XDG_STATE_HOME")
	if state == "" {
		state = filepath.Join(getenv("HOME"), ".local", "state")
	}
	c.StateDir = filepath.Join(state, "accelfab")
	if run := getenv("XDG_RUNTIME_DIR"); run != "" {
		c.RunDir = filepath.Join(run, "accelfab")
	} else {
		c.RunDir = filepath.Join(os.TempDir(), fmt.Sprintf("accelfab-%d", uid))
	}
	return c
}

// flags binds c's fields. pflag writes into c as it parses.
func (c *Config) flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.NodeID, "node-id", c.NodeID, "name of this node in resource names")
	fs.StringVar(&c.StateDir, "state-dir", c.StateDir, "directory of the store")
	fs.StringVar(&c.RunDir, "run-dir", c.RunDir, "directory of sockets and accelfabd.json")
	fs.StringArrayVar(&c.Listen, "listen", c.Listen, "gRPC door, unix:///path or tcp://host:port on loopback (repeatable)\n(default unix://RUN-DIR/accelfabd.sock and tcp://127.0.0.1:7470)")
	fs.StringVar(&c.HTTP, "http", c.HTTP, "REST door, host:port on loopback, unix:///path, or off")
	fs.StringArrayVar(&c.Devices, "device", c.Devices, "driver with settings (repeatable): soft:hls-2,cards=8,memory=64MiB is a chassis of\nsoftware cards (name=NAME; bar=SIZE: what the bus reaches of each; dmabuf=udmabuf: exports are real\ndma-bufs, which can be mapped and not revoked), soft-nic:NAME,ports=2 a host NIC beside it;\nboth take network=ADDRESS, import=dynamic|pinned|none, p2p=off, segment=SIZE,\nhost=NAME (default soft:hls-2)")
	fs.StringVar(&c.SoftNetwork, "soft-network", c.SoftNetwork, "networks and addresses of the software ports, such as 10.77.0.1,fd00:77::/64:\naddresses of this machine's interfaces go to scale-out ports in their order\n(default the lowest free /24 of 127.64.0.0/10)")
	fs.StringVar(&c.Topology, "topology", c.Topology, "file with a port map in place of the built-in one")
	fs.StringVar(&c.DeviceHosts, "device-hosts", c.DeviceHosts, "where devices are: separate, in processes that outlive the daemon, or inside it")
	fs.BoolVar(&c.AwaitDevices, "await-devices", c.AwaitDevices, "serve although a device host cannot be started yet (a driver that is not loaded): it is tried again, and its devices come when it is there")
	fs.DurationVar(&c.HostLinger, "host-linger", c.HostLinger, "how long a device host stays without a daemon, 0 for ever")
	fs.StringVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
	fs.StringVar(&c.LogFormat, "log-format", c.LogFormat, "text or json")
}

// merge reads YAML from r into c, for every key that is there and whose flag
// was not given. A key that Config does not have is an error.
func (c *Config) merge(r io.Reader, given func(flag string) bool) error {
	file := *c
	d := yaml.NewDecoder(r)
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return errors.New(strings.ReplaceAll(err.Error(), "not found in type main.Config", "is no key; accelfabd --help lists them"))
	}
	byFlag := *c
	*c = file
	if given("node-id") {
		c.NodeID = byFlag.NodeID
	}
	if given("state-dir") {
		c.StateDir = byFlag.StateDir
	}
	if given("run-dir") {
		c.RunDir = byFlag.RunDir
	}
	if given("listen") {
		c.Listen = byFlag.Listen
	}
	if given("http") {
		c.HTTP = byFlag.HTTP
	}
	if given("device") {
		c.Devices = byFlag.Devices
	}
	if given("soft-network") {
		c.SoftNetwork = byFlag.SoftNetwork
	}
	if given("topology") {
		c.Topology = byFlag.Topology
	}
	if given("device-hosts") {
		c.DeviceHosts = byFlag.DeviceHosts
	}
	if given("host-linger") {
		c.HostLinger = byFlag.HostLinger
	}
	if given("await-devices") {
		c.AwaitDevices = byFlag.AwaitDevices
	}
	if given("log-level") {
		c.LogLevel = byFlag.LogLevel
	}
	if given("log-format") {
		c.LogFormat = byFlag.LogFormat
	}
	return nil
}

// complete fills what depends on other fields.
func (c *Config) complete() {
	if len(c.Listen) == 0 {
		c.Listen = []string{"unix://" + filepath.Join(c.RunDir, "accelfabd.sock"), "tcp://127.0.0.1:7470"}
	}
	if len(c.Devices) == 0 {
		c.Devices = []string{"soft:hls-2"}
	}
}

var nodeIDRule = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Validate lists every fault at once; each line names the key.
func (c *Config) Validate() error {
	var faults []error
	fault := func(key, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	if !nodeIDRule.MatchString(c.NodeID) {
		fault("node-id", "%q: want a lower-case letter, then letters, digits and hyphens, not ending in a hyphen, at most 63", c.NodeID)
	} else if c.NodeID == "local" {
		fault("node-id", `"local" stands for whichever node is asked; choose another name`)
	}
	for key, dir := range map[string]string{"state-dir": c.StateDir, "run-dir": c.RunDir} {
		if !filepath.IsAbs(dir) {
			fault(key, "%q: want an absolute path", dir)
		}
	}
	seen := map[string]bool{}
	for _, l := range c.Listen {
		if err := checkListen(l); err != nil {
			fault("listen", "%v", err)
		}
		if seen[l] && !strings.HasSuffix(l, ":0") {
			fault("listen", "%q is given twice", l)
		}
		seen[l] = true
	}
	if err := checkHTTP(c.HTTP); err != nil {
		fault("http", "%v", err)
	}
	if len(c.Devices) == 0 {
		fault("device", "none given; try soft:hls-2")
	}
	if c.SoftNetwork != "" {
		if err := checkSoftNetwork(c); err != nil {
			fault("soft-network", "%v", err)
		}
	}
	checked := *c
	if c.Topology != "" {
		if _, err := topology.LoadFile(c.Topology); err != nil {
			fault("topology", "%v", err)
			checked.Topology = "" // said once, not for each device
		}
	}
	checked.SoftNetwork = ""
	for i, spec := range c.Devices {
		bare, _, err := splitHost(spec)
		var d driver
		if err == nil {
			d, err = driverOf(bare)
		}
		if err == nil {
			err = d.check(bare, &checked)
		}
		if err != nil {
			fault("device", "%q: %v", spec, err)
		}
		if slices.Contains(c.Devices[:i], spec) {
			fault("device", "%q is given twice; a second chassis needs a name of its own: %s,name=other", spec, spec)
		}
	}
	if c.DeviceHosts != hostsSeparate && c.DeviceHosts != hostsInside {
		fault("device-hosts", "%q: want separate or inside", c.DeviceHosts)
	}
	if c.AwaitDevices && c.DeviceHosts == hostsInside {
		fault("await-devices", "only device hosts are waited for: leave out device-hosts inside, or this")
	}
	if c.HostLinger < 0 {
		fault("host-linger", "%v: want 0, for ever, or more", c.HostLinger)
	}
	if c.DeviceHosts == hostsSeparate && filepath.IsAbs(c.RunDir) {
		for _, p := range c.plans() {
			if err := host.CheckSocket(c.hostSocket(p.name)); err != nil {
				fault("run-dir", "%v", err)
			}
		}
	}
	if _, err := c.level(); err != nil {
		fault("log-level", "%v", err)
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		fault("log-format", "%q: want text or json", c.LogFormat)
	}
	slices.SortStableFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(faults...)
}

func (c *Config) level() (slog.Level, error) {
	switch c.LogLevel {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("%q: want debug, info, warn or error", c.LogLevel)
}

// maxUnixPath is the room for a path in sockaddr_un, less the final zero.
const maxUnixPath = 107

func checkListen(l string) error {
	if path, ok := strings.CutPrefix(l, "unix://"); ok {
		return checkUnixPath(l, path)
	}
	if addr, ok := strings.CutPrefix(l, "tcp://"); ok {
		return checkLoopback(l, addr)
	}
	return fmt.Errorf("%q: want unix:///path or tcp://host:port", l)
}

func checkHTTP(h string) error {
	if h == "off" {
		return nil
	}
	if path, ok := strings.CutPrefix(h, "unix://"); ok {
		return checkUnixPath(h, path)
	}
	return checkLoopback(h, h)
}

func checkUnixPath(given, path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%q: want an absolute path, as in unix:///run/accelfab/accelfabd.sock", given)
	}
	if len(path) > maxUnixPath {
		return fmt.Errorf("%q: a socket's path holds at most %d bytes, this one has %d; choose a shorter run-dir", given, maxUnixPath, len(path))
	}
	return nil
}

// checkLoopback refuses wider addresses: without TLS and identities whoever
// reaches the port would own the accelerators.
func checkLoopback(given, addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q: want host:port", given)
	}
	if _, err := net.LookupPort("tcp", port); err != nil || port == "" {
		return fmt.Errorf("%q: port %q: want 0 to 65535", given, port)
	}
	if host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
		return fmt.Errorf("%q: only loopback addresses (127.0.0.1, [::1], localhost) are served, since callers on TCP are not authenticated", given)
	}
	return nil
}

var notNodeID = regexp.MustCompile(`[^a-z0-9-]+`)

// nodeIDFrom makes a node id out of a host name; "node" where nothing is left.
func nodeIDFrom(host string) string {
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	id := strings.Trim(notNodeID.ReplaceAllString(host, "-"), "-")
	if id == "" || id == "local" || id == "localhost" {
		return "node"
	}
	if id[0] >= '0' && id[0] <= '9' {
		id = "n" + id
	}
	if len(id) > 63 {
		id = strings.TrimRight(id[:63], "-")
	}
	return id
}
