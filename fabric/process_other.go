//go:build !linux

package fabric

import "errors"

func openProcess(int32) (proc, error) { return nil, errors.ErrUnsupported }

func commandOf(int32, bool) string { return "" }
