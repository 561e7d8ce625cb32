package main

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/soft"
	"github.com/accelfab/accelfab/device/topology"
)

// drivers is the one place that names drivers.
var drivers = map[string]driver{
	"soft":     softDriver{},
	"soft-nic": nicDriver{},
}

// A driver opens the devices that a text such as soft:hls-2 stands for.
type driver interface {
	// check says what is wrong with the text, and opens nothing.
	check(spec string, c *Config) error
	// open opens the devices; closing them all closes what they share.
	open(spec string, c *Config) ([]device.Device, error)
}

func driverOf(spec string) (driver, error) {
	head, _, _ := strings.Cut(spec, ",")
	name, _, _ := strings.Cut(head, ":")
	d, ok := drivers[name]
	if !ok {
		return nil, fmt.Errorf("unknown driver %q: this build has %s", name, strings.Join(slices.Sorted(maps.Keys(drivers)), " and "))
	}
	return d, nil
}

// openDevices opens all devices of a valid Config, or none.
func openDevices(c *Config) ([]device.Device, error) {
	var all []device.Device
	for _, given := range c.Devices {
		spec, _, err := splitHost(given)
		var d driver
		if err == nil {
			d, err = driverOf(spec)
		}
		if err == nil {
			var some []device.Device
			some, err = d.open(spec, c)
			all = append(all, some...)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("device %q: %w", given, err), closeDevices(all))
		}
	}
	return all, nil
}

func closeDevices(devices []device.Device) error {
	var errs []error
	for _, d := range devices {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

type softDriver struct{}

func (softDriver) config(spec string, c *Config) (soft.Config, error) {
	spec, err := withTopology(spec, c.Topology)
	if err != nil {
		return soft.Config{}, err
	}
	cfg, err := soft.ParseSpec(spec)
	if err != nil {
		return soft.Config{}, err
	}
	return ofNode(cfg, c)
}

// ofNode puts what is for all software devices of the node into the Config of one.
func ofNode(cfg soft.Config, c *Config) (soft.Config, error) {
	var err error
	cfg.NodeID = c.NodeID
	if cfg.Networks == nil && c.SoftNetwork != "" {
		cfg.Networks, err = soft.ParseNetworks(c.SoftNetwork)
	}
	return cfg, err
}

// checkSoftNetwork says what is wrong with the soft-network of a Config.
func checkSoftNetwork(c *Config) error {
	if _, err := soft.ParseNetworks(c.SoftNetwork); err != nil {
		return err
	}
	users := 0
	for _, given := range c.Devices {
		spec, _, err := splitHost(given)
		if err != nil {
			continue // said elsewhere
		}
		for _, parse := range []func(string) (soft.Config, error){soft.ParseSpec, soft.ParseNIC} {
			if cfg, err := parse(spec); err == nil && cfg.Networks == nil {
				users++
			}
		}
	}
	if users > 1 {
		return fmt.Errorf("%q: %d devices would have the same addresses: give each its own, as in soft:hls-2,name=other,network=10.77.0.2", c.SoftNetwork, users)
	}
	return nil
}

func (d softDriver) check(spec string, c *Config) error {
	_, err := d.config(spec, c)
	return err
}

func (d softDriver) open(spec string, c *Config) ([]device.Device, error) {
	cfg, err := d.config(spec, c)
	if err != nil {
		return nil, err
	}
	return openSoft(cfg)
}

func openSoft(cfg soft.Config) ([]device.Device, error) {
	chassis, err := soft.Open(cfg)
	if err != nil {
		return nil, err
	}
	return chassis.Devices(), nil
}

// nicDriver opens host NICs, which import what accelerators export.
type nicDriver struct{}

func (nicDriver) config(spec string, c *Config) (soft.Config, error) {
	cfg, err := soft.ParseNIC(spec)
	if err != nil {
		return cfg, err
	}
	return ofNode(cfg, c)
}

func (d nicDriver) check(spec string, c *Config) error {
	_, err := d.config(spec, c)
	return err
}

func (d nicDriver) open(spec string, c *Config) ([]device.Device, error) {
	cfg, err := d.config(spec, c)
	if err != nil {
		return nil, err
	}
	return openSoft(cfg)
}

// withTopology puts the path of an operator's map in the place of the built-in
// map that has its name.
func withTopology(spec, file string) (string, error) {
	if file == "" {
		return spec, nil
	}
	m, err := topology.LoadFile(file)
	if err != nil {
		return "", err
	}
	driver, rest, _ := strings.Cut(spec, ":")
	name, options, more := strings.Cut(rest, ",")
	if !strings.EqualFold(name, m.Name) {
		return spec, nil
	}
	path, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	spec = driver + ":" + path
	if more {
		spec += "," + options
	}
	return spec, nil
}
