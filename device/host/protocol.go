package host

import (
	"errors"
	"fmt"
)

// protocols is a range of versions of the contract.
type protocols struct{ min, max uint32 }

// current is what this build speaks: the newest version, and the one before it,
// so that either side may be upgraded first.
var current = protocols{min: 1, max: 1}

// ErrVersion is what errors.Is finds when two sides speak no version in common.
var ErrVersion = errors.New("no version of the device contract in common")

// agree gives the newest version that both speak. The error names both sides.
func agree(us protocols, ourVersion string, them protocols, theirVersion string) (uint32, error) {
	if v := min(us.max, them.max); v >= max(us.min, them.min) && v > 0 {
		return v, nil
	}
	return 0, fmt.Errorf("%w: this program (%s) speaks %v, the other side (%s) %v; versions may be one apart: upgrade the older one",
		ErrVersion, ourVersion, us, theirVersion, them)
}

func (p protocols) String() string {
	if p.min == p.max {
		return fmt.Sprintf("version %d", p.max)
	}
	return fmt.Sprintf("versions %d to %d", p.min, p.max)
}
