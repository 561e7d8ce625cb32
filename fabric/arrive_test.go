package fabric_test

import (
	"testing"

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
