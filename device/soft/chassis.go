package soft

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/ib"
	"github.com/accelfab/accelfab/device/topology"
)

const (
	defaultMemory = 1 << 30
	maxMemory     = 1 << 40 // bytes of a card
	addressRoom   = 2 << 40 // of the device addresses of a card: they are this far apart
	memoryBase    = 1 << 44 // device address of card 0; no address is valid on two cards
	defaultRest   = 30 * time.Second
)

// Config says what chassis to make. Only Map is needed, or NICPorts.
type Config struct {
	Map *topology.Map
	// NICPorts, if not 0, makes a host NIC with so many ports in the place of a
	// chassis: it has no map, and exports nothing.
	NICPorts int
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
	// Networks give the ports their addresses. A network inside 127.0.0.0/8 is
	// for all ports that get no other address; the lowest free one of
	// 127.64.0.0/10 is if there is none. Every other network, or address (one of
	// full length), stands for the addresses of this machine's interfaces that
	// are in it. They are dealt out to the scale-out ports.
	Networks []netip.Prefix
	// LockDir holds the lock files of that search, so all who share a machine
	// should share it. "" means a folder in os.TempDir.
	LockDir string
	// Limits that are not zero lower those of the device.
	Limits device.Limits
	// ApertureBytes is how much of the memory of a card other devices reach over
	// the bus, from its beginning on, as a PCI BAR does; 0 means all. It is
	// rounded down to 4096.
	ApertureBytes uint64
	// Import is what a card is as an importer; "" means ImportDynamic.
	Import ImportKind
	// NoPeerToPeer makes importers that reach nothing but host memory.
	NoPeerToPeer bool
	// LargestSegment is the largest piece of memory that an importer takes, in
	// bytes, a multiple of 4096; 0 means 2 GiB.
	LargestSegment uint64
	// RealDMABufs makes exports real dma-bufs, by /dev/udmabuf: their holders may
	// map them, and they cannot be revoked.
	RealDMABufs bool
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
	ExportPage:        pageSize,
	MaxMTU:            ib.MTU4096,
}

const defaultSegment = 2 << 30

func checkMemory(n uint64) error {
	if n < pageSize || n > maxMemory {
		return fmt.Errorf("memory of %d bytes a card: from %d to %d", n, pageSize, uint64(maxMemory))
	}
	return nil
}

// complete checks a Config and fills in what is zero.
func (cfg *Config) complete() error {
	if cfg.NICPorts > 0 {
		cfg.Map = nicMap(cfg.NICPorts)
	}
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
	if err := checkItems(cfg.Networks); err != nil {
		return err
	}
	if cfg.ApertureBytes == 0 || cfg.ApertureBytes > cfg.MemoryBytes {
		cfg.ApertureBytes = cfg.MemoryBytes
	}
	cfg.ApertureBytes &^= pageSize - 1
	if err := cfg.completeImport(); err != nil {
		return err
	}
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
	cfg.Limits.ExportPage = defaultLimits.ExportPage
	if cfg.NICPorts > 0 {
		cfg.Limits.ExportPage = 0
	}
	return nil
}

// completeImport checks and fills in what a card is as an importer.
func (cfg *Config) completeImport() error {
	switch cfg.Import {
	case "":
		cfg.Import = ImportDynamic
	case ImportDynamic, ImportPinned, ImportNone:
	default:
		return fmt.Errorf("import %q: %s, %s or %s", cfg.Import, ImportDynamic, ImportPinned, ImportNone)
	}
	if cfg.LargestSegment == 0 {
		cfg.LargestSegment = defaultSegment
	}
	if cfg.LargestSegment%pageSize != 0 {
		return fmt.Errorf("largest segment of %d bytes: a multiple of %d", cfg.LargestSegment, pageSize)
	}
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
	wiring    *topology.Map
	addresses addresses
	cards     []*card
}

// Open makes a chassis. All of it is there when Open returns, or nothing.
func Open(cfg Config) (*Chassis, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("software chassis: %w", err)
	}
	ch := &Chassis{wiring: cfg.Map}
	for module := range cfg.Map.Cards {
		c, err := newCard(ch, &cfg, module)
		if err != nil {
			ch.Close()
			return nil, fmt.Errorf("software chassis: card %d: %w", module, err)
		}
		for _, p := range c.ports {
			p.own = &ch.addresses
		}
		ch.cards = append(ch.cards, c)
	}
	if err := ch.plug(&cfg); err != nil {
		ch.Close()
		return nil, fmt.Errorf("software chassis: %w", err)
	}
	return ch, nil
}

// plug gives the ports of the chassis their addresses.
func (ch *Chassis) plug(cfg *Config) error {
	host, err := hostAddresses()
	if err != nil {
		return err
	}
	loopback, rest := splitNetworks(cfg.Networks)
	if len(rest) > 0 {
		if err := ch.plugDealt(rest, host); err != nil {
			return err
		}
	}
	if err := ch.plugLoopback(cfg, loopback, host, len(rest) > 0); err != nil {
		return err
	}
	for _, c := range ch.cards {
		c.start()
	}
	return nil
}

