package soft

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/accelfab/accelfab/device"
)

var errNoExport = fmt.Errorf("exports on a software device: %w", errors.ErrUnsupported)

// CreateExport implements device.Exports.
func (c *card) CreateExport(context.Context, device.ExportSpec) (device.Export, error) {
	return device.Export{}, errNoExport
}

// ListExports implements device.Exports.
func (c *card) ListExports(context.Context) ([]device.Export, error) { return nil, errNoExport }

// OpenExport implements device.Exports.
func (c *card) OpenExport(context.Context, device.UID) (*os.File, error) { return nil, errNoExport }

// FindExport implements device.Exports.
func (c *card) FindExport(context.Context, *os.File) (device.UID, error) {
	return device.UID{}, errNoExport
}

// RevokeExport implements device.Exports.
func (c *card) RevokeExport(context.Context, device.UID) error { return errNoExport }

// DestroyExport implements device.Exports.
func (c *card) DestroyExport(context.Context, device.UID) error { return errNoExport }

// Import implements device.Imports.
func (c *card) Import(context.Context, device.ImportSpec, *os.File) (device.Region, error) {
	return device.Region{}, errNoExport
}

// PeerAccess implements device.Imports.
func (c *card) PeerAccess(context.Context, string) (device.PeerAccess, error) {
	return device.PeerAccess{}, errNoExport
}

// MoveBuffer implements device.Maintenance.
func (c *card) MoveBuffer(context.Context, device.UID) (device.Buffer, error) {
	return device.Buffer{}, fmt.Errorf("moving buffers of a software device: %w", errors.ErrUnsupported)
}

// Reset implements device.Maintenance.
func (c *card) Reset(context.Context) error {
	return fmt.Errorf("resetting a software device: %w", errors.ErrUnsupported)
}
