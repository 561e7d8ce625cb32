package soft

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/topology"
)

const (
	defaultMemory = 1 << 30
	maxMemory     = 1 << 40 // bytes of a card: device addresses of cards are this far apart
	memoryBase    = 1 << 44 // device address of card 0; no address is valid on two cards
	defaultRest   = 30 * time.Second
)

// Config says what chassis to make. Only Map is needed.
type Config struct {
	Map *topology.Map
	// Name is the front of the device ids and sets several chassis of one node
	// apart. "" means "soft".
	Name string
	// NodeID makes serial numbers of nodes differ.
	NodeID string
	// Cards is how many cards of the map to have; 0 means all.
	Cards int
	// MemoryBytes of each card, at least 4096; 0 means 1 GiB. It is rounded
	// down to 4096 and costs what is written to it.
	MemoryBytes uint64
	// Network gives the ports their addresses. It must be local to this
	// machine. The zero Prefix means the lowest free one of 127.64.0.0/10.
	Network netip.Prefix
	// LockDir holds the lock files of that search, so all who share a machine
	// should share it. "" means a folder in os.TempDir.
	LockDir string
	// Limits that are not zero lower those of the device.
	Limits device.Limits
	// Rest is how long keys and queue pair numbers that were given back are
	// not given out again; 0 means 30 s.
	Rest time.Duration
}

var defaultLimits = device.Limits{
	QueuePairs:        65536,
	ProtectionDomains: 16384,
	Regions:           262144,
	SendWR:            16384,
	RecvWR:            16384,
	SGE:               16,
	MessageBytes:      1 << 31,
	RDAtomic:          16,
	MaxMTU:            ib.MTU4096,
}

func checkMemory(n uint64) error {
	if n < pageSize || n > maxMemory {
		return fmt.Errorf("memory of %d bytes a card: from %d to %d", n, pageSize, uint64(maxMemory))
	}
	return nil
}

// complete checks a Config and fills in what is zero.
func (cfg *Config) complete() error {
	if cfg.Map == nil {
		return errors.New("no port map")
	}
	if cfg.Name == "" {
		cfg.Name = "soft"
	}
	if err := checkName(cfg.Name); err != nil {
		return err
	}
	if cfg.Cards == 0 {
		cfg.Cards = len(cfg.Map.Cards)
	}
	m, err := cfg.Map.Truncate(cfg.Cards)
	if err != nil {
		return err
	}
	cfg.Map = m
	if cfg.MemoryBytes == 0 {
		cfg.MemoryBytes = defaultMemory
	}
	if err := checkMemory(cfg.MemoryBytes); err != nil {
		return err
	}
	cfg.MemoryBytes &^= pageSize - 1
	if cfg.LockDir == "" {
		cfg.LockDir = defaultLockDir()
	}
	if cfg.Rest == 0 {
		cfg.Rest = defaultRest
	}
	lower(&cfg.Limits.QueuePairs, defaultLimits.QueuePairs)
	lower(&cfg.Limits.ProtectionDomains, defaultLimits.ProtectionDomains)
	lower(&cfg.Limits.Regions, defaultLimits.Regions)
	lower(&cfg.Limits.SendWR, defaultLimits.SendWR)
	lower(&cfg.Limits.RecvWR, defaultLimits.RecvWR)
	lower(&cfg.Limits.SGE, defaultLimits.SGE)
	lower(&cfg.Limits.MessageBytes, defaultLimits.MessageBytes)
	lower(&cfg.Limits.RDAtomic, defaultLimits.RDAtomic)
	lower(&cfg.Limits.MaxMTU, defaultLimits.MaxMTU)
	return nil
}

// lower keeps a limit that is set and below the one of the device.
func lower[N int | uint64 | ib.MTU](n *N, limit N) {
	if *n <= 0 || *n > limit {
		*n = limit
	}
}

// Chassis is a number of cards that are cabled to each other.
type Chassis struct {
	network *network
	cards   []*card
}

// Open makes a chassis. All of it is there when Open returns, or nothing.
func Open(cfg Config) (*Chassis, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("software chassis: %w", err)
	}
	ch := &Chassis{}
	for module := range cfg.Map.Cards {
		c, err := newCard(&cfg, module)
		if err != nil {
			ch.Close()
			return nil, fmt.Errorf("software chassis: card %d: %w", module, err)
		}
		ch.cards = append(ch.cards, c)
	}
	if err := ch.plug(&cfg); err != nil {
		ch.Close()
		return nil, fmt.Errorf("software chassis: %w", err)
	}
	return ch, nil
}

