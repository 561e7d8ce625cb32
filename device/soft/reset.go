package soft

import (
	"context"
	"errors"
	"fmt"
)

var errNoMove = fmt.Errorf("moving buffers of a software device: %w", errors.ErrUnsupported)

// Reset implements device.Maintenance.
func (c *card) Reset(context.Context) error {
	return fmt.Errorf("resetting a software device: %w", errors.ErrUnsupported)
}
