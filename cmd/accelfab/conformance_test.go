package main

import (
	"fmt"
	"slices"
	"testing"
)

func TestOrders(t *testing.T) {
	all := orders(4)
	seen := map[string]bool{}
	for _, o := range all {
		s := slices.Sorted(slices.Values(o))
		if !slices.Equal(s, []int{0, 1, 2, 3}) {
			t.Errorf("%v", o)
		}
		seen[fmt.Sprint(o)] = true
	}
	if len(all) != 24 || len(seen) != 24 {
		t.Errorf("%d orders, %d of them different", len(all), len(seen))
	}
}
