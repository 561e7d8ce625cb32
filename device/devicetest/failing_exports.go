package devicetest

import (
	"context"
	"os"

	"github.com/accelfab/accelfab/device"
)

// CreateExport passes on, or strikes.
func (f *Failing) CreateExport(ctx context.Context, spec device.ExportSpec) (device.Export, error) {
	return one(f, "CreateExport", func() (device.Export, error) { return f.Device.CreateExport(ctx, spec) })
}

// ListExports passes on, or strikes.
func (f *Failing) ListExports(ctx context.Context) ([]device.Export, error) {
	return one(f, "ListExports", func() ([]device.Export, error) { return f.Device.ListExports(ctx) })
}

// OpenExport passes on, or strikes. A descriptor that nobody is told of is closed.
func (f *Failing) OpenExport(ctx context.Context, uid device.UID) (*os.File, error) {
	var opened *os.File
	file, err := one(f, "OpenExport", func() (*os.File, error) {
		var err error
		opened, err = f.Device.OpenExport(ctx, uid)
		return opened, err
	})
	if file == nil && opened != nil {
		opened.Close()
	}
	return file, err
}

// FindExport passes on, or strikes.
func (f *Failing) FindExport(ctx context.Context, file *os.File) (device.UID, error) {
	return one(f, "FindExport", func() (device.UID, error) { return f.Device.FindExport(ctx, file) })
}

// RevokeExport passes on, or strikes.
func (f *Failing) RevokeExport(ctx context.Context, uid device.UID) error {
	return plain(f, "RevokeExport", func() error { return f.Device.RevokeExport(ctx, uid) })
}

// DestroyExport passes on, or strikes.
func (f *Failing) DestroyExport(ctx context.Context, uid device.UID) error {
	return plain(f, "DestroyExport", func() error { return f.Device.DestroyExport(ctx, uid) })
}

// Import passes on, or strikes.
func (f *Failing) Import(ctx context.Context, spec device.ImportSpec, file *os.File) (device.Region, error) {
	return one(f, "Import", func() (device.Region, error) { return f.Device.Import(ctx, spec, file) })
}

// PeerAccess passes on, or strikes.
func (f *Failing) PeerAccess(ctx context.Context, exporter string) (device.PeerAccess, error) {
	return one(f, "PeerAccess", func() (device.PeerAccess, error) { return f.Device.PeerAccess(ctx, exporter) })
}

// MoveBuffer passes on, or strikes.
func (f *Failing) MoveBuffer(ctx context.Context, uid device.UID) (device.Buffer, error) {
	return one(f, "MoveBuffer", func() (device.Buffer, error) { return f.Device.MoveBuffer(ctx, uid) })
}

// Reset passes on, or strikes.
func (f *Failing) Reset(ctx context.Context) error {
	return plain(f, "Reset", func() error { return f.Device.Reset(ctx) })
}
