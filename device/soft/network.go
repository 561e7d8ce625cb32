package soft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// searchNetwork is where a chassis without a network of its own looks for one.
// All of 127.0.0.0/8 is local on Linux, without set-up.
var searchNetwork = netip.MustParsePrefix("127.64.0.0/10")

// errHeld says that another process holds a network.
var errHeld = errors.New("held by another process")

// network is a network inside 127.0.0.0/8 for the ports of one chassis: the port
// of a card has the address base + 1 + card*ports + port.
type network struct {
	prefix netip.Prefix
	cards  int
	ports  int // of a card
	locks  []*os.File
}

// address of a port.
func (n *network) address(card, port int) netip.Addr {
	return addAddr(n.prefix.Addr(), uint32(1+card*n.ports+port))
}

// owns reports whether an address is one of a port of the chassis.
func (n *network) owns(a netip.Addr) bool {
	return n.prefix.Addr().Less(a) && a.Less(n.address(n.cards, 0))
}

// addresses is all that the ports of a chassis have.
type addresses struct {
	loopback *network            // nil if no port is on one
	dealt    map[netip.Addr]bool // of interfaces, without zones
}

// owns reports whether an address is one of a port of the chassis.
func (a *addresses) owns(addr netip.Addr) bool {
	return a.loopback != nil && a.loopback.owns(addr) || a.dealt[addr]
}

// close lets another process have the network.
func (n *network) close() error {
	var errs []error
	for _, f := range n.locks {
		errs = append(errs, f.Close())
	}
	n.locks = nil
	return errors.Join(errs...)
}

func addAddr(a netip.Addr, n uint32) netip.Addr {
	b := a.As4()
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(b[:])+n)))
}

// prefixBits is the length of the smallest network, at most a /24, that holds
// an address for each port beside its first and last.
func prefixBits(cards, ports int) int {
	return min(24, 32-bits.Len(uint(cards*ports+1)))
}

// fixedNetwork is a network that the operator gave.
func fixedNetwork(prefix netip.Prefix, cards, ports int) (*network, error) {
	if need := cards*ports + 2; prefix.Bits() > 30 || 1<<(32-prefix.Bits()) < need {
		return nil, fmt.Errorf("network %v: %d cards of %d ports need a network of %d addresses, a /%d",
			prefix, cards, ports, need, 32-bits.Len(uint(need-1)))
	}
	return &network{prefix: prefix.Masked(), cards: cards, ports: ports}, nil
}

// searchNetworks tries the networks of searchNetwork, lowest first, until use
// succeeds on one that no other process holds. A lock file in dir for each /24
// says who holds it; it is let go when the process ends, in whatever way. use
// answers errHeld for a network that turned out to be taken.
func searchNetworks(dir string, cards, ports int, use func(*network) error) (*network, error) {
	// Users of one machine share the folder as they share /tmp.
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("lock folder: %w", err)
	}
	if filepath.Clean(dir) == defaultLockDir() {
		if err := os.Chmod(dir, os.ModeSticky|0o777); err != nil && !errors.Is(err, os.ErrPermission) {
			return nil, fmt.Errorf("lock folder: %w", err)
		}
	}
	length := prefixBits(cards, ports)
	step := uint32(1) << (32 - length)
	base := searchNetwork.Addr()
	for ; searchNetwork.Contains(base); base = addAddr(base, step) {
		n := &network{prefix: netip.PrefixFrom(base, length), cards: cards, ports: ports}
		err := n.lock(dir)
		if err == nil {
			err = use(n)
		}
		if err == nil {
			return n, nil
		}
		n.close()
		if !errors.Is(err, errHeld) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("no /%d of %v is free: the lock files in %s say who holds them; or give a network", length, searchNetwork, dir)
}

func (n *network) lock(dir string) error {
	for base := n.prefix.Addr(); n.prefix.Contains(base); base = addAddr(base, 256) {
		f, err := lockFile(filepath.Join(dir, strings.ReplaceAll(base.String(), ".", "-")+".lock"))
		if err != nil {
			return fmt.Errorf("network %v: %w", n.prefix, err)
		}
		n.locks = append(n.locks, f)
	}
	return nil
}

func defaultLockDir() string { return filepath.Join(os.TempDir(), "accelfab-networks") }
