package soft

import (
	"context"

	"github.com/accelfab/accelfab/device"
)

// MoveBuffer implements device.Maintenance.
func (c *card) MoveBuffer(context.Context, device.UID) (device.Buffer, error) {
	return device.Buffer{}, errNoMove
}
