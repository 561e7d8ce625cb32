package soft

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/accelfab/accelfab/device/topology"
)

// ParseSpec reads the text that names a chassis:
//
//	soft:TOPOLOGY[,cards=N][,memory=SIZE][,name=NAME][,network=ITEM[+ITEM...]]
//	     [,bar=SIZE][,import=KIND][,p2p=off][,segment=SIZE][,dmabuf=udmabuf]
//
// TOPOLOGY is a built-in port map ("hls-2") or, with a slash in it, the path of
// a map file. SIZE is a number of bytes, or one with KiB, MiB, GiB or TiB behind
// it, and is for each card. ITEMs are as ParseNetworks reads them. bar is how much
// of a card's memory other devices reach over the bus. KIND is dynamic, pinned or
// none: what a card is as an importer; segment is the largest piece it takes, and
// p2p=off says that it reaches nothing but host memory. dmabuf=udmabuf makes exports
// real dma-bufs, which can be mapped and not revoked, where tokens are the default.
// What the text does not name has its default.
func ParseSpec(spec string) (Config, error) {
	var cfg Config
	rest, ok := strings.CutPrefix(spec, "soft:")
	if !ok {
		return cfg, fmt.Errorf("device %q: a software chassis is written as soft:TOPOLOGY[,cards=N][,memory=SIZE]", spec)
	}
	name, options, _ := strings.Cut(rest, ",")
	if name == "" {
		return cfg, fmt.Errorf("device %q: no topology: one of %s, or a map file", spec, strings.Join(topology.Names(), ", "))
	}
	var err error
	if strings.Contains(name, "/") {
		cfg.Map, err = topology.LoadFile(name)
	} else {
		cfg.Map, err = topology.Lookup(name)
	}
	if err != nil {
		return cfg, fmt.Errorf("device %q: %w", spec, err)
	}
	return cfg, cfg.options(spec, options, cfg.set)
}

// options hands the options of a text to set, each of which is KEY=VALUE.
func (cfg *Config) options(spec, options string, set func(key, value string) error) error {
	if options == "" {
		return nil
	}
	seen := map[string]bool{}
	for option := range strings.SplitSeq(options, ",") {
		key, value, ok := strings.Cut(option, "=")
		if !ok || value == "" {
			return fmt.Errorf("device %q: option %q: write KEY=VALUE", spec, option)
		}
		if seen[key] {
			return fmt.Errorf("device %q: %s is given twice", spec, key)
		}
		seen[key] = true
		if err := set(key, value); err != nil {
			return fmt.Errorf("device %q: %w", spec, err)
		}
	}
	return nil
}

func (cfg *Config) set(key, value string) error {
	var err error
	switch key {
	case "cards":
		if cfg.Cards, err = strconv.Atoi(value); err != nil || cfg.Cards < 1 || cfg.Cards > len(cfg.Map.Cards) {
			return fmt.Errorf("cards=%s: a number from 1 to %d for %s", value, len(cfg.Map.Cards), cfg.Map.Name)
		}
	case "memory":
		if cfg.MemoryBytes, err = parseSize(value); err != nil {
			return fmt.Errorf("memory=%s: %w", value, err)
		}
		return checkMemory(cfg.MemoryBytes)
	case "name":
		cfg.Name = value
		return checkName(value)
	case "network":
		if cfg.Networks, err = ParseNetworks(value); err != nil {
			return fmt.Errorf("network=%s: %w", value, err)
		}
	case "bar":
		if cfg.ApertureBytes, err = parseSize(value); err != nil {
			return fmt.Errorf("bar=%s: %w", value, err)
		}
		if cfg.ApertureBytes < pageSize {
			return fmt.Errorf("bar=%s: at least %d bytes", value, pageSize)
		}
	case "import":
		cfg.Import = ImportKind(value)
		return cfg.completeImport()
	case "p2p":
		if value != "on" && value != "off" {
			return fmt.Errorf("p2p=%s: on or off", value)
		}
		cfg.NoPeerToPeer = value == "off"
	case "segment":
		if cfg.LargestSegment, err = parseSize(value); err != nil {
			return fmt.Errorf("segment=%s: %w", value, err)
		}
		return cfg.completeImport()
	case "dmabuf":
		if value != "udmabuf" && value != "token" {
			return fmt.Errorf("dmabuf=%s: token, or udmabuf", value)
		}
		cfg.RealDMABufs = value == "udmabuf"
	default:
		return fmt.Errorf("unknown option %q: the options are cards, memory, name, network, bar, import, p2p, segment and dmabuf", key)
	}
	return nil
}

// parseSize reads a number of bytes.
func parseSize(s string) (uint64, error) {
	digits, shift := s, 0
	for i, unit := range [...]string{"KiB", "MiB", "GiB", "TiB"} {
		if d, ok := strings.CutSuffix(s, unit); ok {
			digits, shift = d, 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n<<shift>>shift != n {
		return 0, fmt.Errorf("a size is a number of bytes, or one with KiB, MiB, GiB or TiB behind it")
	}
	return n << shift, nil
}

func checkName(name string) error {
	for _, r := range name {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
			return fmt.Errorf("name %q: lower-case letters, digits and hyphens", name)
		}
	}
	if name == "" || len(name) > 40 || name[0] == '-' {
		return fmt.Errorf("name %q: 1 to 40 characters, the first not a hyphen", name)
	}
	return nil
}
