package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/boltstore"
	pb "github.com/accelfab/accelfab/proto/accelfab/v1"
)

// backup takes a backup as a client does.
func (c *clients) backup() ([]byte, error) {
	stream, err := c.node.BackupNode(context.Background(), &pb.BackupNodeRequest{Name: "nodes/local"})
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return b.Bytes(), nil
		}
		if err != nil {
			return nil, err
		}
		b.Write(r.GetData())
	}
}

// A backup is an operator's, and holds what was recorded.
func TestBackupOfANode(t *testing.T) {
	dir := t.TempDir()
	store, err := boltstore.Open(filepath.Join(dir, "a.db"), boltstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h := openHouse(t, Options{}, fabric.Config{Devices: softDevices(t, device.Limits{}), Store: store})
	h.open("kept", dev0)
	if _, err := h.dial(h.tcp).backup(); asRefused(err).info.Reason != "PERMISSION_DENIED" {
		t.Errorf("by one who is no operator: %v", err)
	}
	data, err := h.dial(h.unix).backup()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "backup")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	report, err := boltstore.Examine(path, boltstore.Options{}, &boltstore.Visitor{Record: func(r fabric.Record) error {
		names[r.Name] = true
		_, err := fabric.DescribeRecord(r)
		return err
	}})
	if err != nil || len(report.Problems) > 0 || !names["nodes/n/sessions/kept"] || !names["nodes/n"] {
		t.Errorf("%+v, %v, %v", report, names, err)
	}
}

func TestAStoreThatCannotBeCopied(t *testing.T) {
	h := newHouse(t)
	if _, err := h.dial(h.unix).backup(); asRefused(err).info.Reason != "UNSUPPORTED" {
		t.Errorf("%v", err)
	}
}
