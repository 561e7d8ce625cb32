package fabric_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/fabric"
)

// late is a world whose second daemon begins without its devices.
func (w *world) late() []device.Device {
	w.t.Helper()
	w.close()
	w.mem = w.mem.Reopen()
	cfg := w.config(w.mem)
	devices := cfg.Devices
	cfg.Devices = nil
	w.f = must(fabric.Open(ctx(), cfg))
	return devices
}

// S12: a device that comes while the daemon serves is compared with what records say
// of it, and can be used, without a restart.
func TestS12DevicesComeLate(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for _, c := range w.cards {
			c.info.Serial = "serial " + c.info.ID
		}
		w.restart(false)
		w.full()
		qpn := w.getQP("q").Local.QPN
		devices := w.late()
		if d := must(w.f.GetDevice(ctx(), root, d0)); d.Health.Status != fabric.HealthFailed {
			t.Errorf("a device that is not there: %+v", d.Health)
		}
		_, err := w.f.CreateBuffer(ctx(), alice, fabric.CreateBuffer{Create: fabric.Create{Parent: d0}, Session: sessionS, Size: 4096})
		refused(t, err, fabric.DeviceUnavailable, "")
		w.cards[1].info.ID = "new" // by another name: it is known by its serial number
		must(0, w.f.AddDevices(devices[1:]))
		must(0, w.f.AddDevices(devices[:1]))
		pass(1)
		w.onDevice(1, 1, 1, 1)
		if q := w.getQP("q"); q.State != fabric.StateReady || q.Local.QPN != qpn {
			t.Errorf("%+v", q)
		}
		for _, name := range []string{d0, "nodes/n1/devices/d1"} {
			if d := must(w.f.GetDevice(ctx(), root, name)); d.Health.Status != fabric.HealthOK {
				t.Errorf("%s: %+v", name, d.Health)
			}
			w.told(t, name, "system", fabric.CauseDevice, "has come")
		}
		w.buffer("b2", sessionS, 4096)
		// Twice is once too often, and changes nothing.
		refused(t, w.f.AddDevices(devices[:1]), fabric.FieldInvalid, "devices")
		w.cards[1].info.ID = "d1"
		w.restart(false) // what came is recorded
		w.onDevice(1, 2, 1, 1)
	})
}

// A device that no record knows comes too, and what a closed fabric is given stays
// the caller's.
func TestAnUnknownDeviceComes(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.close()
		w.mem = w.mem.Reopen()
		cfg := w.config(w.mem)
		second := cfg.Devices[1]
		cfg.Devices = cfg.Devices[:1]
		w.f = must(fabric.Open(ctx(), cfg))
		must(0, w.f.AddDevices([]device.Device{second}))
		pass(1)
		s := must(w.f.CreateSession(ctx(), alice, fabric.CreateSession{Create: fabric.Create{Parent: "nodes/n1", ID: "s"}, Devices: []string{"nodes/n1/devices/d1"}, Exclusive: true}))
		must(w.f.CreateBuffer(ctx(), alice, fabric.CreateBuffer{Create: fabric.Create{Parent: "nodes/n1/devices/d1"}, Session: s.Name, Size: 4096}))
		if n := len(must(w.f.ListPorts(ctx(), root, fabric.List{Parent: "nodes/n1/devices/-", PageSize: 1000}, nil)).Items); n != w.cards[0].info.Ports+w.cards[1].info.Ports {
			t.Errorf("%d ports", n)
		}
	})
}

// Who reads while devices come sees them or not, and nothing half of them.
func TestReadsWhileDevicesCome(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for _, c := range w.cards {
			c.info.Serial = "serial " + c.info.ID
		}
		w.restart(false)
		devices := w.late()
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for _, read := range []func() error{
			func() error {
				_, err := w.f.ListPorts(ctx(), root, fabric.List{Parent: "nodes/n1/devices/-", PageSize: 1000}, nil)
				return err
			},
			func() error { _, err := w.f.Topology(ctx(), root); return err },
			func() error {
				_, err := w.f.PickDevices(ctx(), root, fabric.PickDevices{Count: 1, AllowDegraded: true})
				if errors.Is(err, fabric.Exhausted) {
					err = nil
				}
				return err
			},
			func() error {
				_, err := w.f.GetPort(ctx(), root, d0+"/ports/0")
				if errors.Is(err, fabric.NotFound) {
					err = nil
				}
				return err
			},
			func() error { _, err := w.f.ListDevices(ctx(), root, fabric.List{Parent: "nodes/n1"}, nil); return err },
		} {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if err := read(); err != nil {
						t.Error(err)
						return
					}
					<-time.After(time.Microsecond)
				}
			})
		}
		for i := range devices {
			pass(time.Millisecond)
			must(0, w.f.AddDevices(devices[i:i+1]))
		}
		pass(time.Millisecond)
		close(stop)
		wg.Wait()
	})
}
