package ib

import (
	"testing"
	"time"
)

// rnrMilliseconds are the delays by code as the specification prints them.
var rnrMilliseconds = [32]float64{
	655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
	2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
}

func TestRNRTimer(t *testing.T) {
	for i, ms := range rnrMilliseconds {
		code := uint8(i)
		want := time.Duration(ms*100+0.5) * 10 * time.Microsecond
		if got := RNRTimer(code); got != want || RNRTimer(code|0xe0) != want {
			t.Errorf("code %d is %v, want %v", code, got, want)
		}
	}
}

func TestAckTimeout(t *testing.T) {
	for code, want := range map[uint8]time.Duration{
		0: 0, 1: 8192, 14: 67108864, 18: 1073741824, 31: 8796093022208, 32 + 14: 67108864,
	} {
		if got := AckTimeout(code); got != want {
			t.Errorf("code %d is %v, want %v", code, got, want)
		}
	}
}
