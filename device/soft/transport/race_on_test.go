//go:build race

package transport_test

// raceEnabled makes the largest transfers smaller.
const raceEnabled = true
