package host

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/devicetest"
	"github.com/accelfab/accelfab/device/soft"
)

// chassis gives the devices of chassis and NICs, which share lock files.
func chassis(t *testing.T, locks string, specs ...string) []device.Device {
	t.Helper()
	var all []device.Device
	for _, spec := range specs {
		cfg, err := soft.ParseSpec(spec)
		if err != nil {
			if cfg, err = soft.ParseNIC(spec); err != nil {
				t.Fatal(err)
			}
		}
		cfg.LockDir, cfg.NodeID = locks, "n1"
		ch, err := soft.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ch.Close() })
		all = append(all, ch.Devices()...)
	}
	return all
}

// socketIn gives a path for a socket that is short whatever the test is called.
func socketIn(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "host-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "soft.sock")
}

func testBoot(t *testing.T) string {
	t.Helper()
	boot, err := BootID()
	if err != nil {
		t.Fatal(err)
	}
	return boot
}

// started is a host in this process.
type started struct {
	t    *testing.T
	stop context.CancelFunc
	done chan error
}

// end ends the host and waits until it has.
func (s *started) end() error {
	s.stop()
	err := <-s.done
	s.done <- err
	return err
}

// start serves devices at a socket until the test ends.
func start(t *testing.T, socket string, what Served, speaks protocols) *started {
	t.Helper()
	at, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	serving := make(chan struct{})
	what.Serving = func() { close(serving) }
	if what.BootID == "" {
		what.BootID = testBoot(t)
	}
	s := &started{t, cancel, make(chan error, 1)}
	go func() { s.done <- serve(ctx, at, what, speaks) }()
	select {
	case <-serving:
	case err := <-s.done:
		t.Fatal(err)
	}
	t.Cleanup(func() { s.end() })
	return s
}

// through serves devices at a socket and gives them as the daemon sees them.
func through(t *testing.T, devices []device.Device) []device.Device {
	t.Helper()
	socket := socketIn(t)
	start(t, socket, Served{Devices: devices, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}, current)
	far, err := Dial(t.Context(), Config{Socket: socket, BootID: testBoot(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, d := range far {
			d.Close()
		}
	})
	if len(far) != len(devices) {
		t.Fatalf("%d devices, want %d", len(far), len(devices))
	}
	return far
}

// closing is a device of a host that is closed at both ends: the suite holds
// Close to what becomes of the device.
type closing struct {
	device.Device
	inHost device.Device
}

func (c closing) Close() error { return errors.Join(c.Device.Close(), c.inHost.Close()) }

// port gives a port of the class from which packets reach others.
func port(t *testing.T, d device.Device, class device.PortClass) int {
	t.Helper()
	for n := range d.Info().Ports {
		p, err := d.Port(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		if p.Class == class {
			return n
		}
	}
	return -1
}

func TestSuiteThroughAHost(t *testing.T) {
	devicetest.Run(t, func(t *testing.T) devicetest.Pair {
		locks := t.TempDir()
		near := chassis(t, locks, "soft:hls-2,cards=1,memory=64MiB", "soft:hls-2,cards=1,memory=64MiB,name=far")
		far := through(t, near)
		return devicetest.Pair{A: closing{far[0], near[0]}, B: closing{far[1], near[1]}, PortA: port(t, far[0], device.PortScaleOut), PortB: port(t, far[1], device.PortScaleOut),
			NotConnected: port(t, far[0], device.PortNotConnected)}
	})
}

// TestExportsThroughAHost passes descriptors both ways between the processes.
func TestExportsThroughAHost(t *testing.T) {
	for _, importer := range []string{"soft-nic", "soft-nic,import=pinned"} {
		t.Run(importer, func(t *testing.T) {
			devicetest.RunExports(t, func(t *testing.T) devicetest.Peers {
				near := chassis(t, t.TempDir(), "soft:hls-2,cards=1,memory=64MiB", importer, "soft:hls-2,cards=1,memory=64MiB,name=far")
				far := through(t, near)
				return devicetest.Peers{Exporter: closing{far[0], near[0]}, Importer: closing{far[1], near[1]}, Remote: closing{far[2], near[2]},
					PortImporter: port(t, far[1], device.PortScaleOut), PortRemote: port(t, far[2], device.PortScaleOut)}
			})
		})
	}
}
