package soft

import (
	"testing"

	"github.com/accelfab/accelfab/device/devicetest"
	"github.com/accelfab/accelfab/device/topology"
)

func TestSuiteOnACable(t *testing.T) {
	devicetest.Run(t, func(t *testing.T) devicetest.Pair {
		a, pa, b, pb := cabledPair(t, openChassis(t, t.TempDir(), testSpec))
		return devicetest.Pair{A: a, B: b, PortA: pa, PortB: pb, NotConnected: notConnected(a)}
	})
}

func TestSuiteBetweenChassis(t *testing.T) {
	devicetest.Run(t, func(t *testing.T) devicetest.Pair {
		dir := t.TempDir()
		a, b := openChassis(t, dir, testSpec).cards[0], openChassis(t, dir, testSpec).cards[0]
		return devicetest.Pair{A: a, B: b, PortA: scaleOut(t, a), PortB: scaleOut(t, b), NotConnected: notConnected(a)}
	})
}

// TestSuiteBehindAFailingDevice shows that Failing changes nothing until it
// strikes.
func TestSuiteBehindAFailingDevice(t *testing.T) {
	devicetest.Run(t, func(t *testing.T) devicetest.Pair {
		a, pa, b, pb := cabledPair(t, openChassis(t, t.TempDir(), testSpec))
		return devicetest.Pair{
			A: devicetest.NewFailing(a, "", 0, devicetest.Refuse), B: devicetest.NewFailing(b, "Close", 1, devicetest.Refuse),
			PortA: pa, PortB: pb, NotConnected: notConnected(a),
		}
	})
}

func notConnected(c *card) int {
	for _, p := range c.ports {
		if p.wiring.Class == topology.NotConnected {
			return p.number
		}
	}
	return -1
}

// TestExports holds chassis and NICs to the rules of exporters and importers.
func TestExports(t *testing.T) {
	open := func(importer func(dir string, near *Chassis) *card) func(t *testing.T) devicetest.Peers {
		return func(t *testing.T) devicetest.Peers {
			dir := t.TempDir()
			near, far := openChassis(t, dir, testSpec), openChassis(t, dir, "soft:hls-2,cards=1,memory=64MiB,name=far").cards[0]
			c := importer(dir, near)
			return devicetest.Peers{Exporter: near.cards[0], Importer: c, Remote: far, PortImporter: scaleOut(t, c), PortRemote: scaleOut(t, far)}
		}
	}
	t.Run("NIC", func(t *testing.T) {
		devicetest.RunExports(t, open(func(dir string, _ *Chassis) *card { return openNIC(t, dir, "soft-nic") }))
	})
	t.Run("pinning NIC", func(t *testing.T) {
		devicetest.RunExports(t, open(func(dir string, _ *Chassis) *card { return openNIC(t, dir, "soft-nic,import=pinned") }))
	})
	t.Run("neighbour", func(t *testing.T) {
		devicetest.RunExports(t, open(func(_ string, near *Chassis) *card { return near.cards[1] }))
	})
	t.Run("itself", func(t *testing.T) {
		devicetest.RunExports(t, open(func(_ string, near *Chassis) *card { return near.cards[0] }))
	})
}
