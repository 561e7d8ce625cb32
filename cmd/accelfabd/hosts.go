package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/host"
)

// hostsName is the folder of device hosts in the run directory.
const hostsName = "hosts"

// endGrace is how long a device host may take to end in order.
const endGrace = 10 * time.Second

func (c *Config) hostsDir() string { return filepath.Join(c.RunDir, hostsName) }

func (c *Config) hostSocket(name string) string {
	return filepath.Join(c.hostsDir(), name+".sock")
}

var hostNameRule = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,29}[a-z0-9])?$`)

// splitHost takes the option host=NAME out of the text of a device: which device
// host it is in. Without it all software devices of a node share one, as they
// share a bus.
func splitHost(spec string) (rest, name string, err error) {
	name = "soft"
	parts := strings.Split(spec, ",")
	kept := parts[:1]
	given := false
	for _, p := range parts[1:] {
		value, ok := strings.CutPrefix(p, "host=")
		switch {
		case !ok:
			kept = append(kept, p)
			continue
		case given:
			return "", "", errors.New("host is given twice")
		case !hostNameRule.MatchString(value):
			return "", "", fmt.Errorf("host=%s: want a lower-case letter, then letters, digits and hyphens, at most 31", value)
		}
		given, name = true, value
	}
	return strings.Join(kept, ","), name, nil
}

// hostPlan is one device host and the devices in it.
type hostPlan struct {
	name  string
	specs []string
}

// plans gives the hosts that a valid Config needs, in the order of their first
// devices.
func (c *Config) plans() []*hostPlan {
	var all []*hostPlan
	for _, spec := range c.Devices {
		rest, name, err := splitHost(spec)
		if err != nil {
			continue // validated
		}
		i := slices.IndexFunc(all, func(p *hostPlan) bool { return p.name == name })
		if i < 0 {
			i = len(all)
			all = append(all, &hostPlan{name: name})
		}
		all[i].specs = append(all[i].specs, rest)
	}
	return all
}

// hostSpec says in one text what the devices of a host are made of. Another
// text is another host.
func hostSpec(c *Config, specs []string) (string, error) {
	s := struct {
		Node     string   `json:"node"`
		Devices  []string `json:"devices"`
		Network  string   `json:"network,omitempty"`
		Topology string   `json:"topology,omitempty"` // hash of the file
	}{Node: c.NodeID, Devices: specs, Network: c.SoftNetwork}
	if c.Topology != "" {
		b, err := os.ReadFile(c.Topology)
		if err != nil {
			return "", fmt.Errorf("topology: %w", err)
		}
		sum := sha256.Sum256(b)
		s.Topology = fmt.Sprintf("%x", sum[:8])
	}
	b, err := json.Marshal(s)
	return string(b), err
}

// freshHosts are device hosts that the daemon has started and not served with
// yet: nobody has anything on them.
type freshHosts struct {
	mu      sync.Mutex
	served  bool
	sockets []string
}

func (f *freshHosts) add(socket string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.served {
		f.sockets = append(f.sockets, socket)
	}
}

// keep is called when the daemon serves: from then on its hosts outlive it.
func (f *freshHosts) keep() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.served, f.sockets = true, nil
}

// end ends those of a daemon that did not come to serve.
func (f *freshHosts) end() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, socket := range f.sockets {
		if _, err := host.End(socket, endGrace); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// openAll opens the devices of a valid Config, in this process or in device
// hosts. Absent are hosts that could not be reached, where the Config lets the daemon
// serve without.
func openAll(ctx context.Context, c *Config, fresh *freshHosts, log *slog.Logger) (devices []device.Device, absent []*absentHost, err error) {
	if c.DeviceHosts == hostsInside {
		devices, err = openDevices(c)
		return devices, nil, err
	}
	return dialHosts(ctx, c, fresh, log)
}

// dialHosts reaches or starts the device hosts of a Config, all at once, and
// gives their devices.
func dialHosts(ctx context.Context, c *Config, fresh *freshHosts, log *slog.Logger) ([]device.Device, []*absentHost, error) {
	boot, err := host.BootID()
	if err != nil {
		return nil, nil, err
	}
	plans := c.plans()
	got, errs := make([][]device.Device, len(plans)), make([]error, len(plans))
	dials := make([]func(context.Context) ([]device.Device, error), len(plans))
	var wg sync.WaitGroup
	for i, p := range plans {
		dials[i] = func(ctx context.Context) ([]device.Device, error) {
			spec, err := hostSpec(c, p.specs)
			if err != nil {
				return nil, err
			}
			return host.Dial(ctx, host.Config{
				Socket: c.hostSocket(p.name), Spec: spec, Version: version(), BootID: boot,
				Start: func() (host.Started, error) {
					fresh.add(c.hostSocket(p.name))
					return startHost(c, p)
				},
				Instead: fmt.Sprintf("end it, and all that is on its devices, with: accelfabd stop-hosts --run-dir %s", c.RunDir),
				Logger:  log.With("host", p.name),
			})
		}
		wg.Go(func() {
			if got[i], errs[i] = dials[i](ctx); errs[i] != nil {
				errs[i] = fmt.Errorf("device host %s: %w", p.name, errs[i])
			}
		})
	}
	wg.Wait()
	all := slices.Concat(got...)
	var absent []*absentHost
	for i, err := range errs {
		if err != nil && c.AwaitDevices && ctx.Err() == nil && !final(err) {
			absent, errs[i] = append(absent, &absentHost{plans[i].name, dials[i], err}), nil
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, nil, errors.Join(err, closeDevices(all))
	}
	return all, absent, nil
}

// startHost starts a device host that outlives this process.
func startHost(c *Config, p *hostPlan) (host.Started, error) {
	program, err := os.Executable()
	if err != nil {
		return host.Started{}, err
	}
	if err := os.MkdirAll(c.hostsDir(), 0o700); err != nil {
		return host.Started{}, err
	}
	socket := c.hostSocket(p.name)
	args := []string{"device-host", "--socket", socket, "--log-file", logOf(socket), "--node-id", c.NodeID, "--host-linger", c.HostLinger.String(),
		"--log-level", c.LogLevel, "--log-format", c.LogFormat}
	for _, s := range p.specs {
		args = append(args, "--device", s)
	}
	if c.SoftNetwork != "" {
		args = append(args, "--soft-network", c.SoftNetwork)
	}
	if c.Topology != "" {
		file, err := filepath.Abs(c.Topology)
		if err != nil {
			return host.Started{}, err
		}
		args = append(args, "--topology", file)
	}
	out, err := os.OpenFile(logOf(socket), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return host.Started{}, err
	}
	began, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		out.Close()
		return host.Started{}, err
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		for _, own := range []string{"NOTIFY_SOCKET=", "WATCHDOG_", "LISTEN_"} { // of this process alone (sd_notify(3))
			if strings.HasPrefix(v, own) {
				return true
			}
		}
		return false
	})
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // signals to the daemon's group are not for it
	if err := cmd.Start(); err != nil {
		out.Close()
		return host.Started{}, err
	}
	ended := make(chan error, 1)
	go func() {
		defer out.Close()
		_ = cmd.Wait() // the state says it
		ended <- fmt.Errorf("%v: %s (log %s)", cmd.ProcessState, lastLine(io.NewSectionReader(out, began, 1<<20)), logOf(socket))
	}()
	return host.Started{Ended: ended, Kill: func() { _ = cmd.Process.Kill() }}, nil
}

func logOf(socket string) string { return strings.TrimSuffix(socket, ".sock") + ".log" }

// lastLine is the last line that says anything.
func lastLine(r io.Reader) string {
	b, _ := io.ReadAll(r) // what can be read of it
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if last := strings.TrimSpace(lines[len(lines)-1]); last != "" {
		return last
	}
	return "it said nothing"
}
