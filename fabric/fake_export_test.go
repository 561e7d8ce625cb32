package fabric_test

import (
	"context"
	"errors"
	"os"

	"github.com/accelfab/accelfab/device"
)

// The fake card exports and imports nothing.

func (c *card) CreateExport(context.Context, device.ExportSpec) (device.Export, error) {
	return device.Export{}, errors.ErrUnsupported
}
func (c *card) ListExports(context.Context) ([]device.Export, error) {
	return nil, errors.ErrUnsupported
}
func (c *card) OpenExport(context.Context, device.UID) (*os.File, error) {
	return nil, errors.ErrUnsupported
}
func (c *card) FindExport(context.Context, *os.File) (device.UID, error) {
	return device.UID{}, errors.ErrUnsupported
}
func (c *card) RevokeExport(context.Context, device.UID) error  { return errors.ErrUnsupported }
func (c *card) DestroyExport(context.Context, device.UID) error { return errors.ErrUnsupported }
func (c *card) Import(context.Context, device.ImportSpec, *os.File) (device.Region, error) {
	return device.Region{}, errors.ErrUnsupported
}
func (c *card) PeerAccess(context.Context, string) (device.PeerAccess, error) {
	return device.PeerAccess{}, errors.ErrUnsupported
}
func (c *card) MoveBuffer(context.Context, device.UID) (device.Buffer, error) {
	return device.Buffer{}, errors.ErrUnsupported
}
func (c *card) Reset(context.Context) error { return errors.ErrUnsupported }
