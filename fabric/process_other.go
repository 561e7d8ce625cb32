//go:build !linux

package fabric

import "errors"

func openProcess(int32) (proc, error) { return nil, errors.ErrUnsupported }

// ProcessBegan is told on Linux alone.
func ProcessBegan(int32) (uint64, error) { return 0, errors.ErrUnsupported }

func commandOf(int32, bool) string { return "" }
