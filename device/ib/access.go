package ib

import (
	"errors"
	"fmt"
	"strings"
)

// Access is what may be done with a memory region, or what a queue pair lets
// its peer do, with the bits of the verbs (enum ib_access_flags). Local read is
// always granted.
type Access uint8

// The access flags.
const (
	LocalWrite   Access = 1 << 0
	RemoteWrite  Access = 1 << 1
	RemoteRead   Access = 1 << 2
	RemoteAtomic Access = 1 << 3
)

var accessNames = [...]string{"LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC"}

// String names the flags as the verbs do, joined by |; none is "0".
func (a Access) String() string {
	if a == 0 {
		return "0"
	}
	var names []string
	for i, name := range accessNames {
		if a&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	if rest := a >> len(accessNames) << len(accessNames); rest != 0 {
		names = append(names, fmt.Sprintf("%#x", uint8(rest)))
	}
	return strings.Join(names, "|")
}

// CheckRegion says whether a memory region may have this access: a peer can
// write or do atomics only where the owner can write (ib_check_mr_access in
// include/rdma/ib_verbs.h), and no other bits may be set.
func (a Access) CheckRegion() error {
	if a>>len(accessNames) != 0 {
		return fmt.Errorf("access %v has unknown flags", a)
	}
	if a&(RemoteWrite|RemoteAtomic) != 0 && a&LocalWrite == 0 {
		return errors.New("access REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE too")
	}
	return nil
}
