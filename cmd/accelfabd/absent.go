package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/device/host"
	"github.com/accelfab/accelfab/fabric"
)

// absentHost is a device host that could not be reached or started when the daemon
// began to serve: its driver may not be loaded yet.
type absentHost struct {
	name string
	dial func(context.Context) ([]device.Device, error)
	err  error // of the last attempt
}

// final says whether a host is there and must not be used: that is for somebody to
// look at, now.
func final(err error) bool {
	return errors.Is(err, host.ErrSpec) || errors.Is(err, host.ErrBoot) || errors.Is(err, host.ErrVersion) || errors.Is(err, host.ErrStranger)
}

// The pauses between attempts are doubled, from the first to the last.
const (
	firstAbsence = 500 * time.Millisecond
	lastAbsence  = 10 * time.Second
)

// await tries to reach the host until that succeeds or ctx ends, and has the fabric
// take its devices in. Meanwhile the node is not well, and says why.
func (a *absentHost) await(ctx context.Context, fab *fabric.Fabric, log *slog.Logger) {
	component := "hosts/" + a.name
	for pause := firstAbsence; ; pause = min(2*pause, lastAbsence) {
		fab.SetFault(component, "absent", fabric.Fault{Status: fabric.HealthFailed, Reason: fabric.DeviceUnavailable,
			Message: "device host " + a.name + " cannot be reached or started, so that its devices are missing: " + a.err.Error() + "; it is tried again by itself"})
		log.Warn("device host is missing", "host", a.name, "error", a.err, "pause", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		devices, err := a.dial(ctx)
		if err == nil {
			if err = fab.AddDevices(devices); err != nil {
				err = errors.Join(err, closeDevices(devices))
			}
		}
		if err == nil {
			fab.ClearFault(component, "absent")
			log.Info("devices have come", "host", a.name, "devices", len(devices))
			return
		}
		a.err = err
	}
}
