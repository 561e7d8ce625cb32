package fabric

import "fmt"

// nodeLife is one life of the daemon, from its start to its end. What a start is
// (the first, a restart, a reboot of the machine, an upgrade) is told by comparing
// it with the life before.
type nodeLife struct {
	BootID   string `cbor:"0,keyasint"`
	Instance string `cbor:"1,keyasint"`
	Version  string `cbor:"2,keyasint"`
}

// after says for people what the start of this life is.
func (n *nodeLife) after(old *nodeLife) string {
	text := "accelfabd " + n.Version + " started"
	switch {
	case old == nil:
		return text + " for the first time on this store"
	case old.BootID != n.BootID:
		text += ": the machine was booted since, so that what was on devices is gone"
	default:
		text += fmt.Sprintf(": the daemon was started again after instance %s, on the same boot", old.Instance)
	}
	if old.Version != n.Version {
		text += "; its version before was " + old.Version
	}
	return text
}
