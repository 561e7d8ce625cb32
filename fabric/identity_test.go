package fabric

import (
	"slices"
	"strings"
	"testing"

	"github.com/accelfab/accelfab/device"
)

// S02: a device is known by its serial number, or where it tells none by its place,
// and never by what it calls itself alone.
func TestS02DevicesAreKnownByTheirSerialNumbers(t *testing.T) {
	mark := func(serial, pci string, module int) deviceMark {
		return deviceMark{Driver: "d", Serial: serial, PCI: pci, Module: module}
	}
	dev := func(id, serial, pci string, module int) device.Info {
		return device.Info{ID: id, Driver: "d", Serial: serial, PCIAddress: pci, ModuleID: module}
	}
	known := map[string]deviceMark{"a": mark("1", "01:0", 0), "b": mark("2", "02:0", 1), "c": mark("", "03:0", 2)}
	for what, row := range map[string]struct {
		devices []device.Info
		want    []string
		told    int
	}{
		"as they were":                           {[]device.Info{dev("a", "1", "01:0", 0), dev("b", "2", "02:0", 1), dev("c", "", "03:0", 2)}, []string{"a", "b", "c"}, 0},
		"in another slot":                        {[]device.Info{dev("a", "1", "07:0", 0)}, []string{"a"}, 0},
		"renumbered":                             {[]device.Info{dev("a", "2", "02:0", 1), dev("b", "1", "01:0", 0)}, []string{"b", "a"}, 2},
		"renamed":                                {[]device.Info{dev("x", "1", "01:0", 0)}, []string{"a"}, 1},
		"renamed, known by place":                {[]device.Info{dev("x", "", "03:0", 2)}, []string{"c"}, 1},
		"another in its place":                   {[]device.Info{dev("a", "9", "01:0", 0)}, []string{"a-2"}, 1},
		"another in its place, and it elsewhere": {[]device.Info{dev("a", "9", "01:0", 0), dev("b", "1", "02:0", 1)}, []string{"a-2", "a"}, 2},
		"of another driver":                      {[]device.Info{{ID: "a", Driver: "e", Serial: "1"}}, []string{"a-2"}, 1},
		"a new one":                              {[]device.Info{dev("n", "5", "05:0", 5)}, []string{"n"}, 0},
	} {
		ids, told := identify(known, row.devices)
		if !slices.Equal(ids, row.want) || len(told) != row.told {
			t.Errorf("%s: %v, told %q; want %v", what, ids, told, row.want)
		}
	}
	bare := map[string]deviceMark{"a": mark("", "", 0)}
	if ids, _ := identify(bare, []device.Info{dev("x", "", "", 0), dev("a", "", "", 0)}); !slices.Equal(ids, []string{"x", "a"}) {
		t.Errorf("with neither serial number nor place: %v", ids)
	}
	if ids, told := identify(nil, []device.Info{dev("a", "1", "01:0", 0)}); ids[0] != "a" || len(told) != 0 {
		t.Errorf("a first start: %v, %q", ids, told)
	}
}

// Devices that cannot be told apart are refused, by their names.
func TestTwoDevicesOfOneSerialNumber(t *testing.T) {
	one := device.Info{ID: "a", Driver: "d", Serial: "1", PCIAddress: "01:0"}
	for what, row := range map[string]struct {
		other device.Info
		bad   bool
	}{
		"the same serial number":   {device.Info{ID: "b", Driver: "d", Serial: "1", PCIAddress: "02:0"}, true},
		"no number and its place":  {device.Info{ID: "b", Driver: "d", PCIAddress: "01:0"}, true},
		"another driver":           {device.Info{ID: "b", Driver: "e", Serial: "1", PCIAddress: "01:0"}, false},
		"another number":           {device.Info{ID: "b", Driver: "d", Serial: "2", PCIAddress: "01:0"}, false},
		"neither number nor place": {device.Info{ID: "b", Driver: "d"}, false},
	} {
		err := distinct("Open", []device.Info{{ID: "x", Driver: "d"}, one, row.other})
		if (err != nil) != row.bad {
			t.Errorf("%s: %v", what, err)
		}
		if err != nil && !strings.Contains(err.Error(), "a and b cannot be told apart") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
