package devicetest

import (
	"context"
	"errors"
	"testing"

	"github.com/accelfab/accelfab/device"
)

// counted counts the calls that reach a device.
type counted struct {
	device.Device
	lists, creates int
}

func (c *counted) ListBuffers(context.Context) ([]device.Buffer, error) {
	c.lists++
	return make([]device.Buffer, 1), nil
}

func (c *counted) CreateProtectionDomains(_ context.Context, uids []device.UID) []device.PDResult {
	c.creates++
	return make([]device.PDResult, len(uids))
}

func TestFailing(t *testing.T) {
	ctx := t.Context()
	for _, c := range []struct {
		method         string
		n              int
		strike         Strike
		want           [4]error // of list, create, list, create
		lists, creates int      // that reached the device
		struck         bool
	}{
		{"", 0, Refuse, [4]error{}, 2, 2, false},
		{"ListBuffers", 3, Refuse, [4]error{}, 2, 2, false},
		{"ListBuffers", 2, Refuse, [4]error{2: ErrRefused}, 1, 2, true},
		{"CreateProtectionDomains", 1, Refuse, [4]error{1: ErrRefused}, 2, 1, true},
		{"CreateProtectionDomains", 1, CrashBefore, [4]error{nil, ErrCrashed, ErrCrashed, ErrCrashed}, 1, 0, true},
		{"CreateProtectionDomains", 1, CrashAfter, [4]error{nil, ErrCrashed, ErrCrashed, ErrCrashed}, 1, 1, true},
		{"", 3, CrashAfter, [4]error{2: ErrCrashed, 3: ErrCrashed}, 2, 1, true},
	} {
		below := &counted{}
		f := NewFailing(below, c.method, c.n, c.strike)
		for i, want := range c.want {
			var err error
			if i%2 == 0 {
				var list []device.Buffer
				if list, err = f.ListBuffers(ctx); (len(list) == 0) != (err != nil) {
					t.Errorf("list %v with error %v", list, err)
				}
			} else {
				results := f.CreateProtectionDomains(ctx, make([]device.UID, 3))
				if len(results) != 3 || results[0].Err != results[2].Err {
					t.Fatalf("results %+v", results)
				}
				err = results[0].Err
			}
			if !errors.Is(err, want) || errors.Is(err, device.ErrClosed) != (want == ErrCrashed) {
				t.Errorf("%q %d %v: call %d: error %v, want %v", c.method, c.n, c.strike, i, err, want)
			}
		}
		if below.lists != c.lists || below.creates != c.creates || f.Struck() != c.struck || f.Calls("") != 4 || f.Calls("ListBuffers") != 2 {
			t.Errorf("%q %d %v: %d lists and %d creates reached the device, struck %v, %d calls",
				c.method, c.n, c.strike, below.lists, below.creates, f.Struck(), f.Calls(""))
		}
	}
}
