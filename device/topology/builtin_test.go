package topology

import (
	"errors"
	"testing"
)

func TestBuiltinMapsPassCheck(t *testing.T) {
	for _, name := range Names() {
		m, err := Lookup(name)
		if m == nil {
			t.Errorf("Lookup(%q): %v", name, err)
			continue
		}
		if unknown := name == "hls-1"; errors.Is(err, ErrPeersUnknown) != unknown || (err != nil) != unknown {
			t.Errorf("Lookup(%q): %v", name, err)
		}
	}
}
