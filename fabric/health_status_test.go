package fabric

import (
	"testing"
)

func TestStatusOfAll(t *testing.T) {
	const ok, unknown, degraded, failed, none = HealthOK, HealthUnknown, HealthDegraded, HealthFailed, HealthNotApplicable
	type parts = map[string]HealthStatus
	for _, c := range []struct {
		name  string
		parts parts
		node  HealthStatus
	}{
		{"nothing", parts{}, ok},
		{"all well", parts{"store": ok, "cluster": none, "devices/a": ok, "devices/a/ports": ok}, ok},
		{"a clock that nobody knows", parts{"store": ok, "clock": unknown}, ok},
		{"a clock that was set", parts{"store": ok, "clock": degraded}, degraded},
		{"a device not found out yet", parts{"devices/a": unknown, "devices/b": ok}, unknown},
		{"worse than not found out", parts{"devices/a": unknown, "devices/b": degraded}, degraded},
		{"one device of two", parts{"devices/a": failed, "devices/b": ok}, degraded},
		{"all devices", parts{"devices/a": failed, "devices/b": failed, "devices/b/ports": ok}, failed},
		{"all that are known", parts{"devices/a": failed, "devices/b": unknown}, degraded},
		{"the store", parts{"store": failed, "devices/a": ok}, failed},
		{"the store takes no changes", parts{"store": degraded, "devices/a": ok}, degraded},
		{"ports", parts{"devices/a": ok, "devices/a/ports": failed}, degraded},
	} {
		var list []Component
		for n, s := range c.parts {
			list = append(list, Component{Name: n, Status: s, Reason: Reason("OF " + n)})
		}
		got, reason := nodeStatus(list)
		if got != c.node || (reason == "") != (got == ok) {
			t.Errorf("%s: the node is %s %s, want %s", c.name, got, reason, c.node)
		}
	}
	for _, c := range []struct{ device, ports, want HealthStatus }{
		{ok, ok, ok}, {ok, degraded, degraded}, {ok, failed, degraded}, {failed, ok, failed}, {unknown, ok, unknown}, {degraded, unknown, degraded},
	} {
		if got, _ := deviceStatus([]Component{{Name: "devices/a", Status: c.device}, {Name: "devices/a/ports", Status: c.ports}}); got != c.want {
			t.Errorf("a device that is %s with ports that are %s is %s, want %s", c.device, c.ports, got, c.want)
		}
	}
}