// plug finds the chassis a network and opens its ports there.
func (ch *Chassis) plug(cfg *Config) error {
	ports := len(cfg.Map.Cards[0].Ports)
	mtus, err := interfaceMTUs()
	if err != nil {
		return err
	}
	open := func(n *network) error {
		sockets, err := openSockets(cfg.Map, n)
		if err != nil {
			return err
		}
		for _, c := range ch.cards {
			for _, p := range c.ports {
				p.plug(n, mtus.of(n.address(c.info.ModuleID, p.number)), sockets[n.address(c.info.ModuleID, p.number)])
			}
			c.start()
		}
		return nil
	}
	if cfg.Network.IsValid() {
		n, err := fixedNetwork(cfg.Network, cfg.Cards, ports)
		if err != nil {
			return err
		}
		ch.network = n
		return open(n)
	}
	ch.network, err = searchNetworks(cfg.LockDir, cfg.Cards, ports, open)
	return err
}

// openSockets opens the sockets of all ports that lead somewhere, or none.
func openSockets(m *topology.Map, n *network) (map[netip.Addr]*socket, error) {
	sockets := make(map[netip.Addr]*socket)
	for _, c := range m.Cards {
		for _, p := range c.Ports {
			if !leadsSomewhere(p) {
				continue
			}
			addr := n.address(c.Number, p.Number)
			s, err := openSocket(addr)
			if err != nil {
				for _, s := range sockets {
					s.close()
				}
				return nil, fmt.Errorf("card %d port %d: %w", c.Number, p.Number, err)
			}
			sockets[addr] = s
		}
	}
	return sockets, nil
}

// Devices gives the cards by module id. The chassis keeps them.
func (ch *Chassis) Devices() []device.Device {
	list := make([]device.Device, len(ch.cards))
	for i, c := range ch.cards {
		list[i] = c
	}
	return list
}

// Network is the network that the ports have their addresses of.
func (ch *Chassis) Network() netip.Prefix { return ch.network.prefix }

// Close closes all cards and lets the network go.
func (ch *Chassis) Close() error {
	var errs []error
	for _, c := range ch.cards {
		errs = append(errs, c.Close())
	}
	if ch.network != nil {
		errs = append(errs, ch.network.close())
	}
	return errors.Join(errs...)
}

// cardInfo describes a card. Its names depend on the configuration alone.
func cardInfo(cfg *Config, module int) device.Info {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s", cfg.NodeID, cfg.Name))
	model := cfg.Map.Model
	if model == "" {
		model = "software"
	}
	return device.Info{
		ID:           fmt.Sprintf("%s-%d", cfg.Name, module),
		Driver:       "soft",
		Model:        model,
		Serial:       fmt.Sprintf("SOFT%X%02d", sum[:4], module),
		PCIAddress:   fmt.Sprintf("0000:%02x:00.0", 0x10+module),
		ModuleID:     module,
		Topology:     cfg.Map.Name,
		Ports:        len(cfg.Map.Cards[module].Ports),
		MemoryBytes:  cfg.MemoryBytes,
		MemoryBase:   memoryBase + uint64(module)*maxMemory,
		Limits:       cfg.Limits,
		Capabilities: []device.Capability{device.CapRC, device.CapUC, device.CapUD, device.CapAtomics, device.CapSetPort},
	}
}

// interfaces are the addresses of this machine and the MTUs of their
// interfaces.
type interfaces []struct {
	prefix netip.Prefix
	mtu    int
}

func interfaceMTUs() (interfaces, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var list interfaces
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				list = append(list, struct {
					prefix netip.Prefix
					mtu    int
				}{prefix, i.MTU})
			}
		}
	}
	return list, nil
}

// of gives the MTU of the interface that an address belongs to, 0 if none.
func (l interfaces) of(addr netip.Addr) int {
	mtu, length := 0, -1
	for _, i := range l {
		if i.prefix.Contains(addr) && i.prefix.Bits() > length {
			mtu, length = i.mtu, i.prefix.Bits()
		}
	}
	return mtu
}
