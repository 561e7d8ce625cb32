//go:build !linux

package server

import (
	"errors"
	"net"
	"os"
)

func (p *packet) receive(*net.UnixConn) error { return errors.ErrUnsupported }

func send(*net.UnixConn, []byte, *os.File) error { return errors.ErrUnsupported }
