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