// plugDealt deals addresses of interfaces out to the scale-out ports.
func (ch *Chassis) plugDealt(items []netip.Prefix, host []hostAddress) error {
	ports := ch.ports(func(p *port) bool { return p.wiring.Class == topology.ScaleOut })
	places, err := deal(items, host, len(ports))
	if err != nil {
		return err
	}
	ch.addresses.dealt = make(map[netip.Addr]bool)
	for i, p := range ports {
		if i >= len(places) {
			p.reason = fmt.Sprintf("without an address: the networks given (%s) have addresses for %d of %d scale-out ports",
				itemsText(items), len(places), len(ports))
			continue
		}
		if err := p.plug(places[i]); err != nil {
			return err
		}
		for _, s := range p.sockets() {
			ch.addresses.dealt[s.addr] = true
		}
	}
	return nil
}

// plugLoopback gives the ports that lead somewhere addresses of a loopback
// network, the scale-out ports only if they were dealt none.
func (ch *Chassis) plugLoopback(cfg *Config, prefix netip.Prefix, host []hostAddress, dealt bool) error {
	ports := ch.ports(func(p *port) bool {
		return leadsSomewhere(p.wiring) && !(dealt && p.wiring.Class == topology.ScaleOut)
	})
	if len(ports) == 0 {
		return nil
	}
	use := func(n *network) error {
		for _, p := range ports {
			addr := n.address(p.card.info.ModuleID, p.number)
			if err := p.plug(place{mtu: mtuOf(host, addr), addrs: []netip.Addr{addr}}); err != nil {
				for _, p := range ports {
					p.unplug()
				}
				return err
			}
			if p.wiring.Class == topology.Internal {
				p.peer = n.address(p.wiring.PeerCard, p.wiring.PeerPort)
			}
		}
		return nil
	}
	portsOfCard := len(cfg.Map.Cards[0].Ports)
	var err error
	if prefix.IsValid() {
		if ch.addresses.loopback, err = fixedNetwork(prefix, cfg.Cards, portsOfCard); err == nil {
			err = use(ch.addresses.loopback)
		}
		return err
	}
	ch.addresses.loopback, err = searchNetworks(cfg.LockDir, cfg.Cards, portsOfCard, use)
	return err
}

// ports gives the ports for which is holds, in order of card and number.
func (ch *Chassis) ports(is func(*port) bool) (list []*port) {
	for _, c := range ch.cards {
		for _, p := range c.ports {
			if is(p) {
				list = append(list, p)
			}
		}
	}
	return list
}

// Devices gives the cards by module id. The chassis keeps them.
func (ch *Chassis) Devices() []device.Device {
	list := make([]device.Device, len(ch.cards))
	for i, c := range ch.cards {
		list[i] = c
	}
	return list
}

// Network is the loopback network of the ports; the zero Prefix if none is on
// one.
func (ch *Chassis) Network() netip.Prefix {
	if ch.addresses.loopback == nil {
		return netip.Prefix{}
	}
	return ch.addresses.loopback.prefix
}

// Close closes all cards and lets the network go.
func (ch *Chassis) Close() error {
	var errs []error
	for _, c := range ch.cards {
		errs = append(errs, c.Close())
	}
	if ch.addresses.loopback != nil {
		errs = append(errs, ch.addresses.loopback.close())
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
	info := device.Info{
		ID:           fmt.Sprintf("%s-%d", cfg.Name, module),
		Driver:       "soft",
		Model:        model,
		Serial:       fmt.Sprintf("SOFT%X%02d", sum[:4], module),
		PCIAddress:   fmt.Sprintf("0000:%02x:00.0", 0x10+module),
		ModuleID:     module,
		Topology:     cfg.Map.Name,
		Ports:        len(cfg.Map.Cards[module].Ports),
		MemoryBytes:  cfg.MemoryBytes,
		MemoryBase:   memoryBase + uint64(module)*addressRoom,
		Limits:       cfg.Limits,
		Capabilities: capabilities(cfg),
	}
	if cfg.NICPorts > 0 {
		return nicInfo(cfg, info, sum[:])
	}
	return info
}

func capabilities(cfg *Config) []device.Capability {
	list := []device.Capability{device.CapRC, device.CapUC, device.CapUD, device.CapAtomics, device.CapSetPort, device.CapReset}
	if cfg.Limits.ExportPage > 0 {
		list = append(list, device.CapExport, device.CapMove)
	}
	if cfg.RealDMABufs {
		list = append(list, device.CapMappable)
	}
	if cfg.Import != ImportNone {
		list = append(list, device.CapImport)
	}
	if cfg.Import == ImportDynamic {
		list = append(list, device.CapMoveNotify)
	}
	return list
}
