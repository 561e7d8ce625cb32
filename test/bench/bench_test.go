package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if childMain() {
		return
	}
	os.Exit(m.Run())
}

// TestEveryGroupMeasures runs each group for a moment and looks for a positive
// figure in every row. What the figures are says nothing here.
func TestEveryGroupMeasures(t *testing.T) {
	// Rows that may be 0 or, of few queue pairs, below: what is lost, sent
	// again, taken out of memory that was there, or told in coarse steps.
	mayBeZero := []string{manyLostName, plainLostName, againName, resentName, "accelfabd idle: resident memfds", costName, processorName, leftName, othersName}
	want := map[string][]string{
		"qp": {"write of 4 KiB and fdatasync, blocks there: p50", p50(durableName), p50(bareName), p50(updateName), p50(fullName), p50(singleName),
			withCallers(healthName, 1), withCallers(healthName, 64),
			withCallers(durableName, 64), withCallers(bareName, 64), withCallers(fullName, 64), withCallers(groupName, 64), withCallers(updateName, 64),
			inBatches(durableName, 1), inBatches(bareName, 4), inBatches(fullName, 1)},
		"transfer": {writeName, readName, manyName, plainName},
		"latency":  {writeTripName + ": p50", sendTripName + ": p99", echoTripName + ": p99"},
		"loss":     {cleanName, lossName, stallName},

		"libfabric": {sendHalfName, sendMiBName},
		"memory":    {idleName, costName},
		"scale":     {scaleName},
		"leases":    {restartName(200), victimName(1), leftName},
		"wear":      {freshWriteName, wornWriteName, wornRatioName, wornSizeName},
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			var out bytes.Buffer
			if err := run(t.Context(), []string{"-quick", "-o", "json", "-dir", t.TempDir(), "-run", g.name}, &out, os.Stderr); err != nil {
				t.Fatal(err)
			}
			var r report
			if err := json.Unmarshal(out.Bytes(), &r); err != nil {
				t.Fatal(err)
			}
			r.group = g.name
			for _, name := range want[g.name] {
				if r.find(name) == nil {
					t.Errorf("no row %q", name)
				}
			}
			for _, s := range r.Series {
				zero := false
				for _, name := range mayBeZero {
					zero = zero || s.Name == name
				}
				if s.Group != g.name || len(s.Values) != 1 || math.IsInf(s.Median, 0) || s.Median <= 0 && !zero {
					t.Errorf("row %+v", *s)
				}
			}
			if len(r.Goals) == 0 && g.name != "libfabric" {
				t.Error("no goals")
			}
		})
	}
}

func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"-run qp,tea":   "the groups are",
		"-o yaml":       "table or json",
		"-conns 0":      "-conns",
		"-window 0s":    "-window",
		"now":           "unexpected argument",
		"-dir /no/such": "/no/such",
	} {
		err := run(t.Context(), strings.Fields(args), new(bytes.Buffer), new(bytes.Buffer))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("bench %s: %v, want an error with %q", args, err, want)
		}
	}
}

func TestGoalsAreMediansOfRatios(t *testing.T) {
	r := report{group: "g"}
	for _, v := range []float64{10, 20, 90} {
		r.add("above", "/s", v)
	}
	for _, v := range []float64{10, 10, 30} {
		r.add("below", "/s", v)
	}
	r.goalOf("at least", "", r.over("above", "below"), 2, false)
	r.goalOf("at most", "", r.over("above", "below"), 1.9, true)
	r.goalOf("of a sum", "", r.over("above", "below", "below"), 1, false)
	if g := r.Goals[0]; g.Median != 2 || g.Lowest != 1 || g.Most != 3 || !g.Met {
		t.Errorf("%+v", g)
	}
	if g := r.Goals[1]; g.Met {
		t.Errorf("%+v", g)
	}
	if g := r.Goals[2]; g.Median != 1 || !g.Met {
		t.Errorf("%+v", g)
	}
	var out strings.Builder
	if err := r.writeTable(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"at least 2: met", "at most 1.9: MISSED", "(10 to 90)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("table has no %q:\n%s", want, out.String())
		}
	}
}

func TestFigures(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.1234: "0.123", 12.34: "12.3", 999.6: "1,000", 123456: "123,456", 1234567: "1,234,567", -1234: "-1,234"} {
		if got := figure(v); got != want {
			t.Errorf("figure(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestLoadStopsAtTheFirstError(t *testing.T) {
	broken := errors.New("broken")
	_, err := load(t.Context(), 4, time.Minute, 1<<30, func(ctx context.Context, caller int) error {
		if caller == 2 {
			return broken
		}
		<-ctx.Done()
		return ctx.Err()
	})
	if err != broken {
		t.Errorf("got %v, want the error that ended it", err)
	}
}

func TestLoadStopsAfterItsCalls(t *testing.T) {
	o, err := load(t.Context(), 3, time.Minute, 100, func(context.Context, int) error { return nil })
	if err != nil || o.calls != 100 {
		t.Errorf("%d calls, %v; want 100", o.calls, err)
	}
}
