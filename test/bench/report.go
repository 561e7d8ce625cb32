package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// report is what a run found.
type report struct {
	Machine machine   `json:"machine"`
	Rounds  int       `json:"rounds"`
	Series  []*series `json:"figures"`
	Goals   []goal    `json:"goals"`
	Skipped []string  `json:"skipped,omitempty"`

	group string // that runs now
}

// series is one figure, measured once a round.
type series struct {
	Group  string    `json:"group"`
	Name   string    `json:"name"`
	Unit   string    `json:"unit"`
	Median float64   `json:"median"`
	Values []float64 `json:"rounds"`
}

// goal is a figure or ratio and what it should be.
type goal struct {
	Group  string  `json:"group"`
	Name   string  `json:"name"`
	Unit   string  `json:"unit,omitempty"` // empty for ratios
	Want   float64 `json:"want"`
	AtMost bool    `json:"at_most"` // else at least
	Median float64 `json:"median"`
	Lowest float64 `json:"lowest"`  // of the rounds
	Most   float64 `json:"highest"` // of the rounds
	Met    bool    `json:"met"`
}

// add notes a figure of the present round.
func (r *report) add(name, unit string, value float64) {
	s := r.find(name)
	if s == nil {
		s = &series{Group: r.group, Name: name, Unit: unit}
		r.Series = append(r.Series, s)
	}
	s.Values = append(s.Values, value)
	s.Median = median(s.Values)
}

// find gives a series of the present group, nil if there is none.
func (r *report) find(name string) *series {
	for _, s := range r.Series {
		if s.Group == r.group && s.Name == name {
			return s
		}
	}
	return nil
}

// goalOf compares values, one a round, with what they should be.
func (r *report) goalOf(name, unit string, values []float64, want float64, atMost bool) {
	g := goal{Group: r.group, Name: name, Unit: unit, Want: want, AtMost: atMost, Median: median(values)}
	if len(values) > 0 {
		g.Lowest, g.Most = slices.Min(values), slices.Max(values)
	}
	g.Met = g.Median >= want
	if atMost {
		g.Met = g.Median <= want
	}
	r.Goals = append(r.Goals, g)
}

// over gives the ratio of two series of the present group in each round. The
// figures below are added up.
func (r *report) over(above string, below ...string) []float64 {
	var ratios []float64
	a := r.find(above)
	for i := range a.Values {
		sum := 0.0
		for _, name := range below {
			sum += r.find(name).Values[i]
		}
		ratios = append(ratios, a.Values[i]/sum)
	}
	return ratios
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}

func (r *report) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

func (r *report) writeTable(w io.Writer) error {
	fmt.Fprintf(w, "%s\n%d rounds; median (lowest to highest)\n", r.Machine, r.Rounds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	group := ""
	for _, s := range r.Series {
		if s.Group != group {
			group = s.Group
			fmt.Fprintf(t, "\n%s\t\t\t\n", strings.ToUpper(group))
		}
		fmt.Fprintf(t, "%s\t%s %s\t(%s to %s)\t\n", s.Name, figure(s.Median), s.Unit, figure(slices.Min(s.Values)), figure(slices.Max(s.Values)))
	}
	if len(r.Goals) > 0 {
		fmt.Fprintf(t, "\nGOALS\t\t\t\n")
	}
	for _, g := range r.Goals {
		bound, verdict := "at least", "met"
		if g.AtMost {
			bound = "at most"
		}
		if !g.Met {
			verdict = "MISSED"
		}
		fmt.Fprintf(t, "%s: %s\t%s\t(%s to %s)\t%s %s: %s\n", g.Group, g.Name, withUnit(g.Median, g.Unit), figure(g.Lowest), figure(g.Most),
			bound, withUnit(g.Want, g.Unit), verdict)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "skipped: %s\n", s)
	}
	return nil
}

func withUnit(v float64, unit string) string { return strings.TrimSpace(figure(v) + " " + unit) }

// figure gives three digits, and thousands apart.
func figure(v float64) string {
	if math.Abs(v) < 100 {
		return fmt.Sprintf("%.3g", v)
	}
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
