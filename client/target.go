package client

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// DefaultTarget is the daemon that is meant when none is named: the environment
// variable ACCELFAB_SERVER, else the socket in the run directory that accelfabd
// has by default for this user.
func DefaultTarget() string {
	if s := os.Getenv("ACCELFAB_SERVER"); s != "" {
		return s
	}
	return DefaultSocket()
}

// DefaultSocket is the target of the daemon that this user runs with defaults.
func DefaultSocket() string {
	return "unix://" + filepath.Join(runDir(os.Getuid(), os.Getenv("XDG_RUNTIME_DIR")), "accelfabd.sock")
}

func runDir(uid int, runtimeDir string) string {
	switch {
	case uid == 0:
		return "/run/accelfab"
	case runtimeDir != "":
		return filepath.Join(runtimeDir, "accelfab")
	}
	return filepath.Join(os.TempDir(), "accelfab-"+strconv.Itoa(uid))
}

// address turns a target into what gRPC takes.
func address(target string) (string, error) {
	if strings.HasPrefix(target, "unix:") {
		if path, ok := strings.CutPrefix(target, "unix://"); !ok || !filepath.IsAbs(path) {
			return "", fmt.Errorf("server %q: want an absolute path, as in unix:///run/accelfab/accelfabd.sock", target)
		}
		return target, nil
	}
	hostPort := strings.TrimPrefix(target, "tcp://")
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil || host == "" || port == "" {
		return "", fmt.Errorf("server %q: want unix:///path or host:port", target)
	}
	return "passthrough:///" + hostPort, nil
}
