package fabric

import (
	"errors"
	"os"
	"testing"
)

// A process is that of a session only if it began then, in the same boot: else
// another has its id.
func TestAProcessIsKnownByItsStartAndBoot(t *testing.T) {
	f := &Fabric{cfg: Config{BootID: "boot"}}
	pid := int32(os.Getpid())
	began, err := ProcessBegan(pid)
	if err != nil {
		t.Fatal(err)
	}
	for what, row := range map[string]struct {
		ask processAsk
		no  bool
	}{
		"itself":        {processAsk{PID: pid, Start: began, BootID: "boot"}, false},
		"another start": {processAsk{PID: pid, Start: began + 1, BootID: "boot"}, true},
		"another boot":  {processAsk{PID: pid, Start: began, BootID: "before"}, true},
	} {
		p, err := f.findProcess(&row.ask)
		if errors.Is(err, errNoProcess) != row.no || err == nil == row.no {
			t.Errorf("%s: %v", what, err)
		}
		if p != nil {
			p.close()
			if err := p.wait(); err == nil {
				t.Errorf("%s: the end of the watch is told as the end of the process", what)
			}
		}
	}
}
