package soft

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/topology"
)

const (
	nicName     = "soft-nic"
	nicPorts    = 2
	maxNICPorts = 8
	nicMemory   = 64 << 20
	nicBase     = 1 << 43 // lowest device address: below those of all accelerators
	nicSpeed    = 100_000 // Mbit/s of a port
)

// ParseNIC reads the text that names a host NIC, a device without accelerator
// memory that imports what accelerators export:
//
//	soft-nic[:NAME][,ports=N][,import=KIND][,p2p=off][,segment=SIZE][,memory=SIZE][,network=ITEM[+ITEM...]]
//
// NAME is the id of the device, by default soft-nic. It has two ports, all of
// them scale-out, and 64 MiB of host memory of its own, so that receive queues and
// what it sends have a place. The other options are as ParseSpec reads them.
func ParseNIC(spec string) (Config, error) {
	cfg := Config{NICPorts: nicPorts, Name: nicName, MemoryBytes: nicMemory}
	head, options, _ := strings.Cut(spec, ",")
	driver, name, named := strings.Cut(head, ":")
	if driver != nicName || named && name == "" {
		return cfg, fmt.Errorf("device %q: a software NIC is written as soft-nic[:NAME][,ports=N][,import=KIND]", spec)
	}
	if named {
		cfg.Name = name
		if err := checkName(name); err != nil {
			return cfg, fmt.Errorf("device %q: %w", spec, err)
		}
	}
	return cfg, cfg.options(spec, options, func(key, value string) error {
		switch key {
		case "ports":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > maxNICPorts {
				return fmt.Errorf("ports=%s: a number from 1 to %d", value, maxNICPorts)
			}
			cfg.NICPorts = n
			return nil
		case "cards", "name", "bar", "dmabuf":
			return fmt.Errorf("unknown option %q: the options of a NIC are ports, import, p2p, segment, memory and network", key)
		}
		return cfg.set(key, value)
	})
}

// nicMap is the port map of a NIC.
func nicMap(ports int) *topology.Map {
	m := &topology.Map{Name: nicName, Model: "software NIC", PortSpeedMbps: nicSpeed, Cards: []topology.Card{{}}}
	for n := range ports {
		m.Cards[0].Ports = append(m.Cards[0].Ports, topology.Port{Number: n, Class: topology.ScaleOut, PeerCard: -1, PeerPort: -1})
	}
	return m
}

// nicInfo makes of the description of a card that of a NIC.
func nicInfo(cfg *Config, info device.Info, sum []byte) device.Info {
	info.ID, info.Driver, info.Topology = cfg.Name, nicName, ""
	info.Serial = fmt.Sprintf("SNIC%X", sum[:4])
	info.PCIAddress = fmt.Sprintf("0000:%02x:00.0", 0xc0|sum[4]&0x3f)
	info.MemoryBase = nicBase
	return info
}
