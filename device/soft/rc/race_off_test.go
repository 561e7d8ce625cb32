//go:build !race

package rc_test

// raceEnabled makes the largest transfers smaller.
const raceEnabled = false
