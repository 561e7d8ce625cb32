package main

import (
	"slices"
	"time"
)

// Trips are round trips: how long half of them and 99 % of them took at most, and
// their mean.
type Trips struct{ P50, P99, Mean time.Duration }

// measure runs once Count times and gives how long those after the warm-up took.
func (e Echo) measure(trips *Trips, once func() error) error {
	took := make([]time.Duration, 0, e.Count)
	for range e.Count {
		start := time.Now()
		if err := once(); err != nil {
			return err
		}
		took = append(took, time.Since(start))
	}
	took = took[e.warmUp():]
	slices.Sort(took)
	var sum time.Duration
	for _, d := range took {
		sum += d
	}
	*trips = Trips{P50: took[len(took)/2], P99: took[len(took)*99/100], Mean: sum / time.Duration(len(took))}
	return nil
}
