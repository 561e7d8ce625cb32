package server

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/accelfab/accelfab/client"
	"github.com/accelfab/accelfab/device"
	"github.com/accelfab/accelfab/fabric"
	"github.com/accelfab/accelfab/fabric/boltstore"
)

// backupFrom takes a backup by the client.
func backupFrom(t *testing.T, target string) ([]byte, error) {
	t.Helper()
	c, err := client.Dial(target)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var b bytes.Buffer
	n, err := c.Backup(context.Background(), &b)
	if err == nil && n != int64(b.Len()) {
		t.Errorf("%d bytes told, %d given", n, b.Len())
	}
	return b.Bytes(), err
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
	if _, err := backupFrom(t, h.tcp); asRefused(err).info.Reason != "PERMISSION_DENIED" {
		t.Errorf("by one who is no operator: %v", err)
	}
	data, err := backupFrom(t, h.unix)
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
	if _, err := backupFrom(t, h.unix); asRefused(err).info.Reason != "UNSUPPORTED" {
		t.Errorf("%v", err)
	}
}
