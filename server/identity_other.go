//go:build !linux

package server

import (
	"errors"
	"fmt"
	"net"

	"github.com/accelfab/accelfab/fabric"
)

// peerOf cannot tell here: only Linux is asked.
func peerOf(*net.UnixConn) (fabric.Caller, error) {
	return fabric.Caller{}, fmt.Errorf("peer of a unix socket: %w", errors.ErrUnsupported)
}
