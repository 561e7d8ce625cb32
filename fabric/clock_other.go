//go:build !linux

package fabric

import "errors"

// clockSynchronized is not known here.
func clockSynchronized() (bool, error) { return false, errors.ErrUnsupported }
